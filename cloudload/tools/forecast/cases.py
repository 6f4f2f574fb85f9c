"""The cases that a forecast computes: one with real lengths, or several with sampled ones.

token lengths ─► one case, exact
no lengths    ─► a sample of each stream ─► `_DRAWS` cases, and the sampling error
best_fit      ─► with token lengths, the run itself. Without them, or with too many documents to
                 pack, a `concat` run with as many tokens per row as best_fit rows have on average
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

from cloudload.loading.workers.plan import Mixed, Plan
from cloudload.rows.packing.packers import Packing
from cloudload.run.lengths.files import CorpusLengths
from cloudload.run.lengths.run_lengths import RunLengths
from cloudload.run.recipe import Recipe, mixture_of
from cloudload.tools.forecast.drawn_lengths import (
    StreamSample,
    draw_lengths,
    relative_error,
    sample_streams,
)
from cloudload.tools.forecast.figure import Figure

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


def _error_after(epochs_played: Sequence[float]) -> float:
    """Return the relative error of what is extrapolated: half an epoch of the part played."""
    return 0.5 / max(0.5, *epochs_played) if epochs_played else 0.0


@contextmanager
def open_cases(plan: Plan, share: float, rows_of_lane: int | None) -> Iterator[Cases]:
    """Open the cases of a run. Without token lengths, tokenizes `share` of each stream's samples.

    `rows_of_lane` is the approximate number of rows per lane, or None if it is unknown. Raises
    the errors of `sample_streams`.
    """
    recipe, most = plan.recipe, max(1, rows_of_lane or sys.maxsize)
    if plan.lengths is not None:
        found = _prepare(recipe, [plan.lengths], plan.cache_root, ((), "token lengths"), most)
        if isinstance(plan.phase, Mixed):
            (found.packed or found.runs[0]).use_ending(plan.phase.ending)
        yield found
        return
    samples = sample_streams(recipe, plan.backend.name, share, plan.delivery.retry)
    read = sum(each.estimate.samples_read for each in samples)
    basis = f"a sample of {read:,} out of {recipe.corpus.num_samples:,} documents"
    if all(each.is_whole for each in samples):
        basis = f"all {read:,} documents, which were tokenized for this plan"
    is_large = recipe.corpus.num_samples > _MOST_REPEATED
    draws = 1 if is_large or all(each.is_whole for each in samples) else _DRAWS
    drawn = [draw_lengths(recipe, samples, draw) for draw in range(draws)]
    with TemporaryDirectory(prefix="cloudload-plan-") as folder:
        yield _prepare(recipe, drawn, Path(folder), (samples, basis), most)


def _prepare(
    recipe: Recipe,
    lengths: Sequence[CorpusLengths],
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
        filled = max(1, round(fill.value * recipe.config.seq_len))
        packed = None if samples else RunLengths(recipe, root, lengths[0])
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
    for place, lane in itertools.product(range(len(recipe.components)), range(recipe.num_lanes)):
        sizes, read = _pack_lane(lengths, recipe.packing, (place, lane), rows_of_lane)
        budget -= read
        if sizes:
            shares.append(sum(sizes) / (len(sizes) * recipe.config.seq_len))
        if budget < 0:
            break
    return Figure.predicted(shares) if shares else Figure.around(1.0, math.nan)


def _pack_lane(
    lengths: RunLengths, packing: Packing, lane: tuple[int, int], rows: int
) -> tuple[list[int], int]:
    """Pack the first documents of a lane: at most 4,096. `lane` is (component, lane).

    Returns the number of tokens in each of its first `rows` rows, and the number of documents read.
    """
    packer, place = packing.packer(), lane[0]
    read = 0
    while read < _DOCUMENTS_OF_LANE and len(packer.rows) < rows:
        ordinals = np.arange(read, read + _DOCUMENTS_AT_ONCE)
        found = lengths.walkers[place].measure(np.full_like(ordinals, lane[1]), ordinals)
        for ordinal, size in zip(ordinals.tolist(), found.sizes.tolist(), strict=True):
            packer.add(ordinal, size)
        read += _DOCUMENTS_AT_ONCE
    first = itertools.islice(packer.rows, rows)
    return [sum(stop - start for _, start, stop, _ in row.pieces) for row in first], read
