"""Convert raw corpora to MDS, and resume a conversion that was stopped or killed.

    inputs ─► one segment ─────────────────────────► shards ──────────────┐
           └► plan ─► segments, on any processes ──► NNNNN/shards, notes ─┴─► index.json

The output has the same bytes for any number of processes, machines and interruptions. A conversion
resumes after the shards that its journals (`cloudload.convert.journal`) list.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from cloudload.convert.changed_files import MOST_FILES, list_sizes
from cloudload.convert.columns import PeekableBlocks, infer_columns
from cloudload.convert.config import ConvertConfig
from cloudload.convert.finish import Joined, join_notes, list_finished
from cloudload.convert.inputs import FolderFiles, list_inputs, list_roots, list_units
from cloudload.convert.journal import (
    ConvertReport,
    InputPosition,
    Journal,
    compare_claims,
    read_if_exists,
)
from cloudload.convert.plan import (
    PLAN_NAME,
    Plan,
    check_files,
    check_versions,
    list_versions,
    plan_input,
)
from cloudload.convert.records import DEFAULT_BLOCK_BYTES, InputUnit, sum_bytes
from cloudload.convert.segment import SegmentWork, convert_segment, convert_units, read_blocks
from cloudload.convert.segments import DEFAULT_SEGMENT_BYTES, Segment, count_bytes, cut_segments
from cloudload.engines.local import open_processes
from cloudload.engines.shares import Share
from cloudload.engines.units import run_units
from cloudload.errors import ConvertError
from cloudload.mds.index import Column
from cloudload.mds.writer import DEFAULT_SHARD_BYTES
from cloudload.option_names import suggests_names
from cloudload.storage.objects import create_object
from cloudload.storage.redaction import redact
from cloudload.storage.urls import check_location, is_local, join_url, local_path
from cloudload.system.progress_bar import open_progress_bar

logger = logging.getLogger(__name__)

_MOST_NAMED = 20


@suggests_names
def convert_to_mds(
    inputs: Any,
    out: str | os.PathLike[str],
    *,
    text_key: str = "text",
    id_key: str = "id",
    keep: Sequence[str] = (),
    format: str = "auto",
    split: str | None = None,
    compression: str | None = "zstd",
    hashes: Sequence[str] = ("xxh64",),
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    segment_bytes: int = DEFAULT_SEGMENT_BYTES,
    processes: int | None = None,
    executor: Executor | None = None,
    worker: str | None = None,
    finish: bool = False,
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> ConvertReport:
    """Convert the documents of `inputs` to an MDS dataset, or resume a conversion.

    The input is cut into segments of about `segment_bytes`. Each process or machine takes whole
    segments, and the output has the same bytes whatever runs them. Shards of several segments are
    in folders `00000`, `00001`, and so on; a single segment has no folder.

    To resume a conversion that was stopped or killed, call this again with the same arguments, but
    without `overwrite`. `processes`, `executor`, `worker`, `finish`, `skip_bad` and `progress` may
    differ. File names and sizes identify the input; a file that changes during the conversion is
    refused if its store has ETags, generations, or times of change.

    Args:
        inputs: one input or a list of them: a file, folder or glob, local or in a store; `-` for
            stdin; `hf://NAME`; a `datasets` object; an iterator (not a list) of mappings or
            strings.
        out: the location of the dataset: a folder or URL that neither contains an input nor is
            inside one.
        text_key: the field that holds the document. `meta.url` is a field within another one.
        id_key: the field that becomes `id` if it is an integer or a nonempty string. Otherwise `id`
            is `NAME:NUMBER`, from the name of the file or dataset and the line or row; or the file
            name alone, for a file that is one document (format `text`). In a file of lines that is
            cut into segments, it is `NAME:@OFFSET`, the offset of the line in bytes.
        keep: other fields to keep, each as `name` or `name:encoding`. If the encoding is omitted,
            it is inferred from the first record in which the field is not null.
        format: `auto` chooses by file name: `text` for unknown extensions, `jsonl` for stdin; it
            refuses extensions of tables, archives, and other files that are not text. To
            choose for all files, pass `jsonl`, `parquet`, `text` (one document per file) or `lines`
            (one document per line).
        split: write to this folder below `out`. Also the split to read from a `DatasetDict`, or
            from an `hf://` input without `?split=`.
        compression: `zstd`, `gz`, `bz2` or `br`, optionally with `:LEVEL`; or None.
        hashes: hash algorithms. The index lists these hashes of each shard.
        shard_bytes: the maximum raw size, in bytes, of a shard that holds several documents; 64 MiB
            by default.
        block_bytes: approximate bytes of input per block, 8 MiB by default. A block is the unit of
            work.
        segment_bytes: stored input bytes of a segment; 256 MiB by default. Uncompressed lines and
            Parquet files larger than this are cut. A compressed file is never cut. Each segment
            ends with a shard that may be short. An iterator, a `datasets` object and stdin are one
            segment.
        processes: number of worker processes, one per available core by default. Each takes one
            segment at a time. With 1, all work is done in this process.
        executor: run the segments on this `concurrent.futures.Executor` instead, such as a
            `cloudload.engines.ray.RayExecutor`. Its workers must have access to the input and the
            output, and the same versions of cloudload and of codecs.
        worker: convert only one share of the segments, as one of several jobs: `I/N`, with I from 0
            to N - 1, or `auto` in a job of a Slurm array, a Kubernetes Indexed Job, or AWS Batch.
            The worker that finishes last also writes the index.
        finish: convert nothing. Write the index if all segments are finished, or raise
            `ConvertError` with those that are not.
        skip_bad: leave out and count bad records instead of raising `ConvertError`.
        overwrite: first remove the dataset, or an unfinished conversion, at `out`.
        progress: show a progress bar on stderr.

    Returns:
        The report, which is also stored in `convert-report.json` beside the index.

    Raises:
        ValueError: an argument is invalid, or a file is in the inputs twice.
        ConvertError: an input has no files or cannot be read as its format, a record is bad, a kept
            field is not found, a package is not installed, there are no documents, or `out` holds a
            dataset or conversion that differs or cannot be compared.
        StoreError: an input is missing or cannot be read, or the output cannot be written.
        WorkerError: a worker process failed or died.
    """
    for name, value in {"keep": keep, "hashes": hashes}.items():
        if isinstance(value, str):
            raise ValueError(f"{name} is the string {value!r}. Pass a list: {name}=[{value!r}]")
    config = ConvertConfig(
        text_key,
        id_key,
        tuple(keep),
        format,
        compression,
        tuple(sorted(set(hashes))),  # the order that Streaming's writer uses
        shard_bytes,
        block_bytes,
    )
    processes = len(os.sched_getaffinity(0)) if processes is None else processes
    for name, number in {"processes": processes, "segment_bytes": segment_bytes}.items():
        if number < 1:
            raise ValueError(f"{name} is {number}. Use at least 1")
    share = Share.parse(worker) if worker is not None else None
    if overwrite and (share or finish):
        raise ValueError(
            "each worker would remove the work of the others. First remove the output, or run once "
            "without worker and finish to overwrite it"
        )
    location = _output_location(os.fspath(out), split)
    _check_not_within(location, inputs)
    recipe = asdict(config) | {"keep": list(keep), "hashes": list(hashes)}
    recipe["segment_bytes"] = segment_bytes
    run = _Run(location, config, processes, executor, share, finish, skip_bad, progress)
    if (share or finish) and (data := read_if_exists(join_url(location, PLAN_NAME))):
        # do not list a million files in each of a thousand workers
        plan = Plan.parse(data)
        compare_claims(location, plan.claim, {"recipe": recipe, "inputs": {}})
        return _convert_segments(run, plan, list_roots(inputs))
    listed = list_inputs(inputs, format, split)
    units = list_units(listed, block_bytes)
    if any(file.url.startswith(f"{location}/") for unit in units for file in unit.files):
        raise ValueError(
            f"the output {redact(location)} contains inputs. Choose a folder beside them"
        )
    journal = Journal(location, {"recipe": recipe, "inputs": _identify(units)}, list_sizes(units))
    if overwrite:
        journal.clear()
    if report := journal.finished_report():
        if unknown := [unit.name for unit in units if unit.size is None]:
            raise ConvertError(
                f"{redact(location)} is already complete, but cloudload cannot check that it was "
                f"made from {unknown[0]}. Choose another output, or overwrite it (--overwrite)"
            )
        return _already_complete(report, location)
    folders = [item for item in listed if isinstance(item, FolderFiles)]
    if len(folders) == len(listed) and _has_segments(folders, segment_bytes, journal):
        plan = _agree_on_plan(journal, config, folders, units)
        return _convert_segments(run, plan, [item.root for item in folders])
    return _convert_one_segment(run, units, journal)


@dataclass(frozen=True)
class _Run:
    """Where the output is, and how this run converts; nothing but `config` changes the output."""

    location: str
    config: ConvertConfig
    processes: int
    executor: Executor | None
    share: Share | None
    finish: bool
    skip_bad: bool
    progress: bool


def _already_complete(report: ConvertReport, location: str) -> ConvertReport:
    return replace(
        report,
        out=redact(location),
        already_complete=True,
        seconds=0.0,
        resumed_shards=report.shards,
    )


def _output_location(out: str, split: str | None) -> str:
    check_location(out)
    if split is not None and (not split or split.startswith(("/", ".")) or ".." in split):
        raise ValueError(f"split is {split!r}. Use a plain name such as 'train'")
    return join_url(str(local_path(out)) if is_local(out) else out.rstrip("/"), split or "")


def _check_not_within(location: str, inputs: Any) -> None:
    """Raise `ValueError` for an output in an input folder, where a rerun would read it as input."""
    for item in inputs if isinstance(inputs, list | tuple) else [inputs]:
        folder = os.fspath(item) if isinstance(item, str | os.PathLike) else ""
        if not folder or folder == "-" or is_local(folder) != is_local(location):
            continue
        inner, outer = (
            os.path.abspath(local_path(url)) if is_local(url) else url.rstrip("/")
            for url in (location, folder)
        )
        if f"{inner}/".startswith(f"{outer}/"):
            raise ValueError(
                f"the output {redact(location)} is inside the input {redact(folder)}. Choose a "
                "folder beside it"
            )


def _identify(units: Sequence[InputUnit]) -> dict[str, Any]:
    """Return a digest of the names and sizes by which a rerun recognizes its input, with totals."""
    files = [file for unit in units for file in unit.files]
    listing = [
        [unit.name, unit.size, [[file.name, file.bytes] for file in unit.files]] for unit in units
    ]
    digest = hashlib.sha256(json.dumps(listing).encode()).hexdigest()
    return {"names and sizes": digest[:32], "files": len(files), "bytes": sum_bytes(files)}


# ---------------------------------------------------------------- one segment


def _convert_one_segment(run: _Run, units: Sequence[InputUnit], journal: Journal) -> ConvertReport:
    """Convert the units in this process, without a plan and without a folder for the segment."""
    if run.finish or (run.share and run.share.index > 0):
        if run.finish:
            raise ConvertError(
                f"{redact(run.location)} is not finished: its only segment is missing. Convert it "
                "without --finish"
            )
        logger.info("the input is one segment, which worker 0 converts")
        return _report(run, Joined(), len(units), {}, unfinished=1)
    total = _total_bytes(units)
    with open_progress_bar("convert", total, shown=run.progress) as bar:
        done = convert_units(
            units,
            run.config,
            journal,
            columns=None,
            skip_bad=run.skip_bad,
            on_bytes=bar.update,
        )
    joined = Joined()
    joined.add("", done.entries, done.counts)
    files = sum(len(unit.files) for unit in units)
    report = _report(run, joined, files, done.columns or (), resumed=done.resumed)
    return _finish(journal, joined, report, units[0].name, len(units))


# ---------------------------------------------------------------- segments


def _has_segments(folders: Sequence[FolderFiles], segment_bytes: int, journal: Journal) -> bool:
    """Whether the files are several segments, and were not begun as one by an earlier version."""
    files = [file for item in folders for file in item.files]
    if any(file.url == "-" for file in files):
        return False
    return len(cut_segments(files, segment_bytes)) > 1 and not journal.is_begun()


def _agree_on_plan(
    journal: Journal,
    config: ConvertConfig,
    folders: Sequence[FolderFiles],
    units: Sequence[InputUnit],
) -> Plan:
    """Store the plan, or return the one that is stored if it is for the same conversion.

    Raises `ConvertError` if it is not, which names the difference.
    """
    url = join_url(journal.location, PLAN_NAME)
    inputs = tuple(map(plan_input, folders))
    data = read_if_exists(url)
    if data is None:
        blocks = PeekableBlocks(read_blocks(units, InputPosition(), config))
        columns = infer_columns(config, blocks)
        formats = {file.format for item in folders for file in item.files}
        plan = Plan(journal.claim, columns, list_versions(config, formats), inputs)
        data = create_object(url, plan.encoded)
    plan = Plan.parse(data)
    compare_claims(journal.location, plan.claim, journal.claim, plan.sizes, journal.files)
    check_versions(plan.versions)
    check_files(plan, inputs)
    return plan


def _convert_segments(run: _Run, plan: Plan, roots: Sequence[str]) -> ConvertReport:
    """Convert the segments of this run's share, and finish the dataset if none is missing."""
    sizes = plan.sizes
    journal = Journal(run.location, plan.claim, sizes if len(sizes) <= MOST_FILES else {})
    segments = plan.segments(roots, run.config.format)
    numbers = [number for number, _ in segments]
    finished = list_finished(run.location, numbers)
    mine = run.share.take(segments) if run.share else segments
    if not run.finish:
        _run_segments(run, plan, mine, set(finished))
    if run.share and len(list_finished(run.location, numbers)) < len(numbers):
        numbers = [number for number, _ in mine]
    joined, missing = join_notes(run.location, numbers, plan.digest, Joined())
    if missing and (report := journal.finished_report()):  # another worker has just finished it
        return _already_complete(report, run.location)
    if missing:
        raise ConvertError(_describe_missing(run.location, missing, len(segments)))
    resumed = sum(joined.shards_of(number) for number in finished)
    report = _report(
        run,
        joined,
        len(sizes),
        plan.columns,
        resumed=resumed,
        unfinished=len(segments) - len(numbers),
        segments=len(segments),
    )
    if report.unfinished_segments:
        return replace(report, seconds=journal.seconds())
    return _finish(journal, joined, report, next(iter(sizes)), len(sizes))


def _run_segments(
    run: _Run, plan: Plan, mine: Sequence[tuple[int, Segment]], finished: set[int]
) -> None:
    """Convert those of the segments that are not finished."""
    waiting = [item for item in mine if item[0] not in finished]
    if finished and waiting:
        logger.info("%d of %d segments are finished", len(mine) - len(waiting), len(mine))
    work = SegmentWork(
        run.location, run.config, plan.columns, plan.versions, plan.digest, run.skip_bad
    )
    total, left = (
        sum(count_bytes(part) for _, parts in items for part in parts) for items in (mine, waiting)
    )
    with (
        open_progress_bar("convert", total, done_bytes=total - left, shown=run.progress) as bar,
        _open_executor(run, len(waiting)) as executor,
    ):
        if executor is None:
            for item in waiting:
                convert_segment(work, item, bar.update)
            return
        for _, size in run_units(partial(convert_segment, work), waiting, executor):
            bar.update(size)


@contextmanager
def _open_executor(run: _Run, units: int) -> Iterator[Executor | None]:
    with (
        nullcontext(run.executor) if run.executor else open_processes(min(run.processes, units))
    ) as executor:
        yield executor


def _describe_missing(location: str, missing: Sequence[int], total: int) -> str:
    named = ", ".join(map(str, missing[:_MOST_NAMED]))
    more = f", and {len(missing) - _MOST_NAMED:,} more" if len(missing) > _MOST_NAMED else ""
    return (
        f"{redact(location)} is not finished: {len(missing):,} of {total:,} segments are missing "
        f"({named}{more}). Run their workers again, or convert without --finish"
    )


# ---------------------------------------------------------------- report


def _report(
    run: _Run,
    joined: Joined,
    files: int,
    columns: Iterable[Column],
    *,
    resumed: int = 0,
    unfinished: int = 0,
    segments: int = 1,
) -> ConvertReport:
    kept = {column.name: column.encoding for column in columns}
    return ConvertReport(
        out=redact(run.location),
        **vars(joined.counts),
        files=files,
        raw_bytes=joined.raw_bytes,
        stored_bytes=sum(joined.stored.values()),
        shards=len(joined.stored),
        columns={"text": "str", "id": "str"} | kept,
        resumed_shards=resumed,
        segments=segments,
        unfinished_segments=unfinished,
    )


def _finish(
    journal: Journal, joined: Joined, report: ConvertReport, first: str, count: int
) -> ConvertReport:
    """Write the report and the index. Raises `ConvertError` if there are no documents."""
    if joined.texts:
        return journal.finish(joined.index(), joined.stored, report)
    journal.remove()
    name = f"{first} and {count - 1:,} more" if count > 1 else first
    raise ConvertError(
        f"no documents in {name}: {report.empty:,} empty, {report.bad:,} bad. No dataset was "
        "written. Check the input"
    )


def _total_bytes(units: Sequence[InputUnit]) -> int | None:
    """The size of all input files, or None if the input is not only files of known sizes."""
    files = [file for unit in units for file in unit.files]
    is_known = bool(files) and all(file.bytes is not None for file in files)
    return sum_bytes(files) if is_known else None
