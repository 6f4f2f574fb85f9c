"""Lane marks survive a killed process, and processes share them through files."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from cloudload.run.lengths.best_fit_checkpoints import LaneMarks, LaneState, Leap
from cloudload.system.file_locks import locked
from cloudload.system.temp_files import lock_path
from testkit.interrupts import interrupt

START = LaneState(0, 0, b"")
STATES = [LaneState(2_048 * number, number, bytes(range(5 * number))) for number in range(1, 5)]


def add(marks: LaneMarks, lane: int, *numbers: int) -> None:
    """For each number, keep the leap that leads to `STATES[number]`."""
    befores = [START, *STATES]
    marks.keep(lane, {befores[number].key: Leap(10 + number, STATES[number]) for number in numbers})


def leaps(marks: LaneMarks, lane: int) -> list[Leap]:
    """Return the known leaps of a lane, from its start to the first gap."""
    found, state = [], START
    while (leap := marks.after(lane, state)) is not None:
        found.append(leap)
        state = leap.state
    return found


EXPECTED = [Leap(10 + number, state) for number, state in enumerate(STATES)]


def test_objects_that_add_the_same_leaps_write_each_once(tmp_path: Path) -> None:
    first, second = LaneMarks(tmp_path), LaneMarks(tmp_path)
    assert leaps(second, 7) == []
    add(first, 7, 0, 1)
    size = (tmp_path / "lane-7.marks").stat().st_size
    add(second, 7, 0, 1)
    assert (tmp_path / "lane-7.marks").stat().st_size == size
    add(second, 7, 2)
    add(first, 7, 3)
    assert leaps(LaneMarks(tmp_path), 7) == EXPECTED
    assert leaps(first, 7) == EXPECTED
    assert leaps(first, 8) == []
    size = (tmp_path / "lane-7.marks").stat().st_size
    add(first, 7, 2, 3)  # `first` has already read these leaps from the file
    add(LaneMarks(tmp_path), 7, 3, 0)
    assert (tmp_path / "lane-7.marks").stat().st_size == size
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.stem != "CACHEDIR") == [
        ".marks"
    ]


def test_a_record_that_a_killed_process_wrote_in_part_is_replaced(tmp_path: Path) -> None:
    add(LaneMarks(tmp_path), 0, 0, 1)
    path = tmp_path / "lane-0.marks"
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        known = leaps(LaneMarks(tmp_path), 0)
        assert known == EXPECTED[: len(known)]
        assert len(known) < 2
        marks = LaneMarks(tmp_path)
        leaps(marks, 0)
        add(marks, 0, 0, 1, 2)
        assert leaps(LaneMarks(tmp_path), 0) == EXPECTED[:3]


def test_a_damaged_record_is_not_taken(tmp_path: Path) -> None:
    add(LaneMarks(tmp_path), 0, 0, 1)
    path = tmp_path / "lane-0.marks"
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 64
        path.write_bytes(damaged)
        known = leaps(LaneMarks(tmp_path), 0)
        assert known == EXPECTED[: len(known)]
        assert len(known) < 2


def test_leaps_that_find_the_file_locked_are_known_and_written_later(tmp_path: Path) -> None:
    marks = LaneMarks(tmp_path)
    with locked(lock_path(tmp_path / "lane-0.marks")):
        add(marks, 0, 0, 1)  # as in a signal handler, which must not wait
        assert leaps(marks, 0) == EXPECTED[:2]
        assert leaps(LaneMarks(tmp_path), 0) == []
    add(marks, 0, 2)
    assert leaps(LaneMarks(tmp_path), 0) == EXPECTED[:3]


def test_a_file_that_was_removed_or_replaced_is_written_from_its_beginning(tmp_path: Path) -> None:
    for left in range(3):
        marks, path = LaneMarks(tmp_path / str(left)), tmp_path / str(left) / "lane-0.marks"
        add(marks, 0, 0, 1)
        content = path.read_bytes()
        path.unlink()
        if left:
            path.write_bytes(content[: left - 2])
        add(marks, 0, 0, 1, 2)
        assert leaps(LaneMarks(path.parent), 0) == EXPECTED[:3]


def test_an_interrupted_call_leaves_only_valid_leaps(tmp_path: Path) -> None:
    number = 0
    while True:
        marks = LaneMarks(tmp_path / str(number))
        add(marks, 0, 0)
        was_interrupted = interrupt(partial(add, marks, 0, 1, 2), number)
        for known in (leaps(marks, 0), leaps(LaneMarks(tmp_path / str(number)), 0)):
            assert known == EXPECTED[: len(known)]
        add(marks, 0, 1, 2)
        for known in (leaps(marks, 0), leaps(LaneMarks(tmp_path / str(number)), 0)):
            assert known == EXPECTED[:3]
        if not was_interrupted:
            break
        number += 4
    assert number > 100


def test_without_a_folder_marks_are_in_memory() -> None:
    marks = LaneMarks(None)
    add(marks, 0, 0, 1, 2, 3)
    assert leaps(marks, 0) == EXPECTED


def test_if_the_folder_cannot_be_written_a_warning_names_it_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    marks = LaneMarks(tmp_path / "file" / "folder")
    add(marks, 0, 0, 1)
    add(marks, 0, 2)
    add(marks, 1, 0)
    assert leaps(marks, 0) == EXPECTED[:3]
    [record] = caplog.records
    assert (
        f"cannot save the packer's state for best_fit lanes in {tmp_path}/file/folder"
    ) in record.getMessage()
