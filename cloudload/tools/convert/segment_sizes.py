"""Cut the input files into segments, which depend only on file sizes and `segment_bytes`.

    files      a.jsonl 100      b.gz 60   c.gz 10   d.gz 5          segment_bytes = 64
    parts      0..50  50..100   b.gz      c.gz      d.gz
    segments   ──0──  ───1──    ─2──      ───────3───────

A segment is a run of consecutive parts of files. A part is a whole file or a range of one. Only
files larger than `segment_bytes` are cut into ranges, and only if they can be read from any byte
(uncompressed lines and Parquet). Any other file of that size is a segment by itself.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Protocol

from cloudload.tools.convert import input_files

Segment = tuple[input_files.FilePart, ...]

DEFAULT_SEGMENT_BYTES = 256 << 20
ONE_SEGMENT = 1 << 62
"""More bytes than any input has, so that all of it is one segment."""
_CUT_FORMATS = ("jsonl", "lines", "parquet")


class Files(Protocol):
    """A sequence of files, which may create each file on access."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[input_files.InputFile]: ...
    def __getitem__(self, index: int, /) -> input_files.InputFile: ...


class Segments:
    """The segments of files, in order.

    A segment exceeds `segment_bytes` only if it is a single file that cannot be cut.
    A file of unknown size counts as 0 bytes. Segments are created on access, because there may be a
    million files.
    """

    def __init__(self, files: Files, segment_bytes: int) -> None:
        self.sizes = array("Q")
        """The number of stored bytes of each segment."""
        self._files = files
        # the index of the first part of each segment and of each file, then the number of parts
        self._starts, self._files_starts = array("Q"), array("Q")
        number = 0
        for file in files:
            self._files_starts.append(number)
            for size in _cut_file(file, segment_bytes):
                if not self._starts or self.sizes[-1] + size > segment_bytes:
                    self._starts.append(number)
                    self.sizes.append(0)
                self.sizes[-1] += size
                number += 1
        for starts in (self._starts, self._files_starts):
            starts.append(number)

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[Segment]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Segment:
        start, stop = self._starts[index : index + 2]
        parts: list[input_files.FilePart] = []
        number = bisect_right(self._files_starts, start) - 1
        while len(parts) < stop - start:
            first, end = self._files_starts[number : number + 2]
            file = self._files[number]
            wanted = range(max(first, start), min(end, stop))
            parts += [_part_of(file, part - first, end - first) for part in wanted]
            number += 1
        return tuple(parts)


def count_bytes(part: input_files.FilePart) -> int:
    """Return the number of stored bytes of a part."""
    return part.range[1] - part.range[0] if part.range else part.file.bytes or 0


def _cut_file(file: input_files.InputFile, segment_bytes: int) -> Iterator[int]:
    """Yield the nearly equal sizes of the file's ranges, or the size of the whole file."""
    size = file.bytes or 0
    can_be_cut = file.format in _CUT_FORMATS and file.compression is None
    number = -(-size // segment_bytes) if can_be_cut and size > segment_bytes else 1
    for index in range(number):
        yield count_bytes(_part_of(file, index, number))


def _part_of(file: input_files.InputFile, index: int, number: int) -> input_files.FilePart:
    """Return part `index` of a file that has `number` parts."""
    if number == 1:
        return input_files.FilePart(file)
    size = file.bytes or 0
    return input_files.FilePart(file, (size * index // number, size * (index + 1) // number))
