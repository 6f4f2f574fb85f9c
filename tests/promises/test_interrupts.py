"""Ctrl-C at any bytecode leaves nothing that a later call, or another loader, would read wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.interrupted import KINDS, Check, open_subject
from tests.support.interrupts import Visit, choose, list_edges

SOME, MANY = 300, 2_000


def check(folder: Path, kind: str, has_lengths: bool, number: int, *, everywhere: bool) -> None:
    """Interrupt each operation of a kind at random, in total `number` times, and everywhere."""
    faults, seen = [], set[Visit]()
    with open_subject(folder, kind, has_lengths) as subject:
        operations = subject.operations
        for seed, operation in enumerate(operations):
            found = Check(subject, operation)
            visits = choose(found.visits, -(-number // len(operations)), seed)
            if everywhere:  # a bytecode that several operations run is interrupted in the first
                visits += [
                    each for each in list_edges(found.visits) if found.visits[each] not in seen
                ]
                seen.update(found.visits)
            faults += [fault for visit in visits if (fault := found.find_fault(visit))]
    assert not faults


@pytest.mark.parametrize(("kind", "has_lengths"), KINDS)
def test_an_interrupted_call_can_be_repeated(tmp_path: Path, kind: str, has_lengths: bool) -> None:
    check(tmp_path, kind, has_lengths, SOME // len(KINDS), everywhere=False)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "has_lengths"), KINDS)
def test_a_call_that_is_interrupted_at_any_bytecode_can_be_repeated(
    tmp_path: Path, kind: str, has_lengths: bool
) -> None:
    check(tmp_path, kind, has_lengths, MANY // len(KINDS), everywhere=True)
