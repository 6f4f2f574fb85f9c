"""The reference packers pack short documents into the rows that each test spells out."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from cloudload.rows.packing.packers import BestFitPacker, Packer, Packing
from cloudload.rows.packing.residue import Span, decode_residue, encode_residue
from cloudload.system.arrays import NEVER


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


@pytest.mark.parametrize(
    ("settings", "cursors", "is_last"),
    [
        (packing("concat"), [(1, 1), (1, 6), (3, 0)], [True, False, False, True, True]),
        (packing("best_fit"), [(1, 5), (3, 0), (3, 0)], [False, True, True, True]),
        (packing("one_per_row"), [(1, 0), (2, 0), (3, 0)], [True, True, True]),
        (
            packing("one_per_row", overflow="rows"),
            [(1, 0), (1, 5), (2, 0), (3, 0)],
            [True, False, True, True],
        ),
    ],
    ids=lambda value: f"{value.name}, {value.overflow}" if isinstance(value, Packing) else "",
)
def test_a_row_says_what_is_unread_and_which_documents_end_in_it(
    settings: Packing, cursors: list[tuple[int, int]], is_last: list[bool]
) -> None:
    packer = settings.packer()
    pack(packer, [4, 7, 2])
    assert [row.cursor for row in packer.rows] == cursors
    assert [piece[3] for row in packer.rows for piece in row.pieces] == is_last


def test_concat_knows_how_many_tokens_the_next_row_has() -> None:
    packer = packing("concat").packer()
    pending = []
    for ordinal, size in enumerate([3, 0, 4, 3, 1]):
        packer.add(ordinal, size)
        pending.append(packer.num_pending)
    assert pending == [3, 3, 2, 0, 1]
    packer.finish()
    assert packer.num_pending == 0


def test_a_document_as_long_as_a_row_or_two_leaves_nothing_open() -> None:
    for name in ("concat", "best_fit"):
        packer = packing(name).packer()
        assert pack(packer, [5, 10], ends=False) == ["aaaaa", "bbbbb", "bbbbb"]
        assert [row.cursor for row in packer.rows] == [(1, 0), (1, 5), (2, 0)]
        assert [row.residue for row in packer.rows] == [b""] * 3


@pytest.mark.parametrize("name", ["concat", "best_fit", "one_per_row"])
def test_a_cursor_at_the_end_of_its_document_leaves_nothing_of_it(name: str) -> None:
    assert pack(packing(name, overflow="rows").packer((1, 7)), [7, 5], first=1) == ["ccccc"]


@pytest.mark.parametrize("name", ["concat", "best_fit", "one_per_row"])
@pytest.mark.parametrize(("ordinal", "size"), [(1, 2), (2, 9)])
def test_a_first_document_that_is_not_the_cursors_is_refused(
    name: str, ordinal: int, size: int
) -> None:
    packer = packing(name).packer((1, 3))
    with pytest.raises(
        ValueError,
        match=f"^the cursor is at token 3 of document 1, but document {ordinal} has {size} tokens$",
    ):
        packer.add(ordinal, size)


def test_only_the_first_document_begins_at_the_cursor() -> None:
    for name in ("concat", "best_fit", "one_per_row"):
        rows = pack(packing(name, overflow="rows").packer((1, 3)), [5, 5], first=1)
        assert "".join(rows).count("b") == 2
        assert "".join(rows).count("c") == 5


def test_best_fit_puts_a_document_into_the_fullest_row_with_room() -> None:
    packer = packing("best_fit", open_rows=3).packer()
    assert pack(packer, [2, 4, 1], ends=False) == ["bbbbc"]
    assert packer.rows[0].cursor == (3, 0)


def test_of_rows_as_full_best_fit_takes_the_older() -> None:
    packer = packing("best_fit", open_rows=3).packer()
    assert pack(packer, [3, 3, 2], ends=False) == ["aaacc"]


def test_best_fit_closes_the_fullest_row_when_too_many_are_open() -> None:
    assert pack(packing("best_fit", open_rows=1).packer(), [3, 4, 3], ends=False) == ["bbbb", "aaa"]


def test_a_residue_lists_the_open_rows_by_free_space() -> None:
    packer = packing("best_fit", open_rows=3).packer()
    pack(packer, [2, 4, 1, 3, 7], ends=False)
    assert [decode_residue(row.residue, row.cursor[0]) for row in packer.rows] == [
        ([], [[(0, 0, 2)]]),
        ([], []),
        ([], []),
    ]


def test_at_the_end_open_rows_are_emitted_from_the_fullest_on() -> None:
    packer = packing("best_fit", open_rows=3).packer()
    assert pack(packer, [2, 4, 3, 3]) == ["aaccc", "bbbb", "ddd"]
    assert [row.cursor for row in packer.rows] == [(3, 0), (4, 0), (4, 0)]
    assert [len(decode_residue(row.residue, 4)[1]) for row in packer.rows] == [1, 1, 0]


@pytest.mark.parametrize(
    "rows",
    [
        [[(0, 0, 5)]],  # a full row
        [[(0, 0, 4), (1, 0, 2)]],
        [[(0, 0, 2)], [(1, 0, 4)]],  # the fullest row is first
    ],
    ids=str,
)
def test_open_rows_that_no_lane_has_are_refused(rows: list[list[Span]]) -> None:
    residue = b"".join(map(encode_residue, [[], *rows]))
    with pytest.raises(
        ValueError, match=r"^open rows that do not fit 5 tokens, or are out of order$"
    ):
        packing("best_fit").packer((2, 0), residue)


def test_open_rows_as_full_as_each_other_are_restored() -> None:
    residue = b"".join(map(encode_residue, [[], [(0, 0, 3)], [(1, 0, 3)]]))
    assert pack(packing("best_fit").packer((2, 0), residue), [2], first=2) == ["aaacc", "bbb"]


def test_a_lane_with_fewer_open_rows_than_its_residue_emits_the_fullest() -> None:
    residue = b"".join(map(encode_residue, [[], [(0, 0, 4)], [(1, 0, 3)], [(2, 0, 1)]]))
    packer = packing("best_fit", open_rows=2).packer((3, 0), residue)
    assert pack(packer, [], ends=False) == ["aaaa"]
    assert decode_residue(packer.rows[0].residue, 3) == ([], [[(1, 0, 3)], [(2, 0, 1)]])


def test_spans_of_another_seq_len_are_packed_before_the_next_document() -> None:
    """Until they are packed, a row's residue lists them as waiting."""
    residue = encode_residue([(0, 2, 14), (1, 0, 4)])
    packer = packing("best_fit").packer((2, 0), residue)
    assert pack(packer, [2], first=2) == ["aaaaa", "aaaaa", "bbbb", "aacc"]
    assert [decode_residue(row.residue, row.cursor[0]) for row in packer.rows] == [
        ([(0, 7, 14), (1, 0, 4)], []),
        ([(0, 12, 14), (1, 0, 4)], []),
        ([], [[(0, 12, 14), (2, 0, 2)]]),
        ([], []),
    ]
    assert [row.pieces[0][3] for row in packer.rows] == [False, False, True, True]


def test_a_waiting_span_that_fills_its_last_row_no_longer_waits() -> None:
    packer = packing("best_fit").packer((2, 0), encode_residue([(0, 4, 14), (1, 0, 4)]))
    assert pack(packer, [], ends=False) == ["aaaaa", "aaaaa"]
    assert [decode_residue(row.residue, 2)[0] for row in packer.rows] == [
        [(0, 9, 14), (1, 0, 4)],
        [(1, 0, 4)],
    ]
    packer.finish()
    assert packer.rows[-1].pieces == [(1, 0, 4, True)]


def test_a_packing_has_the_settings_of_its_name() -> None:
    concat = Packing("concat", 20, 9, "cut")
    assert (concat.row_units, concat.most_free) == (20, 7)
    best_fit = Packing("best_fit", 16, 9, "cut", fair_from=3)
    assert (best_fit.row_units, best_fit.most_free, best_fit.least_ordinal) == (1, 6, 3)
    assert Packing("best_fit", 16, 9, "cut").least_ordinal == -NEVER
    assert not Packing("best_fit", 16, 9, "cut").cuts


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


@pytest.mark.parametrize(
    ("sizes", "read_before", "rows"),
    [
        ([5, 9], 0, ["a" * 5, "b" * 8]),  # 3 of 8 tokens are free, so the row is 5/8 full
        ([4, 9], 0, ["b" * 8]),
        ([5, 9], 4, ["b" * 8]),  # 1 document is less than half of √5
        ([2, 3, 9], 8, ["aabbb", "c" * 8]),  # 2 documents are more than half of √10
    ],
    ids=str,
)
def test_a_single_row_ends_before_a_long_document_if_many_wait_in_it(
    sizes: list[int], read_before: int, rows: list[str]
) -> None:
    assert pack(fair(first=-read_before).packer(), sizes, ends=False) == rows


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
