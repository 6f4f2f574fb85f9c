"""Ctrl-C at any bytecode leaves nothing that a later call, or another loader, would read wrong."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from cloudload.errors import CacheError
from cloudload.loading.delivery.run_log import RunLog
from cloudload.run.lengths import best_fit_checkpoints
from cloudload.run.position import Position
from testkit.corpora import random_documents, write_mds
from testkit.interrupted import KINDS, Check, open_subject
from testkit.interrupts import Visit, count_visits, interrupt, list_edges
from testkit.loaders import make_loader

SOME, MANY = 300, 2_000


def check(folder: Path, kind: str, has_lengths: bool, number: int, *, everywhere: bool) -> None:
    """Interrupt each operation of a kind at random, in total `number` times, and everywhere."""
    faults, seen, choices = [], set[Visit](), random.Random(0)
    with open_subject(folder, kind, has_lengths) as subject:
        operations = subject.operations
        for operation in operations:
            found = Check(subject, operation)
            visits = [found.choose(choices) for _ in range(-(-number // len(operations)))]
            if everywhere:  # a bytecode that several operations run is interrupted in the first
                edges = list_edges(found.visits)
                visits += [each for each in edges if found.visits[each] not in seen]
                seen.update(found.visits)
            faults += [fault for visit in visits if (fault := found.find_fault(visit))]
    assert not faults


@pytest.mark.parametrize(("kind", "has_lengths"), KINDS)
def test_an_interrupted_call_can_be_repeated(tmp_path: Path, kind: str, has_lengths: bool) -> None:
    check(tmp_path, kind, has_lengths, SOME // len(KINDS), everywhere=False)


def test_marks_of_earlier_versions_are_never_read(tmp_path: Path) -> None:
    with open_subject(tmp_path, "best_fit", True) as subject:
        subject.restart()
        expected = subject.seek_elsewhere()
        [folder] = tmp_path.glob("cache/lengths/*/best_fit-*")
        old = folder.with_name("best_fit-16-16")
        assert old != folder
        folder.rename(old)
        for path in old.glob("*.marks"):
            path.write_bytes(_mislead(path.read_bytes()))
        assert subject.seek_elsewhere() == expected
        shutil.rmtree(folder)
        old.rename(folder)
        assert subject.seek_elsewhere() != expected, "the marks do not mislead"


def _mislead(content: bytes) -> bytes:
    """Make each leap in a file of marks one row longer."""
    leaps, _ = best_fit_checkpoints._parse(content)
    return b"".join(
        best_fit_checkpoints._encode(key, leap._replace(rows=leap.rows + 1))
        for key, leap in leaps.items()
    )


@pytest.mark.long
@pytest.mark.parametrize(("kind", "has_lengths"), KINDS)
def test_a_call_that_is_interrupted_at_any_bytecode_can_be_repeated(
    tmp_path: Path, kind: str, has_lengths: bool
) -> None:
    check(tmp_path, kind, has_lengths, MANY // len(KINDS), everywhere=True)


@pytest.mark.parametrize("stop_every", [None, 2])
def test_a_batch_is_recorded_only_if_it_is_delivered(tmp_path: Path, stop_every: Any) -> None:
    data = write_mds(tmp_path / "mds", random_documents(3, 30))
    with make_loader(data, stop_every=stop_every) as loader:
        next(iter(loader))
        before, begun = loader.state_dict(), list[Any]()

        def prepare() -> None:
            begun.clear()
            loader.load_state_dict(before)

        def deliver() -> None:
            begun.append(iter(loader))  # it must not end here, after it has delivered the batch
            next(begun[0])

        prepare()
        visits = count_visits(deliver)
        after = loader.state_dict()
        record = max(each for each, (code, _) in enumerate(visits) if code.co_name == "record")
        early = [(visit, "") for visit in random.Random(0).sample(range(record), 10)]
        late = [(visit, "record") for visit in range(len(visits) - record)]
        for visit, first in early + late:
            prepare()
            assert interrupt(deliver, visit, first=first), (visit, first)
            assert loader.state_dict() == before, (visit, first)
            next(iter(loader))
            assert loader.state_dict() == after, (visit, first)


@pytest.mark.parametrize("skips", [False, True])
def test_if_something_fails_after_a_batch_was_recorded_the_batch_is_delivered_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skips: bool
) -> None:
    data = write_mds(tmp_path / "mds", random_documents(3, 60))
    with make_loader(data) as loader:
        batches, record = iter(loader), RunLog.record
        next(batches)
        before, stats = loader.state_dict(), loader.stats()
        left = 2 if skips else 0

        def record_and_fail(log: RunLog, position: Position) -> None:
            nonlocal left
            record(log, position)
            if not left:
                raise CacheError("cannot write a table: no space left on device")
            left -= 1

        with monkeypatch.context() as patched:
            patched.setattr(RunLog, "record", record_and_fail)
            with pytest.raises(CacheError, match="no space left"):
                loader.skip(4) if skips else next(batches)
        assert loader.state_dict() == before
        assert loader.stats().skipped_rows == stats.skipped_rows
        assert next(iter(loader)).first_row == loader.batch_size
