"""`cloudload info`: summarize an MDS dataset.

Summarize an MDS dataset: samples, shards, bytes, columns, compression, hashes, and the sizes of
shards and samples. Nothing is written.

Counts, bytes, columns, compression and hashes come from the index and are exact. The sizes of
samples come from a few shards (--sample). Only the first bytes of these shards are fetched.

example:
  cloudload info s3://bucket/mds --split train
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cloudload.system import counted
from cloudload.tools.cli import command
from cloudload.tools.cli.declared_options import add_declared, list_given
from cloudload.tools.cli.output import escape, print_result

if TYPE_CHECKING:
    from cloudload.tools.inspect.info import ColumnInfo, DatasetInfo, Distribution

_BAR_WIDTH = 40
_FEWEST_DRAWN = 5


def add_info(parser: command.CommandParser) -> None:
    from cloudload.tools.inspect.info import read_info

    add = command.set_up(parser, _info)
    add_declared(add, read_info, "dataset split sample")


def _info(options: argparse.Namespace) -> int:
    from cloudload.tools.inspect.info import read_info

    info = read_info(**list_given(options, read_info))
    print_result(info, _describe, as_json=options.json)
    return 0


def _describe(info: DatasetInfo) -> Iterator[str]:
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
