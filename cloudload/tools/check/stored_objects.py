"""Compare the objects in the dataset's folder with its index, and with the indexes of its lengths.

files that index.json names         missing, or of another size
lengths/<key>/index-<data>.json     of the present data: complete, or else `lengths-damaged`
lengths/<key>/…                     anything that no such index lists: `lengths-old`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cloudload.data import (
    Corpus,
    Dataset,
    Location,
    own_objects,
    shard_entries,
    urls,
)
from cloudload.errors import DatasetError, StoreError
from cloudload.run import length_files, lengths_index
from cloudload.tools.check.findings import Finding, find
from cloudload.tools.check.rules import BOTH, CLOUDLOAD

_CUT_FROM_URLS = "#?"
_SHOWN = 5


def list_folder(location: Location) -> dict[str, int]:
    """Map the name of each object in a dataset's folder to its size in bytes.

    Raises `StoreError` if the store cannot list the folder.
    """
    folder = urls.plain_location(location.url)
    return {
        urls.name_below(item.url, folder): item.bytes for item in location.at(folder).list_objects()
    }


def check_objects(
    url: str, shards: Sequence[shard_entries.ShardInfo], found: Mapping[str, int]
) -> Iterator[Finding]:
    """Yield findings about the files that the index names.

    `url` is the dataset's folder, and `found` maps each object's name to its size in bytes.
    """
    for shard in shards:
        stored = shard.stored
        size, raw = found.get(stored.name), found.get(shard.raw.name)
        if size is None:
            yield find(
                "shard-missing", stored.name, "the index names this object, but it does not exist"
            )
        elif size != stored.bytes:
            yield size_finding(stored, size, shard.compression)
        if shard.zipped is not None and raw is not None and urls.is_local(url):
            yield _describe_raw(shard.raw.name, stored.name, is_alone=size is None)


def size_finding(file: shard_entries.FileInfo, size: int, compression: str | None) -> Finding:
    """Create a finding for a file whose size differs from the index.

    `compression` is the file's compression, or None. Streaming reads a raw or bz2 file that is too
    long, because it ignores bytes after the end.
    """
    is_ignored = size > file.bytes and (compression or "bz2").startswith("bz2")
    readers = (CLOUDLOAD,) if is_ignored else BOTH
    what = f"has {size:,} bytes, but the index says {file.bytes:,}"
    return find("size", file.name, what, readers=readers)


def _describe_raw(raw: str, zipped: str, *, is_alone: bool) -> Finding:
    if is_alone:
        what = f"{zipped} is missing. StreamingDataset(local=…) without remote= deletes this file"
        return find("raw-alone", raw, what)
    what = f"StreamingDataset(local=…) without remote= reads this file, unverified, for {zipped}"
    return find("raw-unverified", raw, what)


def check_others(
    url: str, shards: Sequence[shard_entries.ShardInfo], found: Mapping[str, int]
) -> Iterator[Finding]:
    """Yield findings about objects that no reader needs. Takes the arguments of `check_objects`.

    Leaves token lengths to `LengthsCheck`.
    """
    named = {shard.stored.name for shard in shards}
    raw = {shard.raw.name for shard in shards} - named
    if urls.is_local(url):
        named |= raw  # `check_objects` reports raw files of local datasets
    others = {name: size for name, size in found.items() if name not in named}
    # a folder that has its own index is another dataset, such as a split
    datasets = {
        name[: -len(shard_entries.INDEX_NAME)]
        for name in others
        if name.endswith(f"/{shard_entries.INDEX_NAME}")
    }
    rest = {
        name: size
        for name, size in others.items()
        if name not in (shard_entries.INDEX_NAME, own_objects.REPORT_NAME)
        and not own_objects.LENGTHS.fullmatch(name)
        and not own_objects.SELECTIONS.fullmatch(name)
        and not any(folder in datasets for folder in _folders_of(name))
    }
    if any(map(own_objects.JOURNAL.fullmatch, rest)):
        patterns = (own_objects.JOURNAL, own_objects.SHARD, own_objects.TEMPORARY)
        begun = {name for name in rest if any(each.fullmatch(name) for each in patterns)}
        yield find("unfinished", "", sum_up({name: rest.pop(name) for name in begun}))
    if unlisted := {name: rest[name] for name in rest.keys() - raw if ".mds" in name}:
        what = f"the index does not list {sum_up(unlisted)}, although the names look like shards"
        yield find("unlisted", "", what)
    if left := {name: size for name, size in rest.items() if name not in unlisted}:
        yield find("leftover", "", f"no reader needs {sum_up(left)}")


def _folders_of(name: str) -> Iterator[str]:
    parts = name.split("/")
    return ("/".join(parts[:depth]) + "/" for depth in range(1, len(parts)))


def sum_up(stored: Mapping[str, int]) -> str:
    """Describe objects, given by name and size in bytes: `2 objects (15 bytes: a, b)`."""
    names = sorted(stored)
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    noun = "object" if len(names) == 1 else "objects"
    return f"{len(names):,} {noun} ({sum(stored.values()):,} bytes: {shown})"


def check_url(url: str, shards: Sequence[shard_entries.ShardInfo]) -> Iterator[Finding]:
    """Yield findings about locations that Streaming's downloaders cannot reach."""
    if url.startswith("file:"):
        advice = "Pass the path without file:// to Streaming"
        yield find("url", "", "Streaming does not read file:// URLs", advice=advice)
    if urls.is_local(url):
        return
    what = f"Streaming truncates {urls.scheme_of(url)}:// URLs at the first of {_CUT_FROM_URLS}"
    if any(sign in url for sign in _CUT_FROM_URLS):
        yield find("url", "", what)
    for shard in shards:
        if any(sign in shard.stored.name for sign in _CUT_FROM_URLS):
            yield find("url", shard.stored.name, what)


@dataclass
class LengthsCheck:
    """Checks the token lengths of a dataset. `sizes` maps all of its objects to bytes.

    With `reads_groups`, reads and verifies the lengths. Otherwise, compares sizes only.
    """

    dataset: Dataset
    sizes: Mapping[str, int]
    reads_groups: bool
    complete: set[str] = field(default_factory=set)
    """The fingerprints of the tokenizers whose lengths are complete; "" for token IDs."""

    def run(self) -> Iterator[Finding]:
        """Yield the findings, and fill `complete`."""
        rest = {
            name: size for name, size in self.sizes.items() if own_objects.LENGTHS.fullmatch(name)
        }
        if not rest:
            return
        current = lengths_index.index_name(Corpus((self.dataset,)).fingerprint(range(1)))
        for name in [name for name in rest if name.endswith(f"/{current}")]:
            del rest[name]
            try:
                counted = self._open(name)
                names = self._list_groups(counted)
                if self.reads_groups:
                    deque(length_files.read_lengths(counted), maxlen=0)
            except (ValueError, DatasetError, StoreError) as error:
                yield find("lengths-damaged", name, str(error))
                folder = name.removesuffix(current)
                rest = {each: size for each, size in rest.items() if not each.startswith(folder)}
                continue
            self.complete.add(counted.key.tokenizer)
            rest = {name: size for name, size in rest.items() if name not in names}
        if rest:
            what = f"{sum_up(rest)} have token lengths of other data, or of an unfinished count"
            yield find("lengths-old", "", what)

    def _open(self, name: str) -> length_files.CountedDataset:
        folder, digest = self.dataset.location, name.split("/")[1]
        index = lengths_index.LengthsIndex.decode(folder.join(name).read())
        try:
            key = lengths_index.LengthsKey(**index.key)
        except TypeError as error:
            raise ValueError(f"the file is not an index of token lengths ({error})") from None
        if (key.digest, lengths_index.index_name(index.data)) != (digest, name.split("/")[2]):
            raise ValueError("the file belongs to different data or a different tokenizer")
        return length_files.CountedDataset(
            self.dataset, key, folder.join(own_objects.LENGTHS_FOLDER), index
        )

    def _list_groups(self, counted: length_files.CountedDataset) -> set[str]:
        """The names of the groups' objects. Raises `ValueError` if one does not have its size."""
        folder = f"{own_objects.LENGTHS_FOLDER}/{counted.key.digest}/"
        for group in counted.index.groups:
            size = self.sizes.get(folder + group.name)
            if size != group.bytes:
                fault = "is missing" if size is None else f"has {size:,} bytes"
                raise ValueError(f"{group.name} {fault}, but the file lists {group.bytes:,} bytes")
        return {folder + group.name for group in counted.index.groups}
