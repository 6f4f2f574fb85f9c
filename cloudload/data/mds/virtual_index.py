"""The index of files that are read where they are, as virtual shards.

    a.parquet   row groups 0 1 2 3 │ 4 5 6        a shard has about 64 MB of the columns read
    b.parquet   row group  0                      a larger row group is a shard

    listing: names, sizes, tags ─► footers, many at a time ─► virtual shards ─► file_records

The index of Parquet is a function of the listing and the footers, so each node makes the same
bytes. Its shards have the listing's order. It names the columns that a run reads, so a run that
reads other columns has another index. Sizes of raw shards are estimates, from which the cache
reserves space. The lines of JSON Lines must be counted first, so only `cloudload index` makes their
index (`tools.convert.line_index`).
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from cloudload._version import __version__
from cloudload.data import file_kinds
from cloudload.data.mds import (
    arrow_samples,
    file_records,
    footers,
    own_objects,
    shard_entries,
    writer,
)
from cloudload.data.mds.codecs import check_codec
from cloudload.data.mds.file_selection import FileSelection
from cloudload.data.mds.row_groups import hash_footer
from cloudload.data.mds.shard import ID_KEY
from cloudload.data.mds.shard_table import ShardTable, parse_index
from cloudload.data.storage import urls
from cloudload.data.storage.base import StoredObject
from cloudload.data.storage.globs import find_glob
from cloudload.data.storage.locations import Location
from cloudload.data.storage.redaction import redact
from cloudload.errors import DatasetError
from cloudload.system import counted, map_in_order

SHARD_BYTES = writer.DEFAULT_SHARD_BYTES
"""About how many bytes of the columns read a shard has."""
LARGE_BYTES = 1 << 29
"""A row group with more bytes is mentioned in a warning."""
_AT_ONCE = 32
_MOST_TAIL_BYTES = 1 << 22
_MOST_NAMED = 30
_CHAT_COLUMNS = ("messages", "conversations", "prompt", "instruction")
"""Usual names of columns of conversations."""


class ColumnChoice(NamedTuple):
    """The columns of files that a run reads, besides `id`."""

    key: str | None = None
    """The column of the documents, as text or token IDs. A nested field looks like `meta.text`."""
    has_others: bool = True
    """Whether to read all other columns, too, as for a transform. If not, the `key` must exist."""


ALL_COLUMNS = ColumnChoice()


@dataclass(frozen=True)
class ListedFiles:
    """Files as they were listed."""

    location: Location
    """The location that the user passed: a file, a folder, or a glob."""
    folder: Location
    """The folder of the files."""
    files: tuple[StoredObject, ...]
    is_pinned: bool = False
    """Whether the folder is one of a commit, so that its files never change."""
    has_index: bool = False
    """Whether the folder also has an `index.json`, which a loader reads instead."""

    def name_of(self, file: StoredObject) -> str:
        """The name of a file in the folder."""
        return urls.name_below(file.url, self.folder.url)

    def identify(self, choice: ColumnChoice) -> str:
        """A digest of everything on which the index depends; "" if a file's version is unknown."""
        if not self.is_pinned and not all(file.tag for file in self.files):
            return ""
        commit = self.folder.url if self.is_pinned else ""
        digest = hashlib.sha256(repr((__version__, SHARD_BYTES, commit, *choice)).encode())
        for file in self.files:
            digest.update(repr((self.name_of(file), file.bytes, file.tag)).encode())
        return digest.hexdigest()


def is_parquet(name: str) -> bool:
    """Whether a file, or what a glob selects, is Parquet according to its name."""
    extension, compression = file_kinds.split_name(name)
    return file_kinds.FORMATS_BY_EXTENSION.get(extension) == "parquet" and not compression


def is_json_lines(name: str) -> bool:
    """Whether a file, or what a glob selects, is JSON Lines according to its name."""
    kind = file_kinds.FORMATS_BY_EXTENSION.get(file_kinds.split_name(name)[0])
    return kind in ("jsonl", "json") and not file_kinds.is_about_data(name)


def is_virtual(index: bytes) -> bool:
    """Whether an `index.json` is valid, and lists parts of files as virtual shards."""
    if f'"{shard_entries.FILES}"'.encode() not in index:
        return False
    with contextlib.suppress(DatasetError):
        forms = parse_index(index, "").count_forms()
        return any(form.compression in shard_entries.VIRTUAL for form in forms)
    return False


def find_parquet_files(location: Location) -> ListedFiles:
    """List the Parquet files at a location, as `list_raw_files` does.

    Also raises `DatasetError` if there are JSON Lines, too, which a run would leave out.
    """
    found = list_raw_files(location, _is_record_file, "Parquet files")
    if not found.has_index:
        check_format(found)
    if found.files and not is_parquet(found.files[0].url):
        raise DatasetError(f"found no Parquet files in {location}. Check the location")
    return found


def _is_record_file(name: str) -> bool:
    kind = file_kinds.FORMATS_BY_EXTENSION.get(file_kinds.split_name(name)[0])
    return is_parquet(name) or kind == "jsonl"  # `.json` may be about the data


def check_format(found: ListedFiles) -> None:
    """Raise `DatasetError` if files are of both formats."""
    parquet = sum(is_parquet(file.url) for file in found.files)
    if 0 < parquet < len(found.files):
        raise DatasetError(
            f"{found.location} has {counted(parquet, 'Parquet file')} and "
            f"{counted(len(found.files) - parquet, 'JSON Lines file')}. Pass a glob for the "
            f"files of one format, such as {urls.join_url(str(found.folder), '**/*.parquet')!r}"
        )


def list_raw_files(location: Location, is_wanted: Callable[[str], bool], what: str) -> ListedFiles:
    """List the files with wanted names at a location: a file, a folder, or a glob.

    Raises `DatasetError` if there is no file and no index, naming `what` is wanted, or if files
    belong to a table such as Delta, and `StoreError` if they cannot be listed.
    """
    location = location.pin()
    glob = find_glob(location)
    root = glob.folder if glob else urls.plain_location(location.url)
    selection = FileSelection(root, glob)
    listing = location.at(root).collect(selection.collect, wanted=selection.wants)
    names = [urls.name_below(file.url, root) for file in listing.files]
    pairs = [
        (file, name)
        for file, name in zip(listing.files, names, strict=True)
        if is_wanted(name or file.url) and not _is_own(location.at(file.url), name)
    ]
    files, names = tuple(file for file, _ in pairs), [name for _, name in pairs]
    index = urls.join_url(root, shard_entries.INDEX_NAME)
    has_index = glob is None and any(file.url == index for file in listing.files)
    if not files and not has_index:
        raise DatasetError(f"found no {what} in {location}. Check the location")
    for folder, kind in listing.tables.items():
        if kind and any(name.startswith(folder) for name in names):
            table = urls.join_url(root, folder.rstrip("/"))
            raise DatasetError(file_kinds.refuse_table(redact(table), kind))
    # the folder of a single file is the one that has it
    folder = root.rpartition("/")[0] or ("/" if root.startswith("/") else ".")
    folder = folder if names == [""] else root
    is_pinned = urls.scheme_of(root) == "hf"
    return ListedFiles(location, location.at(folder), files, is_pinned, has_index)


def _is_own(file: Location, name: str) -> bool:
    """Whether cloudload wrote a file, given its name, which may be in a folder below."""
    if own_objects.is_of_dataset(name) or own_objects.is_beside_files(name):
        return True
    if name.rpartition("/")[2] != shard_entries.INDEX_NAME:
        return False
    with contextlib.suppress(DatasetError):
        parse_index(file.read(shard_entries.MOST_INDEX_BYTES), file.url)
        return True
    return False


def build_index(found: ListedFiles, choice: ColumnChoice, folder: str = "") -> bytes:
    """Read the footers of Parquet files, and return their `index.json`.

    `folder` is the URL of the files' folder, if the index will be in another one. Raises
    `DatasetError` if a file cannot be read as Parquet, or lacks the column, and `StoreError` if a
    file changed since it was listed, or cannot be read.
    """
    check_codec(shard_entries.PARQUET)
    read = partial(_read_shards, found, choice, _TailSize())
    several = map_in_order(read, found.files, _AT_ONCE, "cloudload-index")
    shards = chain.from_iterable(several)
    return file_records.encode_index_of_files(shards, shard_entries.PARQUET, folder)


def explain_large_groups(table: ShardTable, folder: Location) -> str | None:
    """The warning about large row groups of the files in `folder`; None if there are none."""
    large = np.flatnonzero(table.raw_bytes > LARGE_BYTES)
    if not len(large) or (first := table[int(large[0])]).compression != shard_entries.PARQUET:
        return None
    return (
        f"{folder}: {counted(len(large), 'row group')} with more than {LARGE_BYTES >> 20} MiB of "
        f"the columns to read, such as {first.stored.name}. Each one is fetched and decoded as a "
        f"whole. To get small shards, run: cloudload convert {shlex.quote(str(folder))} OUTPUT"
    )


@dataclass
class _TailSize:
    """How many bytes at the end of a file to read. The footers of a corpus are alike in size."""

    most_bytes: int = footers.TAIL_BYTES

    def learn(self, footer: bytes) -> None:
        if self.most_bytes < len(footer) <= _MOST_TAIL_BYTES:
            self.most_bytes = len(footer) * 9 // 8


def _read_shards(
    found: ListedFiles, choice: ColumnChoice, tail: _TailSize, file: StoredObject
) -> list[shard_entries.ShardInfo]:
    """The shards of a file."""
    name, location = found.name_of(file), found.folder.at(file.url)
    if fault := shard_entries.fault_of_name(name):
        raise DatasetError(f"the name of {location} {fault}. Rename the file")
    try:
        footer, metadata = footers.read_metadata(location, file.bytes, file.tag, tail.most_bytes)
        tail.learn(footer)
        columns = plan_columns(metadata, choice)
        span = file.bytes - len(footer), file.bytes
        sizes, digest = _measure_groups(metadata, columns, name, span[0]), hash_footer(footer)
        return [
            describe_shard(
                shard_entries.RowGroups(name, *run.groups, span, digest, file.tag),
                run.size,
                columns,
            )
            for run in cut_runs(sizes, SHARD_BYTES)
        ]
    except footers.FooterError as error:
        raise DatasetError(
            f"{location} cannot be read as Parquet: {error}. Repair the file, or leave it out"
        ) from error
    except _ColumnError as error:
        raise DatasetError(f"{location} {error}") from error


# ---------------------------------------------------------------- columns


class _ColumnError(Exception):
    """The columns of a file cannot be read. The message continues the file's name."""


def plan_columns(metadata: Any, choice: ColumnChoice) -> tuple[shard_entries.Column, ...]:
    """The columns of a file's virtual shards, sorted by name.

    Text without nulls is `str`, also in other columns than the `key`. With nulls, it is `json`.
    Columns that have no encoding are left out.
    """
    try:
        schema = metadata.schema.to_arrow_schema()
    except Exception as error:  # pyarrow raises various errors for types that it does not know
        raise _ColumnError(f"has a schema that pyarrow cannot read ({error})") from error
    if twice := sorted({name for name in schema.names if schema.names.count(name) > 1}):
        raise _ColumnError(f"has two columns named {twice[0]!r}. Rename one of them")
    encodings = dict(_list_others(metadata, schema)) if choice.has_others else {}
    encodings[ID_KEY] = "str"  # as in a conversion, whatever the type of the file's column
    if choice.key is not None and (kind := _find_type(schema, choice.key)) is not None:
        encodings[choice.key] = _encoding_of_key(choice.key, kind)
    elif choice.key is not None and not choice.has_others:
        names = schema.names[:_MOST_NAMED] + ["…"] * (len(schema.names) > _MOST_NAMED)
        raise _ColumnError(
            f"has no column {choice.key!r}. Set text_key or tokens_key to one of its columns: "
            f"{', '.join(names)}{_advise_on_chat(schema.names)}"
        )
    return tuple(
        shard_entries.Column.of(name, encoding) for name, encoding in sorted(encodings.items())
    )


def find_chat(columns: Iterable[str]) -> str | None:
    """The first of some columns whose name is usual for conversations, if there is one."""
    known = set(columns)
    return next((name for name in _CHAT_COLUMNS if name in known), None)


def _advise_on_chat(columns: Iterable[str]) -> str:
    if (name := find_chat(columns)) is None:
        return ""
    return (
        f". If column {name!r} contains conversations, pass chat=Chat(), or set all_columns "
        "(--all-columns) to index the files"
    )


def _find_type(schema: Any, name: str) -> Any:
    """The Arrow type of a column, or of a nested field such as `meta.text`; None without one."""
    if name in schema.names:
        return schema.field(name).type
    outer, dot, inner = name.partition(".")
    if not dot or outer not in schema.names:
        return None
    kind = schema.field(outer).type
    for part in inner.split("."):
        places = [index for index in range(kind.num_fields) if kind.field(index).name == part]
        if len(places) != 1 or not str(kind).startswith("struct<"):
            return None
        kind = kind.field(places[0]).type
    return kind


def _encoding_of_key(name: str, kind: Any) -> str:
    encoding = arrow_samples.encoding_of(kind)
    if encoding is None or encoding == "json":
        raise _ColumnError(
            f"has the column {name!r} of type {kind}, which is neither text nor a list of token "
            "IDs. Choose another column, a field in it such as "
            f"{name}.text, or convert the files (cloudload convert)"
        )
    return encoding


def _list_others(metadata: Any, schema: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and the encoding of each column that has an encoding."""
    with_nulls = _find_columns_with_nulls(metadata)
    for field in schema:
        encoding = arrow_samples.encoding_of(field.type)
        if encoding is not None and field.name in with_nulls and encoding != "bytes":
            encoding = "json"
        if encoding is not None:
            yield field.name, encoding


def _find_columns_with_nulls(metadata: Any) -> set[str]:
    """The names of columns that have nulls, or may have them, because there are no statistics."""
    found = set()
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        for place in range(group.num_columns):
            column = group.column(place)
            known = column.statistics if column.is_stats_set else None
            if known is None or not known.has_null_count or known.null_count:
                found.add(column.path_in_schema.partition(".")[0])
    return found


# ---------------------------------------------------------------- shards


class PartSize(NamedTuple):
    """The samples of a part of a file, and the bytes of the columns read, decoded and stored."""

    samples: int
    raw_bytes: int
    stored_bytes: int


class GroupRun(NamedTuple):
    """Consecutive row groups [start, stop) that become a shard."""

    groups: tuple[int, int]
    size: PartSize


def cut_runs(sizes: Iterable[PartSize], most_bytes: int) -> list[GroupRun]:
    """Cut the row groups of a file into runs of about `most_bytes`. Runs without rows are left out.

    >>> [run.groups for run in cut_runs([PartSize(1, size, 0) for size in (3, 3, 3, 9, 1)], 8)]
    [(0, 3), (3, 4), (4, 5)]
    """
    runs: list[GroupRun] = []
    start, rows, raw, stored = 0, 0, 0, 0
    for index, size in enumerate(sizes):
        # end a run where its size is closest to the limit
        if rows and raw + size.raw_bytes / 2 > most_bytes:
            runs.append(GroupRun((start, index), PartSize(rows, raw, stored)))
            start, rows, raw, stored = index, 0, 0, 0
        rows, raw, stored = rows + size.samples, raw + size.raw_bytes, stored + size.stored_bytes
        stop = index + 1
    return [*runs, GroupRun((start, stop), PartSize(rows, raw, stored))] if rows else runs


def _measure_groups(
    metadata: Any, columns: Sequence[shard_entries.Column], name: str, stop: int
) -> Iterator[PartSize]:
    """Yield the size of each row group. Its bytes must be in front of the footer at `stop`."""
    leaves = footers.find_leaves(metadata, (column.name for column in columns))
    # a sample has an offset, and the size of each value. The ID may be the name of the file
    has_ids = ID_KEY in leaves.values()
    row_bytes = 4 + 4 * len(columns) + (0 if has_ids else len(name.encode()) + 8)
    for index in range(metadata.num_row_groups):
        rows, spans, size = footers.measure_group(metadata, index, leaves, stop)
        raw = size + rows * row_bytes
        if raw > shard_entries.MOST_SHARD_BYTES:
            raise footers.FooterError(
                f"row group {index} has {raw:,} bytes of the columns to read, and a shard may have "
                "4 GiB. Write smaller row groups, or convert the file (cloudload convert)"
            )
        yield PartSize(rows, raw, sum(last - first for first, last in spans))


def describe_shard(
    part: shard_entries.StoredForm, size: PartSize, columns: tuple[shard_entries.Column, ...]
) -> shard_entries.ShardInfo:
    """The virtual shard of a part of a file, whose samples have this size."""
    form = writer.ShardFormat(columns, compression=None, hashes=())
    raw_bytes = size.raw_bytes + form.empty_bytes()
    return shard_entries.ShardInfo.of_part(
        part, columns, size.samples, raw_bytes, size.stored_bytes
    )
