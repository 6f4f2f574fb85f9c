"""A run on synthetic data has the guarantees of any other run, without data or a tokenizer."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, Stream, count_tokens
from cloudload.errors import DatasetError
from cloudload.testing import Leg, check_resume, check_worlds, run_leg
from testkit import ROOT
from testkit.corpora import random_documents, write_mds
from testkit.kinds import PACKINGS
from testkit.loaders import make_loader, rows_of

DATA = "synthetic:?vocab_size=200&documents=400&mean_tokens=20&seed=1"

PROGRAM = """
import json, sys
from cloudload import CloudLoader
from testkit.loaders import rows_of
data, cache = sys.argv[1:]
print("ready", flush=True)
sys.stdin.read(1)
if __name__ == "__main__":
    with CloudLoader(data, seq_len=16, batch_size=4, num_workers=2, local=cache) as loader:
        rows = rows_of(loader.take(5))
        print(json.dumps([rows, loader.stats().delivery.bytes_downloaded]))
"""


def open_synthetic(data: Any = DATA, **options: Any) -> CloudLoader:
    defaults = {"tokenizer": None, "eos": "auto", "num_lanes": 12}
    return make_loader(data, **{**defaults, **options})


def test_a_location_is_all_that_a_loader_needs(tmp_path: Path) -> None:
    with CloudLoader("synthetic:", seq_len=512, batch_size=2, local=tmp_path) as loader:
        [batch] = loader.take(1)
        assert batch["input_ids"].shape == (2, 512)
        assert int(batch["input_ids"].max()) < 50_257
        assert loader.stream_names == ("synthetic",)
        assert loader.num_samples == 20_000


@pytest.mark.parametrize("packing", PACKINGS)
def test_all_worlds_and_resumes_read_the_same_rows(packing: str, tmp_path: Path) -> None:
    make = partial(open_synthetic, packing=packing, epochs=1, local=tmp_path)
    check_resume(make, global_batch=12, num_batches=3)
    check_worlds(make, [Leg(ranks=1), Leg(ranks=4, workers=3), Leg(ranks=2, batches=None)])


def test_counted_lengths_allow_any_world(tmp_path: Path) -> None:
    count_tokens(Stream(DATA), out=tmp_path / "lengths", processes=1)
    options: dict[str, Any] = {"epochs": 1, "local": tmp_path / "cache"}
    counted = partial(open_synthetic, lengths=tmp_path / "lengths", **options)
    alone, _ = run_leg(partial(open_synthetic, **options), Leg(batch_size=7, batches=None))
    seven, _ = run_leg(counted, Leg(ranks=7, batches=None))
    assert len(alone) > 100
    assert seven == alone
    with counted(batch_size=7) as loader:
        assert len(loader) == -(-len([row for row in alone if not row.is_padding]) // 7)


def test_a_mixture_with_text(tmp_path: Path) -> None:
    text = write_mds(tmp_path / "mds", random_documents(1, 30))
    streams = [Stream(text, proportion=1, name="mds"), Stream(DATA, proportion=1)]
    with make_loader(streams, local=tmp_path / "cache") as loader:
        rows_of(loader.take(10))
        shares = {name: each.share for name, each in loader.stats().streams.items()}
    assert shares == {"mds": 0.5, "synthetic": 0.5}


def test_a_tokenizer_must_have_the_ids(tmp_path: Path) -> None:
    with (
        make_loader("synthetic:?documents=10", local=tmp_path) as loader,
        pytest.raises(DatasetError, match="not an ID from 0 to 256"),
    ):
        list(loader.take(1))


def test_processes_that_start_at_once_share_one_copy(tmp_path: Path) -> None:
    data = "synthetic:?documents=6000&mean_tokens=500"
    command = [sys.executable, "-c", PROGRAM, data, str(tmp_path)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    programs = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for program in programs:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()
    outputs = [program.communicate(timeout=120)[0] for program in programs]
    (rows, num_bytes), (other_rows, other_bytes) = map(json.loads, outputs)
    assert rows == other_rows
    assert len(rows) == 20
    [folder] = tmp_path.glob("synthetic-*")
    files = list(folder.glob("shard*"))
    assert {path.suffix for path in files} == {".mds"}
    assert len({path.name.partition("-")[0] for path in files}) == len(files) > 1
    # neither process downloaded a shard that the other one had
    assert 0 < num_bytes + other_bytes <= sum(path.stat().st_size for path in files)


def test_commands_read_it(cli: Any) -> None:
    info = json.loads(cli("info", DATA, "--json").out)
    assert (info["samples"], info["shards"]) == (400, 1)
    plan = ["plan", "--data", DATA, "--seq-len", "16", "--batch-size", "4", "--epochs", "1"]
    assert json.loads(cli(*plan, "--no-measure", "--json").out)["epochs"]["value"] == 1
    assert "unknown name 'docs'" in cli("info", "synthetic:?docs=3", status=1).err


def test_a_state_names_the_data(tmp_path: Path, cli: Any) -> None:
    with open_synthetic(local=tmp_path / "cache") as loader:
        list(loader.take(1))
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
        *_, batch = loader.take(2)
    found = cli("trace", tmp_path / "state.json", "--steps", "3", "--json").out
    samples = {json.loads(line)["sample"] for line in found.splitlines()}
    assert samples == {span[3] for span in batch.spans.tolist()}
