"""Find the rows at which the streams of a mixture end, from the number of rows left in each.

    weights a 2 · b 1, rows left a 5 · b 1        rows 0 1 2 3 4 5
    stopping="all"                                     a a b a a a      b has weight 0 from row 3 on
    stopping="first"                                   a a b            the run ends with row 2

A stream ends right after its last row. Its weight is then 0, so the other streams share its rows in
proportion to their own weights. If all streams of a schedule entry have ended, the next entry with
other streams takes effect early. Nothing here depends on lanes' contents, ranks, or batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cloudload.order.mixture import Mixture, Weights, merge_entries
from cloudload.order.mixture_counts import Walk
from cloudload.system.arrays import NEVER


@dataclass(frozen=True)
class StreamEnds:
    """The ends of a mixture's streams, and of the run."""

    mixture: Mixture
    """The mixture, in which the weight of each stream is 0 from its end on."""
    ends: tuple[int, ...]
    """The row at which each stream has ended; `NEVER` if it does not end, or has no weight."""
    end: int
    """The number of rows in the run; `NEVER` if it is endless."""


def end_streams(
    mixture: Mixture,
    num_lanes: int,
    start: int,
    rows_left: Sequence[int | None],
    *,
    stops_first: bool,
) -> StreamEnds:
    """Find the ends of streams from the number of rows that each has left at row `start`.

    `rows_left` has None for a stream that does not end.

    With `stops_first`, the run ends with the first stream; otherwise, with the last one.
    """
    return _Ends(mixture, num_lanes, start, rows_left).find(stops_first=stops_first)


class _Ends:
    """The search in `end_streams`. It moves from one stream end or schedule entry to the next."""

    def __init__(
        self, mixture: Mixture, num_lanes: int, start: int, rows_left: Sequence[int | None]
    ) -> None:
        self._mixture, self._num_lanes, self._row = mixture, num_lanes, start
        self._left = list(rows_left)
        self._ends = [NEVER] * len(self._left)
        self._before = [entry for entry in mixture.schedule if entry[0] < start]
        self._waiting = [entry for entry in mixture.schedule if entry[0] > start]
        self._entries: list[tuple[int, Weights]] = []

    def find(self, *, stops_first: bool) -> StreamEnds:
        weights = self._mixture.weights_at(self._row)
        while True:
            if self._note_ends(weights) and stops_first:
                return self._build(self._row)
            live = tuple(
                weight * (left != 0) for weight, left in zip(weights, self._left, strict=True)
            )
            if not any(live):
                if not self._waiting:
                    return self._build(self._row)
                weights = self._waiting.pop(0)[1]
                continue
            self._entries.append((self._row, live))
            stop = self._waiting[0][0] if self._waiting else NEVER
            reached = self._find_first_end(live, stop)
            if reached == NEVER:
                return self._build(NEVER)
            self._move_to(reached, live)
            if self._note_ends(live) and stops_first:
                return self._build(self._row)
            if reached == stop:
                weights = self._waiting.pop(0)[1]

    def _note_ends(self, weights: Weights) -> bool:
        """Record streams that have a weight but no rows left. Returns whether there are any."""
        over = [
            stream
            for stream, left in enumerate(self._left)
            if left == 0 and weights[stream] and self._ends[stream] == NEVER
        ]
        for stream in over:
            self._ends[stream] = self._row
        return bool(over)

    def _walk(self, live: Weights, stream: int) -> Walk:
        return Walk(Mixture(self._mixture.names, ((0, live),)), self._num_lanes, stream)

    def _find_first_end(self, live: Weights, stop: int) -> int:
        """The row after the last row of the first stream to end, or `stop` if that is earlier."""
        first, row = stop, self._row
        ending = [s for s, left in enumerate(self._left) if left is not None and live[s]]
        for stream in sorted(ending, key=lambda s: (self._left[s] or 0) / live[s]):
            walk, left = self._walk(live, stream), self._left[stream] or 0
            if first == NEVER or walk.count(row, first) >= left:
                first = min(first, walk.find(row, left - 1) + 1)
        return first

    def _move_to(self, row: int, live: Weights) -> None:
        """Move to a later row, and update the number of rows that each stream has left."""
        for stream, left in enumerate(self._left):
            if left is not None and live[stream]:
                self._left[stream] = left - self._walk(live, stream).count(self._row, row)
        self._row = row

    def _build(self, end: int) -> StreamEnds:
        entries = [*self._before, *self._entries] or list(self._mixture.schedule)
        mixture = Mixture(self._mixture.names, merge_entries(entries))
        return StreamEnds(mixture, tuple(self._ends), end)
