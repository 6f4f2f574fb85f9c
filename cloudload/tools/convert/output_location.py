"""The locations of a conversion's objects: of one dataset, or of one dataset for each split.

              one dataset                   splits train and val
    home      out/.convert/                 out/.convert/
    shards    out/00003/shard.00000…        out/train/00003/…  out/val/00003/shard.00000…
    index     out/index.json                out/train/index.json  out/val/index.json

The name of the only split is "" if there are no splits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from cloudload.data import Location, StoredObject, urls
from cloudload.errors import StoreError

Found = TypeVar("Found")


@dataclass(frozen=True)
class Output:
    """The locations of a conversion's objects, or of a segment's objects if `segment` is not "".

    `home` is the location of the output, and `segment` is the name of the segment's folder.
    """

    home: str
    splits: tuple[str, ...] = ("",)
    segment: str = ""

    def of_segment(self, number: int) -> Output:
        """Return the locations of a segment's objects."""
        return replace(self, segment=segment_folder(number))

    @property
    def journal(self) -> str:
        """The location whose folder `.convert` contains the journal."""
        return urls.join_url(self.home, self.segment)

    def dataset(self, split: str) -> str:
        """Return the location of a split's dataset."""
        return urls.join_url(self.home, split)

    def shards(self, split: str) -> str:
        """Return the location of a split's shards."""
        return urls.join_url(self.dataset(split), self.segment)

    @property
    def has_splits(self) -> bool:
        """Whether documents are divided into splits, each of which is a dataset."""
        return self.splits != ("",)


def segment_folder(number: int) -> str:
    """Return the name of a segment's folder."""
    return f"{number:05}"


def name_in(folder: str, name: str) -> str:
    """Return the name of an object in a folder; `name` itself if `folder` is empty."""
    return f"{folder}/{name}" if folder else name


def collect_at(location: str, collect: Callable[[Iterator[tuple[str, int]]], Found]) -> Found:
    """Call `collect` with an iterator over the objects below a location, and return its result.

    The iterator yields (name, bytes) in any order; see `collect_objects`. A location that does not
    exist has no objects.
    """

    def collect_names(stored: Iterator[StoredObject]) -> Found:
        return collect(
            (urls.name_below(item.url, urls.plain_location(location)), item.bytes)
            for item in stored
        )

    try:
        return Location(location).collect(collect_names)
    except StoreError as error:
        if error.is_missing:
            return collect(iter(()))
        raise


def list_sizes_at(location: str) -> dict[str, int]:
    """Map the name of each object below a location to its size in bytes, sorted by name."""
    return collect_at(location, lambda found: dict(sorted(found)))


def read_if_exists(url: str, most_bytes: int | None = None) -> bytes | None:
    """Read an object as `read_object` does, or return None if it does not exist."""
    try:
        return Location(url).read(most_bytes)
    except StoreError as error:
        if error.is_missing:
            return None
        raise


def does_exist(url: str) -> bool:
    """Whether an object exists."""
    return bool(list_sizes_at(url))


def is_stored(file: Mapping[str, object], sizes: Mapping[str, int]) -> bool:
    """Whether an index entry's file is stored with the size in the entry.

    `sizes` maps the names of stored files to their sizes in bytes.
    """
    return sizes.get(str(file["basename"])) == file["bytes"]
