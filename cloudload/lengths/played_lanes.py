"""Play `best_fit` lanes: run the readers' packer on token lengths, without documents.

    lane, row ─► nearest mark before it ─► sizes of the documents after it ─────► packer ─► row
                                                            marks on the way are kept ◄──┘

A played lane keeps its place, so playing it further packs only the new documents.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from cloudload.arrays import NEVER, Flags, Ints
from cloudload.lengths.lane_marks import DOCUMENTS_OF_MARK, LaneMarks, LaneState, Leap
from cloudload.lengths.sizes import LaneSizes
from cloudload.packing.best_fit_lane import list_packed, restore_lane, split_documents
from cloudload.packing.packers import Packing
from cloudload.packing.residue import EMPTY_GROUP, encode_group
from cloudload.packing.tables import FLAT_LANE, NUM_DOCUMENT_COLUMNS, ORDINAL, SIZE, START
from cloudload.system.activity import Wait, doing

logger = logging.getLogger(__name__)
_PLAYING = "packing documents by their token lengths to find best_fit rows"
_LEAST_OF_LANE, _DOCUMENTS_AT_ONCE = 8, 1 << 17
_LANES_AT_ONCE = 64
_NEAR_ROWS = 256  # playing this many rows is about as fast as leaping to a mark and playing from it
_LEARNED = 0.25
_COUNT_BYTES = len(EMPTY_GROUP)


def _report_wait(waited_s: float, what: str) -> None:
    """Log that playing lanes takes long."""
    logger.info("%s has taken %.0f s. This happens only once for these rows", what, waited_s)


class _Player:
    """Replays the packing of one lane, row by row, starting at a given row."""

    def __init__(self, packing: Packing, state: LaneState, row: int) -> None:
        self.lane = restore_lane(packing, state[:2], state.residue, _encode_span)
        self.state, self.row = state, row
        """The state before the next row, and the index of that row."""
        self.next_ordinal, self.offset = state.ordinal, state.offset
        """The next document to pack, and the number of its tokens already in rows."""
        self.barren = 0
        """Number of consecutive documents without tokens, up to the last one packed."""
        self.last, self.last_row = state, row
        """The state and the row of the last mark or start, from which the next leap begins."""

    def take(self, stop: int, marks: LaneMarks, number: int) -> Iterator[bytes]:
        """Yield the pieces of complete rows before row `stop`, encoded as spans.

        For each mark that the lane passes, adds a leap to `marks`, under lane `number`.
        """
        ready, next_mark = self.lane.rows, _next_mark(self.state.ordinal)
        row = None
        for _ in range(min(len(ready), stop - self.row)):
            row = ready.popleft()
            self.row += 1
            if row[0] >= next_mark:
                state, next_mark = LaneState(*row[:3]), _next_mark(row[0])
                marks.add(number, self.last, Leap(self.row - self.last_row, state))
                self.last, self.last_row = state, self.row
            yield row[3]
        if row is not None:
            self.state = LaneState(*row[:3])


def _next_mark(ordinal: int) -> int:
    return (ordinal // DOCUMENTS_OF_MARK + 1) * DOCUMENTS_OF_MARK


@dataclass
class _Trail:
    """The marks that a lane passes from its start on, and the index of the row after each mark."""

    states: list[LaneState]
    rows: list[int] = field(default_factory=lambda: [0])


class PlayedLanes:
    """Plays the lanes of one component. `ends` (int64 [lanes]) are the ordinals where lanes end."""

    def __init__(self, sizes: LaneSizes, packing: Packing, marks: LaneMarks, ends: Ints) -> None:
        self._sizes, self._packing, self._marks, self._ends = sizes, packing, marks, ends
        self._trails: dict[int, _Trail] = {}
        self._players: dict[int, _Player] = {}
        self._mean_tokens, self._has_packed = float(packing.seq_len), False
        self._wait = Wait(_report_wait, _PLAYING)

    def start(self, lane: int, state: LaneState) -> bool:
        """Count a lane's rows from `state`. Returns False if the lane is known to reach `state`."""
        trail = self._trails.get(lane)
        if trail is not None and trail.states[0] == state:
            return False
        self._trails[lane] = _Trail([state])
        player = self._players.get(lane)
        if player is not None and player.state == state:
            player.last_row -= player.row
            player.row = 0
            return False
        self._players.pop(lane, None)
        return True

    def state(self, lane: int) -> LaneState:
        """The state of a lane after `play`."""
        return self._players[lane].state

    def row(self, lane: int) -> int:
        """The index of a lane's next row after `play`."""
        return self._players[lane].row

    def play(self, lanes: Ints, rows: Ints) -> Flags:
        """Play each lane (int64 [lanes], distinct) up to its row in `rows` (int64 [lanes]).

        Returns which lanes end before their row: bool [lanes]. These lanes are then at their end.
        An endless lane without tokens counts as ended (`LaneSizes.is_barren`). In this case, other
        lanes may not reach their rows. Raises `CacheError` if an order
        cannot be built, and `ValueError` for an invalid residue.
        """
        is_dry = np.zeros(len(lanes), np.bool_)
        with self._wait, doing(_PLAYING):
            for places in self._share(lanes):
                for lane, row in zip(lanes[places].tolist(), rows[places].tolist(), strict=True):
                    self._approach(lane, row)
                is_dry[places] = self._take(lanes[places], rows[places], None)
                if self._is_barren(lanes[is_dry]):
                    break
        return is_dry

    def _share(self, lanes: Ints) -> list[Ints]:
        """Divide lanes, as indices, into groups that are played one after another.

        Each process starts with a different group, so processes that play the same lanes find each
        other's marks in the files.
        """
        places = np.arange(len(lanes))
        if all(lane in self._players for lane in lanes.tolist()):
            return [places]
        parts = np.array_split(places, -(-len(lanes) // _LANES_AT_ONCE))
        first = os.getpid() % len(parts)
        return parts[first:] + parts[:first]

    def approach_document(self, lane: int, ordinal: int) -> None:
        """Move a lane to the last mark before a document, or to its start, without playing.

        No row between the start and that mark has tokens of the document.
        """
        trail = self._trails[lane]
        while (leap := self._marks.after(lane, trail.states[-1])) is not None:
            if leap.state.ordinal >= ordinal:
                break
            trail.rows.append(trail.rows[-1] + leap.rows)
            trail.states.append(leap.state)
        heads = [state.ordinal for state in trail.states]
        self._open(lane, max(0, bisect_left(heads, ordinal) - 1))

    def take_rows(self, lanes: Ints, counts: Ints) -> list[list[bytes]]:
        """Take the next rows of lanes, after `play`: the pieces of each row, encoded as spans.

        A lane that ends has fewer rows than `counts`, int64 [lanes].
        """
        taken: list[list[bytes]] = [[] for _ in lanes]
        rows = np.array([self.row(lane) for lane in lanes.tolist()], np.int64)
        self._take(lanes, rows + counts, taken)
        return taken

    def _approach(self, lane: int, row: int) -> None:
        """Leap as close to a row as marks allow, unless the lane's player is closer."""
        trail, player = self._trails[lane], self._players.get(lane)
        if player is not None and player.row <= row < player.row + _NEAR_ROWS:
            return
        while trail.rows[-1] < row:
            leap = self._marks.after(lane, trail.states[-1])
            if leap is None or trail.rows[-1] + leap.rows > row:
                break
            trail.rows.append(trail.rows[-1] + leap.rows)
            trail.states.append(leap.state)
        place = bisect_right(trail.rows, row) - 1
        if player is None or not trail.rows[place] <= player.row <= row:
            self._open(lane, place)

    def _open(self, lane: int, place: int) -> None:
        """Create the player of a lane at mark `place` of the lane's trail."""
        trail = self._trails[lane]
        try:
            player = _Player(self._packing, trail.states[place], trail.rows[place])
        except ValueError as error:
            raise ValueError(f"lane {lane} has {error}") from None
        self._players[lane] = player

    def _take(self, lanes: Ints, stops: Ints, taken: Sequence[list[bytes]] | None) -> Flags:
        """Play lanes up to their rows `stops`, and append the pieces of the rows to `taken`."""
        places = np.arange(len(lanes))
        is_dry = np.zeros(len(lanes), np.bool_)
        while True:
            is_short = [
                not self._pass_rows(lane, stop, None if taken is None else taken[place])
                for place, lane, stop in zip(
                    places.tolist(), lanes[places].tolist(), stops[places].tolist(), strict=True
                )
            ]
            places = places[is_short]
            is_dry[places] = [self._has_ended(lane) for lane in lanes[places].tolist()]
            places = places[~is_dry[places]]
            self._marks.save()
            if not len(places) or self._is_barren(lanes[is_dry]):
                return is_dry
            self._pack_more(lanes[places], stops[places])

    def _pass_rows(self, lane: int, stop: int, taken: list[bytes] | None) -> bool:
        """Take complete rows before row `stop`. Returns whether the lane has reached `stop`."""
        player = self._players[lane]
        rows = player.take(stop, self._marks, lane)
        if taken is None:
            deque(rows, 0)
        else:
            taken += rows
        return player.row >= stop

    def _has_ended(self, lane: int) -> bool:
        player = self._players[lane]
        if self._ends[lane] == NEVER:
            return bool(self._sizes.is_barren(np.array(player.barren)))
        return bool(player.next_ordinal >= self._ends[lane])

    def _is_barren(self, dry: Ints) -> bool:
        """Whether any of the dry lanes is endless. Such a lane has no tokens at all."""
        return bool((self._ends[dry] == NEVER).any())

    def _pack_more(self, lanes: Ints, stops: Ints) -> None:
        """Pack the next documents of lanes, roughly as many as they need to reach rows `stops`."""
        players = [self._players[lane] for lane in lanes.tolist()]
        rows = np.array([player.row for player in players])
        wanted = min(int((stops - rows).max()), NEVER // self._packing.seq_len)
        number = int(wanted * self._packing.seq_len / self._mean_tokens) + _LEAST_OF_LANE
        most = _DOCUMENTS_AT_ONCE // len(lanes)
        if not self._has_packed or any(player.barren for player in players):
            # pack at most about an epoch at first, because a lane may have no tokens
            most = min(most, 2 * self._sizes.component.lanes.num_positions)
        number = max(_LEAST_OF_LANE, min(number, most))
        self._has_packed = True
        for player, span, size, ordinal, offset in self._list_pieces(lanes, players, number):
            player.lane.pack(span, size, span, ordinal, offset)

    def _list_pieces(
        self, lanes: Ints, players: list[_Player], number: int
    ) -> Iterator[tuple[_Player, bytes, int, int, int]]:
        """List the pieces of the next `number` documents of each lane.

        Yields the player of the lane, and the arguments of `BestFitLane.pack`, for each piece.
        """
        heads = np.array([player.next_ordinal for player in players])
        ordinals = heads[:, None] + np.arange(number)
        found = self._sizes.measure(np.broadcast_to(lanes[:, None], ordinals.shape), ordinals)
        sizes, offsets = found.sizes.copy(), np.zeros_like(found.sizes)
        offsets[:, 0] = [player.offset for player in players]
        # a partly read document was accepted before, even if `min_tokens` now excludes it
        sizes[:, 0] = np.where(offsets[:, 0] > 0, found.whole[:, 0], sizes[:, 0])
        self._follow(players, sizes)
        owners, places = np.nonzero(sizes > offsets)
        table = np.zeros((len(owners), NUM_DOCUMENT_COLUMNS), np.int64)
        table[:, FLAT_LANE], table[:, ORDINAL] = owners, ordinals[owners, places]
        table[:, SIZE], table[:, START] = sizes[owners, places], offsets[owners, places]
        seq_len = self._packing.seq_len
        spans, of, *columns = list_packed(split_documents(table, seq_len), seq_len)
        return zip((players[place] for place in of), spans, *columns, strict=True)

    def _follow(self, players: list[_Player], sizes: Ints) -> None:
        """Update the players and the mean size after documents were packed.

        `sizes` is int64 [lanes, documents].
        """
        number = sizes.shape[1]
        trailing = np.argmax(sizes[:, ::-1] > 0, axis=1).tolist()
        has_tokens = (sizes > 0).any(axis=1).tolist()
        for player, has, barren in zip(players, has_tokens, trailing, strict=True):
            player.barren = barren if has else player.barren + number
            player.next_ordinal, player.offset = player.next_ordinal + number, 0
        self._mean_tokens += _LEARNED * (max(1.0, sizes.mean()) - self._mean_tokens)


def _encode_span(ordinal: int, start: int, stop: int) -> bytes:
    """Encode a span as `encode_spans` does."""
    return encode_group([(ordinal, start, stop)])[_COUNT_BYTES:]
