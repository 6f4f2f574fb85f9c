"""Outline a conversion without running it: the files found, the segments, and a time estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cloudload.system.json_text import to_json
from cloudload.tools.convert.input_files import InputFile
from cloudload.tools.convert.inputs import FolderFiles, list_hidden, list_inputs, list_units
from cloudload.tools.convert.listing import describe_inputs, list_left_out
from cloudload.tools.convert.records import DEFAULT_BLOCK_BYTES, sum_bytes
from cloudload.tools.convert.segments import DEFAULT_SEGMENT_BYTES, Segments, count_bytes

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

    def to_json(self) -> str:
        """Return the outline as indented JSON."""
        return to_json(self)


def outline_conversion(
    inputs: Any,
    *,
    format: str = "auto",
    split: str | None = None,
    segment_bytes: int = DEFAULT_SEGMENT_BYTES,
) -> Outline:
    """List the inputs, and outline the conversion that `convert_to_mds` would run.

    Raises the same errors as `convert_to_mds` for inputs that are invalid or not found. Rows of
    datasets and iterators are not counted.
    """
    listed = list_inputs(inputs, format, split)
    files = [file for item in listed if isinstance(item, FolderFiles) for file in item.files]
    segments = Segments(files, segment_bytes)
    seconds = [
        sum(count_bytes(part) / _bytes_per_s(part.file) for part in segment) for segment in segments
    ]
    return Outline(
        (
            *describe_inputs(list_units(listed, DEFAULT_BLOCK_BYTES)),
            *list_left_out(list_hidden(listed)),
        ),
        len(files),
        sum_bytes(files),
        max(1, len(segments)),
        max(segments.sizes, default=0),
        round(sum(seconds), 1),
        round(max(seconds, default=0.0), 1),
    )


def _bytes_per_s(file: InputFile) -> float:
    key = "parquet" if file.format == "parquet" else file.compression
    return _CORE_BYTES_PER_S.get(key, 20e6)
