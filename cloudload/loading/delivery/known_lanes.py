"""The lanes of all ranks at any row, computed from token lengths instead of exchanged.

    batch     1         2         3
    known     row 12    row 24    row 36 ──► .arrays: the lanes advance from the latest known row

Delivering a batch costs nothing, because the lanes advance only when a state or the statistics
read the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cloudload.errors import DatasetError, RanksDisagreeError
from cloudload.loading.delivery.exchange import Exchange
from cloudload.loading.workers.block import Block
from cloudload.run.lengths.run_lengths import RunLengths
from cloudload.run.position import LaneArrays, LaneLog, Position


class KnownLanes:
    """Computes the lanes of all ranks at any row after a position."""

    def __init__(self, lengths: RunLengths, position: Position) -> None:
        self._lengths, self._start, self._latest = lengths, position, position
        self._texts = position.lanes.texts

    def at(self, row: int) -> LaneLog:
        """Return the lanes at a row after the position. Reading them may raise `CacheError`."""
        return LaneLog.of(partial(self._find, row), self._texts)

    def _find(self, row: int) -> LaneArrays:
        before = self._latest  # read it once, because another thread may replace it
        before = before if before.rows <= row else self._start
        found = self._lengths.advance(before, row, pads=True)
        assert found is not None, "rows that were read follow from the lengths"
        self._latest = found
        return found.lanes.arrays


def check_not_dry(blocks: Sequence[Block], stop: int, num_lanes: int) -> None:
    """Raise `DatasetError` if a lane ended before row `stop`, contrary to its token lengths.

    `blocks` are the current blocks of the rank's workers.
    """
    first_dry = min(block.first_dry for block in blocks)
    if first_dry < stop:
        raise DatasetError(
            f"lane {first_dry % num_lanes} ran out of tokens at row {first_dry:,}, but according "
            "to the token lengths, it has more. Run cloudload count --again, or set lengths='off'"
        )


def start_check(exchange: Exchange, stop: int) -> Callable[[], None]:
    """Start to compare this rank's row with the other ranks' rows.

    Returns a function that waits for the rows of all ranks. It raises `RanksDisagreeError` if the
    ranks are at different rows, or if the exchange fails.
    """
    if exchange.is_alone:
        return lambda: None
    finish = exchange.start_number(stop)
    return lambda: check_in_step(finish(), stop)


def check_in_step(stops: list[int], stop: int) -> None:
    """Raise `RanksDisagreeError` unless all ranks are at row `stop`."""
    if stops.count(stop) != len(stops):
        raise RanksDisagreeError(
            f"the ranks are out of step: after this batch, they are at rows {stops}. Take the "
            "same number of batches on every rank"
        )
