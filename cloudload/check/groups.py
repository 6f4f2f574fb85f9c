"""Check shards in groups. Each group is a unit of work that any engine can run.

    shards ─ cut_groups ─► groups ─ check_group, anywhere ─► findings of each ─ in order ─► report

The findings of a shard depend only on the dataset, so the report is the same for any groups,
engine, and order of completion.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from cloudload.check.findings import Findings
from cloudload.check.shards import check_shard
from cloudload.engines.local import open_processes
from cloudload.engines.units import in_order, run_units
from cloudload.mds.index import ShardInfo
from cloudload.storage.base import Retry
from cloudload.storage.urls import is_local
from cloudload.system.daemon_threads import DaemonThreadPool
from cloudload.system.ordered_results import run_in_order

_GROUP_BYTES = 512 << 20  # takes a process 1 or 2 s to check, about as long as its start
_THREADS_ALONE, _THREADS = 8, 4


@dataclass(frozen=True)
class CheckWork:
    """The data that all groups share. It is sent to every worker."""

    url: str
    """The dataset's folder."""
    text_key: str
    retry: Retry
    threads: int
    """Number of threads that read shards."""


def check_shards(
    url: str,
    text_key: str,
    retry: Retry,
    shards: Sequence[ShardInfo],
    *,
    processes: int,
    executor: Executor | None,
    on_bytes: Callable[[int], object],
) -> Iterator[Findings]:
    """Yield the findings of groups of shards, in the order of the shards.

    The groups run on the executor, or else on `processes` processes. `on_bytes` receives stored
    bytes. Raises `WorkerError` if a process or the executor fails.
    """
    groups = cut_groups(shards, _GROUP_BYTES)
    is_alone = executor is None and min(processes, len(groups)) <= 1
    if is_alone and groups:
        groups = [tuple(shards)]
    place = os.path.abspath(url) if is_local(url) else url  # for other processes
    work = CheckWork(place, text_key, retry, _THREADS_ALONE if is_alone else _THREADS)
    with (
        nullcontext(executor) if executor else open_processes(min(processes, len(groups)))
    ) as engine:
        check = partial(check_group, work)
        yield from in_order(run_units(check, groups, engine, on_bytes=on_bytes))


def check_group(
    work: CheckWork, shards: Sequence[ShardInfo], on_bytes: Callable[[int], object]
) -> Findings:
    """Check shards in threads, and return their findings. `on_bytes` receives stored bytes."""
    findings = Findings()
    check = partial(check_shard, work.url, text_key=work.text_key, retry=work.retry)
    threads = DaemonThreadPool(work.threads, "cloudload-check")
    try:
        for info, found in run_in_order(partial(threads.submit, check), shards, 2 * work.threads):
            findings.add(found)
            on_bytes(info.stored.bytes)
    finally:
        threads.close(timeout_s=1.0)
    return findings


def cut_groups(shards: Sequence[ShardInfo], group_bytes: int) -> list[tuple[ShardInfo, ...]]:
    """Divide shards into groups of consecutive shards, of at least `group_bytes` raw bytes each."""
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
