"""torchft replicas that die and return read one stream. Runs only if torchft is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from cloudload.tools.count import count_tokens
from testkit.corpora import random_documents, write_mds
from testkit.noted_steps import TOKENIZER, check_steps, read_steps

pytest.importorskip("torchft")

from torchft.coordination import LighthouseServer

pytestmark = pytest.mark.filterwarnings("ignore")
SEQ_LEN, BATCH_SIZE = 32, 3


class Replicas:
    """The replica processes of a torchft job, and the lines that they print."""

    def __init__(self, data: str, notes: Path, lighthouse: str, cache: Path) -> None:
        arguments = {
            "--steps": 100_000,
            "--global-batch": BATCH_SIZE,
            "--seq-len": SEQ_LEN,
            "--workers": 1,
            "--width": 32,
            "--depth": 1,
            "--cache": cache,
        }
        flat = [str(each) for pair in arguments.items() for each in pair]
        module = "tests.frameworks.torchft_replica"
        self._command = [sys.executable, "-m", module, str(notes), data, *flat]
        self._lighthouse = lighthouse
        self.processes: list[subprocess.Popen[str]] = []
        self._lines: Queue[str] = Queue()

    def start(self) -> None:
        variables = {"TORCHFT_LIGHTHOUSE": self._lighthouse, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
        )
        self.processes.append(process)
        Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put(line)

    def wait_for(self, size: int, steps: int) -> None:
        """Wait until rank 0 has logged `steps` steps with `size` replicas."""
        while steps:
            steps -= bool(re.search(f"rank 0 of {size}$", self._lines.get(timeout=200)))


@pytest.fixture
def lighthouse() -> Iterator[str]:
    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=3_000, heartbeat_timeout_ms=3_000
    )
    yield server.address()
    server.shutdown()


def test_replicas_that_die_and_come_back_lose_no_row_and_repeat_none(
    tmp_path: Path, lighthouse: str
) -> None:
    data = write_mds(tmp_path / "data", random_documents(3, 400), shard_bytes=8_000)
    count_tokens(data, tokenizer=TOKENIZER, processes=1, progress=False)
    (notes := tmp_path / "notes").mkdir()
    replicas = Replicas(data, notes, lighthouse, tmp_path / "cache")
    try:
        for _ in range(3):
            replicas.start()
        replicas.wait_for(3, steps=3)
        replicas.processes[1].kill()
        replicas.wait_for(2, steps=3)
        replicas.start()
        replicas.wait_for(3, steps=3)
    finally:
        for process in replicas.processes:
            process.kill()
            process.wait()
    steps = read_steps(notes)
    sizes = [(stop - begin) // BATCH_SIZE for begin, stop, _ in steps]
    assert {2, 3} <= set(sizes) <= {1, 2, 3}
    check_steps(steps, data, tmp_path / "cache-of-one", seq_len=SEQ_LEN)
