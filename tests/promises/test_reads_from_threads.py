"""Public reads are right from any thread, from signal handlers, and while another read runs."""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader
from testkit.interrupted import FURTHER, KINDS, Check, list_reads, open_subject

THREADS, HANDLED = 4, 3
COUNTED = [kind for kind, has_lengths in KINDS if has_lengths]


@pytest.fixture(autouse=True)
def switch_threads_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("kind", COUNTED)
def test_rows_that_threads_share_are_those_of_one_thread(tmp_path: Path, kind: str) -> None:
    with open_subject(tmp_path, kind, True) as subject:
        rows = subject.rows
        assert rows is not None
        expected = [row["input_ids"].tolist() for row in rows]
        order = random.Random(0).choices(range(len(rows)), k=3 * len(rows))
        rows.close()
        subject.restart()
        with ThreadPoolExecutor(THREADS) as threads:
            found = list(threads.map(lambda row: rows[row]["input_ids"].tolist(), order))
        assert found == [expected[row] for row in order]


@pytest.mark.parametrize(("kind", "has_lengths"), KINDS)
def test_every_read_from_threads_is_that_of_one_thread(
    tmp_path: Path, kind: str, has_lengths: bool
) -> None:
    with open_subject(tmp_path, kind, has_lengths) as subject:
        batches = subject.read_batches()
        expected = {name: read() for name, read in list_reads(subject, batches[-1]).items()}
        batches = subject.read_batches()  # nothing is computed yet
        reads = list_reads(subject, batches[-1])
        names = random.Random(1).sample(sorted(reads) * THREADS, THREADS * len(reads))
        with ThreadPoolExecutor(THREADS) as threads:
            found = list(threads.map(lambda name: reads[name](), names))
        for name, value in zip(names, found, strict=True):
            assert value == expected[name], name


@pytest.mark.parametrize(("kind", "has_lengths"), KINDS)
def test_states_are_the_same_while_a_thread_reads_statistics(
    tmp_path: Path, kind: str, has_lengths: bool
) -> None:
    def train(loader: CloudLoader) -> list[Any]:
        loader.load_state_dict(subject.start)
        return [loader.state_dict() for _ in loader.take(20)]

    def monitor() -> None:
        while not is_over.is_set():
            seen.append(subject.loader.stats())
            states.append(subject.loader.state_dict())

    with open_subject(tmp_path, kind, has_lengths) as subject:
        subject.restart()
        expected, is_over = train(subject.loader), threading.Event()
        seen, states = list[Any](), list[Any]()
        with ThreadPoolExecutor(2) as threads:
            running = [threads.submit(monitor) for _ in range(2)]
            try:
                assert train(subject.loader) == expected
            finally:
                is_over.set()
        assert [each.result() for each in running] == [None, None]
        assert seen
        assert all(state in [subject.start, expected[-1], *expected] for state in states)


@pytest.mark.parametrize(("kind", "has_lengths"), KINDS)
def test_a_handler_that_reads_in_the_midst_of_a_call_is_right_and_so_is_the_call(
    tmp_path: Path, kind: str, has_lengths: bool
) -> None:
    choices = random.Random(0)
    with open_subject(tmp_path, kind, has_lengths) as subject:
        for operation in subject.operations:
            check = Check(subject, operation)
            for _ in range(HANDLED):
                assert check.find_fault_of_handler(check.choose(choices)) is None


def test_a_signal_handler_may_save_while_the_loader_trains_and_jumps(tmp_path: Path) -> None:
    saved: list[Any] = []
    with open_subject(tmp_path, "best_fit in a mixture", True) as subject:
        loader = subject.loader
        subject.restart()
        expected = [loader.state_dict() for _ in loader.take(30)]
        elsewhere = subject.seek_elsewhere()

        def save(*_: object) -> None:
            saved.append(loader.state_dict())
            signal.setitimer(signal.ITIMER_REAL, 0.005)

        before = signal.signal(signal.SIGALRM, save)
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        try:
            subject.restart()
            states = [loader.state_dict() for _ in loader.take(30)]
            subject.restart()
            loader.seek(FURTHER)
            jumped = loader.state_dict()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert states == expected
        assert jumped == elsewhere
        assert saved
        assert all(state in [subject.start, elsewhere, *expected] for state in saved)
