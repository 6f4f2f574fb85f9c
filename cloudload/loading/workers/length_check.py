"""Check a sample of the token lengths before a run relies on the lengths of unread documents.

    groups of shards ─► up to 16 ─► a shard of each ─► its first samples ─► lengths compared

A seek jumps over documents, so a wrong length among them would move every later row. A document
that is read is always compared with its length. The choice of the sample depends only on the data.
Only the bytes of a shard's first 4 documents are read.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator

import numpy as np

from cloudload.data.mds.dataset import Corpus
from cloudload.data.mds.shard import Shard
from cloudload.data.mds.shard_start import open_shard_start
from cloudload.data.storage.base import Retry
from cloudload.errors import StoreError
from cloudload.loading.workers.document_reader import DocumentReader
from cloudload.loading.workers.documents import LaneDocuments
from cloudload.loading.workers.plan import Plan
from cloudload.run.lengths.index import LengthsKey, cut_groups
from cloudload.system.arrays import Ints

logger = logging.getLogger("cloudload.workers")
_MOST_SHARDS, _SAMPLES_OF_SHARD = 16, 4


def check_some_lengths(plan: Plan, documents: LaneDocuments) -> None:
    """Compare the lengths of some documents of a plan's corpus with their texts.

    Raises `DatasetError` if a length differs or a document cannot be read. If a store cannot be
    reached, logs this and skips the remaining checks.
    """
    corpus, retry = plan.recipe.corpus, plan.delivery.retry
    try:
        for number, samples in choose_samples(corpus):
            with _open_start(corpus, number, retry) as starts:
                documents.compare(samples, DocumentReader(plan.recipe, starts))
    except StoreError as error:
        logger.info(
            "token lengths were not checked before moving to the new position, because of a store "
            "error: %s",
            error,
        )


def choose_samples(corpus: Corpus) -> Iterator[tuple[int, Ints]]:
    """Yield up to 16 shards to check, and the samples to check in each: int64 [samples]."""
    groups = [
        (stream, group)
        for stream, dataset in enumerate(corpus.datasets)
        for group in cut_groups(dataset.table, LengthsKey("", "", ""))
        if group.samples
    ]
    first_shards = np.cumsum([0, *(len(dataset.shards) for dataset in corpus.datasets)])
    chosen = np.unique(np.linspace(0, len(groups) - 1, _MOST_SHARDS).astype(np.int64))
    for stream, group in (groups[place] for place in chosen.tolist()):
        sizes = corpus.datasets[stream].table.samples
        full = group.first + np.flatnonzero(sizes[group.first : group.stop])
        within = int(full[int(group.digest, 16) % len(full)])
        number = int(first_shards[stream]) + within
        first = int(corpus.shard_starts[number])
        yield number, np.arange(first, first + min(_SAMPLES_OF_SHARD, int(sizes[within])))


class _ShardStart:
    """A shard source for a `DocumentReader` that has only the start of one shard."""

    def __init__(self, number: int, shard: Shard) -> None:
        self._number, self._shard = number, shard

    def shard(self, number: int) -> Shard:
        """Return the shard, which is the only one available."""
        assert number == self._number
        return self._shard

    def prefetch(self, numbers: Iterable[int]) -> None:
        """Do nothing, because the shard is already open."""


@contextlib.contextmanager
def _open_start(corpus: Corpus, number: int, retry: Retry) -> Iterator[_ShardStart]:
    dataset, info = corpus.find_shard(number)
    with open_shard_start(dataset, info, _SAMPLES_OF_SHARD, retry) as shard:
        yield _ShardStart(number, shard)
