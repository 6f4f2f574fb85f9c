"""Run `trainer.py` under torchrun, and read the same corpus in one process for comparison."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cloudload import CloudLoader, Stream
from cloudload.testing import Leg, run_leg
from testkit.corpora import random_documents, write_mds
from testkit.loaders import make_loader
from testkit.servers import free_ports
from testkit.trainer import streams_of
from testkit.warm_start import Program, stand_in, start

_TIMEOUT_S = 120


@dataclass(frozen=True)
class Corpus:
    """Two small datasets, and a cache folder. In a job, the node's index replaces `{node}` in the
    path of the cache folder."""

    folder: str
    other_folder: str
    cache: Path

    @classmethod
    def write(cls, folder: Path) -> Corpus:
        """Write a dataset of 400 documents and one of 40."""
        return cls(
            write_mds(
                folder / "mds", random_documents(3, 400), shard_bytes=4_000, compression="zstd"
            ),
            write_mds(folder / "other", random_documents(4, 40), shard_bytes=4_000),
            folder / "cache",
        )

    def open(
        self, *, mixed: bool = False, select: str | None = None, **settings: Any
    ) -> CloudLoader:
        """A loader of the first dataset, or of its selection `select`, or of a mixture of both
        datasets if `mixed`."""
        defaults: dict[str, Any] = {"seq_len": 32, "local": self.cache}
        first = Stream(self.folder, select=select)
        data = streams_of(self.folder, self.other_folder) if mixed else first
        return make_loader(data, **{**defaults, "num_workers": None, **settings})

    def expected_rows(self, number: int, **settings: Any) -> list[list[int]]:
        """The token IDs of the first `number` rows, which a single rank reads in this process."""

        rows, _ = run_leg(self.ranks(**settings), Leg(batches=number))
        return [list(row.input_ids) for row in rows]

    def ranks(self, **settings: Any) -> partial[CloudLoader]:
        """A function that makes the loader of each rank, for `run_leg`."""
        return partial(self.open, **settings)


@dataclass(frozen=True)
class Run:
    """A part of a run, as one torchrun job. `ranks` counts the ranks of all nodes, and `batch_size`
    the rows per rank. If `killed`, each rank kills itself after `batches` batches."""

    ranks: int
    batch_size: int
    workers: int
    batches: int
    killed: bool = False
    exchange_every: int = 1
    nodes: int = 1


def launch(
    corpus: Corpus, folder: Path, number: int, run: Run, **settings: Any
) -> dict[int, list[int]]:
    """Run the trainer under torchrun. Returns the token IDs of the consumed rows, by row index."""
    options = {
        "folders": [corpus.folder, corpus.other_folder],
        "cache": str(corpus.cache),
        "out": str(folder),
        "run": number,
        **vars(run),
        **settings,
    }
    command = [f"--nproc-per-node={run.ranks // run.nodes}"]
    if run.nodes == 1:
        agents = [_start_agent([*command, "--standalone"], options)]
    else:
        command += [f"--nnodes={run.nodes}", "--master-addr=127.0.0.1"]
        command += [f"--master-port={free_ports(1)[0]}"]
        agents = [
            _start_agent([*command, f"--node-rank={node}"], options) for node in range(run.nodes)
        ]
    for agent in agents:
        _, errors = agent.communicate(timeout=_TIMEOUT_S)
        if agent.returncode and not run.killed:
            raise subprocess.CalledProcessError(agent.returncode, command, stderr=errors)
    for error in folder.glob(f"error-{number}-*.txt") if run.killed else []:
        raise AssertionError(error.read_text())
    files = list(folder.glob(f"run-{number}-rank-*.jsonl"))
    assert len(files) == run.ranks, f"only {len(files)} of {run.ranks} ranks read a row: {errors}"
    taken = [len(file.read_text().splitlines()) for file in files]
    assert not run.killed or taken == [run.batches] * run.ranks, (
        f"ranks exited after {taken} batches: {errors}"
    )
    return {row: ids for file in files for row, ids in read_lines(file).items()}


def continue_run(
    corpus: Corpus,
    folder: Path,
    number: int,
    run: Run,
    found: dict[int, list[int]],
    **settings: Any,
) -> None:
    """Run the next part of a run, which starts at the last saved state, and add its rows to
    `found`. Rows that were read after that state are read again, and must be the same."""
    consumed = launch(corpus, folder, number, run, **settings)
    for row, ids in consumed.items():
        assert found.setdefault(row, ids) == ids, f"row {row} differs in part {number}"
    start = json.loads((folder / "start.json").read_text())
    assert min(consumed) == start, "a part must start at the last saved state"


def read_lines(file: Path) -> dict[int, list[int]]:
    """The token IDs of the rows that a process consumed, by row index."""
    return {
        int(row): ids
        for line in file.read_text().splitlines()
        for row, ids in json.loads(line).items()
    }


def read_ends(folder: Path) -> list[dict[str, Any]]:
    """The records that the ranks of a run wrote when it was complete, in rank order."""
    return [
        json.loads((folder / f"end-{rank}.json").read_text())
        for rank in range(len(list(folder.glob("end-*.json"))))
    ]


def _start_agent(arguments: list[str], options: dict[str, Any]) -> Program:
    ranks = ["--no-python", *stand_in(), "testkit.trainer", json.dumps(options)]
    return start("torch.distributed.run", [*arguments, *ranks], {"OMP_NUM_THREADS": "1"})
