"""Lengths drawn from a sample, for data without token lengths.

    samples of a stream ─► hash of (draw, sample) ─► a length that was measured,
                                                       scaled by the bytes of its shard

A forecast uses drawn lengths just like real ones. Several draws, each with a different hash, show
how much a figure depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cloudload.data.mds.dataset import Corpus
from cloudload.data.storage.base import Retry
from cloudload.order.bijection import GOLDEN, HALF_BITS, scramble
from cloudload.run.lengths.files import CorpusLengths, DatasetLengths
from cloudload.run.recipe import Recipe
from cloudload.system.arrays import Floats, Ints, Words
from cloudload.tools.count.estimate import CountEstimate, sample_lengths


@dataclass(frozen=True)
class StreamSample:
    """The sampled lengths of a stream, and the shard sizes that scale them to all samples."""

    estimate: CountEstimate
    lengths: Ints
    """Length of each document read, or `group_file.FILTERED` or `FAILED`: int64 [read]."""
    relative: Floats
    """The lengths, divided by the mean bytes of a sample in their shard: float64 [read]."""
    mean_bytes: Floats
    """Mean bytes of a sample in each shard of the stream: float64 [shards]."""
    shard_starts: Ints
    """First sample of each shard, and the number of samples: int64 [shards + 1]."""

    @property
    def is_whole(self) -> bool:
        """Whether all documents were read. If so, `lengths` has every sample's length, in order."""
        return self.estimate.samples_read == self.estimate.samples


def sample_streams(
    recipe: Recipe, backend: str, share: float, retry: Retry
) -> tuple[StreamSample, ...]:
    """Tokenize a sample of each stream. Raises the errors of `count.estimate.sample_lengths`."""
    return tuple(
        _sample_stream(recipe, stream, backend, share, retry)
        for stream in range(len(recipe.corpus.datasets))
    )


def _sample_stream(
    recipe: Recipe, stream: int, backend: str, share: float, retry: Retry
) -> StreamSample:
    own = replace(recipe.config.streams[stream], proportion=None, repeat=None, choose=None)
    config = replace(recipe.config, streams=(own,), schedule=None, bos=None, eos=None)
    corpus = Corpus((recipe.corpus.datasets[stream],))
    alone = replace(
        recipe,
        config=config,
        tokenizer=replace(recipe.tokenizer, frames=((None, None),)),
        corpus=corpus,
        components=(),
    )
    found = sample_lengths(alone, backend, share, retry)
    raw_bytes = corpus.datasets[0].table.raw_bytes.astype(np.float64)
    mean_bytes = raw_bytes / np.maximum(1, corpus.shard_sizes)
    relative = found.lengths / mean_bytes[found.shards]
    return StreamSample(found.estimate(), found.lengths, relative, mean_bytes, corpus.shard_starts)


class _DrawnLengths(DatasetLengths):
    """The lengths of one dataset, drawn from sampled lengths.

    A length is drawn relative to the mean bytes of a sample in its shard, because documents in a
    shard often have similar sizes.
    """

    def __init__(self, sample: StreamSample, seed: int) -> None:
        self._sample, self._key = sample, scramble(np.array([seed], np.uint64))[0]
        mean = float(np.maximum(sample.relative, 0).mean())
        all_bytes = float((sample.mean_bytes * np.diff(sample.shard_starts)).sum())
        self._scale = sample.estimate.tokens / (mean * all_bytes) if mean else 1.0

    def of(self, samples: Ints) -> Ints:
        sample = self._sample
        if sample.is_whole:
            return sample.lengths[samples]
        words = scramble(samples.astype(np.uint64) * GOLDEN ^ self._key)
        pool = np.uint64(len(sample.relative))
        places = (((words >> HALF_BITS) * pool) >> HALF_BITS).astype(np.int64)
        shards = np.searchsorted(sample.shard_starts, samples, side="right") - 1
        sizes = sample.relative[places] * sample.mean_bytes[shards] * self._scale
        drawn: Ints = np.where(
            sample.lengths[places] > 0, _round(sizes, words), sample.lengths[places]
        )
        return drawn


def _round(sizes: Floats, words: Words) -> Ints:
    """Round sizes up or down at random, which keeps their mean. The result is at least 1."""
    fractions = (words & np.uint64(0xFFFFFFFF)).astype(np.float64) / (1 << 32)
    rounded: Ints = np.maximum(1, np.floor(sizes + fractions)).astype(np.int64)
    return rounded


def draw_lengths(recipe: Recipe, streams: Sequence[StreamSample], draw: int) -> CorpusLengths:
    """Draw a length for each sample of a recipe's corpus. `draw` is the random seed."""
    datasets = tuple(_DrawnLengths(each, draw + 1) for each in streams)
    digest = f"drawn-{draw}"
    return CorpusLengths(datasets, recipe.corpus.stream_starts, digest, ())


def relative_error(streams: Sequence[StreamSample]) -> float:
    """Return the relative error of the estimated total of tokens, at 95% confidence.

    NaN if it is unknown.
    """
    tokens = np.array([each.estimate.tokens for each in streams], np.float64)
    errors = np.array([each.estimate.error for each in streams], np.float64)
    return math.sqrt(float(((tokens * errors) ** 2).sum())) / max(1.0, float(tokens.sum()))
