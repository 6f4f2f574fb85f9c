"""The backend for stores that only StreamingDataset's downloaders reach."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from cloudload.errors import StoreError
from cloudload.storage.base import Retry, StoredObject, Trouble
from cloudload.storage.clients import trouble_of_any
from cloudload.storage.urls import scheme_of

# in place of fsspec, or where the package that it asks for is not installed
STREAMING_ONLY = ("azure", "azure-dl", "alipan", "dbfs")


class StreamingStore:
    """The downloaders of StreamingDataset, which can only read, and only whole objects."""

    def open(self, url: str, retry: Retry) -> BinaryIO:
        try:
            from streaming.base.storage.download import CloudDownloader
        except ImportError as error:
            raise StoreError(
                f"no way to read {scheme_of(url)}:// ({error}). Install Streaming: pip install "
                "'cloudload[streaming]'"
            ) from None
        with tempfile.TemporaryDirectory(prefix="cloudload-download-") as folder:
            path = Path(folder, "object")
            try:
                CloudDownloader.direct_download(url, str(path), retry.timeout_s)
            except ImportError as error:
                raise StoreError(f"no way to read {scheme_of(url)}:// ({error})") from None
            return path.open("rb")  # its bytes stay until it is closed

    def upload(self, path: Path, url: str, retry: Retry) -> None:
        raise _only_reads(url)

    def delete(self, url: str, retry: Retry) -> None:
        raise _only_reads(url)

    def list(self, url: str, retry: Retry) -> Iterator[StoredObject]:
        raise _only_reads(url)

    def trouble(self, error: BaseException) -> Trouble:
        return trouble_of_any(error)


def _only_reads(url: str) -> StoreError:
    return StoreError(
        f"{scheme_of(url)}:// can only be read. Write and list in s3://, "
        "gs://, or what fsspec reaches"
    )
