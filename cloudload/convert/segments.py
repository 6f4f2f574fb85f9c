"""Cut the input files into segments, which depend only on file sizes and `segment_bytes`.

    files      a.jsonl 100      b.gz 60   c.gz 10   d.gz 5          segment_bytes = 64
    parts      0..50  50..100   b.gz      c.gz      d.gz
    segments   ──0──  ───1──    ─2──      ───────3───────

A segment is a run of consecutive parts of files. A part is a whole file, or a range of a file that
is larger than `segment_bytes` and can be read from any byte (uncompressed lines and Parquet). Any
other file of that size is one segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cloudload.convert.input_files import FilePart, InputFile

Segment = tuple[FilePart, ...]

DEFAULT_SEGMENT_BYTES = 256 << 20
_CUT_FORMATS = ("jsonl", "lines", "parquet")


def cut_segments(files: Iterable[InputFile], segment_bytes: int) -> list[Segment]:
    """Return the segments of the files, in order. Only a file that cannot be cut exceeds the size.

    A file of unknown size counts as 0 bytes.
    """
    segments: list[Segment] = []
    parts: list[FilePart] = []
    filled = 0
    for file in files:
        for part in _cut_file(file, segment_bytes):
            size = count_bytes(part)
            if parts and filled + size > segment_bytes:
                segments.append(tuple(parts))
                parts, filled = [], 0
            parts.append(part)
            filled += size
    return [*segments, tuple(parts)] if parts else segments


def count_bytes(part: FilePart) -> int:
    """The stored bytes of a part."""
    return part.range[1] - part.range[0] if part.range else part.file.bytes or 0


def _cut_file(file: InputFile, segment_bytes: int) -> Iterator[FilePart]:
    """Yield ranges of nearly equal size, or the whole file."""
    size = file.bytes or 0
    can_be_cut = file.format in _CUT_FORMATS and file.compression is None
    if size <= segment_bytes or not can_be_cut:
        yield FilePart(file)
        return
    number = -(-size // segment_bytes)
    for place in range(number):
        yield FilePart(file, (size * place // number, size * (place + 1) // number))
