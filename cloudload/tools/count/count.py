"""Count the tokens of a dataset, or resume counting."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any

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
)
from cloudload.rows import choose_backend
from cloudload.run import Recipe, length_files, lengths_index, open_recipe
from cloudload.system import open_progress_bar, option_help
from cloudload.tools.count.estimate import CountEstimate, sample_lengths
from cloudload.tools.count.group import (
    Counted,
    CountWork,
    GroupJob,
    check_limit,
    count_group,
    finish_count,
    list_found,
    list_groups,
)
from cloudload.tools.count.length_report import CountReport, Tally, check_column, merge_tallies
from cloudload.tools.engines.units import Engine, Share, choose_engine, count_processes, run_units

logger = logging.getLogger("cloudload.count")


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
        dataset: folder or URL of an MDS dataset.
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
    stream = _as_stream(dataset, split)
    recipe, backend = _open(stream, documents, tokenizer, tokenizer_backend, retry)
    [data] = recipe.corpus.datasets
    location = length_files.lengths_location(data, None if out is None else os.fspath(out))
    work = prepare_count(recipe, backend, location)
    if by is not None:
        _check_by(data, by, worker)
    if again:
        _remove_lengths(work, worker)
    jobs = list_groups(work, data)
    left = _list_uncounted(work, jobs)
    own = left if worker is None else _take_share(worker, jobs, left)
    units = own if by is None else _mark_counted(jobs, left)
    processes = min(count_processes(processes), len(units))
    with choose_engine(executor, processes) as engine:
        tallies = _count(work, units, by, engine, progress=progress)
    if missing := _list_uncounted(work, jobs) if worker is not None else []:
        logger.info("other jobs have not yet counted %d of %d groups", len(missing), len(jobs))
        return None
    counted = finish_count(work, data, jobs)
    report = _report(data, work, counted, len(own), time.monotonic() - began)
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
    recipe, backend = _open(stream, documents, tokenizer, tokenizer_backend, retry)
    return sample_lengths(recipe, backend, share).estimate()


def _as_stream(dataset: str | os.PathLike[str] | Stream, split: str | None) -> Stream:
    if not isinstance(dataset, Stream):
        return Stream(os.fspath(dataset), split=split)
    return replace(dataset, fim=None)  # lengths are stored before documents are cut


def _open(
    stream: Stream,
    documents: Mapping[str, Any],
    tokenizer: Any,
    backend: TokenizerBackend,
    retry: Retry | None,
) -> tuple[Recipe, str]:
    """Open the recipe of a run that reads only one dataset, and choose its tokenizer backend.

    `documents` has options of `RowsConfig`.
    """
    config = RowsConfig(streams=(stream,), seq_len=1, bos=None, eos=None, **documents)
    check_limit(config)
    recipe = open_recipe(config, tokenizer, retry or Retry())
    text = recipe.tokenizer.json if recipe.tokenizes else ""
    found = choose_backend(text, backend, cache_folder.default_cache())
    return recipe, found.name


def prepare_count(recipe: Recipe, backend: str, location: Location) -> CountWork:
    """Return the settings for counting a recipe's only dataset, which all groups share."""
    small = replace(recipe, corpus=Corpus(()), components=())
    return CountWork(small, backend, lengths_index.make_key(recipe, 0), location)


def _take_share(worker: str, jobs: Sequence[GroupJob], left: Sequence[GroupJob]) -> list[GroupJob]:
    indices = {job.shards.index for job in Share.parse(worker).take(jobs)}
    return [job for job in left if job.shards.index in indices]


def _list_uncounted(work: CountWork, jobs: Sequence[GroupJob]) -> list[GroupJob]:
    """Return the groups whose files do not exist."""
    found = list_found(work)
    return [job for job in jobs if job.shards.name not in found]


def _remove_lengths(work: CountWork, worker: str | None) -> None:
    """Remove the lengths that belong to a key: first the indexes, without which none are used."""
    if worker is not None:
        raise ValueError(
            "again (--again) removes the lengths of all groups, but worker counts only a share of "
            f"them. Remove the folder {work.folder}, and run without again"
        )
    indexes, groups = list[Location](), list[Location]()
    for name in sorted(list_found(work)):
        if own_objects.LENGTHS.fullmatch(f"{own_objects.LENGTHS_FOLDER}/{work.key.digest}/{name}"):
            (indexes if name.endswith(".json") else groups).append(work.folder.join(name))
    for location in indexes + groups:
        location.delete()


def _check_by(dataset: Dataset, by: str, worker: str | None) -> None:
    check_column(dataset, by)
    if worker is not None:
        raise ValueError(
            "by (--by) needs all groups of shards, but worker (--worker) counts only a share of "
            "them. After all jobs of the array have finished, run again with by (--by) and without "
            "worker (--worker)"
        )


def _mark_counted(jobs: Sequence[GroupJob], left: Sequence[GroupJob]) -> list[GroupJob]:
    indices = {job.shards.index for job in left}
    return [replace(job, is_counted=job.shards.index not in indices) for job in jobs]


def _count(
    work: CountWork,
    jobs: Sequence[GroupJob],
    by: str | None,
    engine: Engine | None,
    *,
    progress: bool,
) -> list[Tally | None]:
    """Count groups, and return their tallies."""
    total, tallies = sum(job.raw_bytes for job in jobs), []
    with open_progress_bar("count", total, shown=progress and bool(jobs)) as bar:
        for _, result in run_units(partial(count_group, work, by=by), jobs, engine):
            bar.update(result.raw_bytes)
            tallies.append(result.tally)
    return tallies


def _report(
    dataset: Dataset, work: CountWork, counted: Counted, num_counted: int, seconds: float
) -> CountReport:
    index = counted.index
    names = ("samples", "empty", "filtered", "failed", "tokens", "text_bytes")
    totals: dict[str, Any] = {name: index.total(name) for name in names}
    absent = totals["empty"] + totals["filtered"] + totals["failed"]
    return CountReport(
        dataset=str(dataset.location),
        lengths=str(counted.location),
        tokenizer=work.key.tokenizer,
        **totals,
        documents=totals["samples"] - absent,
        tokens_per_byte=totals["tokens"] / max(1, totals["text_bytes"]),
        stats=counted.spread.summarize(),
        groups=len(index.groups),
        length_bytes=index.total("bytes"),
        counted_groups=num_counted,
        seconds=round(seconds, 3),
    )
