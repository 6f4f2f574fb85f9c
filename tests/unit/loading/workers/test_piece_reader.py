"""Rows are read from pieces of documents, and a document in memory is not read again."""

from __future__ import annotations

from typing import Any

import numpy as np

from cloudload.loading.workers.documents import FoundDocuments
from cloudload.loading.workers.held_documents import HeldDocuments
from cloudload.loading.workers.piece_reader import PieceReader
from cloudload.rows.packing.packers import Packing
from cloudload.rows.packing.tables import CutRows, ReadDocuments, Size, document_keys, join_whole
from cloudload.system.arrays import Ints
from testkit.letters import letters, spell
from testkit.tiny_runs import TinyRun

TEXTS = {(0, 3): "aaaaaaa", (0, 4): "bbb", (0, 5): "cccc", (1, 3): "dd", (1, 4): "eeeeeeeee"}
SEQ_LEN = 5
START = TinyRun([1, 1]).start
Piece = tuple[int, tuple[int, int], int, int]
"""(row, (lane, ordinal), start, stop)"""


class Source:
    """A source of the documents in `TEXTS` that notes what is asked of it."""

    def __init__(self) -> None:
        self.read_documents: list[tuple[int, int]] = []
        self.fetched: list[int] = []
        self.sizes: list[int] = []

    def find(self, flat_lanes: Ints, ordinals: Ints) -> FoundDocuments:
        nowhere = np.zeros_like(ordinals)
        return FoundDocuments(flat_lanes, ordinals, nowhere, 10 * flat_lanes + ordinals)

    def prefetch(self, samples: Ints) -> None:
        self.fetched += samples.tolist()

    def read(self, found: FoundDocuments, begun_sizes: Ints) -> ReadDocuments:
        keys = list(zip(found.flat_lanes.tolist(), found.ordinals.tolist(), strict=True))
        self.read_documents += keys
        self.sizes += begun_sizes.tolist()
        return letters(*((*key, TEXTS[key]) for key in keys))


def open_reader(source: Any, position: Any = START) -> PieceReader:
    return PieceReader(source, HeldDocuments(Packing("concat", SEQ_LEN, 0, "cut")), position)


def pieces_of(*pieces: Piece) -> Ints:
    rows = [
        (row, int(document_keys(*np.array(document)[:, None])[0]), start, stop)
        for row, document, start, stop in pieces
    ]
    return np.array(rows, np.int64).reshape(-1, 4)


def spelled(cut: CutRows) -> list[str]:
    return spell(cut, SEQ_LEN, int(cut.pieces[-1, 0]) + 1)


def test_rows_have_the_tokens_of_their_pieces() -> None:
    pieces = pieces_of(
        (0, (1, 4), 3, 8),
        (2, (0, 4), 1, 3),
        (2, (0, 3), 0, 2),
        (2, (0, 5), 3, 4),
        (3, (1, 4), 0, 3),
    )
    before = pieces.copy()
    cut = open_reader(Source()).read(pieces)
    assert spelled(cut) == ["eeeee", ".....", "bbaac", "eee.."]
    assert pieces.tolist() == before.tolist()


def test_rows_of_a_lane_in_order_read_each_document_once() -> None:
    source = Source()
    reader = open_reader(source)
    rows = [
        ([(0, (0, 3), 0, 5)], "aaaaa"),
        ([(0, (0, 3), 5, 7), (0, (0, 4), 0, 3)], "aabbb"),
        ([(0, (0, 5), 0, 4)], "cccc."),
    ]
    for pieces, text in rows:
        assert spelled(reader.read(pieces_of(*pieces))) == [text]
    assert source.read_documents == [(0, 3), (0, 4), (0, 5)]
    # rows have taken all of it, so it is not in memory
    reader.read(pieces_of((0, (0, 3), 0, 5)))
    assert source.read_documents[3:] == [(0, 3)]


def test_documents_in_memory_and_others_have_their_own_tokens_in_a_row() -> None:
    """The first, third, and last document in the order of keys are in memory."""
    source = Source()
    reader = open_reader(source)
    reader.held.keep(letters(*((*key, TEXTS[key]) for key in [(0, 3), (0, 5), (1, 4)])))
    documents = list(TEXTS)
    pieces = [(0, document, 0, 1) for document in documents]
    assert spelled(reader.read(pieces_of(*pieces))) == ["abcde"]
    assert source.read_documents == [(0, 4), (1, 3)]
    assert source.fetched == [4, 13]


def test_a_document_that_a_lane_has_begun_has_the_size_of_the_cursor() -> None:
    source, cursors = Source(), START.cursors.copy()
    cursors[0, 0] = 3, 2, 7
    reader = open_reader(source, START.with_lanes(cursors=cursors))
    reader.read(pieces_of((0, (0, 3), 2, 7), (1, (0, 4), 0, 3)))
    assert source.sizes == [7, Size.ABSENT]


def test_measured_sizes_are_those_of_the_pieces_documents() -> None:
    source = Source()
    pieces = pieces_of((0, (1, 4), 0, 2), (0, (0, 4), 0, 3), (1, (1, 4), 2, 7))
    open_reader(source).read(pieces, np.array([9, 3, 9]))
    assert source.sizes == [3, 9]


def test_the_caller_may_fetch_the_shards_of_documents_that_are_not_in_memory() -> None:
    source, fetched = Source(), list[int]()
    reader = open_reader(source)
    reader.held.keep(letters((0, 3, TEXTS[0, 3])))
    pieces = pieces_of((0, (0, 3), 0, 3), (0, (1, 3), 0, 2))
    reader.read(pieces, prefetch=lambda found: fetched.extend(found.samples.tolist()))
    assert (fetched, source.fetched) == ([13], [])
    reader.read(pieces, prefetch=lambda _: fetched.append(-1))
    assert fetched == [13, -1]


def test_whole_documents_are_in_the_order_of_their_keys_even_if_some_are_in_memory() -> None:
    reader = open_reader(Source())
    reader.held.keep(letters((0, 4, TEXTS[0, 4])))
    documents = [(1, 3), (0, 4), (0, 3)]
    keys = document_keys(*np.array(documents).T)
    whole = reader.read_documents(keys, np.array([2, 3, 7]))
    assert spell(join_whole(whole), 12, 1) == ["ddbbbaaaaaaa"]


def test_no_pieces_are_no_documents() -> None:
    source = Source()
    cut = open_reader(source).read(pieces_of())
    assert (len(cut.pieces), len(cut.documents.table), source.read_documents) == (0, 0, [])
