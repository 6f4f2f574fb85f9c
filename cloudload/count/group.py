"""Count one group: read the samples of its shards, tokenize them, and write their lengths."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloudload.arrays import Ints
from cloudload.cache.shard_cache import ShardCache
from cloudload.config.choices import ONCE
from cloudload.lengths.group_file import FAILED, FILTERED, decode_group, encode_group
from cloudload.lengths.index import Group, LengthsKey, ShardRange
from cloudload.mds.dataset import Corpus
from cloudload.mds.shard import BadDocumentError
from cloudload.run.recipe import Recipe
from cloudload.storage.base import Retry
from cloudload.storage.objects import read_object, write_object
from cloudload.storage.urls import join_url
from cloudload.tokenization.tokenizer import DocumentTokenizer, TokenizerSpec
from cloudload.workers.document_reader import DocumentReader

_SAMPLES_AT_ONCE = 1024
_SHARDS_AHEAD = 2


@dataclass(frozen=True)
class GroupJob:
    """A unit of work, which can be pickled if the transform can."""

    recipe: Recipe
    """The recipe of a run that reads only this dataset; its corpus has only the group's shards."""
    backend: str
    """The tokenizer backend."""
    key: LengthsKey
    place: str
    """The location of the lengths."""
    retry: Retry
    shards: ShardRange

    @property
    def url(self) -> str:
        """The location of the group's file."""
        return join_url(self.place, f"{self.key.digest}/{self.shards.name}")

    @property
    def raw_bytes(self) -> int:
        """Total uncompressed size of the group's shards."""
        return sum(shard.raw.bytes for shard in self.recipe.corpus.datasets[0].shards)


def count_group(job: GroupJob) -> int:
    """Count a group and write its file. Returns the bytes of the group's shards.

    Raises the errors of `DocumentReader`, `TokenizerError` for a text that cannot be encoded, and
    `StoreError` if the file cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="cloudload-count-") as folder:
        lengths, text_bytes = _measure(job, Path(folder))
    header = {
        "key": job.key.digest,
        "shards": job.shards.digest,
        "samples": len(lengths),
        "tokens": int(lengths[lengths > 0].sum()),
        "empty": int((lengths == 0).sum()),
        "filtered": int((lengths == FILTERED).sum()),
        "failed": int((lengths == FAILED).sum()),
        "text_bytes": text_bytes,
    }
    write_object(job.url, encode_group(header, lengths), job.retry)
    return job.raw_bytes


def read_group(job: GroupJob) -> tuple[Group, Ints]:
    """Read the file of a counted group: its entry for the index, and its lengths.

    Raises `ValueError` if the file is damaged, and `StoreError` if it cannot be read.
    """
    data = read_object(job.url, job.retry)
    found = decode_group(data)
    totals = {
        name: found.header[name] for name in ("tokens", "empty", "filtered", "failed", "text_bytes")
    }
    group = Group(
        name=job.shards.name,
        hash=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        samples=len(found.short),
        **totals,
    )
    return group, found.widen()


def _measure(job: GroupJob, folder: Path) -> tuple[Ints, int]:
    """The length of each sample of a group (int64 [samples]), and the bytes of all texts."""
    with open_meter(job.recipe, job.backend, folder, job.retry) as meter:
        found = [meter.measure(samples) for samples in _list_samples(job.recipe.corpus)]
    lengths = [np.empty(0, np.int64), *(lengths for lengths, _ in found)]
    return np.concatenate(lengths), sum(size for _, size in found)


def _list_samples(corpus: Corpus) -> Iterator[Ints]:
    """All samples of a corpus, some at a time, never of two shards at once."""
    starts = corpus.shard_starts.tolist()
    for start, stop in itertools.pairwise(starts):
        for first in range(start, stop, _SAMPLES_AT_ONCE):
            yield np.arange(first, min(first + _SAMPLES_AT_ONCE, stop))


class LengthMeter:
    """Reads and tokenizes samples of a corpus to find their lengths."""

    def __init__(self, recipe: Recipe, backend: str, cache: ShardCache) -> None:
        self._cache, self._corpus = cache, recipe.corpus
        self._reader = DocumentReader(recipe, cache)
        has_text = recipe.has_text
        self._tokenizer = _open_tokenizer(recipe.tokenizer, backend) if has_text else None

    def measure(self, samples: Ints) -> tuple[Ints, int]:
        """The lengths of samples (int64 [samples]), with `FILTERED`, and the bytes of their texts.

        Raises the errors of `DocumentReader`, and `TokenizerError` for a text that cannot be
        encoded.
        """
        shard = int(self._corpus.shards_of(samples[:1])[0])
        last = len(self._corpus.shard_sizes)
        self._cache.prefetch(range(shard, min(shard + 1 + _SHARDS_AHEAD, last)))
        if self._tokenizer is None:
            return self._measure_tokens(samples)
        texts = self._reader.read_texts(samples)
        kept = [text if isinstance(text, str) else "" for text in texts]
        _, offsets = self._tokenizer.encode_flat(kept)
        lengths = np.diff(offsets)
        if None in texts:
            lengths[[text is None for text in texts]] = FILTERED
        lengths[[isinstance(text, BadDocumentError) for text in texts]] = FAILED
        return lengths, _count_bytes(kept)

    def sample_bytes(self, shard: int) -> Ints:
        """The stored bytes of each sample of a shard, columns included: int64 [samples]."""
        return self._cache.shard(shard).sample_bytes()

    def _measure_tokens(self, samples: Ints) -> tuple[Ints, int]:
        sizes = np.zeros(len(samples), np.int64)
        for places, _, found in self._reader.read_tokens(samples):
            sizes[places] = found
        return sizes, 4 * int(sizes.sum())


def _count_bytes(texts: Sequence[str]) -> int:
    """The bytes of all texts in UTF-8, without encoding those that are ASCII."""
    wide = [text for text in texts if not text.isascii()]
    return sum(map(len, texts)) - sum(map(len, wide)) + len("".join(wide).encode())


@contextlib.contextmanager
def open_meter(recipe: Recipe, backend: str, folder: Path, retry: Retry) -> Iterator[LengthMeter]:
    """Open a meter that keeps shards in `folder`."""
    cache = ShardCache(recipe.corpus, folder, retry, threads=_SHARDS_AHEAD, verify=ONCE)
    try:
        yield LengthMeter(recipe, backend, cache)
    finally:
        cache.close()


@functools.lru_cache(1)
def _open_tokenizer(spec: TokenizerSpec, backend: str) -> DocumentTokenizer:
    """Open a tokenizer once for all groups that a process counts."""
    return DocumentTokenizer(spec, backend)
