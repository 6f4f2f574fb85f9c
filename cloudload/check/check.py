"""Check a dataset: its index, the objects in its folder, and the bytes of its shards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from cloudload.check.findings import CheckReport, Finding, Findings, find
from cloudload.check.index import check_index
from cloudload.check.objects import check_files, check_others, check_url, list_folder
from cloudload.check.shards import check_shard
from cloudload.config.stream import Stream
from cloudload.errors import DatasetError, FailureKind, StoreError
from cloudload.mds.dataset import read_index
from cloudload.mds.index import INDEX_NAME, ShardInfo
from cloudload.option_names import suggests_names
from cloudload.storage.base import Retry
from cloudload.storage.redaction import redact
from cloudload.storage.urls import is_local, local_path
from cloudload.system.daemon_threads import DaemonThreadPool
from cloudload.system.ordered_results import run_in_order
from cloudload.system.progress_bar import open_progress_bar

_NUM_THREADS = 8


@suggests_names
def check_dataset(
    dataset: str | os.PathLike[str],
    *,
    split: str | None = None,
    text_key: str = "text",
    sample: int | None = None,
    retry: Retry | None = None,
    progress: bool = True,
) -> CheckReport:
    """Check a dataset as cloudload and StreamingDataset would read it.

    The report lists the problems that either would have. Nothing is written to the dataset or to a
    cache. Shards are read by 8 threads. Each holds one shard in memory while it is decompressed,
    and keeps it as a temporary file while it is checked.

    Args:
        dataset: the folder or URL that contains `index.json`, or that contains the folder `split`.
        split: the subfolder to check, such as `train`.
        text_key: the column that holds the document.
        sample: number of shards to read, spread evenly over the dataset. By default all. 0
            checks only the index, and the names and sizes of the objects.
        retry: how long to retry a request to the store.
        progress: show a progress bar on stderr.

    Raises:
        ValueError: an argument is invalid.
        StoreError: the store cannot be reached, or denies access. A missing index or shard is a
            finding.
    """
    if sample is not None and sample < 0:
        raise ValueError(f"sample is {sample}. Use at least 0, or None for all shards")
    began, retry, findings = time.monotonic(), retry or Retry(), Findings()
    stream = Stream(os.fspath(dataset), split=split)
    given = stream.url
    url = str(local_path(given)) if is_local(given) else given
    shards: list[ShardInfo] = []
    chosen: Sequence[ShardInfo] = ()
    try:
        data, _ = read_index(stream, retry)
    except DatasetError as error:
        what, _, advice = str(error).partition(". ")
        findings.add([find("index-missing", INDEX_NAME, what, advice=advice)])
    except StoreError as error:
        if not error.is_missing:
            raise
        findings.add([find("index-missing", INDEX_NAME, str(error))])
    else:
        shards, is_complete = check_index(data, text_key, findings)
        findings.add(check_url(given, shards))
        chosen = _spread(_check_folder(url, shards, is_complete, retry, findings), sample)
        check = partial(check_shard, url, text_key=text_key, retry=retry)
        total_bytes = sum(info.stored.bytes for info in chosen)
        with open_progress_bar("check", total_bytes, shown=progress and bool(chosen)) as bar:
            for info, found in _check_shards(check, chosen):
                findings.add(found)
                bar.update(info.stored.bytes)
    return CheckReport(
        dataset=redact(url),
        findings=findings.sorted(),
        counts=findings.counts(),
        shards=len(shards),
        shards_read=len(chosen),
        samples=sum(shard.samples for shard in shards),
        raw_bytes=sum(shard.raw.bytes for shard in shards),
        stored_bytes=sum(shard.stored.bytes for shard in shards),
        seconds=round(time.monotonic() - began, 3),
    )


def _check_folder(
    url: str, shards: list[ShardInfo], is_complete: bool, retry: Retry, findings: Findings
) -> Sequence[ShardInfo]:
    """Check the folder's objects, and return the shards whose object has the size in the index.

    Objects that no reader needs are found only if the shards are complete. Of a store that cannot
    list, all shards are returned.
    """
    try:
        found = list_folder(url, retry)
    except StoreError as error:
        if error.kind not in (FailureKind.OTHER, FailureKind.DENIED):
            raise
        findings.add([find("not-listed", "", str(error))])
        return shards
    findings.add(check_files(url, shards, found))
    if is_complete:
        findings.add(check_others(url, shards, found))
    return [shard for shard in shards if found.get(shard.stored.name) == shard.stored.bytes]


def _spread(shards: Sequence[ShardInfo], number: int | None) -> Sequence[ShardInfo]:
    """Choose at most `number` shards, spread evenly, or all if it is None."""
    if number is None or number >= len(shards):
        return shards
    return [shards[place * len(shards) // number] for place in range(number)]


def _check_shards(
    check: Callable[[ShardInfo], list[Finding]], shards: Iterable[ShardInfo]
) -> Iterator[tuple[ShardInfo, list[Finding]]]:
    """Yield each shard and its findings, in order, from threads with few shards ahead."""
    threads = DaemonThreadPool(_NUM_THREADS, "cloudload-check")
    try:
        yield from run_in_order(partial(threads.submit, check), shards, 2 * _NUM_THREADS)
    finally:
        threads.close(timeout_s=1.0)
