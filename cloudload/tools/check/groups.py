"""Check shards in groups. Each group is a unit of work that any engine can run.

    shards ─ cut_groups ─► groups ─ check_group, anywhere ─┬► findings, in order ─► report
                                                           └► hashes ─► duplicates

The findings of a shard depend only on the dataset, so the report is the same for any groups,
engine, and order of completion.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from cloudload.data.mds.index import ShardInfo
from cloudload.data.storage.base import Retry
from cloudload.data.storage.urls import is_local
from cloudload.system.daemon_threads import DaemonThreadPool
from cloudload.system.ordered_results import run_in_order
from cloudload.tools.check.document_rules import DocumentRules
from cloudload.tools.check.documents import DocumentCheck
from cloudload.tools.check.duplicates import DuplicateFinder
from cloudload.tools.check.findings import Findings
from cloudload.tools.check.shards import check_shard
from cloudload.tools.engines.local import open_processes
from cloudload.tools.engines.units import in_order, run_units

_GROUP_BYTES = 512 << 20  # a process needs 1 to 2 s to check this much, and about as long to start
_THREADS_ALONE, _THREADS = 8, 4


@dataclass(frozen=True)
class CheckWork:
    """The data that all groups share. It is sent to every worker."""

    url: str
    """The dataset's folder."""
    text_key: str | None
    """The column of texts; None if the documents are token IDs."""
    retry: Retry
    threads: int
    """Number of threads that read shards."""
    rules: DocumentRules


class ShardResult(NamedTuple):
    """The findings of a shard, and the hashes of its documents by rule."""

    findings: Findings
    hashes: Mapping[str, bytes]


class GroupResult(NamedTuple):
    """The findings of a group, and the hashes of each of its shards."""

    findings: Findings
    hashes: list[Mapping[str, bytes]]


def check_shards(
    url: str,
    text_key: str | None,
    retry: Retry,
    shards: Sequence[ShardInfo],
    *,
    rules: DocumentRules,
    duplicates: DuplicateFinder,
    processes: int,
    executor: Executor | None,
    on_bytes: Callable[[int], object],
) -> Iterator[Findings]:
    """Yield the findings of groups of shards, in the order of the shards.

    `duplicates` receives the documents' hashes, by the index of the shard in `shards`. The
    groups run on the executor if there is one, otherwise on `processes` processes. `on_bytes`
    receives the number of stored bytes read. Raises `WorkerError` if a process or the executor
    fails.
    """
    groups = cut_groups(shards, _GROUP_BYTES)
    is_alone = executor is None and min(processes, len(groups)) <= 1
    if is_alone and groups:
        groups = [tuple(shards)]
    place = os.path.abspath(url) if is_local(url) else url  # other processes may use another cwd
    work = CheckWork(place, text_key, retry, _THREADS_ALONE if is_alone else _THREADS, rules)
    firsts = list(accumulate(map(len, groups), initial=0))
    with (
        nullcontext(executor) if executor else open_processes(min(processes, len(groups)))
    ) as engine:
        check = partial(check_group, work)
        results = run_units(check, groups, engine, on_bytes=on_bytes)
        yield from in_order(_take_hashes(results, firsts, duplicates))


def _take_hashes(
    results: Iterable[tuple[int, GroupResult]], firsts: Sequence[int], duplicates: DuplicateFinder
) -> Iterator[tuple[int, Findings]]:
    """Yield each group's findings, and add its hashes to `duplicates`, as results arrive."""
    for place, result in results:
        for shard, hashes in enumerate(result.hashes, firsts[place]):
            duplicates.add(shard, hashes)
        yield place, result.findings


def check_group(
    work: CheckWork, shards: Sequence[ShardInfo], on_bytes: Callable[[int], object]
) -> GroupResult:
    """Check shards in threads. `on_bytes` receives the number of stored bytes read."""
    findings, hashes = Findings(), list[Mapping[str, bytes]]()
    documents = DocumentCheck(work.rules, work.text_key)
    check = partial(_check_shard, work, documents)
    threads = DaemonThreadPool(work.threads, "cloudload-check")
    try:
        for info, result in run_in_order(partial(threads.submit, check), shards, 2 * work.threads):
            findings.merge(result.findings)
            hashes.append(result.hashes)
            on_bytes(info.stored.bytes)
    finally:
        threads.close(timeout_s=1.0)
    return GroupResult(findings, hashes)


def _check_shard(work: CheckWork, documents: DocumentCheck, info: ShardInfo) -> ShardResult:
    """Check the bytes of a shard, and then its documents."""
    looked: list[tuple[Findings, Mapping[str, bytes]]] = []
    found = Findings()
    found.add(
        check_shard(
            work.url,
            info,
            work.text_key,
            work.retry,
            lambda shard: looked.append(documents.look(shard)),
        )
    )
    for findings, _ in looked:
        found.merge(findings)
    return ShardResult(found, looked[0][1] if looked else {})


def cut_groups(shards: Sequence[ShardInfo], group_bytes: int) -> list[tuple[ShardInfo, ...]]:
    """Divide shards into groups of consecutive shards.

    Each group but the last has at least `group_bytes` raw bytes.
    """
    groups: list[tuple[ShardInfo, ...]] = []
    group: list[ShardInfo] = []
    filled = 0
    for shard in shards:
        group.append(shard)
        filled += shard.raw.bytes
        if filled >= group_bytes:
            groups.append(tuple(group))
            group, filled = [], 0
    return [*groups, tuple(group)] if group else groups
