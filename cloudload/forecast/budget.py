"""Compute the rows and steps of a run from its tokens, steps, or epochs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cloudload.arrays import Ints
from cloudload.lengths.run_lengths import RunLengths
from cloudload.run.position import Position
from cloudload.stats import TOKENS

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def parse_tokens(text: str | int) -> int:
    """Parse a number of tokens, such as 300B, 1.5T or 2_000_000, or raise `ValueError`."""
    found = re.fullmatch(r"(\d[\d_,]*(?:\.\d+)?)\s*([kmbt]?)", str(text).strip().lower())
    number = float(re.sub("[_,]", "", found[1])) * _UNITS[found[2]] if found else 0
    if not 1 <= number < 2**63:
        raise ValueError(
            f"tokens is {text!r:.60}. Use a number of at least 1, such as 300B or 1.5T"
        )
    return round(number)


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
    all_rows = lengths.count_rows(start) if lengths.recipe.has_tails else None
    if tokens is None and steps is None and all_rows is None:
        instead = "the loader's epochs"
        if lengths.recipe.has_stream_ends:
            instead += " (because some streams have no max_epochs), or use stopping='first'"
        raise ValueError(
            "the run is endless, so its length is unknown. Set tokens (--tokens 300B), steps, or "
            f"{instead}"
        )
    most = None if all_rows is None else all_rows // global_batch * global_batch
    if all_rows is not None and not drops_tail:
        most = all_rows
    if steps is not None:
        wanted: int | None = steps * global_batch
    else:
        wanted = None if tokens is None else _find_rows(lengths, global_batch, tokens, most)
    is_shortened = most is not None and wanted is not None and wanted > most
    rows = most if wanted is None or is_shortened else wanted
    assert rows is not None
    is_whole = rows == most
    return Extent(
        rows,
        -(-rows // global_batch),
        is_whole,
        count_at(lengths, start, rows),
        is_shortened=is_shortened,
        stream_ends=_list_stream_ends(lengths, start, rows),
    )


def _list_stream_ends(
    lengths: RunLengths, start: Position, rows: int
) -> tuple[StreamEnd | None, ...]:
    """Return each stream's end, or None if it is after row `rows`; empty without stream ends."""
    if not lengths.recipe.has_stream_ends:
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
            "tokens. Use a smaller num_lanes, or a different min_tokens"
        )
    return found.counts


def _find_rows(lengths: RunLengths, global_batch: int, tokens: int, most: int | None) -> int:
    """Return the rows of the fewest steps that contain `tokens` tokens; above `most` if none do."""
    start, packing = Position.start(lengths.recipe), lengths.recipe.packing
    fewest = -(-tokens // (packing.seq_len * global_batch))
    if packing.name == "concat" and not lengths.recipe.has_tails:
        return fewest * global_batch
    if most is not None and int(count_at(lengths, start, most)[:, TOKENS].sum()) < tokens:
        return most + 1
    low, high = fewest - 1, fewest
    while True:
        rows = high * global_batch if most is None else min(most, high * global_batch)
        if int(count_at(lengths, start, rows)[:, TOKENS].sum()) >= tokens:
            break
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        found = int(count_at(lengths, start, middle * global_batch)[:, TOKENS].sum())
        low, high = (low, middle) if found >= tokens else (middle, high)
    return high * global_batch if most is None else min(most, high * global_batch)
