"""Start loaders that read from a local S3 server, and count the seconds and the bytes.

A node reads through its own proxy, which delays every request and counts what it sends.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Child
from benchmarks.start.loaders import read
from testkit.fault_proxy import Fault, FaultProxy, start_fault_proxy
from testkit.servers import BUCKET, S3Server, start_s3


@dataclass(frozen=True)
class Store:
    """An S3 server, with a proxy for each node that reads from it."""

    server: S3Server
    proxies: tuple[FaultProxy, ...]
    tokenizer: Path
    eos: int
    latency_s: float

    def reset(self, node: int) -> None:
        """Clear the request log of a node's proxy, and set its delay to `latency_s`."""
        delay = Fault("", "delay", seconds=self.latency_s)
        self.proxies[node].set_faults([delay] if self.latency_s else [])

    def start(self, what: str, loader: str, node: int, cache: Path, **more: Any) -> Child:
        """Start a loader that reads through the node's proxy. `what` is as in `read`.

        If `port` is given, the process is a rank of a process group. If `rank` and `ranks` are
        also given, all ranks are on one node. Otherwise, each rank has its own node.
        """
        variables = self.server.environment(self.proxies[node].endpoint)
        variables |= {"TOKENIZERS_PARALLELISM": "false"}
        if "port" in more:
            rank, ranks = more.get("rank", node), more.get("ranks", 1)
            variables |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "WORLD_SIZE": str(max(ranks, more.get("nodes", 1))),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(more["port"]),
                "GLOO_SOCKET_IFNAME": "lo",
            }
        request = {
            "what": what,
            "loader": loader,
            "data": f"s3://{BUCKET}/{'epoch' if what == 'epoch' else 'cold'}",
            "cache": str(cache),
            "tokenizer": str(self.tokenizer),
            "eos": self.eos,
            "node": node,
            **more,
        }
        return Child(read, variables, request=request)

    def downloaded(self, node: int) -> int:
        """The number of bytes that a node has downloaded through its proxy since the reset."""
        return sum(request.body_bytes for request in self.proxies[node].requests("^GET"))

    def requested(self, node: int) -> int:
        """The number of requests that a node has sent through its proxy since the reset."""
        return len(self.proxies[node].requests(""))


@contextlib.contextmanager
def open_store(tokenizer: Path, eos: int, latency_ms: float, nodes: int = 1) -> Iterator[Store]:
    """Run an S3 server for a `with` block. This process reads and writes without a delay."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(start_s3(BUCKET))
        proxies = [stack.enter_context(start_fault_proxy(server.endpoint)) for _ in range(nodes)]
        os.environ.update(server.environment())
        yield Store(server, tuple(proxies), tokenizer.absolute(), eos, latency_ms / 1e3)
