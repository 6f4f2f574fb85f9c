"""The reference packers pack short documents into the rows that each test spells out."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from cloudload.rows.packing.packers import BestFitPacker, Packer, Packing


def pack(packer: Packer, sizes: Iterable[int], *, first: int = 0, ends: bool = True) -> list[str]:
    """Pack documents a, b, c, … of these sizes. Return the rows as text, a letter per token."""
    for ordinal, size in enumerate(sizes, first):
        packer.add(ordinal, size)
    if ends:
        packer.finish()
    return [
        "".join(chr(97 + ordinal) * (stop - start) for ordinal, start, stop, _ in row.pieces)
        for row in packer.rows
    ]


def packing(name: str, *, open_rows: int = 2, overflow: str = "cut") -> Packing:
    return Packing(name, 5, open_rows, overflow)


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        (packing("concat"), ["aaaab", "bbbbb", "bcc"]),
        (packing("best_fit"), ["bbbbb", "aaaa", "bbcc"]),
        (packing("one_per_row"), ["aaaa", "bbbbb", "cc"]),
        (packing("one_per_row", overflow="rows"), ["aaaa", "bbbbb", "bb", "cc"]),
    ],
    ids=lambda value: f"{value.name}, {value.overflow}" if isinstance(value, Packing) else "",
)
def test_four_seven_and_two_tokens_in_rows_of_five(settings: Packing, rows: list[str]) -> None:
    assert pack(settings.packer(), [4, 7, 2]) == rows


def test_best_fit_puts_a_document_into_the_fullest_row_with_room() -> None:
    packer = packing("best_fit", open_rows=3).packer()
    assert pack(packer, [2, 4, 1], ends=False) == ["bbbbc"]
    assert packer.rows[0].cursor == (3, 0)


def test_of_rows_as_full_best_fit_takes_the_older() -> None:
    packer = packing("best_fit", open_rows=3).packer()
    assert pack(packer, [3, 3, 2], ends=False) == ["aaacc"]


def test_best_fit_closes_the_fullest_row_when_too_many_are_open() -> None:
    assert pack(packing("best_fit", open_rows=1).packer(), [3, 4, 3], ends=False) == ["bbbb", "aaa"]


def fair(*, seq_len: int = 8, open_rows: int = 16, first: int = 0) -> Packing:
    return Packing("best_fit", seq_len, open_rows, "cut", first)


def test_of_two_documents_only_one_may_wait_at_a_fair_start() -> None:
    assert pack(fair().packer(), [5, 5], ends=False) == ["aaaaa"]
    assert pack(packing("best_fit").packer(), [3, 3], ends=False) == []


def test_a_single_row_waits_until_it_is_full_or_a_long_document_begins() -> None:
    assert pack(fair().packer(), [2, 2, 2], ends=False) == []
    packer = fair().packer()
    assert pack(packer, [2, 2, 2, 9], ends=False) == ["aabbcc", "d" * 8]
    assert [row.cursor for row in packer.rows] == [(3, 0), (3, 8)]
    assert pack(fair().packer(), [2, 2, 9], ends=False) == ["c" * 8]


def test_the_documents_that_may_wait_are_counted_from_the_runs_first_ordinal() -> None:
    sizes = [5, 5, 5, 5]
    assert pack(fair().packer((12, 0)), sizes, first=12, ends=False) == []
    assert pack(fair(first=12).packer((12, 0)), sizes, first=12, ends=False) == ["m" * 5, "n" * 5]


def test_as_many_documents_wait_as_the_square_root_of_those_read() -> None:
    sizes = np.random.default_rng(0).integers(1, 60, 3_000).tolist()
    packer = fair(seq_len=48).packer()
    assert isinstance(packer, BestFitPacker)
    most = 0
    for ordinal, size in enumerate(sizes):
        packer.add(ordinal, size)
        waiting = sum(map(len, packer.open_spans))
        assert waiting**2 <= ordinal + 1 or len(packer.open_spans) == 1
        most = max(most, waiting)
    assert most > 30


@pytest.mark.parametrize(
    "settings", [packing("best_fit", open_rows=3), fair(seq_len=5, open_rows=3)], ids=["", "fair"]
)
def test_best_fit_resumes_from_the_residue_of_any_row(settings: Packing) -> None:
    sizes = [3, 12, 1, 4, 2, 5, 3, 3, 1, 6, 2, 2]
    whole = pack(settings.packer(), sizes)
    packer = settings.packer()
    pack(packer, sizes)
    for taken, row in enumerate(packer.rows, 1):
        ordinal, offset = row.cursor
        if taken == len(whole) or ordinal == len(sizes):
            break
        resumed = settings.packer((ordinal, offset), row.residue)
        assert pack(resumed, sizes[ordinal:], first=ordinal) == whole[taken:]


@pytest.mark.parametrize("name", ["concat", "one_per_row"])
def test_a_cursor_within_a_document_leaves_out_what_is_in_rows(name: str) -> None:
    packer = packing(name, overflow="rows").packer((1, 3))
    assert pack(packer, [7, 2], first=1)[0] == {"concat": "bbbbc", "one_per_row": "bbbb"}[name]


def test_a_cursor_past_its_document_is_refused() -> None:
    with pytest.raises(ValueError, match="token 8 of document 1, but document 1 has 7 tokens"):
        packing("concat").packer((1, 8)).add(1, 7)


def test_documents_without_tokens_give_no_row() -> None:
    for name in ("concat", "best_fit", "one_per_row"):
        assert pack(packing(name).packer(), [0, 0, 0]) == []


def test_only_one_per_row_cuts_and_only_best_fit_holds_back() -> None:
    assert [packing(name).has_residue for name in ("concat", "best_fit", "one_per_row")] == [
        False,
        True,
        False,
    ]
    assert packing("one_per_row").cuts
    assert not packing("one_per_row", overflow="rows").cuts
