"""A stand-in for the Hugging Face Hub with one dataset, whose main branch can be moved.

with fake_hub("owner/name", {"a" * 40: {"data/0.parquet": b"…"}}) as hub:
    hub.main = "b" * 40              the branch's commit
    hub.requests                     ["GET /datasets/owner/name/resolve/aaa…/data/0.parquet"]
"""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

Commits = Mapping[str, Mapping[str, bytes]]
"""The files of each commit, by the commit's hash and the file's name."""


@dataclass
class FakeHub:
    """A running server."""

    repo: str
    commits: Commits
    main: str
    endpoint: str = ""
    requests: list[str] = field(default_factory=list)

    def answer(self, path: str) -> Any:
        """The JSON or the bytes at a path, or None."""
        info = re.fullmatch(rf"/api/datasets/{self.repo}(?:/revision/(\w+))?", path)
        tree = re.fullmatch(rf"/api/datasets/{self.repo}/tree/(\w+)/?(.*)", path)
        file = re.fullmatch(rf"/datasets/{self.repo}/resolve/(\w+)/(.*)", path)
        found = info or tree or file
        if found is None:
            return {} if path == "/" else None
        commit = self.main if found[1] in (None, "main") else found[1]
        if (files := self.commits.get(commit)) is None:
            return None
        if info:
            siblings = [{"rfilename": name} for name in files]
            return {"id": self.repo, "sha": commit, "siblings": siblings, "tags": []}
        if file:
            return files.get(file[2])
        assert tree is not None
        return self._list(files, f"{tree[2]}/" if tree[2] else "")

    def _list(self, files: Mapping[str, bytes], prefix: str) -> list[dict[str, Any]]:
        below = {name: data for name, data in files.items() if name.startswith(prefix)}
        names = {prefix + name[len(prefix) :].partition("/")[0] for name in below}
        return [
            {"type": "file", "path": name, "size": len(below[name]), "oid": "0" * 40}
            if name in below
            else {"type": "directory", "path": name, "oid": "0" * 40}
            for name in sorted(names)
        ]


@contextmanager
def fake_hub(repo: str, commits: Commits) -> Iterator[FakeHub]:
    """Serve commits of a dataset on a loopback port. The first one is that of the main branch."""
    hub = FakeHub(repo, commits, next(iter(commits)))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"{self.command} {path}")
            found = hub.answer(path)
            body = found if isinstance(found, bytes) else json.dumps(found).encode()
            status = 404 if found is None else 200
            if span := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                body, status = body[int(span[1]) : int(span[2] or len(body)) + 1], 206
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        yield hub
        server.shutdown()
