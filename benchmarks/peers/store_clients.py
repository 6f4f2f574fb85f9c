"""Download objects to files with one client, for `benchmarks.throughput.store_reads`.

    request     {"client": "boto3", "bucket": "cloudload", "folder": ...}
    question    {"keys": [...], "at_once": 4}
    answer      {"bytes": ..., "wall": ..., "cpu": ...}

Each client downloads as its documentation recommends, with its default options. This module needs
only the standard library, because clients may run in separate environments.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.harness import Message, Take, UnavailableError, serve

Download = Callable[[str, Path], object]
"""A client's function that downloads the object with a given key to a file."""
CHUNK_BYTES = 1 << 20


def cloudload_download(bucket: str, scheme: str) -> Download:
    from cloudload.data.storage.locations import Location

    def download(key: str, path: Path) -> None:
        with path.open("wb") as file:
            Location(f"{scheme}://{bucket}/{key}").download(file)

    return download


def cloudload_s3(bucket: str) -> Download:
    return cloudload_download(bucket, "s3")


def cloudload_gcs(bucket: str) -> Download:
    return cloudload_download(bucket, "gs")


def boto3_s3(bucket: str) -> Download:
    import boto3

    client = boto3.client("s3")
    return lambda key, path: client.download_file(bucket, key, str(path))


def s3fs_s3(bucket: str) -> Download:
    import s3fs

    files = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    return lambda key, path: files.get_file(f"{bucket}/{key}", str(path))


def obstore_s3(bucket: str) -> Download:
    from obstore.store import S3Store

    endpoint = os.environ["AWS_ENDPOINT_URL"]
    return stream_from(S3Store(bucket, endpoint=endpoint, client_options={"allow_http": True}))


def google_gcs(bucket: str) -> Download:
    from google.cloud import storage

    found = storage.Client().bucket(bucket)
    return lambda key, path: found.blob(key).download_to_filename(str(path))


def obstore_gcs(bucket: str) -> Download:
    from obstore.store import GCSStore

    key = f'{{"gcs_base_url": "{os.environ["STORAGE_EMULATOR_HOST"]}", "disable_oauth": true, '
    key += '"client_email": "", "private_key": "", "private_key_id": ""}'
    return stream_from(
        GCSStore(bucket, service_account_key=key, client_options={"allow_http": True})
    )


def stream_from(store: object) -> Download:
    """Return a function that streams objects from an obstore store to files."""
    import obstore

    def download(key: str, path: Path) -> None:
        with path.open("wb") as file:
            for chunk in obstore.get(store, key).stream(min_chunk_size=CHUNK_BYTES):
                file.write(chunk)

    return download


CLIENTS = {
    "s3": {
        "cloudload": cloudload_s3,
        "boto3": boto3_s3,
        "s3fs": s3fs_s3,
        "obstore": obstore_s3,
    },
    "gcs": {
        "cloudload": cloudload_gcs,
        "google-cloud-storage": google_gcs,
        "obstore": obstore_gcs,
    },
}


def start(request: Message) -> Take:
    """Open a client. Returns a function that downloads objects, and measures wall and CPU time."""
    try:
        download = CLIENTS[request["store"]][request["client"]](request["bucket"])
    except ImportError as error:
        raise UnavailableError(str(error)) from error
    folder = Path(request["folder"])
    folder.mkdir()

    def fetch(job: tuple[int, str]) -> int:
        path = folder / f"{job[0]}"
        download(job[1], path)
        size = path.stat().st_size
        path.unlink()
        return size

    def take(question: Message) -> Message:
        with ThreadPoolExecutor(question["at_once"]) as threads:
            wall, cpu = time.perf_counter(), time.process_time()
            number = sum(threads.map(fetch, enumerate(question["keys"])))
            return {
                "bytes": number,
                "wall": time.perf_counter() - wall,
                "cpu": time.process_time() - cpu,
            }

    return take


if __name__ == "__main__":
    serve(start)
