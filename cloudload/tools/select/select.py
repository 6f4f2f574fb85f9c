"""Compile the selection of a dataset, or resume compiling it."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cloudload.config import Stream, choices
from cloudload.data import (
    Corpus,
    Dataset,
    Location,
    MemoryShards,
    Retry,
    ShardCache,
    cache_folder,
    open_corpus,
    own_objects,
    redact,
    selections,
)
from cloudload.errors import DatasetError
from cloudload.run import find_streams, length_files, lengths_index
from cloudload.system import Flags, Ints, map_in_order, open_progress_bar, option_help, temp_files
from cloudload.tools.engines.units import (
    Engine,
    Share,
    choose_engine,
    count_processes,
    for_each,
    run_units,
)
from cloudload.tools.select.report import SelectedTokens, SelectReport, sum_reports
from cloudload.tools.select.rule import IdFile, SelectionRule

logger = logging.getLogger("cloudload.select")
_SHARDS_AHEAD, _READ_AT_ONCE = 2, 16


@dataclass(frozen=True)
class SelectWork:
    """What all groups of a selection share. Every worker receives it."""

    rule: SelectionRule
    columns: tuple[str, ...]
    """The columns to read of each shard."""
    folder: Location


@dataclass(frozen=True)
class SelectJob:
    """A group to compile."""

    dataset: Dataset
    """The dataset with only the group's shards."""
    shards: selections.files.SelectionRange
    keep: Ints | None
    """The samples in the group that the rule's `keep` lists: int64 [listed]; None without it."""
    drop: Ints | None
    """The samples in the group that the rule's `drop` lists, likewise."""

    @property
    def raw_bytes(self) -> int:
        """Total uncompressed size of the group's shards."""
        return int(self.dataset.table.raw_bytes.sum())


@option_help.suggests_names
def select_documents(
    dataset: str | os.PathLike[str] | Stream,
    name: str,
    *,
    split: str | None = None,
    where: str | None = None,
    keep_ids: str | os.PathLike[str] | None = None,
    drop_ids: str | os.PathLike[str] | None = None,
    keep: str | os.PathLike[str] | None = None,
    drop: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    again: bool = False,
    processes: int | None = None,
    executor: Executor | None = None,
    worker: str | None = None,
    retry: Retry | None = None,
    progress: bool = True,
) -> SelectReport | None:
    """Compile which documents of a dataset to read, for `Stream(select=name)`.

    Stores a bit for each document. If several conditions are given, all of them must keep a
    document. To resume a compilation that was stopped or killed, or to include shards that were
    appended, call this again. The rule also says what happens to documents of shards that are
    appended later, until then: they are not selected if the rule keeps documents, and selected if
    it only drops some.

    Args:
        dataset: folder or URL of an MDS dataset, or of Parquet files that are read where they are,
            or a glob of several datasets, for each of which one job compiles the selection.
        name: the name of the selection.
        split: the subfolder to read, such as `train`.
        where: keep documents for which this condition on columns is true, such as
            "score >= 3 and lang in ('en', 'de')".
        keep_ids: keep documents whose column `id` is in this file, which has a line for each ID, or
            is a Parquet, JSON Lines or CSV file with the column `id`.
        drop_ids: drop documents whose column `id` is in this file.
        keep: keep the documents that this file lists, a Parquet, JSON Lines or CSV file with the
            columns `shard` and `index`.
        drop: drop the documents that this file lists.
        out: location of the selection. By default, the folder `selections` of the dataset. Pass
            this location and the name, joined by a slash, as `select`.
        again: whether to remove a selection of this name, and to read all documents again.
        processes: number of worker processes, one per available core by default.
        executor: runs the units of work instead of local processes: any
            `concurrent.futures.Executor`, such as a `cloudload.engines.ray.RayExecutor`.
        worker: `I/N` (from 0) or `auto`, for one job of an array: compile every N-th group. The job
            that finds all groups compiled writes the index.
        retry: how long to retry a request to the store.
        progress: show a progress bar on stderr.

    Returns:
        The report, or None if other jobs of the array have not finished.

    Raises:
        ValueError: an argument is invalid, or the condition is wrong.
        DatasetError: the dataset or a document is damaged, a column does not exist, or the name
            belongs to a selection with another rule.
        StoreError: the dataset cannot be read, or the selection cannot be written.
        WorkerError: a worker process failed or died.
    """
    began = time.monotonic()
    stream = dataset if isinstance(dataset, Stream) else Stream(os.fspath(dataset), split=split)
    streams = find_streams([stream], retry).streams
    files = {"keep_ids": keep_ids, "drop_ids": drop_ids, "keep": keep, "drop": drop}
    if is_glob := streams != (stream,):
        _check_glob(stream, len(streams), {"keep": keep, "drop": drop, "out": out})
    datasets = open_corpus(
        [each.locate(retry or Retry()) for each in streams], cache_folder.default_cache()
    ).datasets
    rule = _make_rule(
        datasets[0], where, {key: os.fspath(file) for key, file in files.items() if file}
    )
    parts = [
        _open_part(each, rule, name, None if out is None else os.fspath(out)) for each in datasets
    ]
    for_each(lambda part: _check_name(part.work, name, worker, again=again), parts)
    own = _list_own(parts, worker)
    processes = min(count_processes(processes), len(own))
    with choose_engine(executor, processes if rule.reads_shards else 0) as engine:
        _compile(parts, own, engine, progress=progress)
    if missing := _list_left(parts) if worker is not None else []:
        total = sum(len(part.jobs) for part in parts)
        logger.info("other jobs have not yet compiled %d of %d groups", len(missing), total)
        return None
    reports = for_each(lambda part: _report(part, _finish(part.work, part.jobs), name), parts)
    report = sum_reports(redact(stream.remote), reports) if is_glob else reports[0]
    seconds = round(time.monotonic() - began, 3)
    return replace(report, compiled_groups=len(own), seconds=seconds)


@dataclass(frozen=True)
class _SelectPart:
    """A dataset of which documents are selected, and its groups."""

    dataset: Dataset
    work: SelectWork
    jobs: list[SelectJob]


_Unit = tuple[int, SelectJob]
"""The index of a part, and one of its groups."""


def _open_part(dataset: Dataset, rule: SelectionRule, name: str, out: str | None) -> _SelectPart:
    work = SelectWork(rule, tuple(rule.find_columns(dataset)), _locate(dataset, name, out))
    return _SelectPart(dataset, work, list(_list_jobs(work, dataset)))


def _list_own(parts: Sequence[_SelectPart], worker: str | None) -> list[_Unit]:
    """The groups that this call compiles: those of the worker whose files do not exist."""
    left = _list_left(parts)
    if worker is None:
        return left
    every = [(index, job.shards.index) for index, part in enumerate(parts) for job in part.jobs]
    mine = set(Share.parse(worker).take(every))
    return [(index, job) for index, job in left if (index, job.shards.index) in mine]


def _check_glob(stream: Stream, num_datasets: int, options: Mapping[str, object]) -> None:
    """Raise `ValueError` if an option is only for a single dataset."""
    for option, value in options.items():
        if value is not None:
            raise ValueError(
                f"{redact(stream.remote)} is a glob of {num_datasets:,} datasets, and {option} "
                f"(--{option}) is for a single dataset. Run cloudload select on each dataset, with "
                f"one name for all, or omit {option}"
            )


def _make_rule(dataset: Dataset, where: str | None, files: dict[str, str]) -> SelectionRule:
    """The rule of the options. Raises `ValueError` if there is none, or for a wrong condition."""
    if where is None and not files:
        raise ValueError(
            "nothing says what to select. Pass where (--where), keep_ids (--keep-ids), drop_ids "
            "(--drop-ids), keep (--keep), or drop (--drop)"
        )
    located = {name: dataset.location.at(url) for name, url in files.items()}
    ids = {name: IdFile.of(each) for name, each in located.items() if name.endswith("_ids")}
    listed = {
        name: selections.listed.read_listed(each)
        for name, each in located.items()
        if not name.endswith("_ids")
    }
    rule = SelectionRule(
        where, ids.get("keep_ids"), ids.get("drop_ids"), listed.get("keep"), listed.get("drop")
    )
    _ = rule.expression
    return rule


def _locate(dataset: Dataset, name: str, out: str | None) -> Location:
    if not own_objects.SELECTION_NAME.fullmatch(name) or selections.listed.is_listed(name):
        raise ValueError(
            f"the name of a selection is {name!r}. Use up to 100 letters, digits, '.', '_' and "
            "'-', without the extension of a file"
        )
    if out is None:
        return selections.files.selection_location(dataset, name)
    return dataset.location.at(out).join(name)


def _check_name(work: SelectWork, name: str, worker: str | None, *, again: bool) -> None:
    """Raise `DatasetError` if a name belongs to another rule. With `again`, remove its files."""
    if again and worker is not None:
        raise ValueError(
            "again (--again) removes all groups of the selection, but worker (--worker) compiles "
            f"only a share of them. Remove the folder {work.folder}, and run without again"
        )
    found = None if again else selections.files.read_selection(work.folder)
    if found is not None and dict(found[0].rule) != work.rule.describe():
        rule = ", ".join(f"{key} {value!r}" for key, value in found[0].rule.items())
        raise DatasetError(
            f"the selection {name!r} in {work.folder} has another rule ({rule}). Choose another "
            "name, or replace it with again (--again)"
        )
    if again:
        _remove(work, set())


def _remove(work: SelectWork, kept: set[str]) -> None:
    """Remove the files of a selection, the index first, except those with the names `kept`."""
    names = _list_names(work) - kept
    for name in sorted(names, key=lambda each: each != selections.files.INDEX_NAME):
        if own_objects.SELECTIONS.fullmatch(f"{own_objects.SELECTIONS_FOLDER}/name/{name}"):
            work.folder.join(name).delete()


def _list_names(work: SelectWork) -> set[str]:
    return {item.url.rpartition("/")[2] for item in work.folder.list_if_exists()}


def _list_jobs(work: SelectWork, dataset: Dataset) -> Iterator[SelectJob]:
    """Yield the groups of a dataset, in order."""
    rule, first = work.rule, 0
    keep, drop = (None if each is None else each.find(dataset) for each in (rule.keep, rule.drop))
    for shards in selections.files.cut_selection(dataset, rule.describe()):
        bounds = first, first + shards.samples
        own = [None if each is None else _cut(each, *bounds) for each in (keep, drop)]
        yield SelectJob(dataset.part(shards.first, shards.stop), shards, *own)
        first = bounds[1]


def _cut(samples: Ints, start: int, stop: int) -> Ints:
    first, last = np.searchsorted(samples, [start, stop])
    return samples[first:last] - start


def _list_left(parts: Sequence[_SelectPart]) -> list[_Unit]:
    """The groups whose files do not exist."""
    found = for_each(lambda part: _list_names(part.work), parts)
    return [
        (index, job)
        for index, (part, names) in enumerate(zip(parts, found, strict=True))
        for job in part.jobs
        if job.shards.name not in names
    ]


def _compile(
    parts: Sequence[_SelectPart], units: Sequence[_Unit], engine: Engine | None, *, progress: bool
) -> None:
    total = sum(job.raw_bytes for _, job in units)
    # the lists of the rule are divided among the jobs
    works = [replace(part.work, rule=part.work.rule.of_shards) for part in parts]
    items = [(works[index], job) for index, job in units]
    with open_progress_bar("select", total, shown=progress and bool(units)) as bar:
        for _, raw_bytes in run_units(_compile_unit, items, engine):
            bar.update(raw_bytes)


def _compile_unit(unit: tuple[SelectWork, SelectJob]) -> int:
    return compile_group(*unit)


def compile_group(work: SelectWork, job: SelectJob) -> int:
    """Compile a group, and write its file. Returns the uncompressed size of its shards.

    Raises the errors of `SelectionRule.find_selected`, and `StoreError` if a shard cannot be read,
    or the file cannot be written.
    """
    samples = job.shards.samples
    flags = np.ones(samples, np.bool_)
    if job.keep is not None:
        flags &= selections.listed.flags_of(job.keep, 0, samples)
    if job.drop is not None:
        flags &= ~selections.listed.flags_of(job.drop, 0, samples)
    if work.rule.reads_shards:
        flags &= _read_flags(work, Corpus((job.dataset,)))
    work.folder.join(job.shards.name).write(selections.files.encode_bits(flags))
    return job.raw_bytes


def _read_flags(work: SelectWork, corpus: Corpus) -> Flags:
    """Read the shards of a group: whether the rule selects each sample, bool [samples]."""
    found = [np.ones(0, np.bool_)]
    with (
        temp_files.explained_full_disk(),
        tempfile.TemporaryDirectory(prefix="cloudload-select-") as folder,
    ):
        cache = ShardCache(corpus, Path(folder), threads=_SHARDS_AHEAD, verify=choices.ONCE)
        shards = MemoryShards(corpus, cache, threads=_SHARDS_AHEAD)
        try:
            last = len(corpus.shard_sizes)
            for index in range(last):
                shards.prefetch(dict.fromkeys(range(index, min(index + 1 + _SHARDS_AHEAD, last))))
                found.append(work.rule.find_selected(shards.shard(index), work.columns))
        finally:
            shards.close()
    return np.concatenate(found)


def _finish(work: SelectWork, jobs: Sequence[SelectJob]) -> selections.files.SelectionIndex:
    """Read the files of all groups, write the index, and remove files of other groups."""

    def read(job: SelectJob) -> selections.files.SelectionGroup:
        location = work.folder.join(job.shards.name)
        try:
            return selections.files.list_group(job.shards, location.read())
        except ValueError as error:
            raise DatasetError(
                f"{location} is damaged: {error}. Remove the file, and run cloudload select again"
            ) from error

    groups = tuple(map_in_order(read, jobs, _READ_AT_ONCE, "cloudload-select"))
    index = selections.files.SelectionIndex(work.rule.describe(), work.rule.default, groups)
    work.folder.join(selections.files.INDEX_NAME).write(index.encode())
    _remove(work, {selections.files.INDEX_NAME, *(group.name for group in groups)})
    return index


def _report(part: _SelectPart, index: selections.files.SelectionIndex, name: str) -> SelectReport:
    dataset, work = part.dataset, part.work
    parts = selections.files.read_selected(work.folder, index, dataset)
    selection = selections.Selection.join(parts, index.samples)
    table = dataset.table
    read = selection.count_between(np.append(0, np.cumsum(table.samples)))
    shares = read / np.maximum(1, table.samples)
    return SelectReport(
        dataset=str(dataset.location),
        name=name,
        location=str(work.folder),
        rule=index.rule,
        default=index.default,
        samples=index.samples,
        selected=index.selected,
        raw_bytes=int(table.raw_bytes.sum()),
        selected_bytes=round(float((shares * table.raw_bytes).sum())),
        shards=len(table),
        read_shards=int((read > 0).sum()),
        read_bytes=int(table.raw_bytes[read > 0].sum()),
        tokens=tuple(_list_tokens(dataset, selection)),
        groups=len(index.groups),
    )


def _list_tokens(dataset: Dataset, selection: selections.Selection) -> Iterator[SelectedTokens]:
    """Yield the tokens of the selected documents, by each count beside the dataset."""
    folder = length_files.lengths_location(dataset, None)
    wanted = lengths_index.index_name(Corpus((dataset,)).fingerprint(range(1)))
    for item in sorted(folder.list_if_exists(), key=lambda each: each.url):
        location = dataset.location.at(item.url)
        if not item.url.endswith(f"/{wanted}"):
            continue
        try:
            index = lengths_index.LengthsIndex.decode(location.read())
        except ValueError as error:
            raise DatasetError(f"{location}: {error}. Run cloudload count again") from error
        key = lengths_index.LengthsKey(**index.key)
        counted = length_files.CountedDataset(dataset, key, folder, index)
        selected = length_files.sum_selected(length_files.read_lengths(counted), selection)
        yield SelectedTokens(str(location), selected, index.total("tokens"))
