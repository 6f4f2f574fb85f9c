"""Ranks that are started by torchrun, killed, and resumed read the same stream as one process."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from cloudload import convert_to_mds, select_documents
from cloudload.errors import RanksDisagreeError
from cloudload.testing import Leg, run_leg
from testkit.conversions import QUIET
from testkit.corpora import random_documents
from testkit.loaders import numbered_rows, rows_of
from testkit.torchrun import Corpus, Run, continue_run, launch, read_ends, read_lines


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.write(tmp_path_factory.mktemp("corpus"))


CHAINS = {
    "one rank, then two": [Run(1, 6, 1, 4), Run(2, 3, 1, 4)],
    "two ranks killed, then one": [Run(2, 3, 1, 5, killed=True), Run(1, 6, 2, 4)],
    "two ranks killed, then four": [Run(2, 2, 2, 4, killed=True), Run(4, 1, 1, 6)],
    "four ranks killed, then two, then one": [
        Run(4, 1, 0, 3, killed=True),
        Run(2, 4, 1, 3, killed=True),
        Run(1, 5, 3, 3),
    ],
    "three ranks, then four": [Run(3, 2, 1, 3), Run(4, 3, 0, 3)],
    "four ranks on two nodes, then two on two": [
        Run(4, 2, 1, 3, nodes=2),
        Run(2, 2, 1, 3, nodes=2),
    ],
    "an exchange every third batch, killed between": [
        Run(2, 2, 1, 5, killed=True, exchange_every=3),
        Run(4, 1, 1, 5),
    ],
    "exchanges every third, then every second batch": [
        Run(2, 2, 1, 4, exchange_every=3),
        Run(3, 2, 0, 5, exchange_every=2),
    ],
    "workers 3, 0, 2": [Run(2, 2, 3, 3), Run(2, 2, 0, 3, killed=True), Run(2, 2, 2, 3)],
    "one rank killed twice": [
        Run(1, 4, 2, 3, killed=True),
        Run(1, 4, 1, 3, killed=True),
        Run(1, 4, 0, 3),
    ],
    "more lanes than rows in the chain": [
        Run(4, 1, 1, 1, killed=True),
        Run(2, 1, 1, 2),
        Run(1, 1, 1, 3),
    ],
    "six ranks, then one": [Run(6, 1, 0, 4, killed=True), Run(1, 12, 1, 2)],
}


PACKINGS: dict[str, dict[str, Any]] = {
    "concat": {},
    "best_fit": {"packing": "best_fit", "open_rows": 4},
    "one_per_row": {"packing": "one_per_row", "overflow": "rows"},
    "mixed": {"packing": "best_fit", "mixed": True},
}


# the chains that the short tests run, and the one that they run with every packing;
# `make test-long` runs all combinations
OF_EACH = "an exchange every third batch, killed between"
SHORT = (
    *(OF_EACH, "two ranks killed, then four", "four ranks on two nodes, then two on two"),
    *("exchanges every third, then every second batch", "workers 3, 0, 2"),
    "more lanes than rows in the chain",
)


@pytest.mark.parametrize(
    ("packing", "chain"),
    [
        pytest.param(
            packing,
            chain,
            marks=[]
            if chain == OF_EACH or (packing == "concat" and chain in SHORT)
            else pytest.mark.long,
        )
        for packing in PACKINGS
        for chain in CHAINS
    ],
)
def test_ranks_under_torchrun_killed_and_resumed_read_one_stream(
    corpus: Corpus, tmp_path: Path, packing: str, chain: str
) -> None:
    found: dict[int, list[int]] = {}
    for number, run in enumerate(CHAINS[chain]):
        continue_run(corpus, tmp_path, number, run, found, settings=PACKINGS[packing])
    assert sorted(found) == list(range(len(found)))
    expected = corpus.expected_rows(len(found), **PACKINGS[packing])
    assert [found[row] for row in range(len(found))] == expected


def test_ranks_with_a_selection_killed_and_resumed_read_only_its_documents(
    corpus: Corpus, tmp_path: Path
) -> None:
    shards = json.loads(Path(corpus.folder, "index.json").read_text())["shards"]
    pairs = [
        f"{shard},{index}"
        for shard, info in enumerate(shards)
        for index in range(shard % 2, info["samples"], 3)
        if shard % 3
    ]
    (tmp_path / "keep.csv").write_text("\n".join(["shard,index", *pairs]))
    select_documents(
        corpus.folder, "some", keep=tmp_path / "keep.csv", out=tmp_path / "out", **QUIET
    )
    settings = {**PACKINGS["best_fit"], "select": str(tmp_path / "out" / "some")}
    found: dict[int, list[int]] = {}
    for number, run in enumerate([Run(2, 6, 1, 4, killed=True), Run(3, 4, 1, 5)]):
        continue_run(corpus, tmp_path, number, run, found, settings=settings)
    rows = [found[row] for row in range(8 * 12)]
    assert rows == corpus.expected_rows(len(found), **settings)
    assert rows != corpus.expected_rows(len(found), **PACKINGS["best_fit"])
    stats = read_ends(tmp_path)[0]["stats"]["streams"]
    [[documents, deselected]] = [(each["documents"], each["deselected"]) for each in stats.values()]
    assert 0 < documents < deselected


def test_finite_epochs_end_on_the_same_step_on_every_rank(corpus: Corpus, tmp_path: Path) -> None:
    for ranks, workers in [(1, 0), (4, 1), (3, 2)]:
        folder = tmp_path / str(ranks)
        folder.mkdir()
        consumed = launch(corpus, folder, 0, Run(ranks, 12 // ranks, workers, 10_000), epochs=1)
        steps = {len(file.read_text().splitlines()) for file in folder.glob("run-0-rank-*.jsonl")}
        assert len(steps) == 1, "every rank must take the same number of steps"
        if ranks == 1:
            expected = consumed
        assert consumed == expected


# per layout: its arguments, each process's data-parallel rank, and the groups that exchange
LAYOUTS: dict[str, tuple[dict[str, Any], list[int], list[list[int]]]] = {
    "tensor parallel": ({"mesh": {"dp": 2, "tp": 2}}, [0, 0, 1, 1], [[0, 2], [1, 3]]),
    "pipeline parallel": ({"mesh": {"pp": 2, "dp": 2}}, [0, 1, 0, 1], [[0, 1], [2, 3]]),
    "sharded and replicated": (
        {"mesh": {"dp_replicate": 2, "dp_shard": 2}},
        [0, 1, 2, 3],
        [[0, 1, 2, 3]],
    ),
    "told by number, inner": ({"dp_ranks": [0, 0, 1, 1]}, [0, 0, 1, 1], [[0, 2], [1, 3]]),
    "told by number, in no order": ({"dp_ranks": [0, 1, 1, 0]}, [0, 1, 1, 0], [[0, 1], [2, 3]]),
    "one rank": ({"mesh": {"dp": 1, "tp": 2}}, [0, 0], [[0], [1]]),
    "three ways": (
        {"mesh": {"pp": 2, "dp_replicate": 2, "dp_shard": 1, "tp": 2}},
        [0, 0, 1, 1, 0, 0, 1, 1],
        [[0, 2], [1, 3], [4, 6], [5, 7]],
    ),
}


# layouts that only `make test-long` runs
LONG_LAYOUTS = ("told by number, inner", "three ways")


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(layout, marks=pytest.mark.long if layout in LONG_LAYOUTS else [])
        for layout in LAYOUTS
    ],
)
def test_peers_of_one_data_parallel_rank_read_the_same_rows_and_count_them_once(
    corpus: Corpus, tmp_path: Path, layout: str
) -> None:
    options, ranks, groups = LAYOUTS[layout]
    num_ranks, packing = max(ranks) + 1, PACKINGS["best_fit"]
    launch(corpus, tmp_path, 0, Run(len(ranks), 12 // num_ranks, 1, 3), settings=packing, **options)
    read: list[Any] = [
        read_lines(tmp_path / f"run-0-rank-{process}.jsonl") for process in range(len(ranks))
    ]
    assert all(rows == read[ranks.index(rank)] for rows, rank in zip(read, ranks, strict=True))
    consumed = {row: ids for rows in read for row, ids in rows.items()}
    assert [consumed[row] for row in range(36)] == corpus.expected_rows(36, **packing)

    _, states = run_leg(
        corpus.ranks(**packing), Leg(num_ranks, batch_size=12 // num_ranks, batches=3)
    )
    ends = read_ends(tmp_path)
    assert [end["state"] for end in ends] == [states[-1]] * len(ranks), (
        "states must equal those of a run without peer ranks, including statistics"
    )
    assert [end["exchanges_with"] for end in ends] == [
        group for rank in range(len(ranks)) for group in groups if rank in group
    ]


def test_a_run_with_peers_continues_without_them_and_vice_versa(
    corpus: Corpus, tmp_path: Path
) -> None:
    found = launch(corpus, tmp_path, 0, Run(4, 3, 1, 3), mesh={"dp": 2, "tp": 2})
    found |= launch(corpus, tmp_path, 1, Run(4, 2, 1, 2))
    found |= launch(corpus, tmp_path, 2, Run(2, 5, 0, 2), mesh={"dp": 1, "cp": 2})
    assert sorted(found) == list(range(44))
    assert [found[row] for row in range(44)] == corpus.expected_rows(44)


@pytest.mark.parametrize("tail", [pytest.param("pad", marks=pytest.mark.long), "drop"])
def test_finite_epochs_end_on_the_same_step_for_peers_too(
    corpus: Corpus, tmp_path: Path, tail: str
) -> None:
    settings: dict[str, Any] = {"tail": tail}
    options: dict[str, Any] = {"epochs": 1, "settings": settings, "mesh": {"dp": 2, "tp": 2}}
    launch(corpus, tmp_path, 0, Run(4, 6, 1, 10_000), **options)
    with corpus.open(batch_size=12, num_workers=0, epochs=1, **settings) as loader:
        steps = len(list(loader))
        stats = {**asdict(loader.stats()), "delivery": None}
    assert [
        len((tmp_path / f"run-0-rank-{rank}.jsonl").read_text().splitlines()) for rank in range(4)
    ] == [steps] * 4
    assert [end["stats"] for end in read_ends(tmp_path)] == [json.loads(json.dumps(stats))] * 4


def test_state_dict_on_one_rank_of_four_alone_is_whole(corpus: Corpus, tmp_path: Path) -> None:
    launch(corpus, tmp_path, 0, Run(4, 2, 1, 3), save_on=2)
    state = json.loads((tmp_path / "state.json").read_text())
    with corpus.open(batch_size=8, num_workers=0) as loader:
        loader.load_state_dict(state)
        rows = rows_of([next(iter(loader))])
    assert rows == corpus.expected_rows(32)[24:]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("batch_size", "batch_size: [2, 3]"),
        ("seed", "seed: [17, 18]"),
        ("state", "rows: [0, "),
        ("numpy", "Use the same version of NumPy on every rank"),
        (
            "nodes",
            "LOCAL_WORLD_SIZE (set it to 1 if nodes have different numbers of ranks): [1, 2]",
        ),
    ],
)
def test_ranks_that_would_not_read_one_stream_are_an_error(
    corpus: Corpus, tmp_path: Path, fault: str, message: str
) -> None:
    if fault == "state":
        launch(corpus, tmp_path, 0, Run(2, 2, 0, 2))
    with pytest.raises(subprocess.CalledProcessError) as failure:
        launch(corpus, tmp_path, 1, Run(2, 2, 0, 2), differ_in=fault)
    assert "these values must be the same on all ranks of a run, but differ" in failure.value.stderr
    assert message in failure.value.stderr


def test_ranks_that_start_while_data_is_appended_agree_or_stop(
    corpus: Corpus, tmp_path: Path
) -> None:
    data, before = tmp_path / "mds", tmp_path / "before.json"
    for name, append in {"a": False, "b": True}.items():
        lines = [json.dumps({"text": text}) for text in random_documents(ord(name), 100)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        convert_to_mds(tmp_path / f"{name}.jsonl", data, append=append, shard_bytes=4_000, **QUIET)
        before = before if append else Path(shutil.copy(data / "index.json", before))
    after = shutil.copy(data / "index.json", tmp_path / "after.json")
    growing = replace(corpus, folder=str(data))
    shutil.copy(before, data / "index.json")
    expected = growing.expected_rows(8)
    rows = launch(growing, tmp_path, 0, Run(2, 2, 0, 2))
    rows |= launch(growing, tmp_path, 1, Run(2, 2, 0, 2), append=str(after))
    assert [rows[number] for number in range(8)] == expected
    (tmp_path / "state.json").unlink()
    shutil.copy(before, data / "index.json")
    with pytest.raises(subprocess.CalledProcessError) as failure:
        launch(growing, tmp_path, 2, Run(2, 2, 0, 2), append=str(after))
    assert "If data was appended or rewritten while the job was starting" in failure.value.stderr


def test_ranks_that_start_while_lengths_appear_use_none(corpus: Corpus, tmp_path: Path) -> None:
    data = shutil.copytree(corpus.folder, tmp_path / "mds")
    counted, expected = replace(corpus, folder=str(data)), corpus.expected_rows(16)
    rows = launch(counted, tmp_path, 0, Run(2, 2, 0, 2), counts=True)
    assert list(data.glob("lengths/*/index-*.json"))
    rows |= launch(counted, tmp_path, 1, Run(2, 2, 0, 2))
    assert [rows[number] for number in range(16)] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mesh": {"dp": 2, "tp": 2}, "differ_in": "seed", "differ_on": 3},
            "seed: [17, 17, 17, 18]",
        ),
        ({"mesh": {"dp": 1, "tp": 2}, "differ_in": "seed", "differ_on": 1}, "seed: [17, 18]"),
        ({"dp_ranks": [0, 0, 0, 1]}, "the data-parallel ranks 0 to 1 have [3, 1] processes"),
    ],
)
def test_peers_that_would_not_read_one_stream_are_an_error(
    corpus: Corpus, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    processes = len(options.get("dp_ranks", ())) or math.prod(options["mesh"].values())
    with pytest.raises(subprocess.CalledProcessError) as failure:
        launch(corpus, tmp_path, 0, Run(processes, 2, 0, 2), **options)
    assert message in failure.value.stderr


def test_ranks_that_cannot_communicate_read_their_rows_and_cannot_save(corpus: Corpus) -> None:
    loaders = [
        corpus.open(batch_size=2, num_workers=1, dp_rank=rank, dp_world_size=3) for rank in range(3)
    ]
    taken = [[next(batches) for _ in range(2)] for batches in map(iter, loaders)]
    with pytest.raises(RanksDisagreeError, match="Run cloudload count once"):
        loaders[0].state_dict()
    for loader in loaders:
        loader.close()
    with pytest.raises(RanksDisagreeError, match="Run cloudload count once"):
        loaders[0].state_dict()
    rows = numbered_rows(batch for batches in taken for batch in batches)
    assert [rows[row] for row in sorted(rows)] == corpus.expected_rows(12)
