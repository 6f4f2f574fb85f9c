"""A process keeps the documents of a tail, and holds those of lanes while rows need them."""

from __future__ import annotations

import numpy as np
import pytest

from cloudload.loading.workers import held_documents
from cloudload.loading.workers.held_documents import HeldDocuments
from cloudload.rows.packing.packers import Packing
from cloudload.rows.packing.tables import SIZE, document_keys, keys_of
from testkit.letters import letters

CONCAT = Packing("concat", 5, 0, "cut")
BEST_FIT = Packing("best_fit", 5, 2, "cut")


def in_memory(held: HeldDocuments, *documents: tuple[int, int]) -> list[str | None]:
    """The text of each document, by (lane, ordinal); None if it is not in memory."""
    lanes, ordinals = np.array(documents, np.int64).T
    return [
        None if found is None else "".join(map(chr, found.buffers[0]))
        for found in held.find(document_keys(lanes, ordinals))
    ]


def hold(held: HeldDocuments, *documents: tuple[int, int, str], stop: int = 1) -> None:
    """Hold documents (lane, ordinal, text) of which rows have taken the first `stop` tokens."""
    held.hold(letters(*documents), np.full(len(documents), stop))


def test_a_lane_holds_its_last_document_until_rows_have_taken_all_of_it() -> None:
    held = HeldDocuments(CONCAT)
    hold(held, (0, 3, "aa"), (0, 4, "bbb"), (1, 3, "c"), (2, 7, "dd"))
    assert in_memory(held, (0, 3), (0, 4), (1, 3), (2, 7)) == [None, "bbb", None, "dd"]
    hold(held, (0, 4, "bbb"), (2, 8, "eee"), stop=2)
    assert in_memory(held, (0, 4), (2, 7), (2, 8)) == ["bbb", None, "eee"]
    hold(held, (0, 4, "bbb"), stop=3)
    assert in_memory(held, (0, 4), (2, 8)) == [None, "eee"]


def test_a_best_fit_lane_holds_16_documents() -> None:
    held = HeldDocuments(BEST_FIT)
    hold(held, *((0, ordinal, "aa") for ordinal in range(20)))
    assert in_memory(held, *((0, ordinal) for ordinal in range(20))) == [None] * 4 + ["aa"] * 16
    hold(held, (0, 5, "aa"), stop=2)
    assert in_memory(held, (0, 4), (0, 5), (0, 6)) == ["aa", None, "aa"]


def test_a_document_whose_rest_is_cut_off_is_not_held() -> None:
    held = HeldDocuments(Packing("one_per_row", 5, 0, "cut"))
    hold(held, (0, 0, "aaaaaaa"), stop=5)
    assert in_memory(held, (0, 0)) == [None]
    held = HeldDocuments(Packing("one_per_row", 5, 0, "rows"))
    hold(held, (0, 0, "aaaaaaa"), stop=5)
    assert in_memory(held, (0, 0)) == ["aaaaaaa"]


def test_lanes_that_have_not_changed_for_the_longest_time_are_released_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_documents, "MOST_HELD_BYTES", 3 * 4 * 4)
    held = HeldDocuments(CONCAT)
    hold(held, (0, 0, "aaaa"), (1, 0, "bbbb"), (2, 0, "cccc"))
    hold(held, (0, 1, "dddd"))
    assert in_memory(held, (0, 1), (1, 0), (2, 0)) == ["dddd", "bbbb", "cccc"]
    hold(held, (3, 0, "eeee"))
    assert in_memory(held, (0, 1), (1, 0), (2, 0), (3, 0)) == ["dddd", None, "cccc", "eeee"]
    # what was released has made room
    hold(held, (0, 1, "dddd"), (2, 0, "cccc"), stop=4)
    hold(held, (4, 0, "ffff"), (5, 0, "gggg"))
    assert in_memory(held, (3, 0), (4, 0), (5, 0)) == ["eeee", "ffff", "gggg"]


def test_documents_that_are_kept_are_never_released() -> None:
    held = HeldDocuments(CONCAT)
    held.keep(letters((0, 3, "aa"), (0, 4, ""), (0, 5, "bb")))
    hold(held, (0, 3, "aa"), (0, 5, "bb"), stop=2)
    hold(held, (0, 6, "cc"))
    assert in_memory(held, (0, 3), (0, 4), (0, 5), (0, 6)) == ["aa", None, "bb", "cc"]


def test_after_the_limit_only_documents_without_a_limit_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each document needs 400 bytes, and 4 bytes per token."""
    monkeypatch.setattr(held_documents, "MOST_KEPT_BYTES", 2 * 400 + 4 * 4)
    held = HeldDocuments(CONCAT)
    held.keep(letters((0, 0, "aaa")))
    held.keep(letters((0, 0, "aaa")))  # a document that is kept already needs nothing
    held.keep(letters((0, 1, "bb")))
    held.keep(letters((0, 2, "c")))
    held.keep(letters((0, 3, "ddddd")), is_limited=False)
    found = in_memory(held, (0, 0), (0, 1), (0, 2), (0, 3))
    assert found == ["aaa", None, None, "ddddd"]


def test_what_is_held_does_not_change_with_the_arrays_it_was_copied_from() -> None:
    held, documents = HeldDocuments(CONCAT), letters((0, 0, "aaa"), (1, 0, "bbb"))
    held.keep(documents)
    held.hold(documents, np.array([1, 1]))
    np.asarray(documents.buffers[0])[:] = 0
    assert in_memory(held, (0, 0), (1, 0)) == ["aaa", "bbb"]
    [found, _] = held.find(keys_of(documents.table))
    documents.table[:] = 0
    assert found is not None
    assert found.table[:, SIZE].tolist() == [3]
