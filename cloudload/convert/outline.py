"""What a conversion would do: the files found, the segments, and an estimate."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from cloudload.convert.input_files import InputFile
from cloudload.convert.inputs import FolderFiles, list_inputs
from cloudload.convert.segments import DEFAULT_SEGMENT_BYTES, count_bytes, cut_segments

_CORE_BYTES_PER_S = {None: 60e6, "gz": 15e6, "zstd": 15e6, "bz2": 8e6, "xz": 8e6, "parquet": 20e6}
"""Stored input bytes that a core of a server converts in a second, roughly; by compression."""


@dataclass(frozen=True)
class FileKind:
    """The input files of one format and compression."""

    format: str
    compression: str | None
    files: int
    bytes: int
    """Stored bytes."""


@dataclass(frozen=True)
class Outline:
    """The input and the segments of a conversion."""

    kinds: tuple[FileKind, ...]
    segments: int
    largest_segment_bytes: int
    """Stored bytes of the largest segment: above `segment_bytes` if a compressed file is."""
    core_seconds: float
    """A rough estimate of the time that one core needs for all segments."""
    largest_segment_seconds: float
    """A rough estimate of the time that the largest segment needs, with any number of cores."""

    @property
    def files(self) -> int:
        """Number of input files."""
        return sum(kind.files for kind in self.kinds)

    @property
    def bytes(self) -> int:
        """Stored bytes of the input files."""
        return sum(kind.bytes for kind in self.kinds)

    def to_json(self) -> str:
        """Return the outline as indented JSON."""
        return json.dumps(asdict(self) | {"files": self.files, "bytes": self.bytes}, indent=2)


def outline_conversion(
    inputs: Any,
    *,
    format: str = "auto",
    split: str | None = None,
    segment_bytes: int = DEFAULT_SEGMENT_BYTES,
) -> Outline:
    """List the inputs, and say what `convert_to_mds` would do with these arguments.

    Raises its errors for inputs. Rows of datasets and iterators are not counted.
    """
    listed = list_inputs(inputs, format, split)
    files = [file for item in listed if isinstance(item, FolderFiles) for file in item.files]
    segments = cut_segments(files, segment_bytes)
    seconds = [
        sum(count_bytes(part) / _bytes_per_s(part.file) for part in segment) for segment in segments
    ]
    return Outline(
        count_kinds(files),
        max(1, len(segments)),
        max((sum(map(count_bytes, segment)) for segment in segments), default=0),
        round(sum(seconds), 1),
        round(max(seconds, default=0.0), 1),
    )


def count_kinds(files: Iterable[InputFile]) -> tuple[FileKind, ...]:
    """Count the files of each format and compression, most bytes first."""
    counts: dict[tuple[str, str | None], tuple[int, int]] = {}
    for file in files:
        number, size = counts.get((file.format, file.compression), (0, 0))
        counts[file.format, file.compression] = number + 1, size + (file.bytes or 0)
    kinds = [FileKind(*key, *count) for key, count in counts.items()]
    return tuple(sorted(kinds, key=lambda kind: (-kind.bytes, kind.format)))


def _bytes_per_s(file: InputFile) -> float:
    key = "parquet" if file.format == "parquet" else file.compression
    return _CORE_BYTES_PER_S.get(key, 20e6)
