"""Count the requests of a rank that loads a tokenizer by name from a simulated Hugging Face Hub."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.documents import TOKENIZER
from benchmarks.figures import Row
from benchmarks.harness import ONE_THREAD, run_child
from benchmarks.scale.simulated_store import short_texts

_NAME = "some/tokenizer"


class _Hub(BaseHTTPRequestHandler):
    """An HTTP handler that serves the files of one repository, and counts the requests."""

    requests = 0

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        _Hub.requests += 1
        file = TOKENIZER / self.path.partition("?")[0].rpartition("/")[2]
        is_found = "/resolve/" in self.path and file.is_file()
        content = file.read_bytes() if is_found else b"{}"
        self.send_response(200 if is_found else 404)
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("Content-Length", str(len(content)))
        if is_found:
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        else:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def count_hub_requests(work: Path, ranks: int, nodes: int) -> Iterator[Row]:
    """Count the requests of a rank with an empty Hub cache, and of the next rank of its node."""
    from cloudload import convert_to_mds

    texts = ({"text": text} for text in short_texts(2_000))
    convert_to_mds(texts, work / "named", progress=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    variables = ONE_THREAD | {"HF_HUB_OFFLINE": "0", "HF_HOME": str(work / "hub")}
    variables["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
    for hub_cache in ("empty", "filled"):
        _Hub.requests = 0
        run_child(read_a_batch, variables, work=str(work))
        found = {"of a rank": _Hub.requests, f"{nodes:,} nodes": nodes * ranks * _Hub.requests}
        yield {"Hub cache": hub_cache, **found}
    server.shutdown()
    server.server_close()


def read_a_batch(work: str) -> None:
    """Run the rank until its first batch."""
    from cloudload import CloudLoader

    with CloudLoader(
        f"{work}/named",
        tokenizer=_NAME,
        seq_len=256,
        batch_size=1,
        local=f"{work}/cache",
        tokenizer_backend="hf",
    ) as loader:
        next(iter(loader))
