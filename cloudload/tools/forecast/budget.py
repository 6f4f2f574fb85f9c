"""Compute the rows and steps of a run from its tokens, steps, or epochs.

A run that repeats little data many times is played for some epochs. Each later row counts as much
as the average row of the second half of these epochs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from cloudload.run import Position, RunLengths
from cloudload.stats import TOKENS
from cloudload.system import Ints

FEWEST_EPOCHS = 32
MOST_WORK, _WORK_OF_EPOCH = 1 << 21, 20_000  # in documents; each epoch also takes constant work
_MOST_MEASURED = 4_096
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def parse_tokens(text: str | int) -> int:
    """Parse a number of tokens, such as 300B, 1.5T or 2_000_000, or raise `ValueError`."""
    found = re.fullmatch(r"(\d[\d_,]*(?:\.\d+)?)\s*([kmbt]?)", str(text).strip().lower())
    tokens = float(re.sub("[_,]", "", found[1])) * _UNITS[found[2]] if found else 0
    if not 1 <= tokens < 2**63:
        raise ValueError(
            f"tokens is {text!r:.60}. Use a number of at least 1, such as 300B or 1.5T"
        )
    return round(tokens)


@dataclass(frozen=True)
class StreamEnd:
    """The end of a stream in a mixture."""

    row: int
    """Number of rows of the run, up to and including the stream's last row."""
    tail_rows: int
    """Number of rows in the stream's tail."""


@dataclass(frozen=True)
class Extent:
    """The length of a run."""

    rows: int
    steps: int
    is_whole: bool
    """Whether the run lasts until `epochs` or `max_epochs` end it."""
    counts: Ints
    """The contents of the rows: int64 [streams, counts]. The columns are `stats.COUNTS`."""
    is_shortened: bool = False
    """Whether the data ends before the requested tokens or steps."""
    stream_ends: tuple[StreamEnd | None, ...] = ()
    """The end of each stream of a finite mixture; None if the stream does not end in the run."""
    played: Extent | None = None
    """The part of the run that was played, if the rest was extrapolated from it."""

    @property
    def beginning(self) -> Extent:
        """The part of the run that was played; the run itself unless it was extrapolated."""
        return self.played or self


def find_extent(
    lengths: RunLengths,
    global_batch: int,
    *,
    tokens: int | None,
    steps: int | None,
    drops_tail: bool,
) -> Extent:
    """Find the length of a run, and the contents of its rows.

    Raises `ValueError` if nothing limits the run, and the errors of `RunLengths.advance`.
    """
    start = Position.start(lengths.recipe)
    if tokens is not None and steps is not None:
        raise ValueError(f"tokens is {tokens:,} and steps is {steps:,}. Set only one of them")
    seq_len = lengths.recipe.packing.seq_len
    if steps is not None and steps * global_batch * seq_len >= 1 << 63:
        raise ValueError(
            f"steps is {steps:,}, with {global_batch * seq_len:,} tokens each. Use fewer steps, "
            "because a run must have less than 2^63 tokens"
        )
    all_rows = lengths.count_rows(start) if lengths.recipe.has_tails else None
    if tokens is None and steps is None and all_rows is None:
        instead = "the loader's epochs"
        if lengths.recipe.has_tails:
            instead += " (because some streams have no max_epochs), or use stopping='first'"
        raise ValueError(
            "the run is endless, so its length is unknown. Set tokens (--tokens 300B), steps, or "
            f"{instead}"
        )
    if not lengths.recipe.has_tails:
        return _find_endless(_Counter(lengths, global_batch), global_batch, tokens, steps)
    most = None if all_rows is None else all_rows // global_batch * global_batch
    if all_rows is not None and not drops_tail:
        most = all_rows
    if steps is not None:
        wanted: int | None = steps * global_batch
    else:
        counter = _Counter(lengths, global_batch, is_played=True)
        wanted = None if tokens is None else _find_rows(counter, global_batch, tokens, most)
    is_shortened = most is not None and wanted is not None and wanted > most
    rows = most if wanted is None or is_shortened else wanted
    assert rows is not None
    is_whole = rows == most
    counts = count_at(lengths, start, rows)
    if rows == all_rows:
        counts = counts + lengths.find_tails(start).count_rest(start)
    return Extent(
        rows,
        -(-rows // global_batch),
        is_whole,
        counts,
        is_shortened=is_shortened,
        stream_ends=_list_stream_ends(lengths, start, rows),
    )


def _find_endless(
    counter: _Counter, global_batch: int, tokens: int | None, steps: int | None
) -> Extent:
    """Find the length of a run of endless streams."""
    if steps is None:
        assert tokens is not None
        rows = _find_rows(counter, global_batch, tokens, None)
    else:
        rows = steps * global_batch
    found = Extent(rows, rows // global_batch, False, counter.count(rows))
    if rows <= counter.most_rows:
        return found
    first = counter.most_rows
    played = Extent(first, first // global_batch, False, counter.count(first))
    return replace(found, played=played)


class _Counter:
    """Counts the contents of a run's first rows: int64 [streams, counts].

    Plays at most `most_rows` rows, and extrapolates from them.
    """

    def __init__(self, lengths: RunLengths, global_batch: int, *, is_played: bool = False) -> None:
        self.lengths, self._start = lengths, Position.start(lengths.recipe)
        self.most_rows = 1 << 63 if is_played else _limit_rows(lengths, global_batch)
        self._half = self.most_rows // 2
        self._known: dict[int, Ints] = {}

    def count(self, row: int) -> Ints:
        """Count the contents of the first `row` rows."""
        if row <= self.most_rows:
            return count_at(self.lengths, self._start, row)
        half, whole = map(self._remember, (self._half, self.most_rows))
        later, of = row - self.most_rows, self.most_rows - self._half
        # Python's integers, because the products may exceed 63 bits
        rest = (whole - half).astype(object) * later // of
        return whole + rest.astype(np.int64)

    def _remember(self, row: int) -> Ints:
        if row not in self._known:
            self._known[row] = count_at(self.lengths, self._start, row)
        return self._known[row]


def _limit_rows(lengths: RunLengths, global_batch: int) -> int:
    """Return the rows to play of an endless run: all rows if they repeat no data many times.

    In these rows, every component repeats its data at most 32 to 104 times, fewer for large data.
    """
    recipe, most = lengths.recipe, float("inf")
    # each component's share of the rows, from the first ones
    shares = np.bincount(recipe.components_of(np.arange(1 << 12)), minlength=len(recipe.components))
    for index, each in enumerate(recipe.components):
        num_positions = each.num_positions
        # as many epochs as a fixed amount of work allows, which are few epochs of large data
        epochs = max(FEWEST_EPOCHS, MOST_WORK // (num_positions + _WORK_OF_EPOCH))
        # rows in an epoch, from the mean size of its first documents
        ordinals = np.arange(-(-min(_MOST_MEASURED, num_positions) // recipe.num_lanes))[:, None]
        lanes = np.arange(recipe.num_lanes)[None, :] + 0 * ordinals
        sizes = lengths.sizes[index].measure(lanes, ordinals + 0 * lanes).tokens
        tokens = float(np.maximum(0, sizes).mean()) * num_positions
        share = max(1, int(shares[index])) / shares.sum()
        most = min(most, epochs * max(1.0, tokens / recipe.packing.seq_len) / share)
    return max(2, round(most) // global_batch) * global_batch


def _list_stream_ends(
    lengths: RunLengths, start: Position, rows: int
) -> tuple[StreamEnd | None, ...]:
    """Return each stream's end, or None if it is after row `rows`; empty without stream ends."""
    if not (lengths.recipe.config.is_mixed and lengths.recipe.has_tails):
        return ()
    tails = lengths.find_tails(start)
    return tuple(
        StreamEnd(row, tails.tail(stream).num_rows) if row <= rows else None
        for stream, row in enumerate(tails.ending.stream_ends)
    )


def count_at(lengths: RunLengths, start: Position, row: int) -> Ints:
    """Count the contents of the first `row` rows: int64 [streams, counts]."""
    found = lengths.advance(start, row, pads=True)
    if found is None:
        raise ValueError(
            "the run cannot be planned from its token lengths, because one of its lanes has no "
            "tokens. Use a smaller num_lanes, or a different min_tokens or max_tokens"
        )
    return found.counts


def _find_rows(counter: _Counter, global_batch: int, tokens: int, most: int | None) -> int:
    """Return the rows of the fewest steps that contain `tokens` tokens; above `most` if none do."""
    recipe = counter.lengths.recipe
    fewest = -(-tokens // (recipe.packing.seq_len * global_batch))
    if recipe.packing.name == "concat" and not recipe.has_tails:
        return fewest * global_batch
    if most is not None and _count_tokens(counter, most) < tokens:
        return most + 1
    low, high = fewest - 1, fewest
    while True:
        rows = high * global_batch if most is None else min(most, high * global_batch)
        if _count_tokens(counter, rows) >= tokens:
            break
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        found = _count_tokens(counter, middle * global_batch)
        low, high = (low, middle) if found >= tokens else (middle, high)
    return high * global_batch if most is None else min(most, high * global_batch)


def _count_tokens(counter: _Counter, row: int) -> int:
    return int(counter.count(row)[:, TOKENS].sum())
