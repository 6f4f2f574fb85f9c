"""A simple `best_fit` packer for mixtures that needs only the documents' sizes.

Tests compare the rows of a run with its rows.

    lane     items: documents, or their remaining tokens ─► open rows ─► the next row
    tail     the items of all lanes of a stream, by ordinal, then lane, as one lane

An item is (ordinal, lane, epoch, sample, start, stop): tokens [start, stop) of a document that are
not in a complete row yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import accumulate

from cloudload.order.mixture import TURN, find_step
from cloudload.run.components import Component
from testkit.reference_order import canonical_order

Item = tuple[int, int, int, int, int, int]
Weights = Sequence[float]
Span = tuple[int, int, int, int, int]


@dataclass
class Lane:
    """The items of a lane, or of a tail, that are not in a complete row yet."""

    find: Callable[[int], list[Item] | None]
    """Returns the item of the document with this ordinal, as a list: empty if the document has no
    tokens. Returns None after the end."""
    next_ordinal: int = 0
    items: deque[Item] = field(default_factory=deque)
    open: list[tuple[int, list[Item]]] = field(default_factory=list)
    """(free tokens, items) of each open row, sorted by free tokens, then by latest change."""
    num_read: int = 0
    """Number of documents whose last token was taken out of `items`."""

    def copy(self) -> Lane:
        return replace(self, items=self.items.copy(), open=self.open.copy())

    def has_items(self) -> bool:
        while not self.items and (found := self.find(self.next_ordinal)) is not None:
            self.items += found
            self.next_ordinal += 1
        return bool(self.items)

    def is_empty(self) -> bool:
        return not self.open and not self.has_items()

    def next_row(self, seq_len: int, most_open: int, *, is_tail: bool = False) -> list[Item] | None:
        """Pack items until a row is complete. Returns None if there are not enough."""
        while self.has_items():
            if not is_tail and self._may_end_single_row(self.items[0], seq_len):
                return self.open.pop(0)[1]
            ordinal, lane, epoch, sample, start, stop = self.items.popleft()
            whole = min(stop, start + seq_len)
            if stop > whole:
                self.items.appendleft((ordinal, lane, epoch, sample, whole, stop))
            else:
                self.num_read = max(self.num_read, ordinal + 1)
            row = self._place((ordinal, lane, epoch, sample, start, whole), seq_len)
            if row is not None:
                return row
            if len(self.open) > most_open or (not is_tail and self._too_many_wait()):
                return self.open.pop(0)[1]
        return self.open.pop(0)[1] if is_tail and self.open else None

    def _too_many_wait(self) -> bool:
        """Whether more than √n of the n documents read wait in two or more rows."""
        return len(self.open) > 1 and self._count_waiting() ** 2 > self.num_read

    def _may_end_single_row(self, item: Item, seq_len: int) -> bool:
        """Whether the only open row ends before an item that is the beginning of a document."""
        ordinal, *_, start, stop = item
        is_new = not start and ordinal >= self.num_read and stop >= seq_len
        if not is_new or len(self.open) != 1:
            return False
        is_full = self.open[0][0] <= 3 * seq_len // 8
        return is_full and (2 * self._count_waiting()) ** 2 > ordinal

    def _count_waiting(self) -> int:
        return sum(len(items) for _, items in self.open)

    def _place(self, item: Item, seq_len: int) -> list[Item] | None:
        size = item[-1] - item[-2]
        fitting = [place for place, (free, _) in enumerate(self.open) if free >= size < seq_len]
        free, items = self.open.pop(fitting[0]) if fitting else (seq_len, [])
        if free == size:
            return [*items, item]
        place = sum(other <= free - size for other, _ in self.open)
        self.open.insert(place, (free - size, [*items, item]))
        return None

    def reopen(self) -> None:
        """Empty the open rows, and put their items at the front of the queue."""
        self.items.extendleft([item for _, items in self.open for item in items][::-1])
        self.open = []


class _Stream:
    """The lanes of a stream, and its tail after a lane could not fill a row."""

    def __init__(
        self,
        component: Component,
        repeats: int | None,
        sizes: Sequence[int],
        kind: type[Lane],
    ) -> None:
        self.is_endless, self._kind, division = repeats is None, kind, component.lanes

        @cache
        def order(epoch: int) -> list[int]:
            found: list[int] = canonical_order(
                component.shard_sizes, component.order, epoch
            ).tolist()
            return found

        def open_lane(lane: int) -> Lane:
            def find(ordinal: int) -> list[Item] | None:
                epoch, place = division.epoch_position(lane, ordinal)
                if repeats is not None and epoch >= repeats:
                    return None
                sample = order(epoch)[place] if place < division.num_positions else None
                if sample is None or not sizes[sample]:
                    return []
                return [(ordinal, lane, epoch, sample, 0, sizes[sample])]

            return kind(find)

        self.tail: Lane | None = None
        self.lanes = [open_lane(lane) for lane in range(division.num_lanes)]

    def is_over(self) -> bool:
        if self.is_endless:
            return False
        return self.tail.is_empty() if self.tail else all(lane.is_empty() for lane in self.lanes)

    def take(self, lane: int, seq_len: int, most_open: int) -> list[Item]:
        if self.tail is None:
            after = self.lanes[lane].copy()
            row = after.next_row(seq_len, most_open)
            if row is not None:
                self.lanes[lane] = after
                return row
            self._begin_tail()
        assert self.tail is not None
        row = self.tail.next_row(seq_len, most_open, is_tail=True)
        assert row is not None, "a stream that is not over must have a row"
        return row

    def _begin_tail(self) -> None:
        left: list[Item] = []
        for lane in self.lanes:
            lane.reopen()
            while lane.has_items():
                left.append(lane.items.popleft())
        self.tail = self._kind(lambda _: None, items=deque(sorted(left)))

    def reopen(self) -> None:
        for lane in [*self.lanes, *([self.tail] if self.tail else [])]:
            lane.reopen()


class BestFitOracle:
    """Packs a mixture from its components, their numbers of epochs, and the documents' sizes.

    The size of a filtered document is 0. `kind` packs each lane, and each tail.
    """

    def __init__(
        self,
        components: Sequence[Component],
        repeats: Sequence[int | None],
        sizes: Sequence[Sequence[int]],
        most_open: int,
        kind: type[Lane] = Lane,
    ) -> None:
        self._streams = [
            _Stream(*each, kind) for each in zip(components, repeats, sizes, strict=True)
        ]
        self._num_lanes, self._most_open = components[0].lanes.num_lanes, most_open
        self._seq_len: int | None = None
        self.rows: list[list[Span]] = []
        """The spans of each row so far. A row of padding has none."""

    @property
    def left(self) -> list[int | None]:
        """For each stream: 0 if it has ended, 1 if it has rows left, None if it is endless."""
        return [None if each.is_endless else int(not each.is_over()) for each in self._streams]

    @property
    def streams(self) -> list[int]:
        """The stream of each row so far, or -1 for a row of padding."""
        return [row[0][0] if row else -1 for row in self.rows]

    def take(self, number: int, weights: Weights, first: bool, seq_len: int) -> bool:
        """Pack `number` rows, with padding after the end. Returns whether the run has ended."""
        if self._seq_len not in (None, seq_len):
            for stream in self._streams:
                stream.reopen()
        self._seq_len = seq_len
        for _ in range(number):
            self.rows.append([] if self._is_over(weights, first) else self._next_row(weights))
        return self._is_over(weights, first)

    def _is_over(self, weights: Weights, first: bool) -> bool:
        over = [
            each.is_over() for weight, each in zip(weights, self._streams, strict=True) if weight
        ]
        return any(over) if first else all(over)

    def _next_row(self, weights: Weights) -> list[Span]:
        assert self._seq_len is not None
        row = len(self.rows)
        stream = choose_stream(
            row,
            self._num_lanes,
            [w * (not s.is_over()) for w, s in zip(weights, self._streams, strict=True)],
        )
        taken = self._streams[stream].take(row % self._num_lanes, self._seq_len, self._most_open)
        return [(stream, *item[2:]) for item in taken]


def choose_stream(row: int, num_lanes: int, live: Weights) -> int:
    """Choose a row's stream, given each stream's weight (0 for a stream that has ended)."""
    shares = [float(Fraction(weight) / sum(map(Fraction, live))) for weight in live]
    sums = list(accumulate(map(Fraction, shares)))
    point = row * find_step(num_lanes) % TURN
    return next(stream for stream, end in enumerate(sums) if point < TURN * end // sums[-1])
