"""A proxy in a separate process that makes an object store misbehave, request by request.

    with start_fault_proxy(s3.endpoint) as proxy:
        proxy.fail("GET .*shard.00001", "status", times=2, status=503)
        subprocess.run([...], env=os.environ | s3.environment(proxy.endpoint))
        proxy.requests()             # [Request(line="GET /b/shard.00001", action="status", …), …]

A fault matches requests by their line (`GET /bucket/key?query`), and selects each matching request
with probability `share`. It skips the first `skip` selected requests, and applies to the next
`times`. If several faults apply to a request, the first one wins. The actions:

    status    answer `status` with an error of `code` (if empty, with only
              `message`), in the format of S3 or, with `as_json`, of GCS
    delay     wait `seconds` before the request is passed on
    reset     reset the connection instead of answering
    drop      send nothing for `seconds`, then reset
    truncate  close the connection after `at` bytes of the body
    stall     go silent for `seconds` after `at` bytes of the body
    corrupt   flip the bits of the byte at `at` of the body
    throttle  pass on the body at `bytes_per_s` bytes per second

The request keeps its Host header, so that the server accepts signatures made for the proxy. In JSON
answers, the proxy replaces the server's address with its own, so that GCS links lead to the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import struct
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ACTIONS = ("status", "delay", "reset", "drop", "truncate", "stall", "corrupt", "throttle")

_CONTROL_PATH = "/__fault_proxy__"
_HEAD_LIMIT_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Fault:
    """An action on the requests whose line matches `match`: `times` times, or always if None."""

    match: str
    action: str
    times: int | None = None
    skip: int = 0
    share: float = 1.0
    status: int = 503
    code: str = "SlowDown"
    message: str = "a fault of the test"
    as_json: bool = False
    region: str = ""
    at: int = 0
    seconds: float = 0.0
    bytes_per_s: int = 0

    def __post_init__(self) -> None:
        re.compile(self.match)
        if self.action not in ACTIONS:
            raise ValueError(f"no action named {self.action!r}. Use one of {', '.join(ACTIONS)}")


@dataclass(frozen=True)
class Request:
    """A request that the proxy received, and what the proxy did.

    Header names are in lowercase. `status` is the status that was sent, or 0 if none was.
    """

    line: str
    headers: dict[str, str]
    action: str | None
    status: int
    body_bytes: int


@dataclass(frozen=True)
class FaultProxy:
    """A running proxy, controlled by the process that started it."""

    endpoint: str

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """Replace all faults, and clear the list of requests."""
        self._control(json.dumps([asdict(fault) for fault in faults]).encode())

    def fail(self, match: str, action: str, **details: Any) -> None:
        """Replace all faults with this one, and clear the list of requests."""
        self.set_faults([Fault(match, action, **details)])

    def requests(self, match: str = "") -> list[Request]:
        """The requests since the last `set_faults` whose line matches `match`, in order of
        arrival."""
        return [
            request
            for entry in self._control(None)
            if re.search(match, (request := Request(**entry)).line)
        ]

    def _control(self, body: bytes | None) -> Any:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(
            urllib.request.Request(self.endpoint + _CONTROL_PATH, body), timeout=10
        ) as answer:
            return json.load(answer)


@contextlib.contextmanager
def start_fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """Run a proxy in front of the server at `upstream`. It starts without faults."""
    from testkit.servers import running

    with tempfile.TemporaryDirectory(
        prefix="cloudload-proxy-", ignore_cleanup_errors=True
    ) as folder:
        command = [sys.executable, str(Path(__file__).resolve()), upstream]
        with running(command, Path(folder), pipe=True) as process:
            assert process.stdout is not None
            yield FaultProxy(f"http://127.0.0.1:{int(process.stdout.readline())}")


# ---------------------------------------------------------------- in the proxy's process


class _Server:
    """Serves one request per connection, so that a fault affects only that request."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.faults: list[dict[str, Any]] = []
        self.log: list[dict[str, Any]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            method, path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
            if path == _CONTROL_PATH:
                await self._answer_control(head, reader, writer)
            else:
                await self._answer(f"{method} {path}", head, reader, writer)
        with contextlib.suppress(OSError):
            writer.close()

    async def _answer_control(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        answer = json.dumps(self.log).encode()
        if head.startswith(b"POST "):
            self.faults, self.log = json.loads(await reader.readexactly(_length(head))), []
            answer = b"null"
        writer.write(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(answer)
            + answer
        )
        await writer.drain()

    async def _answer(
        self, line: str, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        fault = self._next_fault(line)
        action = fault.get("action")
        entry = {
            "line": line,
            "headers": _headers(head),
            "action": action,
            "status": 0,
            "body_bytes": 0,
        }
        self.log.append(entry)
        if action in ("delay", "drop"):
            await asyncio.sleep(fault["seconds"])
        if action in ("reset", "drop"):
            _reset(writer)
        elif action == "status":
            entry["status"] = fault["status"]
            await _refuse(fault, line, head, reader, writer)
        else:
            server_reader, server_writer = await asyncio.open_connection(
                self.host, self.port, limit=_HEAD_LIMIT_BYTES
            )
            try:
                server_writer.write(_closing(head))
                sending = asyncio.ensure_future(_pass_on(reader, server_writer))
                own = writer.get_extra_info("sockname")[1]
                links = (f"{self.host}:{self.port}".encode(), f"{self.host}:{own}".encode())
                await _return_answer(fault, entry, links, server_reader, writer)
                sending.cancel()
            finally:
                server_writer.close()

    def _next_fault(self, line: str) -> dict[str, Any]:
        for fault in self.faults:
            if (
                fault["times"] == 0
                or not re.search(fault["match"], line)
                or random.random() >= fault["share"]
            ):
                continue
            if fault["skip"]:
                fault["skip"] -= 1
                continue
            if fault["times"]:
                fault["times"] -= 1
            return fault
        return {}


async def _return_answer(
    fault: dict[str, Any],
    entry: dict[str, Any],
    links: tuple[bytes, bytes],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    while (head := await reader.readuntil(b"\r\n\r\n")).startswith(
        (b"HTTP/1.1 100", b"HTTP/1.0 100")
    ):
        writer.write(head)
    entry["status"] = int(head.split(b" ", 2)[1])
    writer.write(_closing(head))
    at, sent, action = fault.get("at", 0), 0, fault.get("action")
    rewritten = b"application/json" in head and len(links[0]) == len(links[1])
    while chunk := await reader.read(_CHUNK_BYTES):
        chunk = chunk.replace(*links) if rewritten else chunk
        here = sent <= at < sent + len(chunk)
        if here and action in ("truncate", "stall"):
            writer.write(chunk[: at - sent])
            await writer.drain()
            if action == "truncate":
                return
            await asyncio.sleep(fault["seconds"])
            writer.write(chunk[at - sent :])
        elif here and action == "corrupt":
            writer.write(
                chunk[: at - sent] + bytes([chunk[at - sent] ^ 0xFF]) + chunk[at - sent + 1 :]
            )
        else:
            writer.write(chunk)
        await writer.drain()
        sent += len(chunk)
        entry["body_bytes"] = sent
        if action == "throttle":
            await asyncio.sleep(len(chunk) / fault["bytes_per_s"])


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()


async def _refuse(
    fault: dict[str, Any],
    line: str,
    head: bytes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    if b"100-continue" not in head.lower():
        await reader.readexactly(
            _length(head)
        )  # if the body were not read, the client would see a reset instead of the answer
    body = _error_body(fault).encode()
    kind = "json" if fault["as_json"] else "xml"
    writer.write(
        f"HTTP/1.1 {fault['status']} Fault\r\nConnection: close\r\nContent-Type: "
        f"application/{kind}\r\n".encode()
    )
    if fault["region"]:
        writer.write(f"x-amz-bucket-region: {fault['region']}\r\n".encode())
    writer.write(
        b"Content-Length: %d\r\n\r\n" % len(body) + (b"" if line.startswith("HEAD ") else body)
    )
    await writer.drain()


def _error_body(fault: dict[str, Any]) -> str:
    code, message = fault["code"], fault["message"]
    if not code:
        return str(message)  # for example, an HTML page from an HTTP proxy
    if fault["as_json"]:
        return json.dumps(
            {
                "error": {
                    "code": fault["status"],
                    "message": message,
                    "errors": [{"reason": code, "message": message}],
                }
            }
        )
    region = f"<Region>{fault['region']}</Region>" if fault["region"] else ""
    return (
        "<?xml "
        f"version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message>{region}</Error>"
    )


def _closing(head: bytes) -> bytes:
    """The head of a request or an answer, with `Connection: close` in its headers."""
    first, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    kept = [field for field in fields if not field.lower().startswith(b"connection:")]
    return b"\r\n".join([first, *kept, b"Connection: close", b"", b""])


def _headers(head: bytes) -> dict[str, str]:
    pairs = (
        line.split(": ", 1)
        for line in head.decode("latin-1").strip().split("\r\n")[1:]
        if ": " in line
    )
    return {name.lower(): value for name, value in pairs}


def _length(head: bytes) -> int:
    found = re.search(rb"\r\ncontent-length:\s*(\d+)", head, re.IGNORECASE)
    return int(found[1]) if found else 0


def _reset(writer: asyncio.StreamWriter) -> None:
    # with a linger time of 0 s, closing the socket sends an RST
    writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    writer.transport.abort()


async def _main(upstream: str) -> None:
    listener = await asyncio.start_server(
        _Server(upstream).serve, "127.0.0.1", 0, limit=_HEAD_LIMIT_BYTES
    )
    print(listener.sockets[0].getsockname()[1], flush=True)
    await listener.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
