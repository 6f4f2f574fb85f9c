"""The backend for web servers, http:// and https://, which serve files by name and list none.

    Location("https://host/a.jsonl.gz").list_objects()    HEAD: size, and ETag or Last-Modified
    Location("https://host/a.jsonl.gz").open(start=9)     GET, Range: bytes=9-

A server may ignore a range, and answer with the whole file. Then the bytes before it are discarded.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn
from urllib.parse import urlsplit

from cloudload.data.storage import clients, urls
from cloudload.data.storage.base import Backend, ObjectStream, StoredObject
from cloudload.data.storage.fsspec import FsspecStore
from cloudload.data.storage.redaction import redact
from cloudload.data.storage.versions import version_of_headers
from cloudload.errors import FailureKind, StoreError

_NOT_HEAD = (400, 403, 405, 501)
"""The statuses of servers, and of signed URLs, that allow only GET."""

_TOTAL = re.compile(r"bytes .*/(\d+)")


class WebStore(Backend):
    """The backend for http:// and https://, which can only read.

    Proxies, `.netrc`, and REQUESTS_CA_BUNDLE apply as for `requests`.
    """

    @cached_property
    def _session(self) -> Any:
        import requests

        return requests.Session()

    def _send(self, method: str, url: str, part: Mapping[str, str] | None = None) -> Any:
        """Send a request, whose body is not read yet. The answer may have any status."""
        # request the stored bytes, because a decoded body has another size
        headers = {"Accept-Encoding": "identity", **(part or {})}
        return self._session.request(
            method, url, headers=headers, stream=True, timeout=self._timeout_s, allow_redirects=True
        )

    def open(
        self, url: str, start: int = 0, tag: str = "", stop: int | None = None
    ) -> ObjectStream:
        answer = self._send("GET", url, clients.range_header(start, stop))
        try:
            answer.raise_for_status()
            clients.check_tag(url, tag, _tag(answer.headers))
        except Exception:
            answer.close()
            raise
        size = answer.headers.get("Content-Length", "")
        body = clients.LengthCheckedReader(answer.raw, int(size) if size.isdecimal() else None)
        # a web server may derive an ETag from only the size and a time that a copy preserves
        stream = ObjectStream(body, replace(version_of_headers(answer.headers), exact=""))
        clients.skip_bytes(stream, 0 if answer.status_code == 206 else start)
        return stream

    def list(self, url: str) -> Iterator[StoredObject]:
        answer = self._send("HEAD", url)
        if answer.status_code in _NOT_HEAD:
            answer = self._send("GET", url, clients.range_header(0, 1))
        answer.close()
        answer.raise_for_status()
        path = urlsplit(answer.url).path
        is_page = answer.headers.get("Content-Type", "").startswith("text/html")
        if path.endswith("/") or (is_page and not path.endswith((".html", ".htm"))):
            raise StoreError(
                f"{redact(url)} is a folder or a page of a web server, not a file, and cloudload "
                "does not list the files of web servers. Pass the URL of each file, or a list of "
                "them (cloudload convert --inputs-from)"
            )
        yield StoredObject(url, _size(answer), _tag(answer.headers))

    def peek(self, url: str) -> Iterator[str]:
        # the links of a page are good enough to explain an error
        return FsspecStore(self._timeout_s).peek(url)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise io.UnsupportedOperation(
            "cloudload can only read from web servers. To write, use a path, s3://, gs://, or a "
            "scheme that fsspec supports"
        )

    upload = create = delete = _refuse

    def failure_kind(self, error: BaseException) -> FailureKind:
        return clients.failure_kind_of_any(error)

    def describe_endpoint(self, url: str) -> str:
        return f"{urls.scheme_of(url)}://{urlsplit(url).netloc}"


def _tag(headers: Mapping[str, str]) -> str:
    """The ETag of a file, or else its Last-Modified; "" if the server reports neither."""
    return headers.get("ETag") or headers.get("Last-Modified", "")


def _size(answer: Any) -> int:
    """The size of a file in bytes, or 0 if the server does not report it."""
    if total := _TOTAL.fullmatch(answer.headers.get("Content-Range", "")):
        return int(total[1])
    size = answer.headers.get("Content-Length", "")
    return int(size) if size.isdecimal() else 0
