"""An S3 server that serves one file under many names, so that a corpus needs little disk space.

    GET /bucket?list-type=2     the names, all with the size of the file
    GET, HEAD /bucket/name      a range of the file, after a delay

Every request is delayed, also those for objects that do not exist. Signatures are not checked.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

BUCKET = "corpus"
_ETAG, _DATE = '"5f3c9a"', "Mon, 01 Jan 2024 00:00:00 GMT"


@dataclass(frozen=True)
class RangeServer:
    """A running server."""

    endpoint: str
    requests: Synchronized[int]
    bytes: Synchronized[int]
    """The number of bytes of the bodies sent."""

    def environment(self) -> dict[str, str]:
        """The environment variables with which S3 clients use this server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "S3_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_REGION": "us-east-1",
        }

    def options(self) -> dict[str, str]:
        """The options with which boto3 uses this server."""
        return {
            "endpoint_url": self.endpoint,
            "aws_access_key_id": "any",
            "aws_secret_access_key": "any",
            "region_name": "us-east-1",
        }

    def reset(self) -> None:
        """Set the counts to 0."""
        self.requests.value = self.bytes.value = 0


@contextlib.contextmanager
def serve_file(path: Path, names: Sequence[str], latency_s: float) -> Iterator[RangeServer]:
    """Run a server in another process for a `with` block."""
    context = multiprocessing.get_context("fork")
    requests, sent = context.Value("q", 0), context.Value("q", 0)
    server = _Server(("127.0.0.1", 0), _Handler)
    _Handler.file, _Handler.names, _Handler.latency_s = path, frozenset(names), latency_s
    _Handler.counts = requests, sent
    process = context.Process(target=server.serve_forever, daemon=True)
    process.start()
    server.socket.close()
    try:
        yield RangeServer(f"http://127.0.0.1:{server.server_address[1]}", requests, sent)
    finally:
        process.kill()
        process.join()


class _Server(ThreadingHTTPServer):
    """Ignores connections that a client breaks, as when its process is stopped."""

    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Print nothing."""


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    file: Path
    names: frozenset[str]
    latency_s: float
    counts: tuple[Any, Any]

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def _answer(self, has_body: bool) -> None:
        time.sleep(self.latency_s)
        url = urlsplit(self.path)
        _, _, key = url.path.lstrip("/").partition("/")
        query = parse_qs(url.query)
        if not key:
            self._send(200, self._list(query.get("prefix", [""])[0]), "application/xml", has_body)
        elif key in self.names:
            self._send_range(has_body)
        else:
            error = b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>"
            self._send(404, error, "application/xml", has_body)

    def _list(self, prefix: str) -> bytes:
        size = self.file.stat().st_size
        found = "".join(
            f"<Contents><Key>{quote(name)}</Key><Size>{size}</Size><ETag>{_ETAG}</ETag>"
            "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
            for name in sorted(self.names)
            if name.startswith(prefix)
        )
        return (
            '<?xml version="1.0"?><ListBucketResult><EncodingType>url</EncodingType>'
            f"<IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
        ).encode()

    def _send(self, status: int, body: bytes, kind: str, has_body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if has_body:
            self.wfile.write(body)
        self._count(len(body) if has_body else 0)

    def _send_range(self, has_body: bool) -> None:
        size = self.file.stat().st_size
        start, stop, asked = 0, size, self.headers.get("Range", "")
        if asked.startswith("bytes="):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start = int(first) if first else size - int(last)
            stop = min(size, int(last) + 1) if first and last else size
        self.send_response(206 if asked else 200)
        for name, value in {
            "Content-Length": str(stop - start),
            "Content-Range": f"bytes {start}-{stop - 1}/{size}",
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
            "ETag": _ETAG,
            "Last-Modified": _DATE,
        }.items():
            if asked or name != "Content-Range":
                self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()
        sent = 0
        if has_body:
            with self.file.open("rb") as file, contextlib.suppress(OSError):
                while sent < stop - start:
                    sent += os.sendfile(
                        self.connection.fileno(), file.fileno(), start + sent, stop - start - sent
                    )
        self._count(sent)

    def _count(self, sent: int) -> None:
        for count, number in zip(self.counts, (1, sent), strict=True):
            with count.get_lock():
                count.value += number
