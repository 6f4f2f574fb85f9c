"""Read loss logs, and find the documents and sources whose losses stand out in some steps.

    first start, 2 ranks     rows 0 to 99   ┐
    resumed at 60, 3 ranks   rows 60 to 199 ┴─► rows 0 to 59 of the first, 60 to 199 of the second

    mean loss of each document ─► minus the median of its steps ─► compared with documents of
                                                                  similar length and the same source
    mean loss of each source   ─► compared with earlier periods of the same length

The logs of all ranks and restarts of a run are read, each row once. Records are sorted by row, so
sums are bit-identical on any world. A score is the distance from the median in standard deviations,
estimated from the median absolute deviation. This estimate is robust, so outliers do not hide
themselves or one another.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cloudload.data import urls
from cloudload.errors import DatasetError
from cloudload.system import Floats, Ints, counted, escape, terminal
from cloudload.tools.losses import log_file

if TYPE_CHECKING:
    from cloudload.loading import TracedSpan  # which imports torch

THRESHOLD = 6.0
"""Default minimum score at which a document or source stands out."""

_GROUP, _FEWEST_IN_GROUP, _PER_WINDOW = 256, 32, 64
_MOST_PERIODS, _FEWEST_PERIODS = 20, 5
_TO_DEVIATION = 1.4826
_LEAST_SCALE = 1e-3
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True)
class DocumentLoss:
    """A document whose loss stands out in the chosen steps."""

    step: int
    """The first of the steps that trained on the document, from 1."""
    row: int
    """The run index of the first row with the document, from 0."""
    stream: str
    """The name of the stream."""
    epoch: int
    """The index of the epoch, from 0."""
    sample: int
    """The index of the sample within its stream, from 0."""
    start: int
    """The index of the document's first token in the chosen steps. A bos has index 0."""
    stop: int
    """The index after the document's last token in the chosen steps."""
    tokens: int
    """Number of the document's tokens in the chosen steps that have a loss."""
    loss: float
    """The mean loss of these tokens."""
    expected: float
    """The median loss of documents of the same source, and of similar length and step."""
    score: float
    """The distance of `loss` from `expected`, in robust standard deviations; infinite if a loss is
    not a number."""
    last_step: int
    """The last of the steps that trained on the document."""
    worst_step: int
    """The step in which the document's tokens had the highest mean loss."""

    def describe(self, traced: TracedSpan | None, columns: int) -> Iterator[str]:
        """Yield the document as lines of text, `columns` cells wide, with its ID and text."""
        steps = f"step {self.step:,}"
        if self.step != self.last_step:
            steps = f"steps {self.step:,} to {self.last_step:,}, worst at {self.worst_step:,}"
        yield (
            f"loss {self.loss:.3f}  expected {self.expected:.3f}  score {self.score:.1f}  {steps}"
        )
        identifier = "" if traced is None or traced.id is None else f"  id {traced.id}"
        yield (
            f"  {self.stream}{identifier}  sample {self.sample}  epoch {self.epoch}  "
            f"tokens {self.start}:{self.stop}" + ("" if traced is None else f"  {traced.shard}")
        )
        if traced is not None:
            text = escape(json.dumps(traced.text[:_SHOWN_CHARACTERS], ensure_ascii=False))
            yield from (f"    {line}" for line in terminal.wrap(text, columns - 4))


@dataclass(frozen=True)
class SourceLoss:
    """The loss of a source in the chosen steps."""

    stream: str
    """The name of the stream."""
    documents: int
    """Number of the source's documents in the chosen steps."""
    tokens: int
    """Number of tokens that have a loss."""
    loss: float
    """The mean loss of these tokens."""
    before: float | None
    """The median of the source's mean losses in up to 20 earlier periods of the same length; None
    if the log has fewer than 5 such periods."""
    score: float | None
    """The distance of `loss` from `before`, in robust standard deviations; None if unknown."""

    def stands_out(self, threshold: float) -> bool:
        """Whether the score is known and at least `threshold`."""
        return self.score is not None and self.score >= threshold

    def describe(self, threshold: float) -> str:
        """Describe the source as the cells of a table after its name."""
        before = "-" if self.before is None else f"{self.before:.3f}"
        score = "-" if self.score is None else f"{self.score:.1f}"
        mark = "  stands out" if self.stands_out(threshold) else ""
        return (
            f"{self.documents:>9,}  {self.tokens:>11,}  {self.loss:>6.3f}  {before:>6}  "
            f"{score:>6}{mark}"
        )


@dataclass(frozen=True)
class Blame:
    """The result of `blame`: the documents and sources that stand out in the chosen steps."""

    steps: range
    """The range of the chosen steps, from 1, that are in the log."""
    num_documents: int
    tokens: int
    """Number of tokens that have a loss."""
    loss: float
    """The mean loss of these tokens; NaN without tokens."""
    documents: tuple[DocumentLoss, ...]
    """The documents that stand out, highest score first."""
    sources: tuple[SourceLoss, ...]
    """All sources, in the order of the streams."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name. They are JSON types, but may contain infinities and NaN."""
        return {**asdict(self), "steps": [self.steps.start, self.steps.stop]}

    def describe(
        self, traced: Sequence[TracedSpan | None], threshold: float, columns: int
    ) -> Iterator[str]:
        """Yield the result as lines of text, `columns` cells wide.

        `traced` has the text of each document, or None.
        """
        yield (
            f"steps {self.steps.start:,} to {self.steps.stop - 1:,}: "
            f"{counted(self.num_documents, 'document')}, {counted(self.tokens, 'token')}, "
            f"mean loss {self.loss:.3f}"
        )
        width = max(len("source"), *(len(escape(each.stream)) for each in self.sources))
        yield from ("", f"{'source':<{width}}  documents       tokens    loss  before   score")
        for source in self.sources:
            yield f"{escape(source.stream):<{width}}  {source.describe(threshold)}"
        for each, span in zip(self.documents, traced, strict=True):
            yield from ("", *each.describe(span, columns))
        if not self.documents:
            yield from ("", f"no document has a score of {threshold:g} or more")


def blame(
    losses: Losses,
    steps: range | None = None,
    *,
    threshold: float = THRESHOLD,
    min_tokens: int = 8,
    top: int = 10,
) -> Blame:
    """Find the documents and sources whose losses stand out in some steps.

    Args:
        losses: the log of the run.
        steps: the steps, from A up to, but not including, B; or a single step. By default, all.
        threshold: the lowest score at which a document or source stands out.
        min_tokens: ignore documents with fewer tokens in these steps, because their mean losses are
            noisy.
        top: maximum number of documents.

    Raises `ValueError` if none of the steps are in the log.
    """
    asked = losses.steps if steps is None else steps
    chosen = losses.of_steps(asked)
    if not len(chosen.records.table):
        raise ValueError(
            f"the log has no steps {asked.start:,} to {asked.stop - 1:,}. Use steps from "
            f"{losses.steps.start:,} to {losses.steps.stop - 1:,}"
        )
    documents = _sum_documents(chosen)
    expected, scores = _score_documents(documents, min_tokens)
    scores[documents.tokens < min_tokens] = -math.inf
    highest = np.argsort(-scores, kind="stable")[:top]
    found = [
        _describe(documents, index, losses.streams, expected[index], scores[index])
        for index in highest[scores[highest] >= threshold].tolist()
    ]
    tokens = chosen.tokens
    return Blame(
        steps=chosen.steps,
        num_documents=len(documents.tokens),
        tokens=tokens,
        loss=log_file.MeanLoss(tokens, float(chosen.records.sums.sum())).mean,
        documents=tuple(found),
        sources=tuple(_score_sources(losses, asked, documents)),
    )


class _Documents(NamedTuple):
    """The documents of the chosen steps, each with its first record in these steps."""

    first: Ints
    """int64 [documents, 8], with the columns of records."""
    stops: Ints
    tokens: Ints
    sums: Floats
    last_steps: Ints
    worst_steps: Ints

    @property
    def means(self) -> Floats:
        means: Floats = self.sums / np.maximum(1, self.tokens)
        return means


def _sum_documents(losses: Losses) -> _Documents:
    table, sums = losses.records
    order = np.lexsort(
        [
            table[:, log_file.ROW],
            table[:, log_file.SAMPLE],
            table[:, log_file.EPOCH],
            table[:, log_file.STREAM],
        ]
    )
    table, sums = table[order], sums[order]
    is_new = np.ones(len(table), np.bool_)
    is_new[1:] = (
        table[1:, [log_file.STREAM, log_file.EPOCH, log_file.SAMPLE]]
        != table[:-1, [log_file.STREAM, log_file.EPOCH, log_file.SAMPLE]]
    ).any(1)
    starts = np.flatnonzero(is_new)
    # a loss that is not a number is the worst
    means = np.nan_to_num(sums / np.maximum(1, table[:, log_file.TOKENS]), nan=np.inf)
    by_mean = np.lexsort([-means, np.cumsum(is_new)])
    return _Documents(
        table[starts],
        np.maximum.reduceat(table[:, log_file.STOP], starts),
        np.add.reduceat(table[:, log_file.TOKENS], starts),
        np.add.reduceat(sums, starts),
        np.maximum.reduceat(table[:, log_file.STEP], starts),
        table[by_mean[starts], log_file.STEP],
    )


def _score_documents(documents: _Documents, min_tokens: int) -> tuple[Floats, Floats]:
    """Return the expected loss and the score of each document: float64 [documents] each."""
    means, streams = documents.means, documents.first[:, log_file.STREAM]
    is_known = np.isfinite(means) & (documents.tokens >= min_tokens)
    expected = np.full(len(means), np.nan)
    scores = np.full(len(means), np.inf)
    known = np.flatnonzero(is_known)
    if len(known):
        trend = _find_trend(documents.first[known, log_file.STEP], means[known])
        centers, scales = np.empty(len(known)), np.empty(len(known))
        for group in _group(streams[known], documents.tokens[known]):
            centers[group], scales[group] = _measure(means[known][group] - trend[group])
        expected[known] = trend + centers
        scores[known] = (means[known] - expected[known]) / scales
    return expected, scores


def _find_trend(steps: Ints, means: Floats) -> Floats:
    """Return the median loss around each document's step: float64 [documents].

    The median is over about 64 documents of nearby steps. It is subtracted from the losses, because
    the loss falls during training, especially at the start.
    """
    trend = np.empty(len(means))
    order = np.argsort(steps, kind="stable")
    for window in np.array_split(order, max(1, len(order) // _PER_WINDOW)):
        trend[window] = np.median(means[window])
    return trend


def _group(streams: Ints, tokens: Ints) -> list[Ints]:
    """Group documents by source and length.

    All sources with fewer than 32 documents are treated as one source.
    """
    sources, counts = np.unique(streams, return_counts=True)
    small = sources[counts < _FEWEST_IN_GROUP]
    parts = [np.flatnonzero(streams == source) for source in sources if source not in small]
    if len(small):
        parts.append(np.flatnonzero(np.isin(streams, small)))
    groups: list[Ints] = []
    for part in parts:
        order = part[np.argsort(tokens[part], kind="stable")]
        groups += np.array_split(order, max(1, len(order) // _GROUP))
    return groups


def _measure(values: Floats) -> tuple[float, float]:
    """Return the median of values, and a robust estimate of their standard deviation."""
    center = float(np.median(values))
    deviation = _TO_DEVIATION * float(np.median(np.abs(values - center)))
    return center, max(deviation, _LEAST_SCALE)


def _describe(
    documents: _Documents, index: int, streams: tuple[str, ...], expected: float, score: float
) -> DocumentLoss:
    first = documents.first[index].tolist()
    return DocumentLoss(
        step=first[log_file.STEP],
        row=first[log_file.ROW],
        stream=streams[first[log_file.STREAM]],
        epoch=first[log_file.EPOCH],
        sample=first[log_file.SAMPLE],
        start=first[log_file.START],
        stop=int(documents.stops[index]),
        tokens=int(documents.tokens[index]),
        loss=float(documents.means[index]),
        expected=float(expected),
        score=float(score),
        last_step=int(documents.last_steps[index]),
        worst_step=int(documents.worst_steps[index]),
    )


def _score_sources(losses: Losses, steps: range, documents: _Documents) -> list[SourceLoss]:
    earlier = _list_periods(losses, steps)
    found = []
    for name, total in losses.of_steps(steps).means().items():
        stream = losses.streams.index(name)
        values = [means[name].mean for means in earlier if name in means]
        before, score = None, None
        if len(values) >= _FEWEST_PERIODS:
            before, scale = _measure(np.array(values))
            score = (total.mean - before) / scale
        count = int((documents.first[:, log_file.STREAM] == stream).sum())
        found.append(SourceLoss(name, count, total.tokens, total.mean, before, score))
    return found


def _list_periods(losses: Losses, steps: range) -> list[Any]:
    """Return the mean losses of up to 20 earlier periods of the same length, latest first."""
    first = max(losses.steps.start, steps.start - _MOST_PERIODS * len(steps))
    starts = range(steps.start - len(steps), first - 1, -len(steps))
    return [losses.of_steps(range(start, start + len(steps))).means() for start in starts]


@dataclass(frozen=True, eq=False)
class Losses:
    """The losses of a run by row and document."""

    streams: tuple[str, ...]
    """The names of the streams."""
    records: log_file.Records
    """The records, sorted by row and by position in the row. See `losses.log_file`."""
    state: Mapping[str, Any] | None
    """A state of the run, which records the data's locations; None if no log has a state."""

    def of_steps(self, steps: range) -> Losses:
        """Select the losses of consecutive steps."""
        table = self.records.table
        chosen = (table[:, log_file.STEP] >= steps.start) & (table[:, log_file.STEP] < steps.stop)
        return Losses(self.streams, self.records.take(chosen), self.state)

    @property
    def tokens(self) -> int:
        """Number of tokens that have a loss."""
        return int(self.records.table[:, log_file.TOKENS].sum())

    @property
    def steps(self) -> range:
        """The steps from the first to the last one in the log."""
        steps = self.records.table[:, log_file.STEP]
        return range(int(steps.min()), int(steps.max()) + 1) if len(steps) else range(0)

    def means(self) -> dict[str, log_file.MeanLoss]:
        """Return the mean loss of each source that has tokens, by stream name."""
        table, sums = self.records
        found = {}
        for stream in np.unique(table[:, log_file.STREAM]).tolist():
            own = table[:, log_file.STREAM] == stream
            total = log_file.MeanLoss(
                int(table[own, log_file.TOKENS].sum()), float(np.add.reduce(sums[own]))
            )
            found[self.streams[stream]] = total
        return found


def read_losses(*logs: str | os.PathLike[str]) -> Losses:
    """Read the loss logs of one run, given as files or as folders of files.

    If a row was trained several times, only the latest records are kept. Raises `DatasetError` if
    there is no log, a file is not a loss log, or the files belong to different runs, and `OSError`
    if a file cannot be read.
    """
    paths = [path for log in logs for path in _list_files(urls.expand_home(log))]
    if not paths:
        raise DatasetError(
            f"there is no loss log in {', '.join(map(str, logs))}. Pass the folder that LossLog "
            "writes to, after its first flush"
        )
    streams: tuple[str, ...] = ()
    state = None
    chunks: list[tuple[log_file.Records, Ints]] = []
    for path in sorted(paths, key=lambda path: path.name):  # in order of their start times
        header, own = log_file.read_file(path)
        streams = _join_streams(streams, tuple(header["streams"]), path)
        state = header["state"] or state
        chunks += own
    return Losses(streams, _keep_latest(chunks), state)


def _list_files(log: Path) -> list[Path]:
    return list(log.rglob(f"*{log_file.SUFFIX}")) if log.is_dir() else [log]


def _join_streams(before: tuple[str, ...], own: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """Return the longer of two lists of streams. Streams may only be added at the end."""
    shared = min(len(before), len(own))
    if before[:shared] != own[:shared]:
        raise DatasetError(
            f"{path} is the log of a run with the streams {', '.join(own)}, but an earlier file "
            f"has the streams {', '.join(before)}. Pass the logs of a single run"
        )
    return max(before, own, key=len)


def _keep_latest(chunks: Sequence[tuple[log_file.Records, Ints]]) -> log_file.Records:
    """Return the latest records of each row, sorted by row."""
    records = log_file.Records.concatenate([each for each, _ in chunks])
    times = np.concatenate([np.empty(0, np.int64), *(each for _, each in chunks)])
    kept = records.take(log_file.find_last(records.table[:, log_file.ROW], times))
    return kept.take(np.argsort(kept.table[:, log_file.ROW], kind="stable"))
