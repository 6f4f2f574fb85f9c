"""`cloudload info`: summarize an MDS dataset."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cloudload.tools.cli import command
from cloudload.tools.cli.output import escape, print_json, print_text

if TYPE_CHECKING:
    from cloudload.tools.inspect.info import ColumnInfo, DatasetInfo, Distribution

_BAR_WIDTH = 40
_FEWEST_DRAWN = 5
_EXAMPLE = """\
Counts, bytes, columns, compression and hashes come from the index and are exact. The sizes of
samples come from a few shards (--sample). Only the first bytes of these shards are fetched.

example:
  cloudload info s3://bucket/mds --split train
"""


def add_info(commands: command.Commands) -> None:
    add = command.add_command(
        commands,
        "info",
        _info,
        help="summarize an MDS dataset",
        description="Summarize an MDS dataset: samples, shards, bytes, columns, compression, "
        "hashes, and the sizes of shards and samples. Nothing is written.",
        epilog=_EXAMPLE,
        after_interrupt="Nothing was changed",
    ).add_argument
    add("dataset", metavar="DATASET", help="location of the dataset: a folder or URL")
    add("--split", metavar="NAME", help="summarize DATASET/NAME")
    sample = "number of evenly spaced shards to read for sample sizes; 0 reads only the index"
    add(
        "--sample",
        type=command.whole_number(least=0),
        default=8,
        metavar="N",
        help=f"{sample} (default: 8)",
    )
    add("--json", action="store_true", help="print the summary as JSON")
    add("--quiet", action="store_true", help="log only warnings")


def _info(options: argparse.Namespace) -> int:
    from cloudload.tools.inspect.info import read_info

    info = read_info(options.dataset, split=options.split, sample=options.sample)
    if options.json:
        print_json(info)
    else:
        print_text("\n".join(_describe(info)))
    return 0


def _describe(info: DatasetInfo) -> Iterator[str]:
    from cloudload.loading import counted

    ratio = f" ({info.stored_bytes / info.raw_bytes:.0%})" if info.raw_bytes else ""
    yield escape(info.dataset)
    yield f"  samples      {info.samples:,}"
    yield f"  shards       {info.shards:,}"
    yield f"  bytes        {info.raw_bytes:,} raw, {info.stored_bytes:,} stored{ratio}"
    if info.text_bytes is not None:
        yield f"  text         {counted(info.text_bytes, 'byte')} of UTF-8"
    width = max(len(escape(column.name)) for column in info.columns)
    columns = [_describe_column(column, width, info.shards) for column in info.columns]
    yield f"  columns      {columns[0]}"
    yield from (f"               {column}" for column in columns[1:])
    yield f"  compression  {_count(info.compression, info.shards)}"
    yield f"  hashes       {_count(info.hashes, info.shards) or 'none'}"
    yield f"  written by   {info.writer or 'unknown'}"
    yield f"  index        sha256 {info.index_hash[:16]}"
    yield from _draw("samples per shard", info.samples_per_shard, "")
    if info.sample_bytes is not None:
        is_exact = info.sample_bytes.count == info.samples
        samples = counted(info.sample_bytes.count, "sample")
        source = f"sampled: {samples} of {counted(info.shards_read, 'shard')}"
        yield from _draw(
            "bytes per sample, all columns", info.sample_bytes, "" if is_exact else f" ({source})"
        )


def _describe_column(column: ColumnInfo, width: int, num_shards: int) -> str:
    from cloudload.loading import counted

    text = f"{escape(column.name):<{width}}  {escape(column.encoding)}"
    if column.holds not in (column.encoding, "JSON", "a number"):
        text += f"  {column.holds}"
    if column.tokens is not None:
        text += f" ({column.tokens:,})"
    if column.shards < num_shards:
        text += f"  in {column.shards:,} of {counted(num_shards, 'shard')}"
    return text


def _count(shards_of: Mapping[str, int], num_shards: int) -> str:
    return ", ".join(
        escape(name) if count == num_shards else f"{escape(name)} ({count:,} of {num_shards:,})"
        for name, count in shards_of.items()
    )


def _draw(title: str, found: Distribution | None, source: str) -> Iterator[str]:
    """Yield the lines of a distribution: its range, median and mean, and a bar for each bin."""
    if found is None:
        return
    yield f"\n  {title}{source}"
    if found.least == found.most:
        yield f"    {found.most:,}" + (f" in each of {found.count:,}" if found.count > 1 else "")
        return
    yield (
        f"    {found.least:,} to {found.most:,}, median {found.median:,}, mean {found.mean:,.1f}"
    )
    if len(found.bins) == 1 or found.count < _FEWEST_DRAWN:
        return
    ranges = [f"{each.start:,} to {each.stop - 1:,}" for each in found.bins]
    most = max(each.count for each in found.bins)
    width, digits = max(map(len, ranges)), len(f"{most:,}")
    for text, each in zip(ranges, found.bins, strict=True):
        bar = "█" * -(-_BAR_WIDTH * each.count // most)
        yield f"    {text:>{width}}  {each.count:>{digits},}  {bar}".rstrip()
