"""Count the tokens of a dataset, or resume counting."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from cloudload.config import (
    TEXT_KEY,
    Chat,
    Encode,
    OnError,
    RowsConfig,
    Stream,
    TokenDtype,
    TokenizerBackend,
    Transform,
)
from cloudload.data import (
    Corpus,
    Dataset,
    Location,
    Retry,
    cache_folder,
    own_objects,
    redact,
)
from cloudload.rows import choose_backend
from cloudload.run import Recipe, find_streams, length_files, lengths_index, open_recipe
from cloudload.system import map_in_order, open_progress_bar, option_help
from cloudload.tools.count.estimate import CountEstimate, sample_lengths
from cloudload.tools.count.group import (
    Counted,
    CountedGroup,
    CountWork,
    GroupJob,
    check_limit,
    count_group,
    finish_count,
    list_found,
    list_groups,
)
from cloudload.tools.count.length_report import (
    CountReport,
    LengthCounter,
    Tally,
    check_column,
    merge_tallies,
)
from cloudload.tools.engines.units import (
    Engine,
    Share,
    choose_engine,
    count_processes,
    for_each,
    run_units,
)

logger = logging.getLogger("cloudload.count")


_NUM_THREADS = 16


@option_help.suggests_names
def count_tokens(
    dataset: str | os.PathLike[str] | Stream,
    *,
    tokenizer: Any = None,
    split: str | None = None,
    text_key: str = TEXT_KEY,
    tokens_key: str | None = None,
    tokens_dtype: TokenDtype | None = None,
    labels_key: str | None = None,
    strip_tokens: Sequence[int] = (),
    transform: Transform | None = None,
    transform_id: str | None = None,
    chat: Chat | None = None,
    encode: Encode | None = None,
    encode_id: str | None = None,
    seed: int = RowsConfig.seed,
    on_error: OnError = "raise",
    tokenizer_backend: TokenizerBackend = "auto",
    out: str | os.PathLike[str] | None = None,
    by: str | None = None,
    again: bool = False,
    processes: int | None = None,
    executor: Executor | None = None,
    worker: str | None = None,
    retry: Retry | None = None,
    progress: bool = True,
) -> CountReport | None:
    """Count the tokens of each sample of a dataset, and store the lengths for later runs.

    To resume a count that was stopped or killed, call this again. Lengths do not depend on
    `seq_len`, packing, bos, eos, `min_tokens`, `max_tokens` or the world size, so one count serves
    every run with this data, tokenizer, column and transform.

    Args:
        dataset: folder or URL of an MDS dataset, or a glob of several, which one job counts.
        tokenizer: as for `CloudLoader`.
        split: the subfolder to count, such as `train`.
        text_key: the column that contains the document.
        tokens_key: the column that contains the document as token IDs, for pre-tokenized data.
        tokens_dtype: dtype of the IDs, if that column contains bytes.
        labels_key: as for `CloudLoader`. Documents without trained tokens count as filtered.
        strip_tokens: as for `CloudLoader`.
        transform: as for `CloudLoader`.
        transform_id: as for `CloudLoader`.
        chat: as for `CloudLoader`. Its `max_tokens` must be set, to the run's `seq_len` or another
            number, unless it splits longer documents.
        encode: as for `CloudLoader`.
        encode_id: as for `CloudLoader`.
        seed: the seed of the runs that will use the lengths. It matters only with `encode`.
        on_error: as for `CloudLoader`.
        tokenizer_backend: as for `CloudLoader`.
        out: location of the lengths. By default, the folder `lengths` of the dataset.
        by: a column, such as `source`. The report then has the number of documents and tokens for
            each value of the column. There may be up to 10,000 values. Shards that are already
            counted are read again.
        again: whether to remove existing lengths, and to count all documents again. Use it if
            documents changed although the names of the data, the tokenizer, and the transform did
            not, such as with an unchanged `transform_id`. To resume such a count, omit it.
        processes: number of worker processes, one per available core by default.
        executor: runs the units of work instead of local processes: any
            `concurrent.futures.Executor`, such as a `cloudload.engines.ray.RayExecutor`.
        worker: `I/N` (from 0) or `auto`, for one job of an array: count every N-th group. The job
            that finds all groups counted writes the index.
        retry: how long to retry a request to the store.
        progress: show a progress bar on stderr.

    Returns:
        The report, or None if other jobs of the array have not finished.

    Raises:
        ValueError: an argument is invalid.
        DatasetError: the dataset or a document is damaged, or the column `by` does not exist or has
            more than 10,000 values.
        TokenizerError: the tokenizer cannot be loaded, or cannot encode a document.
        StoreError: the dataset cannot be read, or the lengths cannot be written.
        WorkerError: a worker process failed or died.
    """
    began = time.monotonic()
    documents: dict[str, Any] = {"text_key": text_key, "tokens_key": tokens_key, "chat": chat}
    documents |= {"tokens_dtype": tokens_dtype, "labels_key": labels_key, "seed": seed}
    documents |= {"strip_tokens": strip_tokens, "on_error": on_error}
    documents |= {"transform": transform, "transform_id": transform_id}
    documents |= {"encode": encode, "encode_id": encode_id}
    asked = _as_stream(dataset, split)
    streams = find_streams([asked], retry).streams
    recipe, backend = _open(streams, documents, tokenizer, tokenizer_backend, retry)
    parts = _list_parts(recipe, backend, None if out is None else os.fspath(out))
    if by is not None:
        _check_by(recipe.corpus, by, worker)
    if again:
        _refuse_again(parts[0].work, worker)
        for_each(_remove_lengths, parts)
    every = [_CountUnit(part, job) for part, each in enumerate(parts) for job in each.jobs]
    left = {unit.place for unit in _list_uncounted(parts)}
    mine = every if worker is None else Share.parse(worker).take(every)
    own = [unit for unit in mine if unit.place in left]
    units = own if by is None else [unit.mark(unit.place not in left) for unit in every]
    processes = min(count_processes(processes), len(units))
    with choose_engine(executor, processes) as engine:
        tallies = _count(parts, units, by, engine, progress=progress)
    if missing := _list_uncounted(parts) if worker is not None else []:
        logger.info("other jobs have not yet counted %d of %d groups", len(missing), len(every))
        return None
    report = _report(asked, parts, len(own), began)
    if by is None:
        return report
    return replace(report, by=by, values=merge_tallies(by, tallies).list_values())


@option_help.suggests_names
def estimate_tokens(
    dataset: str | os.PathLike[str] | Stream,
    share: float = 0.01,
    *,
    tokenizer: Any = None,
    split: str | None = None,
    text_key: str = TEXT_KEY,
    tokens_key: str | None = None,
    tokens_dtype: TokenDtype | None = None,
    labels_key: str | None = None,
    strip_tokens: Sequence[int] = (),
    transform: Transform | None = None,
    transform_id: str | None = None,
    chat: Chat | None = None,
    encode: Encode | None = None,
    encode_id: str | None = None,
    seed: int = RowsConfig.seed,
    on_error: OnError = "raise",
    tokenizer_backend: TokenizerBackend = "auto",
    retry: Retry | None = None,
) -> CountEstimate:
    """Estimate the tokens of a dataset from a sample of its documents. Writes nothing.

    Args:
        dataset: folder or URL of an MDS dataset.
        share: the share of the samples to tokenize, above 0 and at most 1. At least 2,000 samples
            from at least 16 shards are read, if the dataset has that many.
        tokenizer: as for `count_tokens`.
        split: as for `count_tokens`.
        text_key: as for `count_tokens`.
        tokens_key: as for `count_tokens`.
        tokens_dtype: as for `count_tokens`.
        labels_key: as for `count_tokens`.
        strip_tokens: as for `count_tokens`.
        transform: as for `count_tokens`.
        transform_id: as for `count_tokens`.
        chat: as for `count_tokens`.
        encode: as for `count_tokens`.
        encode_id: as for `count_tokens`.
        seed: as for `count_tokens`.
        on_error: as for `count_tokens`.
        tokenizer_backend: as for `count_tokens`.
        retry: as for `count_tokens`.

    Raises:
        ValueError: an argument is invalid.
        DatasetError: the dataset or a document is damaged.
        TokenizerError: the tokenizer cannot be loaded, or cannot encode a document.
        StoreError: the dataset cannot be read.
    """
    documents: dict[str, Any] = {"text_key": text_key, "tokens_key": tokens_key, "chat": chat}
    documents |= {"tokens_dtype": tokens_dtype, "labels_key": labels_key, "seed": seed}
    documents |= {"strip_tokens": strip_tokens, "on_error": on_error}
    documents |= {"transform": transform, "transform_id": transform_id}
    documents |= {"encode": encode, "encode_id": encode_id}
    stream = _as_stream(dataset, split)
    recipe, backend = _open([stream], documents, tokenizer, tokenizer_backend, retry)
    return sample_lengths(recipe, backend, share).estimate()


def _as_stream(dataset: str | os.PathLike[str] | Stream, split: str | None) -> Stream:
    if not isinstance(dataset, Stream):
        return Stream(os.fspath(dataset), split=split)
    # lengths are stored of all documents, before they are cut
    return replace(dataset, fim=None, select=None, drop=None)


def _open(
    streams: Sequence[Stream],
    documents: Mapping[str, Any],
    tokenizer: Any,
    backend: TokenizerBackend,
    retry: Retry | None,
) -> tuple[Recipe, str]:
    """Open the recipe of a run that reads datasets alike, and choose its tokenizer backend.

    `documents` has options of `RowsConfig`.
    """
    config = RowsConfig(streams=tuple(streams), seq_len=1, bos=None, eos=None, **documents)
    check_limit(config)
    recipe = open_recipe(config, tokenizer, retry or Retry())
    text = recipe.tokenizer.json if recipe.tokenizes else ""
    found = choose_backend(text, backend, cache_folder.default_cache())
    return recipe, found.name


def prepare_count(recipe: Recipe, backend: str, location: Location) -> CountWork:
    """Return the settings for counting the first dataset of a recipe, which all groups share."""
    small = replace(
        recipe,
        config=replace(recipe.config, streams=recipe.config.streams[:1]),
        tokenizer=replace(recipe.tokenizer, frames=recipe.tokenizer.frames[:1]),
        chats=recipe.chats[:1],
        middles=recipe.middles[:1],
        selected=recipe.selected[:1],
        corpus=Corpus(()),
        components=(),
    )
    return CountWork(small, backend, lengths_index.make_key(recipe, 0), location)


@dataclass(frozen=True)
class _CountPart:
    """A dataset to count, and its groups."""

    dataset: Dataset
    work: CountWork
    jobs: list[GroupJob]


class _CountUnit(NamedTuple):
    """A group to count: the index of its part, and the job."""

    part: int
    job: GroupJob

    @property
    def place(self) -> tuple[int, int]:
        """Identifies the unit."""
        return self.part, self.job.shards.index

    def mark(self, is_counted: bool) -> _CountUnit:
        """Return the unit with whether its file exists."""
        return self._replace(job=replace(self.job, is_counted=is_counted))


def _list_parts(recipe: Recipe, backend: str, out: str | None) -> list[_CountPart]:
    """List the datasets of a recipe, which have the same options, and so the same key."""
    datasets = recipe.corpus.datasets
    first = prepare_count(recipe, backend, length_files.lengths_location(datasets[0], out))
    works = [replace(first, location=length_files.lengths_location(each, out)) for each in datasets]
    pairs = zip(datasets, works, strict=True)
    return [_CountPart(each, work, list_groups(work, each)) for each, work in pairs]


def _list_uncounted(parts: Sequence[_CountPart]) -> list[_CountUnit]:
    """Return the groups whose files do not exist."""
    found = for_each(lambda part: list_found(part.work), parts)
    return [
        _CountUnit(index, job)
        for index, (part, names) in enumerate(zip(parts, found, strict=True))
        for job in part.jobs
        if job.shards.name not in names
    ]


def _refuse_again(work: CountWork, worker: str | None) -> None:
    if worker is not None:
        raise ValueError(
            "again (--again) removes the lengths of all groups, but worker counts only a share of "
            f"them. Remove the folder {work.folder}, and run without again"
        )


def _remove_lengths(part: _CountPart) -> None:
    """Remove the lengths that belong to a key: first the indexes, without which none are used."""
    work = part.work
    indexes, groups = list[Location](), list[Location]()
    for name in sorted(list_found(work)):
        if own_objects.LENGTHS.fullmatch(f"{own_objects.LENGTHS_FOLDER}/{work.key.digest}/{name}"):
            (indexes if name.endswith(".json") else groups).append(work.folder.join(name))
    for location in indexes + groups:
        location.delete()


def _check_by(corpus: Corpus, by: str, worker: str | None) -> None:
    for dataset in corpus.datasets:
        check_column(dataset, by)
    if worker is not None:
        raise ValueError(
            "by (--by) needs all groups of shards, but worker (--worker) counts only a share of "
            "them. After all jobs of the array have finished, run again with by (--by) and without "
            "worker (--worker)"
        )


def _count(
    parts: Sequence[_CountPart],
    units: Sequence[_CountUnit],
    by: str | None,
    engine: Engine | None,
    *,
    progress: bool,
) -> list[Tally | None]:
    """Count groups, and return their tallies."""
    total, tallies = sum(unit.job.raw_bytes for unit in units), []
    located = ((parts[unit.part].work.location, unit.job) for unit in units)
    with open_progress_bar("count", total, shown=progress and bool(units)) as bar:
        count = partial(_count_at, parts[0].work, by=by)
        for _, result in run_units(count, located, engine):
            bar.update(result.raw_bytes)
            tallies.append(result.tally)
    return tallies


def _count_at(work: CountWork, located: tuple[Location, GroupJob], by: str | None) -> CountedGroup:
    """Count a group of the dataset whose lengths are at a location."""
    location, job = located
    return count_group(replace(work, location=location), job, by)


def _finish_part(part: _CountPart) -> Counted:
    return finish_count(part.work, part.dataset, part.jobs)


def _report(
    asked: Stream, parts: Sequence[_CountPart], num_counted: int, began: float
) -> CountReport:
    """Write the index of each dataset, and return the report of all."""
    spread, found = LengthCounter(), list[tuple[Location, lengths_index.LengthsIndex]]()
    # a spread takes half a megabyte, so only some are in memory
    for each in map_in_order(_finish_part, parts, _NUM_THREADS, "cloudload-count"):
        spread.merge(each.spread)
        found.append((each.location, each.index))
    indexes = [index for _, index in found]
    names = ("samples", "empty", "filtered", "failed", "tokens", "text_bytes")
    totals: dict[str, Any] = {name: sum(index.total(name) for index in indexes) for name in names}
    absent = totals["empty"] + totals["filtered"] + totals["failed"]
    first, others = found[0][0], len(found) - 1
    return CountReport(
        dataset=str(parts[0].dataset.location) if not others else redact(asked.url),
        lengths=f"{first}" + (f", and {others:,} other indexes" if others else ""),
        tokenizer=parts[0].work.key.tokenizer,
        **totals,
        documents=totals["samples"] - absent,
        tokens_per_byte=totals["tokens"] / max(1, totals["text_bytes"]),
        stats=spread.summarize(),
        groups=sum(len(index.groups) for index in indexes),
        length_bytes=sum(index.total("bytes") for index in indexes),
        datasets={
            str(part.dataset.location): index.total("tokens")
            for part, index in zip(parts, indexes, strict=True)
        }
        if others
        else {},
        counted_groups=num_counted,
        seconds=round(time.monotonic() - began, 3),
    )
