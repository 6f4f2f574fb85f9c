"""Real worker processes and real ranks, killed and resumed, read the stream that one process
reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from cloudload import CloudLoader
from cloudload.errors import DatasetError, RanksDisagreeError, WorkerError
from cloudload.testing import Leg, run_leg
from cloudload.workers import processes as worker_processes
from tests.support.corpora import EOS, byte_tokenizer, write_mds
from tests.support.processes import children_of
from tests.support.torchrun import Corpus, Run, launch, read_ends, read_lines, rows_of


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.write(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_worker_processes_read_what_this_process_reads(
    corpus: Corpus, num_workers: int, start_method: str
) -> None:
    with corpus.make_loader(
        batch_size=5, num_workers=num_workers, start_method=start_method
    ) as loader:
        batches = [batch for batch, _ in zip(loader, range(6), strict=False)]
    assert rows_of(batches) == corpus.expected_rows(30)


def test_a_loader_goes_on_where_it_was_left_with_any_workers_and_batch_size(corpus: Corpus) -> None:
    rows: list[list[int]] = []
    state = None
    for batch_size, num_workers, batches in [(4, 2, 3), (1, 0, 2), (7, 5, 1), (3, 1, 4)]:
        with corpus.make_loader(batch_size=batch_size, num_workers=num_workers) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for _ in range(2):  # a second loop over the same loader goes on, too
                rows += rows_of([batch for _, batch in zip(range(batches), loader, strict=False)])
            state = json.loads(json.dumps(loader.state_dict()))
    assert rows == corpus.expected_rows(len(rows))


def test_finite_epochs_end_with_worker_processes_and_stay_ended(corpus: Corpus) -> None:
    with corpus.make_loader(batch_size=5, num_workers=2, epochs=1) as loader:
        rows = rows_of(list(loader))
        assert list(loader) == []
        state = loader.state_dict()
    with corpus.make_loader(batch_size=3, num_workers=0, epochs=1) as loader:
        loader.load_state_dict(state)
        assert list(loader) == []
    assert rows[:-5] == corpus.expected_rows(len(rows), epochs=1)[: len(rows) - 5]


def test_a_killed_worker_is_an_error_in_seconds_and_a_resume_is_exact(corpus: Corpus) -> None:
    with corpus.make_loader(batch_size=2, num_workers=2, prefetch_batches=2) as loader:
        others = children_of(os.getpid())
        batches = iter(loader)
        taken = [next(batches), next(batches)]
        workers = children_of(os.getpid()) - others
        assert len(workers) >= 2
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(WorkerError, match="Resume from the last state"):
            taken.extend(batches)
        assert time.monotonic() - start < 30
        state = loader.state_dict()
        taken += [batch for _, batch in zip(range(4), loader, strict=False)]
    with corpus.make_loader(batch_size=2, num_workers=0) as again:
        again.load_state_dict(state)
        assert state["rows"] == 2 * (len(taken) - 4)
        assert rows_of([next(iter(again))]) == rows_of(taken[-4:-3])
    assert rows_of(taken) == corpus.expected_rows(2 * len(taken))


def test_an_error_in_a_worker_reaches_the_training_loop_as_itself(
    corpus: Corpus, tmp_path: Path
) -> None:
    folder = write_mds(tmp_path / "mds", ["abc"] * 20)
    next(Path(folder).glob("shard.*")).unlink()
    with corpus.make_loader(batch_size=2, num_workers=2) as loader:
        broken = CloudLoader(
            folder,
            tokenizer=byte_tokenizer(),
            eos=EOS,
            seq_len=8,
            batch_size=2,
            num_workers=2,
            local=tmp_path / "cache",
        )
        with (
            broken,
            pytest.raises(
                DatasetError,
                match=r"^[^\n]*shard[^\n]* is missing, but the index .* lists it[^\n]*$",
            ),
        ):
            next(iter(broken))
        assert rows_of([next(iter(loader))])


def test_after_an_error_there_is_the_error_again_not_an_end(corpus: Corpus) -> None:
    with corpus.make_loader(batch_size=2, num_workers=1) as loader:
        others = children_of(os.getpid())
        batches = iter(loader)
        next(batches)
        for worker in children_of(os.getpid()) - others:
            os.kill(worker, signal.SIGKILL)
        for _ in range(3):
            with pytest.raises(WorkerError):
                list(batches)


def test_a_worker_that_hangs_in_its_fork_is_started_again(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_processes, "_START_S", 5.0)
    hang = tmp_path / "hang"

    def hang_once() -> None:
        if hang.exists():
            hang.unlink()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(3600)

    os.register_at_fork(after_in_child=hang_once)
    hang.touch()
    with corpus.make_loader(batch_size=2, num_workers=2, start_method="fork") as loader:
        others = children_of(os.getpid())
        batches = iter(loader)
        rows = rows_of([next(batches) for _ in range(3)])
        assert not hang.exists()
        assert len(children_of(os.getpid()) - others) == 2
    assert rows == corpus.expected_rows(6)


def test_starting_workers_draws_no_random_numbers_from_the_model(corpus: Corpus) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with corpus.make_loader(batch_size=2, num_workers=2) as loader:
        next(iter(loader))
    assert torch.equal(torch.rand(3), expected)


def test_workers_epochs_apart_on_tiny_data_find_their_orders(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "mds", ["abc", "de", "f"])
    settings = {"tokenizer": byte_tokenizer(), "eos": EOS, "seq_len": 512, "batch_size": 4}
    loaders = [
        CloudLoader(folder, local=tmp_path / f"cache-{workers}", num_workers=workers, **settings)
        for workers in (4, 0)
    ]
    with loaders[0], loaders[1]:
        several, alone = (
            rows_of([batch for _, batch in zip(range(12), loader, strict=False)])
            for loader in loaders
        )
    assert several == alone


def test_an_abandoned_iterator_says_so_and_leaves_no_process(corpus: Corpus) -> None:
    before = children_of(os.getpid())
    loader = corpus.make_loader(batch_size=2, num_workers=2)
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)
    with pytest.raises(WorkerError, match="this iteration has ended: another was started"):
        next(first)
    loader.close()
    with pytest.raises(WorkerError, match="the loader was closed"):
        next(second)
    deadline = time.monotonic() + 10
    while children_of(os.getpid()) - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children_of(os.getpid()) <= before
    assert not list(corpus.cache.rglob("*.part"))
    assert not list(corpus.cache.rglob("*.lock"))


# ---------------------------------------------------------------- real ranks


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
# `make test-long` runs all chains for each
OF_EACH = ("two ranks killed, then four", "an exchange every third batch, killed between")


@pytest.mark.parametrize(
    ("packing", "chain"),
    [
        pytest.param(
            packing,
            chain,
            marks=[] if packing == "concat" or chain in OF_EACH else pytest.mark.long,
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
        consumed = launch(corpus, tmp_path, number, run, settings=PACKINGS[packing])
        start = json.loads((tmp_path / "start.json").read_text())
        # what was consumed after the last state is read again, and must be the same again
        for row, ids in consumed.items():
            assert found.setdefault(row, ids) == ids, (
                f"row {row} of run {number} differs from what was read before"
            )
        assert min(consumed) == start, "a run begins where the last state stands"
    assert sorted(found) == list(range(len(found)))
    expected = corpus.expected_rows(len(found), **PACKINGS[packing])
    assert [found[row] for row in range(len(found))] == expected


def test_finite_epochs_end_on_the_same_step_on_every_rank(corpus: Corpus, tmp_path: Path) -> None:
    for ranks, workers in [(1, 0), (4, 1), (3, 2)]:
        folder = tmp_path / str(ranks)
        folder.mkdir()
        consumed = launch(corpus, folder, 0, Run(ranks, 12 // ranks, workers, 10_000), epochs=1)
        steps = {len(file.read_text().splitlines()) for file in folder.glob("run-0-rank-*.jsonl")}
        assert len(steps) == 1, "every rank takes the same number of steps"
        if ranks == 1:
            expected = consumed
        assert consumed == expected


# how processes make up data-parallel ranks, the rank of each, and which exchange with each other
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


# `make test-long` runs all layouts
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

    def make_loader(**rank: Any) -> CloudLoader:
        return corpus.make_loader(**packing, **rank)

    _, states = run_leg(make_loader, Leg(num_ranks, batch_size=12 // num_ranks, batches=3))
    ends = read_ends(tmp_path)
    assert [end["state"] for end in ends] == [states[-1]] * len(ranks), (
        "as without peers, statistics included"
    )
    assert [end["exchanges_with"] for end in ends] == [
        group for rank in range(len(ranks)) for group in groups if rank in group
    ]


def test_a_run_with_peers_goes_on_without_them_and_the_other_way_round(
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
    launch(
        corpus,
        tmp_path,
        0,
        Run(4, 6, 1, 10_000),
        epochs=1,
        settings=settings,
        mesh={"dp": 2, "tp": 2},
    )
    with corpus.make_loader(batch_size=12, num_workers=0, epochs=1, **settings) as loader:
        steps = len(list(loader))
        stats = {**asdict(loader.stats()), "delivery": None}
    assert [
        len((tmp_path / f"run-0-rank-{rank}.jsonl").read_text().splitlines()) for rank in range(4)
    ] == [steps] * 4
    assert [end["stats"] for end in read_ends(tmp_path)] == [json.loads(json.dumps(stats))] * 4


def test_state_dict_on_one_rank_of_four_alone_is_whole(corpus: Corpus, tmp_path: Path) -> None:
    launch(corpus, tmp_path, 0, Run(4, 2, 1, 3), save_on=2)
    state = json.loads((tmp_path / "state.json").read_text())
    with corpus.make_loader(batch_size=8, num_workers=0) as loader:
        loader.load_state_dict(state)
        rows = rows_of([next(iter(loader))])
    assert rows == corpus.expected_rows(32)[24:]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("batch_size", "batch_size: [2, 3]"),
        ("seed", "seed: [17, 18]"),
        ("state", "rows: [0, "),
        (
            "nodes",
            "LOCAL_WORLD_SIZE (set it to 1 where nodes have different numbers of ranks): [1, 2]",
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
    assert "the ranks would not read one stream of rows" in failure.value.stderr
    assert message in failure.value.stderr


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
    processes = (
        len(options["dp_ranks"])
        if "dp_ranks" in options
        else options["mesh"]["dp"] * options["mesh"]["tp"]
    )
    with pytest.raises(subprocess.CalledProcessError) as failure:
        launch(corpus, tmp_path, 0, Run(processes, 2, 0, 2), **options)
    assert message in failure.value.stderr


def test_ranks_that_cannot_communicate_save_their_parts_and_merge_them(corpus: Corpus) -> None:
    from cloudload import merge_state_dicts

    loaders = [
        corpus.make_loader(batch_size=2, num_workers=1, dp_rank=rank, dp_world_size=3)
        for rank in range(3)
    ]
    taken = [[next(batches) for _ in range(2)] for batches in map(iter, loaders)]
    with pytest.raises(RanksDisagreeError, match="local_state_dict"):
        loaders[0].state_dict()
    parts = [torch_round_trip(loader.local_state_dict()) for loader in loaders]
    for loader in loaders:
        loader.close()
    with pytest.raises(RanksDisagreeError, match="local_state_dict"):
        loaders[0].state_dict()
    rows = {
        batch.first_row + place * batch.row_step: ids
        for batches in taken
        for batch in batches
        for place, ids in enumerate(batch["input_ids"].tolist())
    }
    with corpus.make_loader(batch_size=6, num_workers=0) as loader:
        loader.load_state_dict(merge_state_dicts(parts))
        more = rows_of([next(iter(loader))])
    assert [rows[row] for row in sorted(rows)] + more == corpus.expected_rows(18)


def torch_round_trip(state: dict[str, Any]) -> dict[str, Any]:
    import io

    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded: dict[str, Any] = torch.load(buffer, weights_only=True)
    return loaded
