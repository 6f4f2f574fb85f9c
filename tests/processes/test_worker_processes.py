"""Worker processes read the same rows as one process. If a worker is killed, the loader raises an
error within seconds."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from cloudload.errors import DatasetError, WorkerError
from cloudload.loading.workers import processes as worker_processes
from cloudload.loading.workers.worker_main import Memory, work
from cloudload.system.temp_files import TAG
from testkit.corpora import byte_tokenizer, write_mds
from testkit.loaders import make_loader, rows_of
from testkit.patience import soon
from testkit.processes import children_of
from testkit.torchrun import Corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.write(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize(
    ("num_workers", "start_method"),
    [
        (1, "fork"),
        (3, "fork"),
        (1, "spawn"),
        (1, "forkserver"),
        pytest.param(3, "spawn", marks=pytest.mark.long),
        pytest.param(3, "forkserver", marks=pytest.mark.long),
    ],
)
def test_worker_processes_read_what_this_process_reads(
    corpus: Corpus, num_workers: int, start_method: str
) -> None:
    with corpus.open(batch_size=5, num_workers=num_workers, start_method=start_method) as loader:
        assert rows_of(loader.take(6)) == corpus.expected_rows(30)


def test_a_loader_continues_where_it_stopped_with_any_workers_and_batch_size(
    corpus: Corpus,
) -> None:
    rows: list[list[int]] = []
    state = None
    for batch_size, num_workers, batches in [(4, 2, 3), (1, 0, 2), (7, 5, 1), (3, 1, 4)]:
        with corpus.open(batch_size=batch_size, num_workers=num_workers) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for _ in range(2):  # a second loop over a loader continues the run
                rows += rows_of(loader.take(batches))
            state = json.loads(json.dumps(loader.state_dict()))
    assert rows == corpus.expected_rows(len(rows))


def test_finite_epochs_end_with_worker_processes_and_stay_ended(corpus: Corpus) -> None:
    with corpus.open(batch_size=5, num_workers=2, epochs=1) as loader:
        rows = rows_of(list(loader))
        assert list(loader) == []
        state = loader.state_dict()
    with corpus.open(batch_size=3, num_workers=0, epochs=1) as loader:
        loader.load_state_dict(state)
        assert list(loader) == []
    assert rows[:-5] == corpus.expected_rows(len(rows), epochs=1)[: len(rows) - 5]


def test_a_killed_worker_is_an_error_in_seconds_and_a_resume_is_exact(corpus: Corpus) -> None:
    with corpus.open(batch_size=2, num_workers=2, prefetch_batches=2) as loader:
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
        taken += loader.take(4)
    with corpus.open(batch_size=2, num_workers=0) as again:
        again.load_state_dict(state)
        assert state["rows"] == 2 * (len(taken) - 4)
        assert rows_of([next(iter(again))]) == rows_of(taken[-4:-3])
    assert rows_of(taken) == corpus.expected_rows(2 * len(taken))


def test_an_error_in_a_worker_reaches_the_training_loop_as_itself(
    corpus: Corpus, tmp_path: Path
) -> None:
    folder = write_mds(tmp_path / "mds", ["abc"] * 20)
    next(Path(folder).glob("shard.*")).unlink()
    with corpus.open(batch_size=2, num_workers=2) as loader:
        missing = r"^[^\n]*shard[^\n]* is missing, but the index .* lists it[^\n]*$"
        options: dict[str, Any] = {"num_lanes": None, "num_workers": 2}
        broken = make_loader(folder, local=tmp_path / "cache", **options)
        with broken, pytest.raises(DatasetError, match=missing):
            next(iter(broken))
        assert rows_of([next(iter(loader))])


def test_after_an_error_there_is_the_error_again_not_an_end(corpus: Corpus) -> None:
    with corpus.open(batch_size=2, num_workers=1) as loader:
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
    monkeypatch.setattr(worker_processes, "START_S", 5.0)
    hang = tmp_path / "hang"

    def hang_once() -> None:
        if hang.exists():
            hang.unlink()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(3600)

    os.register_at_fork(after_in_child=hang_once)
    hang.touch()
    with corpus.open(batch_size=2, num_workers=2, start_method="fork") as loader:
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
    with corpus.open(batch_size=2, num_workers=2) as loader:
        next(iter(loader))
    assert torch.equal(torch.rand(3), expected)


def test_workers_epochs_apart_on_tiny_data_find_their_orders(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "mds", ["abc", "de", "f"])
    found = []
    for workers in (4, 0):
        settings = {"num_workers": workers, "num_lanes": None, "seq_len": 64}
        with make_loader(folder, local=tmp_path / f"cache-{workers}", **settings) as loader:
            found.append(rows_of(loader.take(12)))
    assert found[0] == found[1]


def test_an_abandoned_iterator_says_so_and_leaves_no_process(corpus: Corpus) -> None:
    before = children_of(os.getpid())
    loader = corpus.open(batch_size=2, num_workers=2)
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)
    with pytest.raises(
        WorkerError, match="this iteration has ended, because another iteration was started"
    ):
        next(first)
    loader.close()
    with pytest.raises(WorkerError, match="the loader was closed"):
        next(second)
    assert soon(lambda: children_of(os.getpid()) <= before)
    assert not list(corpus.cache.rglob("*.part"))
    assert not list(corpus.cache.rglob("*.lock"))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "place", ["iteration.join_blocks", "progress.report_batch", "iteration.Position"]
)
def test_an_interrupted_iteration_neither_shifts_the_run_nor_looks_like_its_end(
    larger_folder: str, monkeypatch: pytest.MonkeyPatch, place: str, num_workers: int
) -> None:
    expected = [batch["input_ids"] for batch in make_loader(larger_folder).take(6)]

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with make_loader(larger_folder, num_workers=num_workers) as loader:
        batches = iter(loader)
        seen = [next(batches)["input_ids"] for _ in range(3)]
        with monkeypatch.context() as patched:
            patched.setattr(f"cloudload.loading.delivery.{place}", interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(batches)
        with pytest.raises(WorkerError, match="interrupted"):
            next(batches)
        assert loader.rows == 12
        seen += [batch["input_ids"] for batch in loader.take(3)]
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))


def test_a_worker_that_had_to_be_killed_leaves_no_file_in_the_cache(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_processes, "END_S", 0.2)
    before = children_of(os.getpid())
    with corpus.open(batch_size=2, num_workers=1, start_method="fork") as loader:
        batches = iter(loader)
        next(batches)
        [worker] = children_of(os.getpid()) - before
        os.kill(worker, signal.SIGSTOP)
        [tag] = corpus.cache.glob(f"*-*/{TAG}")
        left = [tag.with_name("x.mds.lock"), tag.with_name("x.mds.0123456789ab.part")]
        for path in left:
            path.touch()  # as if the worker had left them
    assert [path for path in left if path.exists()] == []


def start_without_a_trainer() -> None:
    theirs, own = multiprocessing.Pipe()
    theirs.close()
    work(0, cast("Memory", None), own, None)


def test_a_worker_whose_trainer_ended_as_it_started_ends_in_silence() -> None:
    process = multiprocessing.get_context("fork").Process(target=start_without_a_trainer)
    process.start()
    process.join()
    assert process.exitcode == 0


def mark_frozen(_text: str) -> str:
    return "frozen" if gc.get_freeze_count() > _OBJECTS_OF_TORCH else "scanned"


_OBJECTS_OF_TORCH = 50_000  # far fewer than any process with PyTorch has


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_garbage_collections_of_a_worker_do_not_scan_what_it_was_started_with(
    corpus: Corpus, start_method: str
) -> None:
    with corpus.open(
        batch_size=4, num_workers=1, start_method=start_method, transform=mark_frozen
    ) as loader:
        text = byte_tokenizer().decode(next(iter(loader))["input_ids"].flatten().tolist())
    text = text.replace(" ", "")
    assert "frozen" in text
    assert "scanned" not in text


class Endless:
    """A transform that never returns."""

    def __call__(self, sample: Any) -> str:
        time.sleep(600)
        return str(sample["text"])


def test_closing_a_loader_ends_a_thread_that_waits_for_its_batch(corpus: Corpus) -> None:
    before = children_of(os.getpid())
    loader = corpus.open(batch_size=2, num_workers=1, transform=Endless(), transform_id="endless")
    errors: list[BaseException] = []

    def read() -> None:
        try:
            next(iter(loader))
        except WorkerError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    while not children_of(os.getpid()) - before:
        time.sleep(0.05)
    loader.close()
    thread.join(60)
    assert not thread.is_alive()
    assert "another thread closed the loader" in str(errors[0])
    assert children_of(os.getpid()) <= before


def test_a_forked_child_that_exits_leaves_its_parents_workers_alive(corpus: Corpus) -> None:
    expected = list(corpus.open(batch_size=2, num_workers=0).take(3))
    with corpus.open(batch_size=2, num_workers=1) as loader:
        batches = iter(loader)
        found = [next(batches)]
        if not (child := os.fork()):
            multiprocessing.util._exit_function()  # type: ignore[attr-defined]  # as `sys.exit` does
            os._exit(0)
        os.waitpid(child, 0)
        found += [next(batches), next(batches)]
    assert rows_of(found) == rows_of(expected)


def read_in_child(corpus: Corpus, num_workers: int, answers: Any) -> None:
    try:
        with corpus.open(batch_size=2, num_workers=num_workers) as loader:
            answers.put(next(iter(loader)).first_row)
    except WorkerError as error:
        answers.put(str(error))


@pytest.mark.parametrize(("num_workers", "answer"), [(0, "0"), (1, "Use num_workers=0")])
def test_a_process_that_may_have_no_children_is_told_to_use_none(
    corpus: Corpus, num_workers: int, answer: str
) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=read_in_child, args=(corpus, num_workers, answers), daemon=True)
    child.start()
    assert answer in str(answers.get())
    child.join()
