"""The cases that a forecast computes: one with real lengths, or several with lengths from a sample.

    token lengths ─► one case, exact
    no lengths    ─► a sample of each stream ─► `_DRAWS` cases, and the sampling error
    best_fit      ─► with token lengths, the run itself. Without them, or with too many documents
                     to pack, a `concat` run with the average number of tokens of best_fit rows

    samples of a stream ─► hash of (draw, sample) ─► a length that was measured,
                                                       scaled by the bytes of its shard

A forecast uses drawn lengths just like real ones. Several draws, each with a different hash, show
how much a figure depends on them.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cloudload.data import Corpus
from cloudload.order import bijection
from cloudload.rows import Packing
from cloudload.run import (
    Ending,
    Recipe,
    RunInputs,
    RunLengths,
    length_files,
    mixture_of,
)
from cloudload.system import Floats, Ints, Words
from cloudload.tools.count.estimate import CountEstimate, sample_lengths
from cloudload.tools.forecast.result import Figure

_DRAWS = 4
_MOST_REPEATED = 1 << 22  # samples; with more, draws hardly differ, and each takes minutes
_PACKED_DOCUMENTS, _DOCUMENTS_OF_LANE, _DOCUMENTS_AT_ONCE = 100_000, 4_096, 128


@dataclass(frozen=True)
class Cases:
    """The cases of a forecast, and their uncertainty."""

    runs: tuple[RunLengths, ...]
    samples: tuple[StreamSample, ...]
    """The sample of each stream; empty with token lengths."""
    fill: Figure
    """The share of a row that `best_fit` fills: an estimate if `concat` runs replace the run, else
    exactly 1."""
    basis: str
    """The basis of the figures, in words."""
    epochs_played: tuple[float, ...] = ()
    """If figures are extrapolated from the first part of the run, the number of epochs that this
    part reads of each stream."""
    packed: RunLengths | None = None
    """The `best_fit` run itself, if `runs` has a `concat` run instead; otherwise None."""

    def pack(self) -> Cases:
        """Return the cases with only the run `packed`, which must not be None."""
        assert self.packed is not None
        return replace(
            self, runs=(self.packed,), fill=Figure.exact(1), basis="token lengths", packed=None
        )

    def end(self, ending: Ending) -> Cases:
        """Return the cases of a run whose streams end at known rows."""
        if self.packed is not None:
            return replace(self, packed=self.packed.end(ending))
        return replace(self, runs=tuple(each.end(ending) for each in self.runs))

    @property
    def is_exact(self) -> bool:
        """Whether the only case is the run itself."""
        is_whole = all(each.is_whole for each in self.samples)
        return self.fill.is_exact and is_whole and not self.epochs_played

    @property
    def error(self) -> float:
        """The relative error of the run's tokens per document."""
        sampled = relative_error(self.samples) if self.samples else 0.0
        return math.hypot(sampled, self.fill.error, _error_after(self.epochs_played))

    def error_of(self, stream: int) -> float:
        """Return the relative error of a stream's tokens per document."""
        sampled = self.samples[stream].estimate.error if self.samples else 0.0
        played = self.epochs_played[stream : stream + 1]
        return math.hypot(sampled, self.fill.error, _error_after(played))

    def summarize(
        self, values: Sequence[float], *, is_exact: bool = False, error: float = 0.0
    ) -> Figure:
        """Combine a figure's values from all cases. `error` is the relative sampling error."""
        if is_exact or self.is_exact:
            return Figure.exact(values[0])
        if len(values) == 1:
            return Figure.around(values[0], error)
        return Figure.predicted(values, error)


@dataclass(frozen=True)
class StreamSample:
    """The sampled lengths of a stream, and the shard sizes that scale them to all samples."""

    estimate: CountEstimate
    lengths: Ints
    """Length of each document read, or `tables.Size.FILTERED` or `FAILED`: int64 [read]."""
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


def _error_after(epochs_played: Sequence[float]) -> float:
    """Return the relative error of what is extrapolated: half an epoch of the part played."""
    return 0.5 / max(0.5, *epochs_played) if epochs_played else 0.0


@contextmanager
def open_cases(
    inputs: RunInputs,
    ending: Ending | None,
    *,
    share: float,
    rows_of_lane: int | None,
) -> Iterator[Cases]:
    """Open the cases of a run. Without token lengths, tokenizes `share` of each stream's samples.

    `ending` has the ends of a mixture's streams, if they are known. `rows_of_lane` is the
    approximate number of rows per lane, or None if it is unknown. Raises the errors of
    `sample_streams`.
    """
    recipe, most = inputs.recipe, max(1, rows_of_lane or sys.maxsize)
    if inputs.lengths is not None:
        found = _prepare(recipe, [inputs.lengths], inputs.cache_root, ((), "token lengths"), most)
        yield found if ending is None else found.end(ending)
        return
    samples = sample_streams(recipe, inputs.backend.name, share)
    read = sum(each.estimate.samples_read for each in samples)
    basis = f"a sample of {read:,} out of {recipe.corpus.num_samples:,} documents"
    if all(each.is_whole for each in samples):
        basis = f"all {read:,} documents, which were tokenized for this plan"
    is_large = recipe.corpus.num_samples > _MOST_REPEATED
    draws = 1 if is_large or all(each.is_whole for each in samples) else _DRAWS
    drawn = [draw_corpus_lengths(recipe, samples, draw) for draw in range(draws)]
    with TemporaryDirectory(prefix="cloudload-plan-") as folder:
        yield _prepare(recipe, drawn, Path(folder), (samples, basis), most)


def _prepare(
    recipe: Recipe,
    lengths: Sequence[length_files.CorpusLengths],
    root: Path,
    read: tuple[tuple[StreamSample, ...], str],
    rows_of_lane: int,
) -> Cases:
    """Prepare a case from each of `lengths`. `read` is (samples, basis of the figures in words)."""
    samples, basis = read
    # remove the stream ends, because they depend on the packing
    recipe = replace(recipe, mixture=mixture_of(recipe.config))
    fill, packed = Figure.exact(1), None
    if recipe.packing.has_residue:
        fill = _measure_fill(recipe, RunLengths(recipe, root, lengths[0]), rows_of_lane)
        filled = max(1, round(fill.value * recipe.packing.seq_len))
        packed = None if samples else RunLengths(recipe, root, lengths[0])
        filled += recipe.config.num_lead
        recipe = recipe.reconfigure(packing="concat", seq_len=filled)
        basis += ", and rows packed from some of the documents"
    runs = tuple(RunLengths(recipe, root, each) for each in lengths)
    return Cases(runs, samples, fill, basis, packed=packed)


def _measure_fill(recipe: Recipe, lengths: RunLengths, rows_of_lane: int) -> Figure:
    """Measure the share of real tokens in the first rows of `best_fit`.

    Packs lanes until 100,000 documents have been read. The first rows are less full than later
    ones, because a run starts with few open rows.
    """
    shares, budget = [], _PACKED_DOCUMENTS
    for index, lane in itertools.product(range(len(recipe.components)), range(recipe.num_lanes)):
        sizes, read = _pack_lane(lengths, recipe.packing, (index, lane), rows_of_lane)
        budget -= read
        if sizes:
            shares.append(sum(sizes) / (len(sizes) * recipe.packing.seq_len))
        if budget < 0:
            break
    return Figure.predicted(shares) if shares else Figure.around(1.0, math.nan)


def _pack_lane(
    lengths: RunLengths, packing: Packing, lane: tuple[int, int], rows: int
) -> tuple[list[int], int]:
    """Pack the first documents of a lane: at most 4,096. `lane` is (component, lane).

    Returns the number of tokens in each of its first `rows` rows, and the number of documents read.
    """
    packer, index = packing.packer(), lane[0]
    read = 0
    while read < _DOCUMENTS_OF_LANE and len(packer.rows) < rows:
        ordinals = np.arange(read, read + _DOCUMENTS_AT_ONCE)
        found = lengths.sizes[index].measure(np.full_like(ordinals, lane[1]), ordinals)
        for ordinal, size in zip(ordinals.tolist(), found.tokens.tolist(), strict=True):
            packer.add(ordinal, size)
        read += _DOCUMENTS_AT_ONCE
    first = itertools.islice(packer.rows, rows)
    return [sum(stop - start for _, start, stop, _ in row.pieces) for row in first], read


def sample_streams(recipe: Recipe, backend: str, share: float) -> tuple[StreamSample, ...]:
    """Tokenize a sample of each stream. Raises the errors of `count.estimate.sample_lengths`."""
    return tuple(
        _sample_stream(recipe, stream, backend, share)
        for stream in range(len(recipe.corpus.datasets))
    )


def _sample_stream(recipe: Recipe, stream: int, backend: str, share: float) -> StreamSample:
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
    found = sample_lengths(alone, backend, share)
    raw_bytes = corpus.datasets[0].table.raw_bytes.astype(np.float64)
    mean_bytes = raw_bytes / np.maximum(1, corpus.shard_sizes)
    relative = found.lengths / mean_bytes[found.shards]
    return StreamSample(found.estimate(), found.lengths, relative, mean_bytes, corpus.shard_starts)


class _DrawnLengths(length_files.DatasetLengths):
    """The lengths of one dataset, drawn from sampled lengths.

    A length is drawn relative to the mean bytes of a sample in its shard, because documents in a
    shard often have similar sizes.
    """

    def __init__(self, sample: StreamSample, seed: int) -> None:
        self._sample, self._key = sample, bijection.scramble(np.array([seed], np.uint64))[0]
        mean = float(np.maximum(sample.relative, 0).mean())
        all_bytes = float((sample.mean_bytes * np.diff(sample.shard_starts)).sum())
        self._scale = sample.estimate.tokens / (mean * all_bytes) if mean else 1.0

    def of(self, samples: Ints) -> Ints:
        sample = self._sample
        if sample.is_whole:
            return sample.lengths[samples]
        words = bijection.scramble(samples.astype(np.uint64) * bijection.GOLDEN ^ self._key)
        pool = np.uint64(len(sample.relative))
        indices = (((words >> bijection.HALF_BITS) * pool) >> bijection.HALF_BITS).astype(np.int64)
        shards = np.searchsorted(sample.shard_starts, samples, side="right") - 1
        sizes = sample.relative[indices] * sample.mean_bytes[shards] * self._scale
        drawn: Ints = np.where(
            sample.lengths[indices] > 0, _round(sizes, words), sample.lengths[indices]
        )
        return drawn


def _round(sizes: Floats, words: Words) -> Ints:
    """Round sizes up or down at random, which keeps their mean. The result is at least 1."""
    fractions = (words & np.uint64(0xFFFFFFFF)).astype(np.float64) / (1 << 32)
    rounded: Ints = np.maximum(1, np.floor(sizes + fractions)).astype(np.int64)
    return rounded


def draw_corpus_lengths(
    recipe: Recipe, streams: Sequence[StreamSample], draw: int
) -> length_files.CorpusLengths:
    """Draw a length for each sample of a recipe's corpus. `draw` is the random seed."""
    datasets = tuple(_DrawnLengths(each, draw + 1) for each in streams)
    digest = f"drawn-{draw}"
    starts, selection = recipe.corpus.stream_starts, recipe.selection
    return length_files.CorpusLengths(datasets, starts, digest, (), selection)


def relative_error(streams: Sequence[StreamSample]) -> float:
    """Return the relative error of the estimated total of tokens, at 95% confidence.

    NaN if it is unknown.
    """
    tokens = np.array([each.estimate.tokens for each in streams], np.float64)
    errors = np.array([each.estimate.error for each in streams], np.float64)
    return math.sqrt(float(((tokens * errors) ** 2).sum())) / max(1.0, float(tokens.sum()))
