"""Start loaders that read from the benchmark's S3 server, and count the bytes that they read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT
from testkit.fault_proxy import Fault, FaultProxy
from testkit.servers import BUCKET, S3Server

CHILD_TIMEOUT_S = 3600


@dataclass(frozen=True)
class Store:
    """The S3 server that stores the datasets, with a proxy for each node that reads them."""

    server: S3Server
    proxies: tuple[FaultProxy, ...]
    tokenizer: Path
    eos: int
    latency_s: float

    def reset(self, node: int) -> None:
        """Clear the request log of a node's proxy, and set its delay to `latency_s`."""
        self.proxies[node].set_faults(
            [Fault("", "delay", seconds=self.latency_s)] if self.latency_s else []
        )

    def child(
        self, what: str, loader: str, node: int, cache: Path, **more: Any
    ) -> subprocess.Popen[str]:
        """Start a loader in a process that reads through the node's proxy.

        If `port` is given, the process is a rank of a process group. If `rank` and `ranks` are
        also given, all ranks are on one node. Otherwise, each rank has its own node.
        """
        data = "epoch" if what == "epoch" else "cold"
        request = {
            "what": what,
            "loader": loader,
            "data": f"s3://{BUCKET}/{data}",
            "cache": str(cache),
            "eos": self.eos,
            "node": node,
            **more,
        }
        environment = (
            os.environ
            | self.server.environment(self.proxies[node].endpoint)
            | {"TOKENIZERS_PARALLELISM": "false"}
        )
        command = [
            sys.executable,
            "-m",
            "benchmarks.cold_start.child",
            json.dumps(request | {"tokenizer": str(self.tokenizer)}),
        ]
        if "port" in more:
            rank, ranks = more.get("rank", node), more.get("ranks", 1)
            environment |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "WORLD_SIZE": str(max(ranks, more.get("nodes", 1))),
            }
            environment |= {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(more["port"]),
                "GLOO_SOCKET_IFNAME": "lo",
            }
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )

    def downloaded(self, node: int) -> int:
        """The number of bytes that a node has downloaded through its proxy since the reset."""
        return sum(request.body_bytes for request in self.proxies[node].requests("^GET"))

    def requested(self, node: int) -> int:
        """The number of requests that a node has sent through its proxy since the reset."""
        return len(self.proxies[node].requests(""))


@contextlib.contextmanager
def cache_folder(work: Path) -> Iterator[Path]:
    """Create an empty folder for a `with` block, and remove it afterwards."""
    folder = Path(tempfile.mkdtemp(dir=work))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read_result(process: subprocess.Popen[str]) -> dict[str, float]:
    """Read the figures of a loader's process from the first line of its output that is JSON.

    Raises `SystemExit` if the process exits without printing such a line.
    """
    assert process.stdout
    for line in process.stdout:
        if line.startswith("{"):
            result: dict[str, float] = json.loads(line)
            return result
    raise SystemExit(
        f"a loader exited with status {process.wait()} before it printed a result. See its output "
        "above"
    )


def finish(process: subprocess.Popen[str]) -> None:
    """Wait until a loader's process exits. Raises `SystemExit` if it fails."""
    process.communicate(timeout=CHILD_TIMEOUT_S)
    # a process that is slow to exit is terminated by its own alarm
    if process.returncode not in (0, -signal.SIGALRM):
        raise SystemExit(f"a loader exited with status {process.returncode}. See its output above")
