"""Compare the files that an index names with the objects in the dataset's folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cloudload.data.mds.index import INDEX_NAME, FileInfo, ShardInfo
from cloudload.data.mds.own_objects import JOURNAL, LENGTHS, REPORT_NAME, SHARD, TEMPORARY
from cloudload.data.storage.base import Retry
from cloudload.data.storage.objects import list_objects
from cloudload.data.storage.urls import is_local, name_below, plain_location, scheme_of
from cloudload.tools.check.findings import Finding, find
from cloudload.tools.check.rules import BOTH, CLOUDLOAD

_CUT_FROM_URLS = "#?"
_SHOWN = 5


def list_folder(url: str, retry: Retry) -> dict[str, int]:
    """Map the name of each object in a dataset's folder to its size in bytes.

    Raises `StoreError` if the store cannot list the folder.
    """
    folder = plain_location(url)
    return {name_below(item.url, folder): item.bytes for item in list_objects(folder, retry)}


def check_files(
    url: str, shards: Sequence[ShardInfo], found: Mapping[str, int]
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
        if shard.zipped is not None and raw is not None and is_local(url):
            yield _describe_raw(shard.raw.name, stored.name, is_alone=size is None)


def size_finding(file: FileInfo, size: int, compression: str | None) -> Finding:
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
    url: str, shards: Sequence[ShardInfo], found: Mapping[str, int]
) -> Iterator[Finding]:
    """Yield findings about objects that no reader needs. Takes the arguments of `check_files`.

    Leaves token lengths to `LengthsCheck`.
    """
    named = {shard.stored.name for shard in shards}
    raw = {shard.raw.name for shard in shards} - named
    if is_local(url):
        named |= raw  # `check_files` reports raw files of local datasets
    others = {name: size for name, size in found.items() if name not in named}
    # a folder that has its own index is another dataset, such as a split
    datasets = {name[: -len(INDEX_NAME)] for name in others if name.endswith(f"/{INDEX_NAME}")}
    rest = {
        name: size
        for name, size in others.items()
        if name not in (INDEX_NAME, REPORT_NAME)
        and not LENGTHS.fullmatch(name)
        and not any(folder in datasets for folder in _folders_of(name))
    }
    if any(map(JOURNAL.fullmatch, rest)):
        patterns = (JOURNAL, SHARD, TEMPORARY)
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


def sum_up(objects: Mapping[str, int]) -> str:
    """Describe objects, given by name and size in bytes: `2 objects (15 bytes: a, b)`."""
    names = sorted(objects)
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    noun = "object" if len(names) == 1 else "objects"
    return f"{len(names):,} {noun} ({sum(objects.values()):,} bytes: {shown})"


def check_url(url: str, shards: Sequence[ShardInfo]) -> Iterator[Finding]:
    """Yield findings about locations that Streaming's downloaders cannot reach."""
    if url.startswith("file:"):
        advice = "Pass the path without file:// to Streaming"
        yield find("url", "", "Streaming does not read file:// URLs", advice=advice)
    if is_local(url):
        return
    what = f"Streaming truncates {scheme_of(url)}:// URLs at the first of {_CUT_FROM_URLS}"
    if any(sign in url for sign in _CUT_FROM_URLS):
        yield find("url", "", what)
    for shard in shards:
        if any(sign in shard.stored.name for sign in _CUT_FROM_URLS):
            yield find("url", shard.stored.name, what)
