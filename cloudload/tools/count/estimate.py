"""Estimate the number of tokens from a sample of the documents.

    shards spread over the dataset ─► documents spread over each ─► tokens per byte ─► tokens

The estimator is a ratio (tokens per byte of samples) over clusters (shards): see Cochran, Sampling
Techniques, 3rd edition, sections 6.4 and 9A.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloudload.rows import tables
from cloudload.run import Recipe
from cloudload.system import Floats, Ints, counted, reports, temp_files
from cloudload.tools.count.group import open_meter
from cloudload.tools.count.length_report import LengthCounter, LengthStats

_LEAST_SHARDS, _LEAST_DOCUMENTS = 16, 2_000
_Z = 1.96  # standard errors in half the width of a 95% confidence interval


@dataclass(frozen=True)
class CountEstimate:
    """An estimate of a dataset's tokens."""

    dataset: str
    """The dataset's location, without secrets."""
    samples: int
    """Number of samples in the dataset."""
    tokens: int
    """Estimated number of tokens, without bos and eos."""
    error: float
    """Half the width of the 95% confidence interval, as a share of `tokens`. It is NaN if only one
    of several shards was read, and 0 if all documents were read."""
    tokens_per_byte: float
    """Tokens per byte of text in the samples read."""
    filtered: float
    """Share of the samples read that the transform filtered out."""
    stats: LengthStats
    """The distribution of the lengths of the documents read."""
    samples_read: int
    """Number of samples that were tokenized."""
    shards_read: int
    """Number of shards that were read."""
    shards: int
    """Number of shards in the dataset."""

    def to_json(self) -> str:
        """Return the estimate as indented JSON."""
        return reports.to_json(self)

    def describe(self) -> Iterator[str]:
        """Yield the estimate as lines of text."""
        is_known = not math.isnan(self.error)
        error = f"± {self.error:.2%}, 95% confidence" if is_known else "unknown error"
        filtered = f", {self.filtered:.1%} filtered out" if self.filtered else ""
        yield f"{self.dataset}: about {counted(self.tokens, 'token')} ({error})"
        yield f"  samples    {self.samples:,}, of which {self.samples_read:,} were read{filtered}"
        yield f"  shards     {self.shards:,}, of which {self.shards_read:,} were read"
        yield f"  text       {self.tokens_per_byte:.4f} tokens per byte"
        if self.stats.histogram:
            yield from ("", *self.stats.describe())


@dataclass(frozen=True)
class LengthSample:
    """The lengths of a sample of a dataset's documents."""

    recipe: Recipe
    lengths: Ints
    """Length of each document read, or `tables.Size.FILTERED` or `FAILED`: int64 [read]."""
    text_bytes: int
    """Total bytes of the texts of the samples read."""
    chosen: Ints
    """The shards that were read: int64 [shards]."""
    table: Floats
    """A row for each shard read: samples, samples read, tokens, filtered, sample bytes read, sample
    bytes."""

    @property
    def shards(self) -> Ints:
        """The shard of each of `lengths`: int64 [read]."""
        return np.repeat(self.chosen, self.table[:, 1].astype(np.int64))

    def estimate(self) -> CountEstimate:
        """Estimate the tokens of the dataset."""
        corpus, table = self.recipe.corpus, self.table
        num_shards = int((corpus.shard_sizes > 0).sum())
        all_bytes = _sum_sample_bytes(self.recipe, self.chosen, table[:, -1])
        tokens, error = _extrapolate(table, num_shards, all_bytes)
        spread = LengthCounter()
        spread.add(self.lengths)
        return CountEstimate(
            dataset=str(corpus.datasets[0].location),
            samples=corpus.num_samples,
            tokens=round(tokens),
            error=error,
            tokens_per_byte=float(table[:, 2].sum()) / max(1, self.text_bytes),
            filtered=float(table[:, 3].sum() / table[:, 1].sum()),
            stats=spread.summarize(),
            samples_read=int(table[:, 1].sum()),
            shards_read=len(self.chosen),
            shards=num_shards,
        )


def sample_lengths(recipe: Recipe, backend: str, share: float) -> LengthSample:
    """Tokenize about `share` of the samples of a recipe's only dataset.

    Reads at least 16 shards and 2,000 samples, if there are that many. Raises `ValueError` for a
    share that is not above 0 and at most 1, and the errors of `LengthMeter.measure`.
    """
    if not 0 < share <= 1:
        raise ValueError(f"sample is {share:.3%}. Use a share above 0% and at most 100%")
    corpus = recipe.corpus
    wanted = min(corpus.num_samples, max(_LEAST_DOCUMENTS, round(share * corpus.num_samples)))
    chosen = _choose_shards(corpus.shard_sizes, share)
    found, rows, text_bytes = [], [], 0
    with (
        temp_files.explained_full_disk(),
        tempfile.TemporaryDirectory(prefix="cloudload-count-") as folder,
        open_meter(recipe, backend, Path(folder)) as meter,
    ):
        for shard in chosen.tolist():
            # as large a share of this shard as of all chosen ones, at least one sample
            size = int(corpus.shard_sizes[shard])
            num_read = max(1, round(wanted * size / int(corpus.shard_sizes[chosen].sum())))
            within = _spread(size, min(size, num_read))
            lengths, read = meter.measure(int(corpus.shard_starts[shard]) + within)
            found.append(lengths)
            text_bytes += read
            sizes = meter.shard(shard).sample_bytes()
            rows.append((size, len(within), *_sums(lengths, sizes[within]), int(sizes.sum())))
    table = np.array(rows, np.float64)
    return LengthSample(recipe, np.concatenate(found), text_bytes, chosen, table)


def _choose_shards(shard_sizes: Ints, share: float) -> Ints:
    """Choose about `share` of the shards with samples, evenly spaced: int64 [shards]."""
    full = np.flatnonzero(shard_sizes)
    wanted = min(len(full), max(_LEAST_SHARDS, math.ceil(share * len(full))))
    return full[_spread(len(full), wanted)]


def _spread(size: int, wanted: int) -> Ints:
    """Choose `wanted` indices below `size`, evenly spaced: int64 [wanted]."""
    indices: Ints = (2 * np.arange(wanted, dtype=np.int64) + 1) * size // (2 * wanted)
    return indices


def _sums(lengths: Ints, sizes: Ints) -> tuple[int, int, int]:
    """Sum the tokens, filtered samples, and bytes of the samples read from a shard."""
    return (
        int(lengths[lengths > 0].sum()),
        int((lengths == tables.Size.FILTERED).sum()),
        int(sizes.sum()),
    )


def _sum_sample_bytes(recipe: Recipe, chosen: Ints, known: Floats) -> float:
    """Estimate the bytes of all samples: the raw bytes of the shards, less offsets and headers.

    Headers are about equally large in all shards, so their size is taken from the `chosen` shards.
    `known` has the bytes of the samples in those shards.
    """
    [dataset] = recipe.corpus.datasets
    bodies = dataset.table.raw_bytes - 4 * (dataset.table.samples + 2)
    header = (bodies[chosen] - known).mean()
    return float((bodies - header)[recipe.corpus.shard_sizes > 0].sum())


def _extrapolate(table: Floats, num_shards: int, all_bytes: float) -> tuple[float, float]:
    """Return the estimated tokens, and half the width of the 95% interval as a share of them.

    `table` is `LengthSample.table`.
    """
    samples, read, tokens, _, sample_bytes, _ = table.T
    weights = samples / read
    of_shards, bytes_of_shards = weights * tokens, weights * sample_bytes
    ratio = of_shards.sum() / max(1.0, bytes_of_shards.sum())
    num_read = len(table)
    if (samples == read).all() and num_read == num_shards:
        return float(tokens.sum()), 0.0
    if num_read == 1:
        return float(ratio * all_bytes), math.nan
    strays = of_shards - ratio * bytes_of_shards
    variance = num_read / (num_read - 1) * (strays**2).sum()
    spread = math.sqrt(variance) / max(1.0, of_shards.sum())
    return float(ratio * all_bytes), _Z * spread
