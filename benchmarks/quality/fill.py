"""Measure how full the rows of each packing are.

    python -m benchmarks.quality.fill --corpus FOLDER --tokenizer FOLDER

The fill is the share of the emitted rows' tokens that is not padding, compared with that of
best-fit-decreasing, which sees all documents at once. Document sizes are log-normal, or, with
--corpus, those of the corpus, reshuffled in each of several epochs. Rows that are still open at the
end are not emitted. A second column includes them, although a finite loader would pack their tokens
into one tail. The rows are made by the reference packers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.documents import add_documents, read_documents
from benchmarks.figures import Row
from benchmarks.options import Options
from benchmarks.quality.sizes import count_tokens, draw_sizes, repeat_shuffled
from cloudload.rows.packing.packers import Packer, Packing

FORMS = dict.fromkeys(("fill", "with open rows", "left out"), ".2%")
LEAST_DOCUMENTS = 150_000
"""The fill of a corpus is measured on at least this many documents, by repeating its epochs."""
SEQ_LENS, OPEN_ROWS = (2048, 4096), (4, 16, 64)


def main() -> None:
    options = Options(__doc__)
    add_documents(options)
    options.add_amount("documents", 1_000_000, 2_000, "number of documents with log-normal sizes")
    options.run(measure, FORMS)


def measure(args: argparse.Namespace, _: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the table of log-normal sizes, and that of the corpus."""
    lane_counts = (1, 12) if args.quick else (1, 960)
    yield "fill: log-normal sizes", measure_fill(draw_sizes(args.documents), lane_counts)
    if args.corpus:
        counted = count_tokens(read_documents(args), args.tokenizer[0])
        sizes = repeat_shuffled(counted, min(LEAST_DOCUMENTS, args.documents))
        yield f"fill: corpus, {args.tokenizer[0].name}", measure_fill(sizes, (1, 12))


class Fill(NamedTuple):
    """A number of rows, and the number of their tokens that are not padding."""

    rows: int
    tokens: int

    def __add__(self, other: object) -> Fill:
        assert isinstance(other, Fill)
        return Fill(self.rows + other.rows, self.tokens + other.tokens)

    def share(self, seq_len: int) -> float:
        """Return the share of the rows' tokens that is not padding, for rows of `seq_len`."""
        return self.tokens / max(1, self.rows * seq_len)


def measure_fill(sizes: Sequence[int], lane_counts: Iterable[int]) -> list[Row]:
    """Measure how full the rows of each packing are, and how full they could be.

    `sizes` are the documents' sizes in tokens.
    """
    total = sum(sizes)
    table: list[Row] = []
    for seq_len in SEQ_LENS:
        settings = [
            (
                Packing("best_fit", seq_len, open_rows, "cut", fair_from=0),
                f"best_fit, {open_rows} open",
                lanes,
            )
            for lanes in lane_counts
            for open_rows in OPEN_ROWS
        ] + [
            (Packing("one_per_row", seq_len, 1, overflow), f"one_per_row, {overflow}", 1)
            for overflow in ("rows", "cut")
        ]
        for packing, name, lanes in settings:
            truncated = sum(max(0, size - seq_len) for size in sizes) if packing.cuts else 0
            row: Row = {"rows by": name, "lanes": lanes, "left out": truncated / total}
            table.append(row | fill_row(seq_len, partial(pack_lanes, packing, sizes, lanes)))
        offline: Row = {"rows by": "best-fit-decreasing, offline", "lanes": None, "left out": 0.0}
        table.append(offline | fill_row(seq_len, partial(pack_decreasing, sizes, seq_len)))
        bound: Row = offline | {"rows by": "no padding but in the last row"}
        table.append(bound | fill_row(seq_len, partial(pack_tightly, sizes, seq_len)))
    return table


def fill_row(seq_len: int, pack: Callable[[], tuple[Fill, Fill]]) -> Row:
    """Time `pack`, and return a table row with the fill, without and with rows left open."""
    started = time.perf_counter()
    emitted, whole = pack()
    return {
        "seq_len": str(seq_len),
        "rows": emitted.rows,
        "fill": emitted.share(seq_len),
        "with open rows": whole.share(seq_len),
        "s": time.perf_counter() - started,
    }


def pack_lanes(packing: Packing, sizes: Sequence[int], num_lanes: int) -> tuple[Fill, Fill]:
    """Deal the documents to the lanes in turn, and pack the documents of each lane.

    Returns the fill of the emitted rows, and the fill with the rows that are open at the end.
    """
    emitted, still_open = Fill(0, 0), Fill(0, 0)
    for lane in range(num_lanes):
        packer = packing.packer()
        emitted += count(run_packer(packer, sizes[lane::num_lanes]))
        packer.finish()
        still_open += count(take_rows(packer))
    return emitted, emitted + still_open


def run_packer(packer: Packer, sizes: Iterable[int]) -> Iterator[int]:
    """Pack the documents, and yield the number of tokens in each emitted row."""
    for ordinal, size in enumerate(sizes):
        packer.add(ordinal, size)
        yield from take_rows(packer)


def take_rows(packer: Packer) -> Iterator[int]:
    """Remove the packer's finished rows, and yield the number of tokens in each."""
    while packer.rows:
        yield sum(stop - start for _, start, stop, _ in packer.rows.popleft().pieces)


def count(lengths: Iterable[int]) -> Fill:
    """Count the rows and their tokens. `lengths` has the number of tokens in each row."""
    rows = tokens = 0
    for length in lengths:
        rows += 1
        tokens += length
    return Fill(rows, tokens)


def pack_decreasing(sizes: Sequence[int], seq_len: int) -> tuple[Fill, Fill]:
    """Pack by best-fit-decreasing, and return the fill twice, because no row stays open.

    Long documents first fill whole rows. Then each remaining piece, from the largest to the
    smallest, is placed in the row where it leaves the least space. `rooms[f]` is the number of rows
    with f tokens free, and bit f of `is_there` is set if there is such a row.
    """
    rest = sorted((size % seq_len for size in sizes), reverse=True)
    rows = sum(size // seq_len for size in sizes)
    rooms, is_there = [0] * (seq_len + 1), 0
    for size in rest:
        if not size:
            break
        fitting = is_there >> size
        if fitting:
            free = size + (fitting & -fitting).bit_length() - 1
            rooms[free] -= 1
            if not rooms[free]:
                is_there ^= 1 << free
        else:
            free = seq_len
            rows += 1
        if free > size:
            rooms[free - size] += 1
            is_there |= 1 << (free - size)
    fill = Fill(rows, sum(sizes))
    return fill, fill


def pack_tightly(sizes: Sequence[int], seq_len: int) -> tuple[Fill, Fill]:
    """Return the upper bound of the fill, which cuts documents wherever a row ends."""
    fill = Fill(-(-sum(sizes) // seq_len), sum(sizes))
    return fill, fill


if __name__ == "__main__":
    main()
