"""Write an index of Parquet or JSON Lines files, which a loader then reads where they are.

    s3://public/a/*.parquet    ─► footers ─────────────┐
    s3://public/b/*.jsonl.zst  ─► all bytes, once ─────┴► s3://me/corpus-index/index.json
                                                          └► CloudLoader("s3://me/corpus-index", …)

The index names the files with their versions. A run that reads it reads neither files that were
added later, nor files that changed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

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
from cloudload.errors import ConvertError, DatasetError
from cloudload.system import counted, reports
from cloudload.tools.convert import line_index

logger = logging.getLogger("cloudload.convert")


@dataclass(frozen=True)
class IndexReport:
    """What an index of Parquet or JSON Lines files lists."""

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
    """Bytes of the files to download: of Parquet, only of the columns."""

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
    processes: int | None = None,
    executor: Executor | None = None,
    retry: Retry | None = None,
    progress: bool = True,
) -> IndexReport:
    """Write an index of Parquet or JSON Lines files, which a loader reads like an MDS dataset.

    Of Parquet files, only the footers are read. JSON Lines files are read once, because their lines
    must be counted. To resume an index of JSON Lines files that was stopped or killed, call this
    again.

    Args:
        data: a file, a folder, or a glob of Parquet files, or of JSON Lines files.
        out: the folder or URL of the index. It may be the folder of the files.
        split: the subfolder of `data` to index, such as `train`.
        text_key: the column that holds the document, by default `text`. With `all_columns`, the
            files need not have it, because conversations have no text.
        tokens_key: the column that holds the documents as token IDs, instead of `text_key`.
        all_columns: index all columns, for a run with a transform or with conversations. Those of
            JSON Lines files are all fields that any record has.
        processes: number of worker processes that read JSON Lines files, one per available core by
            default.
        executor: runs the units of work instead of local processes: any
            `concurrent.futures.Executor`, such as a `cloudload.engines.ray.RayExecutor`.
        retry: how long to retry a request to the store.
        progress: show a progress bar on stderr while JSON Lines files are read.

    Raises:
        ValueError: an argument is invalid.
        ConvertError: `out` has another index, or the location of the files has secrets.
        DatasetError: a file is damaged, is of another format, or lacks the column.
        StoreError: a file cannot be read, or the index cannot be written.
        WorkerError: a worker process died.
    """
    if text_key is not None and tokens_key is not None:
        raise ValueError("text_key and tokens_key are both set. Omit one of them")
    retry = retry or Retry()
    found = _find(Stream(os.fspath(data), split=split).locate(retry))
    target = Location(urls.plain_location(os.fspath(out)), retry)
    files = found.folder.url
    if redact(files) != files:
        raise ConvertError(
            f"{redact(files)} contains secrets, which an index must not store. Use credentials of "
            "the environment instead of a signed URL"
        )
    if urls.is_local(files):
        files = os.path.abspath(urls.local_path(files))
    given = text_key if tokens_key is None else tokens_key
    choice = ColumnChoice(TEXT_KEY if given is None else given, has_others=all_columns)
    is_beside = urls.same_or_inside(target.url, files) and urls.same_or_inside(files, target.url)
    folder = "" if is_beside else files
    journal = None
    if virtual_index.is_parquet(found.files[0].url):
        index = virtual_index.build_index(found, choice, folder)
    else:
        is_json = tokens_key is not None
        reading = line_index.LineReading(choice, is_json, processes, executor, progress)
        index, journal = line_index.build_line_index(found, reading, folder, target)
    table = parse_index(index, str(found.location))
    if not len(table):
        raise DatasetError(
            f"found no records in the {counted(len(found.files), 'file')} of {found.location}. "
            "Check the location"
        )
    stored = target.join(shard_entries.INDEX_NAME).create(index)
    if journal is not None:
        journal.remove()
    if stored != index:
        raise ConvertError(
            f"{target} has another index. Choose another folder, or delete its "
            f"{shard_entries.INDEX_NAME} if no run reads it"
        )
    if (warning := virtual_index.explain_large_groups(table, found.folder)) is not None:
        logger.warning("%s", warning)
    return IndexReport(
        index=str(target),
        files=len(found.files),
        shards=len(table),
        samples=int(table.samples.sum()),
        raw_bytes=int(table.raw_bytes.sum()),
        stored_bytes=int(table.stored_bytes.sum()),
    )


def index_lines_beside(
    data: str | os.PathLike[str], *, split: str | None = None, **options: Any
) -> bool:
    """Index the JSON Lines files of a folder, in that folder, unless it has an index or other data.

    `options` are those of `index_files`. Returns whether it wrote the index.
    """
    location = Stream(os.fspath(data), split=split).locate(Retry())
    try:
        found = _find(location)
    except (ConvertError, DatasetError):
        return False
    is_folder = urls.same_or_inside(found.folder.url, location.url)  # no glob, and no single file
    if found.has_index or not is_folder or virtual_index.is_parquet(found.files[0].url):
        return False
    index_files(location.url, location.url, **options)
    return True


def _find(location: Location) -> virtual_index.ListedFiles:
    """List the files at a location. Raises `DatasetError` if they are of both formats."""
    what = "Parquet or JSON Lines files"
    found = virtual_index.list_raw_files(
        location,
        lambda name: virtual_index.is_parquet(name) or virtual_index.is_json_lines(name),
        what,
    )
    if not found.files:
        raise DatasetError(f"found no {what} in {location}. Check the location")
    virtual_index.check_format(found)
    return found
