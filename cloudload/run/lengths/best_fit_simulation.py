"""Play `best_fit` lanes: run the readers' packer on token lengths, without documents.

    lane, row ─► nearest mark before it ─► sizes of the documents after it ─────► packer ─► row
                                                            marks on the way are kept ◄──┘

A played lane keeps its place, so playing it further packs only the new documents. While a caller
plays lanes, it has their players to itself: another thread, a signal handler, and the next call
after an exception start from a mark, with new players.
"""

from __future__ import annotations

import contextlib
import logging
import os
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from cloudload.errors import StreamChangedError
from cloudload.rows import EMPTY_GROUP, Packing, best_fit_lane, encode_residue, tables
from cloudload.run.lengths.best_fit_checkpoints import DOCUMENTS_OF_MARK, LaneMarks, LaneState, Leap
from cloudload.run.lengths.sizes import LaneSizes
from cloudload.system import NEVER, Flags, Ints, activity

logger = logging.getLogger("cloudload.lengths")
_PLAYING = "packing documents by their token lengths to find best_fit rows"
_LEAST_OF_LANE, DOCUMENTS_AT_ONCE = 8, 1 << 17
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
        self.lane = best_fit_lane.restore_lane(packing, state[:2], state.residue, _encode_span)
        self.state, self.row = state, row
        """The state before the next row, and the index of that row."""
        self.next_ordinal, self.offset = state.ordinal, state.offset
        """The next document to pack, and the number of its tokens already in rows."""
        self.barren = 0
        """Number of consecutive documents without tokens, up to the last one packed."""
        self.last, self.last_row = state, row
        """The state and the row of the last mark or start, from which the next leap begins."""

    def take(self, stop: int, leaps: dict[bytes, Leap]) -> Iterator[bytes]:
        """Yield the pieces of complete rows before row `stop`, encoded as spans.

        For each mark that the lane passes, adds a leap to `leaps`, by the key of its first state.
        """
        ready, next_mark = self.lane.rows, _next_mark(self.state.ordinal)
        row = None
        for _ in range(min(len(ready), stop - self.row)):
            row = ready.popleft()
            self.row += 1
            if row[0] >= next_mark:
                state, next_mark = LaneState(*row[:3]), _next_mark(row[0])
                leaps[self.last.key] = Leap(self.row - self.last_row, state)
                self.last, self.last_row = state, self.row
            yield row[3]
        if row is not None:
            self.state = LaneState(*row[:3])


def _next_mark(ordinal: int) -> int:
    return (ordinal // DOCUMENTS_OF_MARK + 1) * DOCUMENTS_OF_MARK


@dataclass
class _Lane:
    """A lane whose rows are counted from `states[0]`."""

    states: list[LaneState]
    """The states at the marks that the lane passes, from its start on."""
    rows: list[int] = field(default_factory=lambda: [0])
    """The index of the row after each of `states`."""
    player: _Player | None = None
    leaps: dict[bytes, Leap] = field(default_factory=dict)
    """Leaps that are not in the marks yet, by the keys of their first states."""

    def extend(self, leap: Leap) -> None:
        """Append the mark to which `leap` leads."""
        self.rows.append(self.rows[-1] + leap.rows)
        self.states.append(leap.state)


class PlayedLanes:
    """Plays the lanes of one component, and keeps their players between two calls of `start`.

    `ends` (int64 [lanes]) are the ordinals where lanes end.
    """

    def __init__(self, sizes: LaneSizes, packing: Packing, marks: LaneMarks, ends: Ints) -> None:
        self.sizes, self.packing, self.marks, self.ends = sizes, packing, marks, ends
        self.mean_tokens = float(packing.seq_len)
        """An estimate of the number of tokens per document."""
        self._idle: dict[int, _Lane] = {}

    @contextlib.contextmanager
    def start(self, lanes: Ints, states: Iterable[LaneState]) -> Iterator[Playing]:
        """Play `lanes` (int64 [lanes], distinct), whose rows are counted from `states`.

        The players belong to the `with` block until it ends without an exception.
        """
        playing = Playing(self)
        for lane, state in zip(lanes.tolist(), states, strict=True):
            playing.add(lane, state, self._idle.pop(lane, None))
        yield playing
        self._idle.update(playing.lanes)


class Playing:
    """Lanes that one caller plays."""

    def __init__(self, played: PlayedLanes) -> None:
        self._sizes, self._packing, self._ends = played.sizes, played.packing, played.ends
        self._marks, self._played, self._has_packed = played.marks, played, False
        self.lanes: dict[int, _Lane] = {}
        self.unknown: list[int] = []
        """The lanes that are not known to reach the states from which their rows are counted."""

    def add(self, lane: int, state: LaneState, before: _Lane | None) -> None:
        """Play a lane, whose rows are counted from `state`. `before` is the lane as played so far.

        Uses its player if it is at `state`, or has passed `state`.
        """
        player = None if before is None else before.player
        if before is not None and before.states[0] == state:
            self.lanes[lane] = before
        elif player is not None and player.state == state:
            player.last_row -= player.row
            player.row = 0
            self.lanes[lane] = _Lane([state], player=player)
        else:
            self.lanes[lane] = _Lane([state])
            self.unknown.append(lane)

    def state(self, lane: int) -> LaneState:
        """The state of a lane after `play`."""
        player = self.lanes[lane].player
        return self.lanes[lane].states[0] if player is None else player.state

    def row(self, lane: int) -> int:
        """The index of a lane's next row after `play`."""
        player = self.lanes[lane].player
        return 0 if player is None else player.row

    def play(self, lanes: Ints, rows: Ints) -> Flags:
        """Play each lane (int64 [lanes], distinct) up to its row in `rows` (int64 [lanes]).

        Returns which lanes end before their row: bool [lanes]. These lanes are then at their end.
        An endless lane without tokens counts as ended (`LaneSizes.is_barren`). In this case, other
        lanes may not reach their rows. Raises `CacheError` if an order cannot be built, and
        `StreamChangedError` for an invalid residue.
        """
        is_dry = np.zeros(len(lanes), np.bool_)
        with activity.Wait(_report_wait, _PLAYING), activity.doing(_PLAYING):
            for indices in self._share(lanes):
                for lane, row in zip(lanes[indices].tolist(), rows[indices].tolist(), strict=True):
                    self._approach(lane, row)
                is_dry[indices] = self._take(lanes[indices], rows[indices], None)
                if self._is_barren(lanes[is_dry]):
                    break
        return is_dry

    def _share(self, lanes: Ints) -> list[Ints]:
        """Divide lanes, as indices, into groups that are played one after another.

        Each process starts with a different group, so processes that play the same lanes find each
        other's marks in the files.
        """
        indices = np.arange(len(lanes))
        if all(self.lanes[lane].player is not None for lane in lanes.tolist()):
            return [indices]
        parts = np.array_split(indices, -(-len(lanes) // _LANES_AT_ONCE))
        first = os.getpid() % len(parts)
        return parts[first:] + parts[:first]

    def approach_document(self, lane: int, ordinal: int) -> None:
        """Move a lane to the last mark before a document, or to its start, without playing.

        No row between the start and that mark has tokens of the document.
        """
        own = self.lanes[lane]
        while (leap := self._marks.after(lane, own.states[-1])) is not None:
            if leap.state.ordinal >= ordinal:
                break
            own.extend(leap)
        heads = [state.ordinal for state in own.states]
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
        own = self.lanes[lane]
        player = own.player
        if player is not None and player.row <= row < player.row + _NEAR_ROWS:
            return
        while own.rows[-1] < row:
            leap = self._marks.after(lane, own.states[-1])
            if leap is None or own.rows[-1] + leap.rows > row:
                break
            own.extend(leap)
        index = bisect_right(own.rows, row) - 1
        if player is None or not own.rows[index] <= player.row <= row:
            self._open(lane, index)

    def _open(self, lane: int, index: int) -> None:
        """Create the player of a lane at mark `index` of the lane."""
        own = self.lanes[lane]
        try:
            own.player = _Player(self._packing, own.states[index], own.rows[index])
        except ValueError as error:
            raise explain_residue(f"lane {lane} has {error}") from None

    def _take(self, lanes: Ints, stops: Ints, taken: Sequence[list[bytes]] | None) -> Flags:
        """Play lanes up to their rows `stops`, and append the pieces of the rows to `taken`."""
        indices = np.arange(len(lanes))
        is_dry = np.zeros(len(lanes), np.bool_)
        while True:
            is_short = [
                not self._pass_rows(lane, stop, None if taken is None else taken[index])
                for index, lane, stop in zip(
                    indices.tolist(), lanes[indices].tolist(), stops[indices].tolist(), strict=True
                )
            ]
            indices = indices[is_short]
            is_dry[indices] = [self._has_ended(lane) for lane in lanes[indices].tolist()]
            indices = indices[~is_dry[indices]]
            self._keep_leaps(lanes)
            if not len(indices) or self._is_barren(lanes[is_dry]):
                return is_dry
            self._pack_more(lanes[indices], stops[indices])

    def _pass_rows(self, lane: int, stop: int, taken: list[bytes] | None) -> bool:
        """Take complete rows before row `stop`. Returns whether the lane has reached `stop`."""
        player = self._player(lane)
        rows = player.take(stop, self.lanes[lane].leaps)
        if taken is None:
            deque(rows, 0)
        else:
            taken += rows
        return player.row >= stop

    def _keep_leaps(self, lanes: Ints) -> None:
        """Keep the lanes' leaps in the marks. After an exception, their rows would be doubtful."""
        for lane in lanes.tolist():
            if leaps := self.lanes[lane].leaps:
                self._marks.keep(lane, leaps)
                self.lanes[lane].leaps = {}

    def _player(self, lane: int) -> _Player:
        player = self.lanes[lane].player
        assert player is not None
        return player

    def _has_ended(self, lane: int) -> bool:
        player = self._player(lane)
        if self._ends[lane] == NEVER:
            return bool(self._sizes.is_barren(np.array(player.barren)))
        return bool(player.next_ordinal >= self._ends[lane])

    def _is_barren(self, dry: Ints) -> bool:
        """Whether any of the dry lanes is endless. Such a lane has no tokens at all."""
        return bool((self._ends[dry] == NEVER).any())

    def _pack_more(self, lanes: Ints, stops: Ints) -> None:
        """Pack the next documents of lanes, roughly as many as they need to reach rows `stops`."""
        players = [self._player(lane) for lane in lanes.tolist()]
        rows = np.array([player.row for player in players])
        wanted = min(int((stops - rows).max()), NEVER // self._packing.seq_len)
        count = int(wanted * self._packing.seq_len / self._played.mean_tokens) + _LEAST_OF_LANE
        most = DOCUMENTS_AT_ONCE // len(lanes)
        if not self._has_packed or any(player.barren for player in players):
            # pack at most about an epoch at first, because a lane may have no tokens
            most = min(most, 2 * self._sizes.component.lanes.num_positions)
        count = max(_LEAST_OF_LANE, min(count, most))
        self._has_packed = True
        for player, span, size, ordinal, offset in self._list_pieces(lanes, players, count):
            player.lane.pack(span, size, span, ordinal, offset)

    def _list_pieces(
        self, lanes: Ints, players: list[_Player], count: int
    ) -> Iterator[tuple[_Player, bytes, int, int, int]]:
        """List the pieces of the next `count` documents of each lane.

        Yields the player of the lane, and the arguments of `BestFitLane.pack`, for each piece.
        """
        # measure a rectangle of lanes by documents at once, because each lookup has a fixed cost
        heads = np.array([player.next_ordinal for player in players])
        ordinals = heads[:, None] + np.arange(count)
        found = self._sizes.measure(np.broadcast_to(lanes[:, None], ordinals.shape), ordinals)
        sizes, offsets = found.tokens.copy(), np.zeros_like(found.tokens)
        offsets[:, 0] = [player.offset for player in players]
        # a partly read document was accepted before, even if an option now excludes it
        sizes[:, 0] = np.where(offsets[:, 0] > 0, found.whole[:, 0], sizes[:, 0])
        self._follow(players, sizes)
        # list them lane by lane; a document without tokens left has no piece
        owners, indices = np.nonzero(sizes > offsets)
        table = np.zeros((len(owners), tables.NUM_DOCUMENT_COLUMNS), np.int64)
        table[:, tables.FLAT_LANE], table[:, tables.ORDINAL] = owners, ordinals[owners, indices]
        table[:, tables.SIZE], table[:, tables.START] = (
            sizes[owners, indices],
            offsets[owners, indices],
        )
        seq_len = self._packing.seq_len
        spans, of, *columns = best_fit_lane.list_packed(
            best_fit_lane.split_documents(table, seq_len), seq_len
        )
        return zip((players[index] for index in of), spans, *columns, strict=True)

    def _follow(self, players: list[_Player], sizes: Ints) -> None:
        """Update the players and the mean size after documents were packed.

        `sizes` is int64 [lanes, documents].
        """
        # documents without tokens at the end, after which an endless lane may count as barren
        count = sizes.shape[1]
        trailing = np.argmax(sizes[:, ::-1] > 0, axis=1).tolist()
        has_tokens = (sizes > 0).any(axis=1).tolist()
        for player, has, barren in zip(players, has_tokens, trailing, strict=True):
            player.barren = barren if has else player.barren + count
            player.next_ordinal, player.offset = player.next_ordinal + count, 0
        mean = self._played.mean_tokens
        self._played.mean_tokens = mean + _LEARNED * (max(1.0, sizes.mean()) - mean)


def explain_residue(fault: object) -> StreamChangedError:
    """Return the error for an invalid residue."""
    return StreamChangedError(f"residues: {fault}. The state is damaged. Load an earlier state")


def _encode_span(ordinal: int, start: int, stop: int) -> bytes:
    """Encode a span as `encode_spans` does."""
    return encode_residue([(ordinal, start, stop)])[_COUNT_BYTES:]
