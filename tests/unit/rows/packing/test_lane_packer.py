"""All packers of lanes keep the contract of `LaneRows`: the same rows, however documents arrive."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
import pytest

from cloudload.rows.packing.best_fit_lanes import BestFitLanes
from cloudload.rows.packing.concat_lanes import ConcatLanes
from cloudload.rows.packing.lane_packer import LaneRows, copy_tokens, own_documents
from cloudload.rows.packing.packers import Packing
from cloudload.rows.packing.residue import EMPTY_GROUP, encode_residue
from cloudload.rows.packing.tables import (
    BASE,
    COUNTED_AS,
    COUNTED_ROW,
    COUNTED_SIZE,
    PIECE_DOCUMENT,
    SAMPLE,
)
from cloudload.stats import DOCUMENTS, EMPTY
from cloudload.system.arrays import Ints
from testkit.letters import letters, spell
from testkit.packer_lanes import PackerLanes

SEQ_LEN, NUM_LANES = 5, 3
Make = Callable[..., LaneRows]


def make(name: str, *, is_twin: bool = False, overflow: str = "cut") -> Make:
    """A function that makes lanes from cursors, by default at the start, and residues."""
    packing = Packing(name, SEQ_LEN, 2, overflow)

    def lanes(cursors: Ints | None = None, residues: list[bytes] | None = None) -> LaneRows:
        start = np.zeros((NUM_LANES, 2), np.int64) if cursors is None else cursors
        if not is_twin:
            return PackerLanes(packing, NUM_LANES, start, residues)
        if name == "best_fit":
            return BestFitLanes(packing, NUM_LANES, start, residues)
        return ConcatLanes(packing, NUM_LANES, start)

    return lanes


CONCAT = [make("concat"), make("concat", is_twin=True)]
BEST_FIT = [make("best_fit"), make("best_fit", is_twin=True)]
ONE_PER_ROW = [make("one_per_row"), make("one_per_row", is_twin=True)]
KINDS = ["reference", "twin"]
concat = pytest.mark.parametrize("new", CONCAT, ids=KINDS)
best_fit = pytest.mark.parametrize("new", BEST_FIT, ids=KINDS)
every_packer = pytest.mark.parametrize(
    "new",
    [*CONCAT, *BEST_FIT, *ONE_PER_ROW],
    ids=[f"{name}-{kind}" for name in ("concat", "best_fit", "one_per_row") for kind in KINDS],
)


def cut(lanes: LaneRows, wanted: dict[int, int]) -> list[str]:
    """Cut rows, as many as wanted from each lane, and return their text."""
    return spell(lanes.cut(np.array([*wanted]), np.array([*wanted.values()])), SEQ_LEN)


@concat
def test_concat_cuts_the_tokens_of_each_lane_at_every_seq_len(new: Make) -> None:
    lanes = new()
    lanes.add(letters((0, 0, "aaa"), (0, 1, "bb"), (0, 2, "ccccc"), (1, 0, "ddddddd")))
    assert cut(lanes, {0: 2, 1: 1}) == ["aaabb", "ccccc", "ddddd"]
    lanes.add(letters((1, 1, "eeeeeeee")))
    assert cut(lanes, {1: 2}) == ["ddeee", "eeeee"]


@best_fit
def test_best_fit_waits_for_a_document_that_fits(new: Make) -> None:
    lanes = new()
    lanes.add(letters((0, 0, "aaa"), (0, 1, "bbbb"), (1, 0, "ddddddd"), (1, 1, "eee")))
    assert cut(lanes, {0: 2, 1: 2}) == ["ddddd", "ddeee"]
    lanes.add(letters((0, 2, "cc")))
    assert cut(lanes, {0: 2}) == ["aaacc"]


@pytest.mark.parametrize("is_twin", [False, True], ids=KINDS)
def test_one_per_row_cuts_off_what_a_row_cannot_hold(*, is_twin: bool) -> None:
    documents = letters((0, 0, "aaaaaaa"), (0, 1, ""), (0, 2, "cc"))
    for overflow, rows in [("cut", ["aaaaa", "cc..."]), ("rows", ["aaaaa", "aa...", "cc..."])]:
        lanes = make("one_per_row", is_twin=is_twin, overflow=overflow)()
        lanes.add(documents)
        assert cut(lanes, {0: 9}) == rows


@every_packer
def test_rows_come_lane_by_lane_and_as_many_as_wanted(new: Make) -> None:
    lanes = new()
    lanes.add(letters((0, 0, "aaaaa"), (0, 1, "bbbbb"), (2, 0, "ccccc"), (2, 1, "ddddd")))
    rows = lanes.cut(np.array([0, 1, 2]), np.array([1, 4, 3]))
    assert rows.num_rows.tolist() == [1, 0, 2]
    assert spell(rows, SEQ_LEN) == ["aaaaa", "ccccc", "ddddd"]
    assert cut(lanes, {0: 9, 1: 9, 2: 9}) == ["bbbbb"]


@every_packer
def test_a_lane_that_is_not_asked_keeps_its_rows(new: Make) -> None:
    lanes = new()
    lanes.add(letters((0, 0, "aaaaa"), (1, 0, "bbbbb")))
    assert cut(lanes, {0: 1, 1: 0}) == ["aaaaa"]
    assert cut(lanes, {1: 1}) == ["bbbbb"]


@every_packer
def test_no_documents_give_no_rows(new: Make) -> None:
    rows = new().cut(np.array([0, 2]), np.array([3, 3]))
    assert rows.num_rows.tolist() == [0, 0]
    assert [len(array) for array in (rows.pieces, rows.cursors, rows.counted)] == [0, 0, 0]


@every_packer
def test_lanes_without_a_residue_read_nothing_again(new: Make) -> None:
    assert [array.tolist() for array in new().unread(np.array([0, 2]))] == [[], []]


@every_packer
def test_lanes_may_arrive_in_any_order(new: Make) -> None:
    first, second = [(0, 0, "aaaaaa"), (0, 1, "bbbb")], [(1, 0, "cccccccc"), (1, 1, "ddddd")]
    rows = []
    for arrivals in ([first + second], [first, second], [second, first], [second[:1], first]):
        lanes = new()
        for arrival in arrivals:
            lanes.add(letters(*arrival))
        rows.append(cut(lanes, {0: 9, 1: 1}))
    assert rows[0] == rows[1] == rows[2] == rows[3] != []


@every_packer
def test_rows_do_not_depend_on_how_many_documents_arrive_at_once(new: Make) -> None:
    texts = ["aa", "bbbbbbbbbbbb", "", "cccc", "d", "eeeeeee", "fff", "gg", "hhhhh"]
    documents = [(lane, ordinal, text) for lane in (0, 2) for ordinal, text in enumerate(texts)]
    at_once, one_by_one = new(), new()
    at_once.add(letters(*documents))
    rows: dict[int, list[str]] = {0: [], 2: []}
    for document in documents:
        one_by_one.add(letters(document))
        for lane, of_lane in rows.items():
            of_lane.extend(cut(one_by_one, {0: 0, 2: 0, lane: 1}))
    for lane, of_lane in rows.items():
        of_lane.extend(cut(one_by_one, {0: 0, 2: 0, lane: 99}))
        assert cut(at_once, {0: 0, 2: 0, lane: 99}) == of_lane


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        *[(new, [[1, 2], [2, 0]]) for new in CONCAT],
        *[(new, [[1, 5], [2, 0]]) for new in BEST_FIT],
        *[(new, [[1, 0], [2, 0]]) for new in ONE_PER_ROW],
    ],
)
def test_the_cursor_after_a_row_is_the_next_unread_token(
    new: Make, expected: list[list[int]]
) -> None:
    lanes = new()
    lanes.add(letters((1, 0, "aaa"), (1, 1, "bbbbbbb")))
    rows = lanes.cut(np.array([1]), np.array([2]))
    assert rows.cursors.tolist() == expected


@every_packer
def test_a_document_is_counted_with_the_row_after_which_the_cursor_is_past_it(new: Make) -> None:
    lanes = new()
    lanes.add(letters((0, 0, "aaaaa"), (2, 0, ""), (2, 1, "ccccc"), (2, 2, ""), (2, 3, "ddddd")))
    counted = lanes.cut(np.array([0, 2]), np.array([1, 2])).counted
    assert counted[:, [COUNTED_ROW, COUNTED_AS, COUNTED_SIZE]].tolist() == [
        [0, DOCUMENTS, 5],
        [1, EMPTY, 0],
        [1, DOCUMENTS, 5],
        [2, EMPTY, 0],
        [2, DOCUMENTS, 5],
    ]


@every_packer
def test_a_document_after_the_last_row_is_counted_with_a_later_row(new: Make) -> None:
    lanes = new()
    lanes.add(letters((0, 0, "aaaaa"), (0, 1, ""), (0, 2, "bbbbb")))
    assert lanes.cut(np.array([0]), np.array([1])).counted[:, COUNTED_ROW].tolist() == [0]
    assert lanes.cut(np.array([0]), np.array([1])).counted[:, COUNTED_ROW].tolist() == [0, 0]


@every_packer
def test_tokens_are_missing_until_the_rows_are_complete(new: Make) -> None:
    lanes, all_lanes, wanted = new(), np.array([0, 1, 2]), np.array([1, 2, 0])
    assert lanes.missing(all_lanes, wanted).tolist() == [5, 10, 0]
    lanes.add(letters((0, 0, "aaaaa"), (1, 0, "bbbbb")))
    assert lanes.missing(all_lanes, wanted).tolist() == [0, 5, 0]
    lanes.cut(all_lanes, np.array([1, 0, 0]))
    assert lanes.missing(all_lanes, wanted).tolist() == [5, 5, 0]


@concat
def test_tokens_that_wait_for_a_concat_row_are_not_missing(new: Make) -> None:
    lanes = new()
    lanes.add(letters((0, 0, "aaaaaaa")))
    assert lanes.missing(np.array([0]), np.array([1])).tolist() == [0]
    assert lanes.missing(np.array([0]), np.array([2])).tolist() == [3]


@concat
def test_tokens_before_the_starting_cursor_do_not_count(new: Make) -> None:
    lanes = new(np.array([[0, 0], [4, 2], [0, 0]]))
    lanes.add(letters((1, 4, "bbcccccccc")))
    assert lanes.missing(np.array([1]), np.array([2])).tolist() == [2]
    assert cut(lanes, {1: 2}) == ["ccccc"]


def test_a_lane_with_open_rows_misses_at_least_one_token() -> None:
    for new in (*BEST_FIT, *ONE_PER_ROW):
        lanes = new()
        lanes.add(letters((0, 0, "aaaa")))
        assert (lanes.missing(np.array([0]), np.array([2])) > 0).all()


@every_packer
def test_a_lane_goes_on_at_its_starting_cursor(new: Make) -> None:
    lanes = new(np.array([[0, 0], [4, 2], [0, 0]]))
    lanes.add(letters((0, 0, "aaaaa"), (1, 4, "bbcccccccc")))
    rows = {row[0]: row for row in cut(lanes, {0: 9, 1: 1})}
    assert rows == {"a": "aaaaa", "c": "ccccc"}


@concat
def test_documents_of_many_arrivals_make_one_row(new: Make) -> None:
    lanes = new()
    for ordinal, text in enumerate(["a", "bb", "", "c"]):
        lanes.add(letters((1, 9, "x"), (0, ordinal, text)) if ordinal else letters((0, 0, "a")))
        assert cut(lanes, {0: 1, 1: 0}) == []
    lanes.add(letters((0, 4, "dddd")))
    assert cut(lanes, {0: 1, 1: 0}) == ["abbcd"]
    lanes.add(letters((0, 5, "ee")))
    assert cut(lanes, {0: 1, 1: 0}) == ["dddee"]


@best_fit
def test_what_a_lane_held_back_is_read_again(new: Make) -> None:
    """Lane 1 has read 5 documents, and documents 2 and 4 are in its two open rows."""
    residue = EMPTY_GROUP + encode_residue([(4, 0, 4)]) + encode_residue([(2, 5, 7)])
    lanes = new(np.array([[0, 0], [5, 0], [0, 0]]), [b"", residue, b""])
    flat_lanes, ordinals = lanes.unread(np.array([0, 1]))
    assert (flat_lanes.tolist(), sorted(ordinals.tolist())) == ([1, 1], [2, 4])
    lanes.add(letters((1, 4, "eeee"), (1, 2, "xxxxxcc")))
    assert [len(each) for each in lanes.unread(np.array([0, 1]))] == [0, 0]
    lanes.add(letters((1, 5, "fff"), (1, 6, "g")))
    assert cut(lanes, {0: 9, 1: 9}) == ["ccfff", "eeeeg"]


@best_fit
def test_a_document_that_was_held_back_is_not_counted_again(new: Make) -> None:
    residue = EMPTY_GROUP + encode_residue([(2, 0, 3)])
    lanes = new(np.array([[0, 0], [0, 0], [3, 0]]), [b"", b"", residue])
    lanes.unread(np.array([2]))
    lanes.add(letters((2, 2, "ccc")))
    lanes.add(letters((2, 3, "dd")))
    rows = lanes.cut(np.array([2]), np.array([1]))
    assert spell(rows, SEQ_LEN) == ["cccdd"]
    assert rows.counted[:, COUNTED_SIZE].tolist() == [2]


@best_fit
def test_the_residue_after_a_row_is_its_lanes_open_rows(new: Make) -> None:
    lanes = new()
    lanes.add(letters((0, 0, "aaa"), (0, 1, "bbbbb"), (1, 0, "ccccc")))
    rows = lanes.cut(np.array([0, 1]), np.array([1, 1]))
    assert rows.residues is not None
    assert list(rows.residues) == [EMPTY_GROUP + encode_residue([(0, 0, 3)]), b""]


@concat
def test_concat_has_no_residue(new: Make) -> None:
    assert new().cut(np.array([0]), np.array([1])).residues is None


@every_packer
def test_the_arrays_of_an_arrival_are_freed(new: Make) -> None:
    """A lane copies the tokens that it keeps, because they share a buffer with all other lanes."""
    lanes, documents = new(), letters((0, 0, "aaaaaaa"), (1, 0, "bbb"))
    ids = weakref.ref(documents.buffers[0].obj)
    lanes.add(documents)
    lanes.cut(np.array([0, 1]), np.array([1, 1]))
    del documents
    assert ids() is None


def test_a_concat_lane_keeps_only_the_tokens_that_wait() -> None:
    lanes = CONCAT[1]()
    lanes.add(letters((0, 0, "aaaaaaa"), (0, 1, "b"), (1, 0, "ccc"), (2, 0, "")))
    cut(lanes, {0: 1, 1: 1, 2: 1})
    lanes.add(letters((0, 2, "dd"), (1, 1, "eee")))
    rows = lanes.cut(np.array([0, 1, 2]), np.array([1, 1, 1]))
    assert spell(rows, SEQ_LEN) == ["aabdd", "cccee"]
    assert sum(map(len, rows.documents.buffers)) == len("aabccc") + len("ddeee")
    rows = lanes.cut(np.array([0, 1, 2]), np.array([1, 1, 1]))
    assert sum(map(len, rows.documents.buffers)) == len("e")


@every_packer
def test_pieces_refer_to_the_documents_that_they_are_of(new: Make) -> None:
    lanes = new()
    lanes.add(letters((0, 0, "aaaaa"), (1, 7, "bbbbb"), (1, 8, "ccccc")))
    rows = lanes.cut(np.array([0, 1]), np.array([1, 2]))
    assert rows.documents.table[rows.pieces[:, PIECE_DOCUMENT], SAMPLE].tolist() == [0, 7, 8]


def test_own_documents_have_copies_of_their_tokens() -> None:
    documents = letters((0, 0, "aa"), (0, 1, ""), (0, 2, "bbb"))
    owned = own_documents(documents)
    assert [own.buffers[0].tolist() for own in owned] == [[97] * 2, [], [98] * 3]
    assert [own.table[:, BASE].tolist() for own in owned] == [[0], [0], [0]]
    assert documents.table[:, BASE].tolist() == [0, 2, 2]
    np.asarray(documents.buffers[0])[:] = 0
    assert owned[2].buffers[0].tolist() == [98] * 3


def test_the_base_of_an_own_document_with_a_bos_stays_below_its_copy() -> None:
    """The buffer contains no bos, so token 0 of the first document is at index -1."""
    documents = letters((0, 0, "aaa"), (0, 1, "bbb"))
    documents.table[:, BASE] = -1, 1  # each text is one bos and two letters
    np.asarray(documents.buffers[0])[:4] = [97, 97, 98, 98]
    owned = own_documents(documents)
    assert [own.table[:, BASE].tolist() for own in owned] == [[-1], [0]]
    assert [own.buffers[0].tolist() for own in owned] == [[97, 97], [97, 98, 98]]


def test_a_copy_of_tokens_is_a_range_of_its_own() -> None:
    buffer = np.array([1, 2, 3, 4], np.int32)
    copied = copy_tokens(buffer.data, 1, 3)
    buffer[:] = 0
    assert copied.tolist() == [2, 3]
    assert (copied.format, copied.itemsize) == ("i", 4)
