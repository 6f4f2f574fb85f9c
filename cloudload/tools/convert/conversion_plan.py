"""The plan of a conversion, which every worker must share, and the segments that follow from it.

    inputs, options ─► ConversionPlan ─► .convert/plan.json ─► any worker ─► its segments' files

The plan is stored once, before any segment, and never changes. If two processes plan at once, both
use the plan that was stored first. A process with different inputs or options fails. File names are
relative to the roots of the inputs, so a plan contains no secrets from URLs.

The segments are not stored, because they depend only on file sizes and `segment_bytes`:

    files      a.jsonl 100      b.gz 60   c.gz 10   d.gz 5          segment_bytes = 64
    parts      0..50  50..100   b.gz      c.gz      d.gz
    segments   ──0──  ───1──    ─2──      ───────3───────

A segment is a run of consecutive parts of files. A part is a whole file or a range of one. Only
files larger than `segment_bytes` are cut into ranges, and only if they can be read from any byte
(uncompressed lines and Parquet). Any other file of that size is a segment by itself.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import zstandard

from cloudload._version import __version__
from cloudload.data import Location, redact, shard_entries, urls
from cloudload.errors import ConvertError
from cloudload.system import machine
from cloudload.tools.convert import input_files, rerun_check
from cloudload.tools.convert.config import ConvertConfig
from cloudload.tools.convert.conversion_report import MAX_LISTED
from cloudload.tools.convert.found_files import file_name
from cloudload.tools.convert.inputs import with_format

Segment = tuple[input_files.FilePart, ...]

DEFAULT_SEGMENT_BYTES = 256 << 20
ONE_SEGMENT = 1 << 62
"""More bytes than any input has, so that all of it is one segment."""
_CUT_FORMATS = ("jsonl", "lines", "parquet")

PLAN_NAME = ".convert/plan.json"


class Files(Protocol):
    """A sequence of files, which may create each file on access."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[input_files.InputFile]: ...
    def __getitem__(self, index: int, /) -> input_files.InputFile: ...


class Segments:
    """The segments of files, in order.

    A segment exceeds `segment_bytes` only if it is a single file that cannot be cut.
    A file of unknown size counts as 0 bytes. The name of each file gets a `prefix`. Segments are
    created on access, because there may be a million files.
    """

    def __init__(self, files: Files, segment_bytes: int, prefix: str = "") -> None:
        self.sizes = array("Q")
        """The number of stored bytes of each segment."""
        self._files, self._prefix = files, prefix
        # the index of the first part of each segment and of each file, then the number of parts
        self._starts, self._files_starts = array("Q"), array("Q")
        num_parts = 0
        for file in files:
            self._files_starts.append(num_parts)
            for size in _cut_file(file, segment_bytes):
                if not self._starts or self.sizes[-1] + size > segment_bytes:
                    self._starts.append(num_parts)
                    self.sizes.append(0)
                self.sizes[-1] += size
                num_parts += 1
        for starts in (self._starts, self._files_starts):
            starts.append(num_parts)

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[Segment]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Segment:
        start, stop = self._starts[index : index + 2]
        parts: list[input_files.FilePart] = []
        of_file = bisect_right(self._files_starts, start) - 1
        while len(parts) < stop - start:
            first, end = self._files_starts[of_file : of_file + 2]
            file = self._files[of_file]
            file = replace(file, name=self._prefix + file.name) if self._prefix else file
            wanted = range(max(first, start), min(end, stop))
            parts += [_part_of(file, part - first, end - first) for part in wanted]
            of_file += 1
        return tuple(parts)


def count_bytes(part: input_files.FilePart) -> int:
    """Return the number of stored bytes of a part."""
    return part.range[1] - part.range[0] if part.range else part.file.bytes or 0


def _cut_file(file: input_files.InputFile, segment_bytes: int) -> Iterator[int]:
    """Yield the nearly equal sizes of the file's ranges, or the size of the whole file."""
    size = file.bytes or 0
    can_be_cut = file.format in _CUT_FORMATS and file.compression is None
    num_parts = -(-size // segment_bytes) if can_be_cut and size > segment_bytes else 1
    for index in range(num_parts):
        yield count_bytes(_part_of(file, index, num_parts))


def _part_of(file: input_files.InputFile, index: int, num_parts: int) -> input_files.FilePart:
    """Return part `index` of a file that has `num_parts` parts."""
    if num_parts == 1:
        return input_files.FilePart(file)
    start, stop = ((file.bytes or 0) * each // num_parts for each in (index, index + 1))
    return input_files.FilePart(file, (start, stop))


@dataclass(frozen=True)
class ConversionPlan:
    """A conversion: a pure function of the listing and the options.

    A conversion of inputs that are not all files has no `inputs`, and is a single segment.
    """

    claim: Mapping[str, Any]
    """The config and a digest of the inputs, which a rerun must match."""
    columns: tuple[shard_entries.Column, ...]
    """The columns of the kept fields, inferred once."""
    versions: Mapping[str, str]
    """Versions of the packages on which the bytes of the output depend."""
    inputs: tuple[rerun_check.PlannedInput, ...]
    must_list: bool = False
    """Whether workers must list the inputs, because names and sizes alone do not describe the
    files."""
    first_segment: int = 0
    """The index of the first segment; more than 0 for data that is appended."""
    base: Mapping[str, Any] | None = field(default=None)
    """The dataset to append to; see `cloudload.tools.convert.planning`."""

    digest: str = field(default="", compare=False)
    """A digest of the stored plan, repeated in each segment's note; "" before it is stored."""

    def encode(self) -> bytes:
        """Return the plan as JSON. Equal plans have equal bytes."""
        values = vars(self) | {
            "columns": [[item.name, item.encoding] for item in self.columns],
            "inputs": [vars(item) for item in self.inputs],
        }
        del values["digest"]
        return json.dumps(values, separators=(",", ":"), sort_keys=True).encode()

    def with_digest(self, data: bytes) -> ConversionPlan:
        """Return the plan with the digest of its stored bytes."""
        return replace(self, digest=digest_plan(data))

    @staticmethod
    def parse(data: bytes) -> ConversionPlan:
        """Parse a stored plan."""
        values = json.loads(data)
        columns = tuple(
            shard_entries.Column.of(name, encoding) for name, encoding in values["columns"]
        )
        inputs = tuple(rerun_check.PlannedInput(**item) for item in values["inputs"])
        return ConversionPlan(**values | {"columns": columns, "inputs": inputs}).with_digest(data)

    @property
    def has_folders(self) -> bool:
        """Whether each segment has a folder. A single segment has none, unless it is appended."""
        return rerun_check.SEGMENT_BYTES in self.claim["recipe"]

    @property
    def num_files(self) -> int:
        """The number of files."""
        return sum(len(item.names) for item in self.inputs)

    @property
    def hidden(self) -> dict[str, Any]:
        """The fields of a report about hidden files, with those of the base."""
        base = self.base["stored"]["report"] if self.base else {}
        names = [
            *base.get("hidden_names", ()),
            *(n for each in self.inputs for n in each.hidden_names),
        ]
        count = base.get("hidden", 0) + sum(each.hidden for each in self.inputs)
        return {"hidden": count, "hidden_names": tuple(names[:MAX_LISTED])}

    @property
    def sizes(self) -> dict[str, int | None]:
        """Maps the name of each file to its size in bytes. Empty for more than 10,000 files."""
        if self.num_files > rerun_check.MOST_FILES:
            return {}
        files = self.files([item.root for item in self.inputs], "text")
        return {file.name: file.bytes for file in files}

    def files(self, roots: Sequence[str], format: str) -> Files:
        """Return the files of the inputs with these roots, in order. Requires `not must_list`.

        Raises `ConvertError` for other inputs. The roots may be mounted at other locations.
        """
        given = [_base_name(item, root) for item, root in zip(self.inputs, roots, strict=False)]
        if len(roots) != len(self.inputs) or given != [*map(_base_name, self.inputs)]:
            planned = ", ".join(item.root for item in self.inputs)
            raise ConvertError(
                f"the conversion was planned with the inputs {planned}, not with "
                f"{', '.join(map(redact, roots))}. Pass the same inputs to all workers"
            )
        return _PlannedFiles(self.inputs, roots, format)

    def segments(self, files: Files) -> Segments:
        """Cut the plan's files into segments, of which the first has index `first_segment`."""
        segment_bytes = self.claim["recipe"].get(rerun_check.SEGMENT_BYTES, ONE_SEGMENT)
        prefix = "" if self.base is None else f"+{self.first_segment}/"
        return Segments(files, segment_bytes, prefix)


def _base_name(item: rerun_check.PlannedInput, root: str | None = None) -> str | None:
    """Return the name of an input that is a single file, or None for a folder."""
    shown = redact(root or item.root)  # a plan has no signatures of URLs
    return file_name(shown, shown) if item.names == [""] else None


def digest_plan(data: bytes) -> str:
    """Return the digest of a stored plan."""
    return hashlib.sha256(data).hexdigest()[:32]


def plan_version(location: Location) -> str:
    """Return a tag of the plan that is stored at an output, or "" if there is none."""
    return object_version(location.join(PLAN_NAME))


def object_version(location: Location) -> str:
    """Return the size and tag of an object, or "" if it does not exist."""
    found = location.list_if_exists()
    return f"{found[0].bytes} {found[0].tag}" if found else ""


def refuse_replaced(location: Location) -> ConvertError:
    """Return the error for a plan that is gone, or that another conversion replaced."""
    return ConvertError(
        f"the conversion to {location} was replaced by another one, or its journal was "
        "removed, so it stopped before it wrote an index. Use a separate output for each "
        "conversion, and start over (--overwrite)"
    )


class _PlannedFiles:
    """A sequence of the files of planned inputs, which creates each file on access."""

    def __init__(
        self, inputs: Sequence[rerun_check.PlannedInput], roots: Sequence[str], format: str
    ) -> None:
        self._inputs, self._roots, self._format = inputs, roots, format
        self._ends = list(itertools.accumulate(len(item.names) for item in inputs))
        self._has_equal_names = False
        if len(inputs) > 1:
            self._has_equal_names = len({file.name for file in self}) < len(self)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[input_files.InputFile]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> input_files.InputFile:
        of_input = bisect_right(self._ends, index)
        item, root = self._inputs[of_input], self._roots[of_input]
        index -= self._ends[of_input]  # a negative index, from the end of the input's names
        url = _url(root, item.names[index])
        size, tag = item.sizes[index], item.tags[index]
        found = input_files.InputFile(url, file_name(url, root), size, tag=tag)
        file = with_format(found, self._format)
        return replace(file, name=f"{of_input}/{file.name}") if self._has_equal_names else file


def _url(root: str, name: str) -> str:
    return urls.path_url(Path(root, name)) if urls.is_local(root) else root + name


# ---------------------------------------------------------------- comparison


def list_versions(config: ConvertConfig, formats: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that affect the bytes of the output.

    These are cloudload, the compression library, and the libraries that read the inputs. `formats`
    are their formats and compressions.
    """
    codec = (config.compression or "").partition(":")[0]
    names = {
        "cloudload",
        _CODECS.get(codec),
        *("pyarrow" for form in formats if form in ("parquet", "arrow")),
    }
    return {name: _VERSIONS[name]() for name in sorted(filter(None, names))}


def check_versions(planned: Mapping[str, str]) -> None:
    """Raise `ConvertError` if this process's versions differ from the plan's."""
    for name, version in planned.items():
        if (found := _VERSIONS[name]()) != version:
            raise ConvertError(
                f"this worker has {name} {found}, but the conversion was planned with {name} "
                f"{version}. The two versions may write different bytes. Install {name} {version}, "
                "or start over (--overwrite)"
            )


def _package_version(name: str) -> str:
    return machine.package_version(name) or "(not installed)"


_CODECS = {"zstd": "zstd", "gz": "zlib", "br": "brotli"}
_VERSIONS: dict[str, Callable[[], str]] = {
    "cloudload": lambda: __version__,
    "zstd": lambda: ".".join(map(str, zstandard.ZSTD_VERSION)),
    "zlib": lambda: zlib.ZLIB_RUNTIME_VERSION,
    "brotli": lambda: _package_version("brotli"),
    "pyarrow": lambda: _package_version("pyarrow"),
}


def check_files(planned: ConversionPlan, now: Sequence[rerun_check.PlannedInput]) -> None:
    """Raise `ConvertError` for the first file that changed after planning but kept its size."""
    for before, after in zip(planned.inputs, now, strict=True):
        for name, old, new in zip(before.names, before.tags, after.tags, strict=True):
            if old and new and old != new:
                raise ConvertError(
                    f"{name or before.root} changed after the conversion was planned. Restore the "
                    "original file, or start over (--overwrite)"
                )
