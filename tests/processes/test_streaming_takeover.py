"""A loader continues a stopped job that used a StreamingDataset. Together, they read each document
once.

The job's ranks are processes, with a `local` folder for each node.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testkit.corpora import EOS_ID, byte_tokenizer, write_mds
from testkit.loaders import make_loader, rows_of
from testkit.servers import free_ports
from testkit.warm_start import Program, start

SHARDS = [37, 60, 1, 52, 45, 29, 58, 41, 33, 50]
_TIMEOUT_S = 240


@dataclass(frozen=True)
class Job:
    """A job on a StreamingDataset. `ranks` is per node, and `workers` is per rank."""

    nodes: int
    ranks: int
    workers: int
    steps: int
    options: dict[str, Any]


def draw_job(seed: int) -> Job:
    """Draw a job on 1, 2, or 4 nodes that stops at a random step of its epoch."""
    draw = random.Random(seed)
    nodes, ranks, batch_size = [1, 2, 4][seed % 3], draw.choice([1, 2]), draw.randint(2, 6)
    options = {
        "batch_size": batch_size,
        "num_canonical_nodes": nodes * draw.choice([1, 2, 4]),
        "shuffle": True,
        "shuffle_algo": draw.choice(["py1e", "py1br", "py1s", "py2s", "naive"]),
        "shuffle_seed": draw.randint(0, 1000),
        "shuffle_block_size": draw.choice([30, 100]),
    }
    most_steps = sum(SHARDS) // (nodes * ranks * batch_size)
    return Job(nodes, ranks, draw.choice([0, 1, 3]), draw.randint(1, most_steps), options)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.long if seed > 2 else ()) for seed in range(15)]
)
def test_a_stopped_job_and_its_successor_read_each_document_once(tmp_path: Path, seed: int) -> None:
    job = draw_job(seed)
    data = write_mds(tmp_path / "data", map(str, range(sum(SHARDS))), shard_samples=SHARDS)
    read = run(job, data, tmp_path)
    state = json.loads((tmp_path / "state.json").read_text())
    assert state["sample_in_epoch"] == len(read)
    options = {name: job.options[name] for name in ("shuffle_algo", "shuffle_block_size")}
    options |= {"seed": job.options["shuffle_seed"], "seq_len": 8, "packing": "one_per_row"}
    options |= {"num_lanes": 2 * job.options["num_canonical_nodes"], "epochs": 1}
    with make_loader(data, local=tmp_path / "cache", **options) as loader:
        loader.load_streaming_state(state)
        rows = rows_of(loader)
    decode = byte_tokenizer().decode
    rest = [decode(row[: row.index(EOS_ID)]).replace(" ", "") for row in rows if EOS_ID in row]
    assert sorted([*set(read), *rest], key=int) == list(map(str, range(sum(SHARDS))))


def run(job: Job, data: str, folder: Path) -> list[str]:
    """Run a job, and return the documents that its ranks read."""
    port, size = str(free_ports(1)[0]), job.nodes * job.ranks
    programs: list[Program] = []
    for rank in range(size):
        node, local_rank = divmod(rank, job.ranks)
        variables = {
            "RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_RANK": local_rank,
            "LOCAL_WORLD_SIZE": job.ranks,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        options = {
            "remote": data,
            "local": str(folder / f"node-{node}"),
            "out": str(folder),
            "steps": job.steps,
            "workers": job.workers,
            "options": job.options,
        }
        strings = {name: str(value) for name, value in variables.items()}
        programs.append(start("testkit.streaming_rank", [json.dumps(options)], strings))
    for program in programs:
        _, errors = program.communicate(timeout=_TIMEOUT_S)
        assert program.returncode == 0, errors
    return [
        text
        for rank in range(size)
        for text in json.loads((folder / f"read-{rank}.json").read_text())
    ]
