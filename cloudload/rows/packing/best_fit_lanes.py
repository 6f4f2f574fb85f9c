"""Pack many `best_fit` lanes at once: the vectorized twin of `BestFitPacker`.

    documents ─► pieces, in arrays ─► open rows of each lane ─► complete rows, taken in arrays

    aaaa bbbbbbb cc   seq_len 5  ─►  aaaa | bbbbb | bb | cc  ─►  bbbbb, then aaaa., then bbcc.

A **piece** is up to `seq_len` tokens of a document that are in one row. It is represented by an
integer, the index of its document and tokens in a table. Everything that does not depend on earlier
rows is computed for many pieces at once. Only the placement is sequential, because the row of
each piece depends on the pieces before it.

The reference, a `BestFitPacker` for each lane, is the specification. Tests
compare every row, cursor, residue and count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cloudload.rows.packing import best_fit_lane, tables
from cloudload.rows.packing.lane_packer import start_lanes
from cloudload.rows.packing.packers import Packing
from cloudload.rows.packing.residue import residue_spans
from cloudload.system import Ints

_TOKEN_BYTES = 4


class BestFitLanes:
    """Lanes whose documents go into the open row that fits them best; see `LaneRows`.

    `cursors` is int64 [flat_lanes, 2].
    """

    def __init__(
        self, packing: Packing, num_lanes: int, cursors: Ints, residues: Sequence[bytes] | None
    ) -> None:
        self._packing, self._num_lanes = packing, num_lanes
        self._cursors, self._residues = cursors, residues
        self._starts = cursors.copy()
        """See `start_lanes`."""
        self._lanes: list[best_fit_lane.BestFitLane | None] = [None] * len(cursors)
        self._unread: dict[int, dict[int, list[int]]] = {}
        """Pieces in residues, by flat lane and ordinal, whose documents must be read again."""
        self._table = np.empty((0, tables.NUM_DOCUMENT_COLUMNS), np.int64)
        """Each piece's row of the document table. `START` is the start of the piece."""
        self._tokens = np.empty(0, np.object_)
        """The IDs of each piece: int32, as bytes."""
        self._unused = np.empty(0, np.int64)
        """Indices of table rows that hold no piece."""

    def unread(self, flat_lanes: Ints) -> tuple[Ints, Ints]:
        for flat_lane in flat_lanes.tolist():
            self._lane(flat_lane)
        keys = [
            (flat_lane, ordinal)
            for flat_lane in flat_lanes.tolist()
            for ordinal in self._unread.get(flat_lane, ())
        ]
        pairs = np.array(keys, np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def missing(self, flat_lanes: Ints, wanted: Ints) -> Ints:
        ready = np.array(
            [len(self._lane(flat_lane).rows) for flat_lane in flat_lanes.tolist()], np.int64
        )
        return np.maximum(0, wanted - ready) * self._packing.seq_len

    def add(self, documents: tables.ReadDocuments) -> None:
        table, buffers = documents.table.copy(), documents.buffers
        if self._unread:
            table = self._take_again(table, buffers)
        start_lanes(table, self._starts, self._num_lanes)
        self._pack(best_fit_lane.split_documents(table, self._packing.seq_len), buffers)

    def _pack(self, table: Ints, buffers: Sequence[memoryview]) -> None:
        """Pack the pieces in `table`, which `split_documents` returned."""
        pieces = self._new_pieces(len(table))
        self._hold(pieces, table, buffers)
        lanes, packed = self._lanes, best_fit_lane.list_packed(table, self._packing.seq_len)
        for piece, span, flat_lane, size, ordinal, offset in zip(
            best_fit_lane.encode_pieces(pieces), *packed, strict=True
        ):
            (lanes[flat_lane] or self._open(flat_lane)).pack(piece, size, span, ordinal, offset)

    def _new_pieces(self, count: int) -> Ints:
        # grow to at least twice the size, so that all growth together copies each piece about once
        if len(self._unused) < count:
            held, more = len(self._table), max(count, len(self._table))
            self._table = np.concatenate(
                [self._table, np.empty((more, tables.NUM_DOCUMENT_COLUMNS), np.int64)]
            )
            self._tokens = np.concatenate([self._tokens, np.full(more, b"", np.object_)])
            self._unused = np.concatenate([self._unused, np.arange(held, held + more)])
        first = len(self._unused) - count
        pieces, self._unused = self._unused[first:], self._unused[:first]
        return pieces

    def _hold(self, pieces: Ints, table: Ints, buffers: Sequence[memoryview]) -> None:
        """Store pieces and copies of their IDs, because views would keep whole buffers alive."""
        froms = np.maximum(0, table[:, tables.BASE] + table[:, tables.START])
        stops = np.maximum(
            froms, table[:, tables.BASE] + best_fit_lane.find_stops(table, self._packing.seq_len)
        )
        self._table[pieces] = table
        self._table[pieces, tables.BASE] -= froms
        self._table[pieces, tables.BUFFER] = 0  # `cut` joins the IDs to one buffer
        columns = (table[:, tables.BUFFER], froms, stops)
        # the GC does not track bytes, but would track views
        parts = [
            buffers[of][start:stop].tobytes()
            for of, start, stop in zip(*(column.tolist() for column in columns), strict=True)
        ]
        self._tokens[pieces] = np.array(parts, np.object_)

    def cut(self, flat_lanes: Ints, wanted: Ints) -> tables.CutRows:
        # `add` has packed all documents, so complete rows only have to be taken
        ready = [self._lane(flat_lane).rows for flat_lane in flat_lanes.tolist()]
        num_rows = np.minimum(wanted, np.array(list(map(len, ready)), np.int64))
        rows: list[best_fit_lane.Row] = []
        for of_lane, count in zip(ready, num_rows.tolist(), strict=True):
            rows += [of_lane.popleft() for _ in range(count)]
        # turn rows into columns, to compute with arrays
        ordinals, offsets, residues, of_rows, passed = (
            zip(*rows, strict=True) if rows else ((),) * 5
        )
        piece_rows, taken = best_fit_lane.decode_pieces(of_rows)
        table = self._table[taken]
        parts = self._release(taken)
        # the parts become one buffer, in which a piece follows all pieces before it
        sizes = np.array(list(map(len, parts)), np.int64) // _TOKEN_BYTES
        table[:, tables.BASE] += np.cumsum(sizes) - sizes
        stops = best_fit_lane.find_stops(table, self._packing.seq_len)
        return tables.CutRows(
            num_rows=num_rows,
            documents=tables.ReadDocuments(table, [memoryview(b"".join(parts)).cast("i")]),
            pieces=np.stack(
                [piece_rows, np.arange(len(table)), table[:, tables.START], stops], axis=1
            ),
            cursors=np.array([ordinals, offsets], np.int64).T,
            residues=residues,
            counted=self._count(passed),
        )

    def _count(self, passed: Sequence[bytes]) -> Ints:
        """Count the documents that each row's cursor passes, given their last pieces, by row.

        Returns int64 [documents, 4], with columns `tables.COUNTED_ROW` and so on. A document is
        counted even if it waits in an open row.
        """
        rows, pieces = best_fit_lane.decode_pieces(passed)
        documents = self._table[pieces]
        # a piece without tokens is in no row, so it is released here
        self._release(pieces[documents[:, tables.SIZE] == documents[:, tables.START]])
        columns = [tables.STREAM, tables.COUNT, tables.SIZE]
        return np.column_stack([rows, documents[:, columns]])

    def _release(self, pieces: Ints) -> list[bytes]:
        """Free pieces, and return their IDs as bytes.

        Their rows of the table stay unchanged until they are reused.
        """
        tokens: list[bytes] = self._tokens[pieces].tolist()
        self._tokens[pieces] = b""
        self._unused = np.concatenate([self._unused, pieces])
        return tokens

    # ------------------------------------------------------------ lanes of a state

    def _lane(self, flat_lane: int) -> best_fit_lane.BestFitLane:
        return self._lanes[flat_lane] or self._open(flat_lane)

    def _open(self, flat_lane: int) -> best_fit_lane.BestFitLane:
        residue = b"" if self._residues is None else self._residues[flat_lane]
        try:
            lane = self._lanes[flat_lane] = self._restore(flat_lane, residue)
        except ValueError as error:
            raise ValueError(f"residues: lane {flat_lane % self._num_lanes} has {error}") from None
        return lane

    def _restore(self, flat_lane: int, residue: bytes) -> best_fit_lane.BestFitLane:
        """Restore a lane's rows from its residue. Raises `ValueError` for an invalid residue."""
        ordinal, offset = self._cursors[flat_lane].tolist()
        sizes = {document: size for document, _, size in residue_spans(residue, ordinal)}
        unread: dict[int, list[int]] = {document: [] for document in sizes}

        def hold(document: int, start: int, _: int) -> bytes:
            piece = self._new_pieces(1)
            self._table[piece, tables.SIZE], self._table[piece, tables.START] = (
                sizes[document],
                start,
            )
            unread[document] += piece.tolist()
            [encoded] = best_fit_lane.encode_pieces(piece)
            return encoded

        lane = best_fit_lane.restore_lane(self._packing, (ordinal, offset), residue, hold)
        if residue:
            self._unread[flat_lane] = unread
        return lane

    def _take_again(self, table: Ints, buffers: Sequence[memoryview]) -> Ints:
        """Store the IDs of documents in residues, and return the table of the other documents.

        Raises `ValueError` if the size of a document in a residue has changed.
        """
        others: list[int] = []
        for index, (flat_lane, ordinal, size) in enumerate(
            table[:, [tables.FLAT_LANE, tables.ORDINAL, tables.SIZE]].tolist()
        ):
            pieces = self._unread.get(flat_lane, {}).pop(ordinal, None)
            if pieces is None:
                others.append(index)
                continue
            if not self._unread[flat_lane]:
                del self._unread[flat_lane]
            packed_size = int(self._table[pieces[0], tables.SIZE])
            if size != packed_size:
                raise ValueError(
                    f"lane {flat_lane % self._num_lanes}: document {ordinal} had {packed_size} "
                    f"tokens, but now has {size}"
                )
            again = np.repeat(table[index : index + 1], len(pieces), axis=0)
            again[:, tables.START] = self._table[pieces, tables.START]
            self._hold(np.array(pieces, np.int64), again, buffers)
        return table[others]
