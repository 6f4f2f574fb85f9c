"""Finish a count: read the files of all groups, and write the index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial

from cloudload.data.mds.dataset import Corpus, Dataset
from cloudload.data.storage.objects import write_object
from cloudload.data.storage.urls import join_url
from cloudload.run.lengths.index import Group, LengthsIndex, index_name
from cloudload.system.arrays import Ints
from cloudload.tools.count.group import CountWork, GroupJob, read_group
from cloudload.tools.count.report import Distribution

_READ_AT_ONCE = 8


@dataclass(frozen=True)
class Counted:
    """The result of a finished count."""

    url: str
    """The location of the index."""
    index: LengthsIndex
    spread: Distribution
    """The distribution of the lengths."""


def finish_count(work: CountWork, dataset: Dataset, jobs: Sequence[GroupJob]) -> Counted:
    """Read the groups of a dataset, write their index, and return it.

    `jobs` are all groups of the dataset. Raises `DatasetError` if a file is damaged, and
    `StoreError` if a file cannot be read or written.
    """
    spread, groups = Distribution(), []
    for group, lengths in read_groups(work, jobs):
        groups.append(group)
        spread.add(lengths)
    data = Corpus((dataset,)).fingerprint(range(1))
    index = LengthsIndex(asdict(work.key), data, tuple(groups))
    url = join_url(work.place, f"{work.key.digest}/{index_name(data)}")
    write_object(url, index.encode(), work.retry)
    return Counted(url, index, spread)


def read_groups(work: CountWork, jobs: Sequence[GroupJob]) -> Iterator[tuple[Group, Ints]]:
    """Read groups in order, eight at a time; see `read_group`."""
    with ThreadPoolExecutor(_READ_AT_ONCE) as threads:
        for first in range(0, len(jobs), _READ_AT_ONCE):
            some = jobs[first : first + _READ_AT_ONCE]
            yield from threads.map(partial(read_group, work), some)
