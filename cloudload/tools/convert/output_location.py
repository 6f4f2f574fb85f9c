"""The locations of a conversion's objects, apart from those of its inputs.

              one dataset                   splits train and val
    home      out/.convert/                 out/.convert/
    shards    out/00003/shard.00000…        out/train/00003/…  out/val/00003/shard.00000…
    index     out/index.json                out/train/index.json  out/val/index.json

The name of the only split is "" if there are no splits. What a conversion writes is kept apart from
what it reads. Locations are compared as `storage.urls` does:

    convert corpus corpus/mds             the output is inside the input: a rerun would read it
    convert data/a.jsonl link-to-data     the output contains input files: --overwrite removes them
    convert a.jsonl ./link-to-a.jsonl …   one file is in the inputs twice
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from cloudload.data import (
    Location,
    StoredObject,
    globs,
    own_objects,
    redact,
    shard_entries,
    urls,
)
from cloudload.errors import ConvertError, StoreError
from cloudload.tools.convert.indexed_shards import ShardIndex
from cloudload.tools.convert.input_files import InputFile
from cloudload.tools.convert.listed_files import FileList

Found = TypeVar("Found")

_SHARD_NAMES = ("shard.00000.mds", "shard.00000.mds.zstd", "00000/shard.00000.mds.zstd")
_WRITTEN = ("", shard_entries.INDEX_NAME, own_objects.REPORT_NAME, *_SHARD_NAMES)
_HUB_FILES = ("hf://datasets/", "hf://buckets/")


@dataclass(frozen=True)
class Output:
    """The locations of a conversion's objects, or of a segment's objects if `segment` is not "".

    `home` is the location of the output, and `segment` is the name of the segment's folder.
    """

    home: Location
    splits: tuple[str, ...] = ("",)
    segment: str = ""

    def of_segment(self, segment: int) -> Output:
        """Return the locations of a segment's objects."""
        return replace(self, segment=segment_folder(segment))

    @property
    def journal(self) -> Location:
        """The location whose folder `.convert` contains the journal."""
        return self.home.join(self.segment)

    def dataset(self, split: str) -> Location:
        """Return the location of a split's dataset."""
        return self.home.join(split)

    def shards(self, split: str) -> Location:
        """Return the location of a split's shards."""
        return self.dataset(split).join(self.segment)

    @property
    def has_splits(self) -> bool:
        """Whether documents are divided into splits, each of which is a dataset."""
        return self.splits != ("",)


def segment_folder(segment: int) -> str:
    """Return the name of a segment's folder."""
    return f"{segment:05}"


def name_in(folder: str, name: str) -> str:
    """Return the name of an object in a folder; `name` itself if `folder` is empty."""
    return f"{folder}/{name}" if folder else name


def collect_at(location: Location, collect: Callable[[Iterator[tuple[str, int]]], Found]) -> Found:
    """Call `collect` with an iterator over the objects below a location, and return its result.

    The iterator yields (name, bytes) in any order; see `collect_objects`. A location that does not
    exist has no objects.
    """

    folder = urls.plain_location(location.url)

    def collect_names(stored: Iterator[StoredObject]) -> Found:
        return collect((urls.name_below(item.url, folder), item.bytes) for item in stored)

    try:
        return location.collect(collect_names)
    except StoreError as error:
        if error.is_missing:
            return collect(iter(()))
        raise


def list_sizes_at(location: Location) -> dict[str, int]:
    """Map the name of each object below a location to its size in bytes, sorted by name."""
    return collect_at(location, lambda found: dict(sorted(found)))


def does_exist(location: Location) -> bool:
    """Whether an object exists."""
    return bool(list_sizes_at(location))


def is_stored(file: Mapping[str, object], sizes: Mapping[str, int]) -> bool:
    """Whether an index entry's file is stored with the size in the entry.

    `sizes` maps the names of stored files to their sizes in bytes.
    """
    return sizes.get(str(file["basename"])) == file["bytes"]


def check_output(location: str, splits: Sequence[str], inputs: Any) -> None:
    """Raise `ValueError` if the folder of the output is inside an input, or contains one."""
    names = [urls.join_url(split, name) if split else name for split in splits for name in _WRITTEN]
    for item in _list_locations(inputs):
        glob = globs.find_glob(Location(item))
        if urls.same_or_inside(glob.folder if glob else item, location):
            raise ValueError(_describe_contained(location))
        _check_outside("the output", location, item, names)


def check_file(what: str, url: str, inputs: Any) -> None:
    """Raise `ValueError` if a file to write, such as a report, is an input, or is inside one.

    `what` names the file in the error.
    """
    for item in _list_locations(inputs):
        _check_outside(what, url, item, [""])


def check_listed(location: str, files: Iterable[InputFile]) -> None:
    """Raise `ValueError` if an input file is in the folder of the output, through any links."""
    if not urls.is_local(location):
        return
    output = urls.canonical(location)
    folders = {os.path.dirname(file.url) for file in files if urls.is_local(file.url)}
    if any(f"{os.path.realpath(folder)}/".startswith(f"{output}/") for folder in folders):
        raise ValueError(_describe_contained(location))


def check_removed(location: str, names: Iterable[str], files: Iterable[InputFile]) -> None:
    """Raise `ConvertError` if one of the output's files, which will be removed, is an input."""
    if not urls.is_local(location):
        return
    removed = {
        identity: name for name in names for identity in _identify(urls.join_url(location, name))
    }
    local = (file for file in files if urls.is_local(file.url)) if removed else ()
    for file in local:
        for identity in _identify(file.url):
            if identity in removed:
                raise ConvertError(
                    f"the input {file.display_name} is the file {removed[identity]} of the output "
                    f"{redact(location)}, which would be removed. Choose another output"
                )


def check_rejects(location: Location) -> None:
    """Raise `ValueError` if there is a file at a location that does not have rejects."""
    data = location.read_if_exists(1 << 20)
    if not data:
        return
    try:
        fields = json.loads(data.partition(b"\n")[0])
        is_reject = {"file", "place", "error"} <= fields.keys()
    except (ValueError, AttributeError):
        is_reject = False
    if not is_reject:
        raise ValueError(
            f"{location} exists, but is not a file of rejects. Choose another file for rejects "
            "(--rejects)"
        )


def check_twice(inputs: Sequence[Sequence[InputFile]]) -> None:
    """Raise `ValueError` if a file is in the inputs twice, by two names or through a link.

    Several links to one file that is not an input are several files.
    """
    files = [file for several in inputs for file in several]
    folders = {os.path.dirname(file.url) for file in files if _is_path(file)}
    real = {folder: os.path.realpath(folder) for folder in folders}
    links = [file for file in files if _is_path(file) and os.path.islink(file.url)]
    if len(inputs) == 1 and len(set(real.values())) == len(real) and not links:
        return  # usual, and a million names need no memory
    seen: dict[str, InputFile] = {}
    for file in files:
        location = file.url if file.url == "-" else urls.canonical(file.url)
        if _is_path(file):
            folder, name = os.path.split(file.url)
            location = os.path.join(real[folder], name)
        if (other := seen.setdefault(location, file)) is not file:
            raise _found_twice(other, file)
    for link in links:
        target = os.path.realpath(link.url)
        if target in seen:
            raise _found_twice(seen[target], link)


def _is_path(file: InputFile) -> bool:
    return file.url != "-" and urls.is_local(file.url)


def _found_twice(first: InputFile, second: InputFile) -> ValueError:
    again = "" if first.url == second.url else f", again as {second.display_name}"
    return ValueError(
        f"{first.display_name} is in the inputs twice{again}, so its documents would be written "
        "twice. List the file once"
    )


def is_hub_name(location: str) -> bool:
    """Whether an input is the name of a dataset on the Hugging Face Hub, not a location."""
    return location.startswith("hf://") and not location.startswith(_HUB_FILES)


def _list_locations(inputs: Any) -> Iterator[str]:
    """Yield the inputs that are locations of files."""
    for item in inputs if isinstance(inputs, list | tuple) else [inputs]:
        if isinstance(item, FileList | ShardIndex):
            yield from item.urls
            continue
        location = os.fspath(item) if isinstance(item, str | os.PathLike) else "-"
        if location and location != "-" and not is_hub_name(location):
            yield location


def _check_outside(what: str, location: str, item: str, names: Sequence[str]) -> None:
    """Raise `ValueError` if an input has `location`, or is a glob of one of `names` below it."""
    glob = globs.find_glob(Location(item))
    found = urls.name_inside(location, glob.folder if glob else item)
    if found is None:
        return
    if glob and not any(
        glob.matches(urls.join_url(found, name) if found else name) for name in names
    ):
        return
    is_input = not found and glob is None
    verb = "is the input" if is_input else "is inside the input"
    harm = "which it would replace" if is_input else "so it would be read as input"
    raise ValueError(
        f"{what} {redact(location)} {verb} {redact(item)}, {harm}. Choose a location outside the "
        "input"
    )


def _describe_contained(location: str) -> str:
    return f"the output {redact(location)} contains input files. Choose a different folder"


def _identify(path: str) -> Iterator[tuple[int, int]]:
    """Yield the numbers of a file, if it exists."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return
    yield status.st_dev, status.st_ino
