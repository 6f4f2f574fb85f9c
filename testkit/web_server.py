"""A web server that serves the files of a folder, with the faults of real ones.

    with web_server(folder) as url: …

    with start_site(folder) as site:
        site.faults.append(Fault("a.jsonl", status=429, headers={"Retry-After": "1"}))
        site.faults.append(Fault("a.jsonl", cut_at=1000))     closes the connection in the body
        site.moved["/old/a.jsonl"] = "/a.jsonl"               redirects
        site.lines                                            ["GET /a.jsonl bytes=1000-", …]

Each fault applies to one request, in order.
"""

from __future__ import annotations

import functools
import http.server
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import sha1
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class Fault:
    """The answer to the next request whose method and path match `match`."""

    match: str
    status: int = 0
    """The status to answer; 0 for the file itself."""
    cut_at: int | None = None
    """The number of bytes of the body after which the connection is closed; None for all."""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Site:
    """A running server of a folder. Its switches take effect with the next request."""

    folder: Path
    url: str = ""
    has_etags: bool = True
    has_dates: bool = True
    has_ranges: bool = True
    has_head: bool = True
    token: str = ""
    """The bearer token that every request needs; "" for none."""
    moved: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def take_fault(self, line: str) -> Fault | None:
        """Remove and return the first fault that matches the method and path of a request."""
        fault = next((each for each in self.faults if re.search(each.match, line)), None)
        if fault:
            self.faults.remove(fault)
        return fault


class SiteHandler(http.server.SimpleHTTPRequestHandler):
    """Answers the requests to a site."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: object, site: Site) -> None:
        self.site = site
        super().__init__(*arguments, directory=str(site.folder))  # type: ignore[arg-type]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def answer_bytes(self, body: bytes, status: int = 200, **headers: str) -> None:
        """Send a whole answer."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _answer(self) -> None:
        site, path = self.site, urlsplit(self.path).path
        line = f"{self.command} {self.path} {self.headers.get('Range', '')}"
        site.lines.append(line.rstrip())
        fault = site.take_fault(f"{self.command} {self.path}")
        if fault and fault.status:
            return self.answer_bytes(b"trouble", fault.status, **fault.headers)
        if site.token and self.headers.get("Authorization") != f"Bearer {site.token}":
            return self.answer_bytes(b"log in", 401)
        if self.command == "HEAD" and not site.has_head:
            return self.answer_bytes(b"", 405)
        if path in site.moved:
            return self.answer_bytes(b"", 302, Location=site.moved[path])
        if not self.answer_api(path, fault):
            self._send_file(site.folder / unquote(path).lstrip("/"), fault)
        return None

    def answer_api(self, path: str, fault: Fault | None) -> bool:
        """Answer a path that is not a file of the folder, and return whether it is one."""
        return False

    def _send_file(self, file: Path, fault: Fault | None) -> None:
        """Send a file, or the page of a folder."""
        if not file.is_file():
            return super().do_HEAD() if self.command == "HEAD" else super().do_GET()
        date = formatdate(file.stat().st_mtime, usegmt=True)
        return self.send_data(file.read_bytes(), fault, date)

    def send_data(self, data: bytes, fault: Fault | None, date: str = "") -> None:
        """Send a file, or the range of it that was asked for. `date` is its Last-Modified."""
        range_ = self.headers.get("Range", "")
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", range_) if self.site.has_ranges else None
        if found and int(found[1]) >= len(data):
            return self.answer_bytes(b"", 416)
        start = int(found[1]) if found else 0
        stop = min(int(found[2]) + 1, len(data)) if found and found[2] else len(data)
        self.send_response(206 if found else 200)
        if found:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        if self.site.has_etags:
            self.send_header("ETag", f'"{sha1(data).hexdigest()}"')
        if self.site.has_dates and date:
            self.send_header("Last-Modified", date)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if self.command == "GET":
            body = data[start:stop]
            cut_at = len(body) if fault is None or fault.cut_at is None else fault.cut_at
            self.wfile.write(body[:cut_at])
            self.close_connection = cut_at < len(body)
        return None


@contextmanager
def start_site(folder: Path, handler: Callable[..., SiteHandler] = SiteHandler) -> Iterator[Site]:
    """Serve the files of `folder` on a loopback port."""
    site = Site(folder)
    make = functools.partial(handler, site=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), make) as server:
        server.daemon_threads = True
        server.block_on_close = False
        site.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield site
        server.shutdown()


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """Serve the files of `folder` on a loopback port, and yield the server's URL."""
    with start_site(folder) as site:
        yield site.url
