"""The plan of a conversion, which every worker must share.

    inputs, options ─► ConversionPlan ─► .convert/plan.json ─► any worker ─► its segments' files

The plan is stored once, before any segment, and never changes. If two processes plan at once, both
use the plan that was stored first. A process with different inputs or options fails. The segments
are not stored, because the file sizes determine them. File names are relative to the roots of the
inputs, so a plan contains no secrets from URLs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import zstandard

from cloudload._version import __version__
from cloudload.data import Location, redact, shard_entries, urls
from cloudload.errors import ConvertError, StoreError
from cloudload.system import machine
from cloudload.tools.convert import input_files, rerun_check
from cloudload.tools.convert.config import ConvertConfig
from cloudload.tools.convert.conversion_report import MAX_LISTED
from cloudload.tools.convert.found_files import FoundFile, file_name
from cloudload.tools.convert.inputs import FolderFiles, make_file
from cloudload.tools.convert.segment_sizes import ONE_SEGMENT, Files, Segments

PLAN_NAME = ".convert/plan.json"


@dataclass(frozen=True)
class PlannedInput:
    """The files of one input as parallel lists: names below `root`, sizes in bytes, and tags."""

    root: str
    names: list[str]
    sizes: list[int]
    tags: list[str]
    hidden: int = 0
    """The number of hidden files and folders, which are left out."""
    hidden_names: list[str] = field(default_factory=list)
    """The names of the first 20 of them."""


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
    inputs: tuple[PlannedInput, ...]
    must_list: bool = False
    """Whether workers must list the inputs, because names and sizes alone do not describe the
    files."""
    first_segment: int = 0
    """The number of the first segment; more than 0 for data that is appended."""
    base: Mapping[str, Any] | None = field(default=None)
    """The dataset to append to; see `cloudload.tools.convert.append`."""

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
        inputs = tuple(PlannedInput(**item) for item in values["inputs"])
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
        """Cut the plan's files into segments, of which the first has number `first_segment`."""
        if self.base is not None:
            files = _RenamedFiles(files, f"+{self.first_segment}/")
        return Segments(files, self.claim["recipe"].get(rerun_check.SEGMENT_BYTES, ONE_SEGMENT))


def _base_name(item: PlannedInput, root: str | None = None) -> str | None:
    """Return the name of an input that is a single file, or None for a folder."""
    shown = redact(root or item.root)  # a plan has no signatures of URLs
    return file_name(shown, shown) if item.names == [""] else None


def digest_plan(data: bytes) -> str:
    """Return the digest of a stored plan."""
    return hashlib.sha256(data).hexdigest()[:32]


def plan_version(location: str) -> str:
    """Return a tag of the plan that is stored at an output, or "" if there is none."""
    return object_version(urls.join_url(location, PLAN_NAME))


def object_version(url: str) -> str:
    """Return the size and tag of an object, or "" if it does not exist."""
    try:
        found = Location(url).list_objects()
    except StoreError as error:
        if not error.is_missing:
            raise
        found = []
    return f"{found[0].bytes} {found[0].tag}" if found else ""


def refuse_replaced(location: str) -> ConvertError:
    """Return the error for a plan that is gone, or that another conversion replaced."""
    return ConvertError(
        f"the conversion to {redact(location)} was replaced by another one, or its journal was "
        "removed, so it stopped before it wrote an index. Use a separate output for each "
        "conversion, and start over (--overwrite)"
    )


class _PlannedFiles:
    """A sequence of the files of planned inputs, which creates each file on access."""

    def __init__(self, inputs: Sequence[PlannedInput], roots: Sequence[str], format: str) -> None:
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
        number = bisect_right(self._ends, index)
        item, root = self._inputs[number], self._roots[number]
        index -= self._ends[number]  # a negative index, from the end of the input's names
        url = _url(root, item.names[index])
        found = FoundFile(url, file_name(url, root), item.sizes[index], item.tags[index])
        file = make_file(found, self._format)
        return replace(file, name=f"{number}/{file.name}") if self._has_equal_names else file


class _RenamedFiles:
    """A sequence of files in which each name has a prefix."""

    def __init__(self, files: Files, prefix: str) -> None:
        self._files, self._prefix = files, prefix

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[input_files.InputFile]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> input_files.InputFile:
        file = self._files[index]
        return replace(file, name=self._prefix + file.name)


def plan_input(item: FolderFiles) -> PlannedInput:
    """Return the part of a plan that describes the files of an input."""
    return PlannedInput(
        redact(item.root),
        [_name(item.root, file.url) for file in item.files],
        [file.bytes or 0 for file in item.files],
        [file.tag for file in item.files],
        len(item.hidden),
        list(item.hidden[:MAX_LISTED]),
    )


def _name(root: str, url: str) -> str:
    if url == root:
        return ""
    return (
        PurePosixPath(url).relative_to(root).as_posix() if urls.is_local(root) else url[len(root) :]
    )


def _url(root: str, name: str) -> str:
    return urls.path_url(Path(root, name)) if urls.is_local(root) else root + name


# ---------------------------------------------------------------- comparison


def list_versions(config: ConvertConfig, formats: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that affect the bytes of the output.

    These are cloudload, the compression library, and the libraries that read the inputs.
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


def check_files(planned: ConversionPlan, now: Sequence[PlannedInput]) -> None:
    """Raise `ConvertError` for the first file that changed after planning but kept its size."""
    for before, after in zip(planned.inputs, now, strict=True):
        for name, old, new in zip(before.names, before.tags, after.tags, strict=True):
            if old and new and old != new:
                raise ConvertError(
                    f"{name or before.root} changed after the conversion was planned. Restore the "
                    "original file, or start over (--overwrite)"
                )
