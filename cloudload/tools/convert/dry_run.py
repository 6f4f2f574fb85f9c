"""Outline a conversion without running it: a table of its inputs by format, segments, and seconds.

format            files          bytes
jsonl (gz)           12      1,234,567
parquet               3    987,654,321
total                15    988,888,888
left out: 2 files and folders that are not data: README.md, _temporary/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloudload.system import counted, reports
from cloudload.tools.convert import input_files, input_records
from cloudload.tools.convert.conversion_plan import DEFAULT_SEGMENT_BYTES, Segments, count_bytes
from cloudload.tools.convert.conversion_report import describe_hidden_files, order
from cloudload.tools.convert.found_files import FolderFiles
from cloudload.tools.convert.inputs import join_inputs, list_hidden, list_inputs, list_units
from cloudload.tools.convert.partition_files import divide

_ROWS = "datasets and iterators"
_MOST_SHOWN = 5

_CORE_BYTES_PER_S = {None: 60e6, "gz": 15e6, "zstd": 15e6, "bz2": 8e6, "xz": 8e6, "parquet": 20e6}
"""Approximate stored input bytes that a server core converts per second, by compression."""


@dataclass(frozen=True)
class Outline:
    """The input and the segments of a conversion, and estimates of the time that it takes."""

    table: tuple[str, ...]
    """The lines of a table that lists the inputs by format, and what is left out."""
    files: int
    bytes: int
    """Stored bytes of the input files."""
    segments: int
    largest_segment_bytes: int
    """Stored bytes of the largest segment. One large compressed file can exceed `segment_bytes`."""
    core_seconds: float
    """A rough estimate of the seconds that one core needs for all segments."""
    largest_segment_seconds: float
    """A rough estimate of the seconds that the largest segment needs, with any number of cores."""
    partitions: Mapping[str, int] = field(default_factory=dict)
    """Stored bytes of the input files of each partition; empty without `partition_by`."""

    def to_json(self) -> str:
        """Return the outline as indented JSON."""
        return reports.to_json(self)

    def describe(self) -> Iterator[str]:
        """Yield the outline as lines of text."""
        yield from self.table
        if self.partitions:
            most = order(self.partitions, _MOST_SHOWN)
            largest = ", ".join(f"{name} {size:,}" for name, size in most.items())
            yield f"{counted(len(self.partitions), 'partition')}, the largest: {largest} (bytes)"
        yield (
            f"{counted(self.segments, 'segment')}, the largest of "
            f"{counted(self.largest_segment_bytes, 'byte')}"
        )
        yield self._describe_time()

    def _describe_time(self) -> str:
        """Describe the time on one core, and on many cores if that is known to be longer."""
        seconds, least = round(self.core_seconds), round(self.largest_segment_seconds)
        if seconds < 1:
            return "less than a second"
        if self.segments == 1:
            return f"about {seconds:,} s on one core, because a segment is converted by one core"
        limit = f"at least {least:,} s on many cores, because of the largest segment"
        return f"about {seconds:,} s on one core" + (f"; {limit}" if least else "")


def outline_conversion(
    inputs: Any,
    *,
    format: str = "auto",
    split: str | None = None,
    partition_by: str | None = None,
    segment_bytes: int = DEFAULT_SEGMENT_BYTES,
    **others: Any,
) -> Outline:
    """List the inputs, and outline the conversion that `convert_to_mds` would run.

    `others` are options of `join_inputs`. Raises the same errors as `convert_to_mds` for inputs
    that are invalid or not found. Rows of datasets and iterators are not counted.
    """
    listed = list_inputs(join_inputs(inputs, **others), format, split)
    files = [file for item in listed if isinstance(item, FolderFiles) for file in item.files]
    divided = {} if partition_by is None else divide(listed, partition_by)
    parts = {name: [file for item in of for file in item.files] for name, of in divided.items()}
    segments = [Segments(each, segment_bytes) for each in parts.values() or [files]]
    seconds = [
        sum(count_bytes(part) / _bytes_per_s(part.file) for part in segment)
        for each in segments
        for segment in each
    ]
    return Outline(
        (
            *describe_inputs(list_units(listed, input_records.DEFAULT_BLOCK_BYTES)),
            *list_left_out(list_hidden(listed)),
        ),
        len(files),
        input_records.sum_bytes(files),
        max(1, sum(map(len, segments))),
        max((size for each in segments for size in each.sizes), default=0),
        round(sum(seconds), 1),
        round(max(seconds, default=0.0), 1),
        {name: input_records.sum_bytes(files) for name, files in parts.items()},
    )


def _bytes_per_s(file: input_files.InputFile) -> float:
    key = "parquet" if file.format == "parquet" else file.compression
    return _CORE_BYTES_PER_S.get(key, 20e6)


def list_left_out(hidden: Sequence[str]) -> list[str]:
    """Return the line of the table about what is not data, if there is any."""
    return [f"left out: {describe_hidden_files(len(hidden), hidden)}"] if hidden else []


def describe_inputs(units: Iterable[input_records.InputUnit]) -> list[str]:
    """Return the lines of the table: the files and stored bytes of each format and compression.

    Formats are sorted by name. If there are several, a line with the total of all files follows.
    Inputs that are not files are counted in the last line. Stdin counts as a file of unknown size.
    """
    groups: dict[str, list[input_files.InputFile]] = {}
    others = 0
    for unit in units:
        for file in unit.files:
            groups.setdefault(_kind(file), []).append(file)
        others += not unit.files
    rows = [(kind, f"{len(files):,}", _bytes(files)) for kind, files in sorted(groups.items())]
    if len(rows) > 1:
        every = [file for files in groups.values() for file in files]
        rows.append(("total", f"{len(every):,}", _bytes(every)))
    if others:
        rows.append((_ROWS, f"{others:,}", "unknown"))
    rows.insert(0, ("format", "files", "bytes"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        f"{kind:<{widths[0]}}  {count:>{widths[1]}}  {size:>{widths[2]}}"
        for kind, count, size in rows
    ]


def _kind(file: input_files.InputFile) -> str:
    return f"{file.format} ({file.compression})" if file.compression else file.format


def _bytes(files: Iterable[input_files.InputFile]) -> str:
    known = list(files)
    if any(file.bytes is None for file in known):
        return "unknown"
    return f"{input_records.sum_bytes(known):,}"
