"""The reference packers pack short documents into the rows that each test spells out."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cloudload.packing.packers import Packer, Packing


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


def test_best_fit_resumes_from_the_residue_of_any_row() -> None:
    sizes = [3, 12, 1, 4, 2, 5, 3, 3, 1, 6, 2, 2]
    whole = pack(packing("best_fit", open_rows=3).packer(), sizes)
    packer = packing("best_fit", open_rows=3).packer()
    pack(packer, sizes)
    for taken, row in enumerate(packer.rows, 1):
        ordinal, offset = row.cursor
        if taken == len(whole) or ordinal == len(sizes):
            break
        resumed = packing("best_fit", open_rows=3).packer((ordinal, offset), row.residue)
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
