"""Calls that move a loader, or documents, are refused while another one runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from cloudload import Batch, CloudLoader, Stream
from cloudload.errors import WorkerError
from testkit.corpora import random_documents, write_mds
from testkit.loaders import make_loader, rows_of

CALLS: dict[str, Callable[[CloudLoader], object]] = {
    "next": lambda loader: next(iter(loader)),
    "take": lambda loader: next(loader.take(1)),
    "skip": lambda loader: loader.skip(1),
    "seek": lambda loader: loader.seek(40),
    "load_state_dict": lambda loader: loader.load_state_dict(loader.state_dict()),
    "set_world": lambda loader: loader.set_world(0, 1, batch_size=2),
    "set_weights": lambda loader: loader.set_weights({"a": 1}),
}


class Slow:
    """A transform that waits in the first document until it may continue."""

    def __init__(self) -> None:
        self.has_begun, self.may_continue = threading.Event(), threading.Event()

    def __call__(self, sample: Any) -> str:
        self.has_begun.set()
        self.may_continue.wait(60)
        return str(sample["text"])


@pytest.fixture
def data(tmp_path: Path) -> str:
    return write_mds(tmp_path / "a", random_documents(0, 300, max_words=6), shard_bytes=4_000)


@pytest.fixture
def slow(data: str) -> Iterator[tuple[CloudLoader, Slow]]:
    transform = Slow()
    streams = [Stream(data, proportion=1)]
    with make_loader(streams, transform=transform, transform_id="slow") as loader:
        yield loader, transform


@pytest.mark.parametrize("name", CALLS)
def test_a_call_while_next_runs_in_another_thread_is_refused_and_changes_nothing(
    slow: tuple[CloudLoader, Slow], name: str
) -> None:
    loader, transform = slow
    with ThreadPoolExecutor(1, thread_name_prefix="trainer") as trainer:
        batches = iter(loader)
        first = trainer.submit(next, batches)
        assert transform.has_begun.wait(60)
        before = loader.state_dict()
        called = "next" if name == "take" else name
        message = f"{called} was called before next had returned in thread 'trainer_0'"
        with pytest.raises(WorkerError, match=message):
            CALLS[name](loader)
        with pytest.raises(WorkerError, match="Make the calls of a loader one after another"):
            next(batches)
        assert loader.state_dict() == before
        transform.may_continue.set()
        found = [first.result(), *(next(batches) for _ in range(5))]
    assert [batch.first_row for batch in found] == [0, 4, 8, 12, 16, 20]
    CALLS[name](loader)


def test_a_signal_handler_that_moves_the_loader_in_the_midst_of_next_is_refused(data: str) -> None:
    errors: list[Exception] = []

    def move(sample: Any) -> str:
        if not errors:
            with pytest.raises(WorkerError) as raised:
                loader.seek(0)
            errors.append(raised.value)
        return str(sample["text"])

    with make_loader(data, transform=move, transform_id="moves") as loader:
        found = rows_of(loader.take(5))
        assert "seek was called before next had returned" in str(errors[0])
    with make_loader(data, transform=str_of, transform_id="moves") as loader:
        assert rows_of(loader.take(5)) == found


def str_of(sample: Any) -> str:
    return str(sample["text"])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_threads_that_share_an_iterator_get_each_row_once_or_an_error(
    data: str, num_workers: int
) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with make_loader(data, epochs=1, num_workers=num_workers) as loader:
            expected = rows_of(loader)
        with make_loader(data, epochs=1, num_workers=num_workers) as loader:
            batches, errors = iter(loader), list[WorkerError]()

            def read(_: int) -> list[Batch]:
                found = list[Batch]()
                while True:
                    try:
                        found.append(next(batches))
                    except StopIteration:
                        return found
                    except WorkerError as error:
                        errors.append(error)

            with ThreadPoolExecutor(4) as threads:
                read_by_threads = list(threads.map(read, range(4)))
    finally:
        sys.setswitchinterval(before)
    found = sorted(chain(*read_by_threads), key=lambda batch: batch.first_row)
    assert rows_of(found) == expected
    assert all("had returned in thread" in str(error) for error in errors)
