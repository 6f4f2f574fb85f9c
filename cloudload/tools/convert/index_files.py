"""Write an index of Parquet files, so that runs on many nodes need not read their footers.

    s3://public/corpus/*.parquet ─► footers ─► s3://me/corpus-index/index.json
                                               └► CloudLoader("s3://me/corpus-index", …)

The index names the files with their versions. A run that reads it reads neither files that were
added later, nor files that changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from cloudload.config import TEXT_KEY, Stream
from cloudload.data import (
    ColumnChoice,
    Location,
    Retry,
    parse_index,
    redact,
    shard_entries,
    urls,
    virtual_index,
)
from cloudload.errors import ConvertError
from cloudload.system import counted, reports


@dataclass(frozen=True)
class IndexReport:
    """What an index of Parquet files lists."""

    index: str
    """The location of the index, without secrets."""
    files: int
    """Number of files."""
    shards: int
    """Number of shards."""
    samples: int
    """Number of samples."""
    raw_bytes: int
    """Bytes of all raw shards; an estimate."""
    stored_bytes: int
    """Bytes of the columns in the files."""

    def to_json(self) -> str:
        """Return the report as indented JSON."""
        return reports.to_json(self)

    def describe(self) -> Iterator[str]:
        """Yield the report as lines of text."""
        yield f"{self.index}: {counted(self.samples, 'sample')} of {counted(self.files, 'file')}"
        yield f"  shards  {self.shards:,}"
        yield f"  bytes   about {self.raw_bytes:,} raw, {self.stored_bytes:,} to download"


def index_files(
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    split: str | None = None,
    text_key: str | None = None,
    tokens_key: str | None = None,
    all_columns: bool = False,
    retry: Retry | None = None,
) -> IndexReport:
    """Write an index of Parquet files, which a loader reads like the index of an MDS dataset.

    Args:
        data: a file, a folder, or a glob of Parquet files.
        out: the folder or URL of the index. It may be the folder of the files.
        split: the subfolder of `data` to index, such as `train`.
        text_key: the column that holds the document, by default `text`.
        tokens_key: the column that holds the documents as token IDs, instead of `text_key`.
        all_columns: index all columns, for a run with a transform or with conversations.
        retry: how long to retry a request to the store.

    Raises:
        ValueError: an argument is invalid.
        ConvertError: `out` has another index, or the location of the files has secrets.
        DatasetError: a file is not Parquet, or lacks the column.
        StoreError: a file cannot be read, or the index cannot be written.
    """
    if text_key is not None and tokens_key is not None:
        raise ValueError("text_key and tokens_key are both set. Omit one of them")
    retry = retry or Retry()
    found = virtual_index.find_parquet_files(Stream(os.fspath(data), split=split).locate(retry))
    target = Location(urls.plain_location(os.fspath(out)), retry)
    files = found.folder.url
    if redact(files) != files:
        raise ConvertError(
            f"{redact(files)} contains secrets, which an index must not store. Use credentials of "
            "the environment instead of a signed URL"
        )
    if urls.is_local(files):
        files = os.path.abspath(urls.local_path(files))
    choice = ColumnChoice(tokens_key or text_key or TEXT_KEY, has_others=all_columns)
    is_beside = urls.same_or_inside(target.url, files) and urls.same_or_inside(files, target.url)
    index = virtual_index.build_index(found, choice, "" if is_beside else files)
    table = parse_index(index, str(found.location))
    if target.join(shard_entries.INDEX_NAME).create(index) != index:
        raise ConvertError(
            f"{target} has another index. Choose another folder, or delete its "
            f"{shard_entries.INDEX_NAME} if no run reads it"
        )
    return IndexReport(
        index=str(target),
        files=len(found.files),
        shards=len(table),
        samples=int(table.samples.sum()),
        raw_bytes=int(table.raw_bytes.sum()),
        stored_bytes=int(table.stored_bytes.sum()),
    )
