"""Run a conversion: convert the segments of a plan in any processes, then write lengths and index.

    plan ─► convert_segments ─► processes, executor ─► shards, notes ─┬─► report, index.json
         └► convert_as_one_segment ► this process ────────► shards, note ──┘

    journal, or notes of segments ─► lengths of each shard ─► groups, index of the lengths
                                                               └─► then index.json of the dataset

If the dataset's index exists, so do its lengths, because they are written just before it. If a run
is killed before it writes the index, the next run writes the same files again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cloudload.data import Dataset, Location, own_objects, parse_index
from cloudload.errors import ConvertError, StoreError
from cloudload.system import open_progress_bar
from cloudload.tools.convert import conversion_plan, input_records
from cloudload.tools.convert.config import ConvertConfig
from cloudload.tools.convert.conversion_plan import Files
from cloudload.tools.convert.conversion_report import ConvertReport
from cloudload.tools.convert.finish import (
    JoinedSegments,
    JoinedShards,
    join_notes,
    list_finished,
    read_notes,
)
from cloudload.tools.convert.journal import Journal
from cloudload.tools.convert.output_location import Output, does_exist, list_sizes_at
from cloudload.tools.convert.planning import join_base, read_report_if_joined
from cloudload.tools.convert.sample_encoding import join_rejects
from cloudload.tools.convert.segment import SegmentWork, convert_segment, convert_whole
from cloudload.tools.convert.values import PeekableBlocks
from cloudload.tools.count.group import CountWork, count_group, finish_count, list_groups
from cloudload.tools.count.new_shards import ShardLengths, write_groups
from cloudload.tools.engines.units import Engine, Share, choose_engine, run_units

logger = logging.getLogger("cloudload.convert")

_MOST_NAMED = 20


@dataclass(frozen=True)
class Conversion:
    """The output and the options of a run. Only `config` affects the bytes of the output."""

    output: Output
    config: ConvertConfig
    processes: int
    executor: Executor | None
    share: Share | None
    finish: bool
    skip_bad: bool
    rejects: Location | None
    """The location of the file of rejects, or None."""
    progress: bool
    count: CountWork | None = None
    """How to count tokens, or None if they are not counted."""
    overwrite: bool = False
    """Whether this run removed the earlier dataset."""

    @property
    def location(self) -> Location:
        """The location of the output."""
        return self.output.home


def check_sizes(location: Location, units: Sequence[input_records.InputUnit]) -> None:
    """Raise `ConvertError` if a complete dataset may be of other data, as of another iterator."""
    if unknown := [unit.name for unit in units if unit.size is None]:
        raise ConvertError(
            f"{location} is already complete, but cloudload cannot check that it was made "
            f"from {unknown[0]}. Choose another output, or start over (--overwrite)"
        )


def already_complete(report: ConvertReport, run: Conversion, rebuilt: int = 0) -> ConvertReport:
    """Return the report of a dataset of an earlier run. This run rebuilt some of its shards.

    Raises `ConvertError` if bad records were left out and the file of rejects is missing.
    """
    if run.rejects and report.bad and not does_exist(run.rejects):
        raise ConvertError(
            f"{run.location} is already complete, and its bad records were not written to "
            f"{run.rejects}. To write them, convert again with overwrite (--overwrite)"
        )
    return replace(
        report,
        out=str(run.location),
        already_complete=not rebuilt,
        seconds=0.0,
        resumed_shards=report.shards - rebuilt,
        rebuilt_shards=rebuilt,
    )


def convert_segments(
    run: Conversion, plan: conversion_plan.ConversionPlan, files: conversion_plan.Files
) -> ConvertReport:
    """Convert the segments of this run's share, and finish the dataset if no segment is missing.

    `files` are the plan's files.
    """
    segments, first = plan.segments(files), plan.first_segment

    def convert(mine: Sequence[int], waiting: Sequence[int]) -> int:
        total, left = (
            sum(segments.sizes[each - first] for each in some) for some in (mine, waiting)
        )
        indexed = ((each, segments[each - first]) for each in waiting)
        with (
            open_progress_bar("convert", total, done_bytes=total - left, shown=run.progress) as bar,
            open_engine_for(run, plan, len(waiting)) as engine,
        ):
            work = partial(convert_segment, segment_work(run, plan))
            return sum(found for _, found in run_units(work, indexed, engine, on_bytes=bar.update))

    return _convert(run, plan, range(first, first + len(segments)), convert, _describe_names(files))


def convert_as_one_segment(
    run: Conversion,
    plan: conversion_plan.ConversionPlan,
    units: Sequence[input_records.InputUnit],
    blocks: PeekableBlocks,
) -> ConvertReport:
    """Convert inputs that are not all files, as the only segment, in this process.

    `blocks` are the blocks of the units, from which the plan's columns were inferred.
    """

    def convert(_: Sequence[int], waiting: Sequence[int]) -> int:
        with open_progress_bar("convert", _total_bytes(units), shown=run.progress) as bar:
            work = segment_work(run, plan)
            return sum(convert_whole(work, each, units, bar.update, blocks) for each in waiting)

    report = _convert(run, plan, range(1), convert, _describe_names(units))
    if report.already_complete:
        check_sizes(run.location, units)
    return report


def _convert(
    run: Conversion,
    plan: conversion_plan.ConversionPlan,
    every: Sequence[int],
    convert: Callable[[Sequence[int], Sequence[int]], int],
    names: str,
) -> ConvertReport:
    """Convert this run's share of the segments `every`, and finish the dataset if none is missing.

    `convert` takes the indices of the share's segments, and of those that are not finished, and
    returns the number of shards that earlier runs stored, if it is known. `names` describes the
    inputs.
    """
    journal = Journal(run.output, plan.claim, plan.sizes, is_cleared=run.overwrite)
    try:
        joined, report = _convert_and_join(run, plan, every, convert, journal)
    except (ConvertError, StoreError):
        # another worker may have joined the segments, and removed the plan, notes, and rejects
        if found := read_report_if_joined(run.output, plan):
            return already_complete(found, run)
        raise
    finally:
        if not plan.has_folders:
            journal.remove_unused_plan(plan.digest)
    if report.unfinished_segments:
        return replace(report, seconds=journal.seconds())
    return _finish(journal, joined, report, names, plan)


def _convert_and_join(
    run: Conversion,
    plan: conversion_plan.ConversionPlan,
    every: Sequence[int],
    convert: Callable[[Sequence[int], Sequence[int]], int],
    journal: Journal,
) -> tuple[JoinedSegments, ConvertReport]:
    """Convert this run's share, and join the segments: all, or only the share if any is missing.

    Raises `ConvertError` if segments are missing, or if the plan was replaced.
    """
    list_done = partial(
        list_finished, run.location, plan=plan.digest, with_rejects=bool(run.rejects)
    )
    segments, finished, resumed = every, list_done(every), 0
    mine = run.share.take(every) if run.share else every
    waiting = sorted({*mine} - {*finished})
    if finished and waiting:
        logger.info("%d of %d segments are finished", len(mine) - len(waiting), len(mine))
    if waiting and not run.finish:
        resumed = convert(mine, waiting)
    if run.share and len(list_done(every)) < len(every):
        segments = mine
    is_part = len(segments) < len(every)
    start = JoinedSegments.none(run.output.splits) if is_part else join_base(run.output, plan)
    num_old = start.num_shards
    joined, missing = join_notes(run.location, segments, plan, start)
    if missing:
        raise ConvertError(_describe_missing(run.location, missing, len(every)))
    report = replace(
        _report(run, plan, joined),
        resumed_shards=resumed + sum(joined.new_shards.get(each, 0) for each in finished),
        segments=plan.first_segment + len(every),
        unfinished_segments=len(every) - len(segments),
    )
    if is_part:
        return joined, report
    journal.check_plan(plan.digest)
    if run.rejects:
        _join_rejects(run, joined, list_done(joined.with_bad))
    return joined, _write_lengths(run, plan, segments, joined, num_old=num_old, report=report)


def segment_work(run: Conversion, plan: conversion_plan.ConversionPlan) -> SegmentWork:
    """Return the data that all segments of a plan share."""
    return SegmentWork(
        run.output,
        run.config,
        replace(plan, inputs=(), base=None),
        conversion_plan.plan_version(run.location),
        run.skip_bad,
        bool(run.rejects),
        run.count,
    )


def open_engine_for(
    run: Conversion, plan: conversion_plan.ConversionPlan, num_segments: int
) -> AbstractContextManager[Engine | None]:
    """Open the engine on which segments run. A single segment runs in this process."""
    executor = run.executor if plan.has_folders else None
    return choose_engine(executor, min(run.processes, num_segments))


def _join_rejects(run: Conversion, joined: JoinedSegments, finished: Sequence[int]) -> None:
    """Store the rejects of all segments.

    Raises `ConvertError` if a segment left out bad records without storing its rejects.
    """
    assert run.rejects
    if lacking := sorted({*joined.with_bad} - {*finished}):
        raise ConvertError(
            f"the workers of segments {_name_some(lacking)} of {run.location} left out bad "
            "records without storing them. Run these workers again with rejects (--rejects), or "
            "finish without rejects"
        )
    join_rejects(run.location, joined.with_bad, run.rejects)


def _write_lengths(
    run: Conversion,
    plan: conversion_plan.ConversionPlan,
    segments: Sequence[int],
    joined: JoinedSegments,
    *,
    num_old: int,
    report: ConvertReport,
) -> ConvertReport:
    """Write the token lengths, if they are counted, and add the number of tokens to the report.

    The shards after the first `num_old` are those of the segments, whose notes have their lengths.
    If a group contains older shards that were not counted, an engine counts the group. Raises the
    errors of `count_group` and `finish_count`.
    """
    if run.count is None:
        _warn_of_lengths(run, plan)
    if run.count is None or not report.documents:
        return report
    [shards] = joined.datasets.values()
    index = parse_index(b"".join(shards.index()), str(run.location))
    dataset = Dataset(run.location, index, "")
    lengths = map(ShardLengths.decode, _read_lengths(run, plan, segments))
    uncounted = write_groups(run.count, dataset, num_old, lengths)
    if uncounted and run.count.recipe is None:
        raise ConvertError(
            f"{run.location} has older shards without token lengths, and counting them needs the "
            "tokenizer, which the stored plan does not have. Finish with the tokenizer of the "
            "other runs (--tokenizer NAME)"
        )
    with choose_engine(run.executor, 1) as engine:
        for _ in run_units(partial(count_group, run.count), uncounted, engine):
            pass
    counted = finish_count(run.count, dataset, list_groups(run.count, dataset))
    return replace(report, tokens=counted.index.total("tokens"))


def _warn_of_lengths(run: Conversion, plan: conversion_plan.ConversionPlan) -> None:
    """Warn if a dataset to which documents were appended has token lengths."""
    folder = run.location.join(own_objects.LENGTHS_FOLDER)
    if plan.base and list_sizes_at(folder):
        logger.warning(
            "the token lengths of %s do not cover the documents that were appended. Count them: "
            "cloudload count %s --tokenizer NAME",
            *[run.location] * 2,
        )


def _read_lengths(
    run: Conversion, plan: conversion_plan.ConversionPlan, segments: Sequence[int]
) -> Iterator[str]:
    """Yield the token lengths of the shards of segments, in order.

    Raises `ConvertError` if a segment's note disappeared.
    """
    for segment, note in read_notes(run.location, segments, plan.digest):
        if note is None:
            raise ConvertError(_describe_missing(run.location, [segment], len(segments)))
        yield from note.lengths


def _describe_missing(location: Location, missing: Sequence[int], total: int) -> str:
    return (
        f"{location} is not finished, because {len(missing):,} of {total:,} segments are "
        f"missing ({_name_some(missing)}). Run the workers of these segments again, or convert "
        "without --finish"
    )


def _name_some(segments: Sequence[int]) -> str:
    more = f", and {len(segments) - _MOST_NAMED:,} more" if len(segments) > _MOST_NAMED else ""
    return ", ".join(map(str, segments[:_MOST_NAMED])) + more


# ---------------------------------------------------------------- report


def _report(
    run: Conversion, plan: conversion_plan.ConversionPlan, joined: JoinedSegments
) -> ConvertReport:
    """Return the report of the joined segments, and of the dataset to which they are appended."""
    base = ConvertReport.of_stored(plan.base["stored"]) if plan.base else None
    counts, datasets = joined.counts, joined.datasets
    return ConvertReport(
        out=str(run.location),
        **counts.to_report(),
        **plan.hidden,
        **_sum_sizes(datasets.values()),
        files=plan.num_files + (base.files if base else 0),
        columns={"text": "str", "id": "str"} | {each.name: each.encoding for each in plan.columns},
        splits={
            name: {
                "documents": found.documents,
                "text_bytes": counts.split_bytes.get(name, 0),
                **_sum_sizes([found]),
            }
            for name, found in datasets.items()
            if name
        },
        added_documents=counts.documents - base.documents if base else None,
        added_input_bytes=counts.input_bytes - base.input_bytes if base else None,
    )


def _sum_sizes(datasets: Collection[JoinedShards]) -> dict[str, Any]:
    names = ("raw_bytes", "stored_bytes", "shards")
    return {name: sum(getattr(each, name) for each in datasets) for name in names}


def _finish(
    journal: Journal,
    joined: JoinedSegments,
    report: ConvertReport,
    inputs: str,
    plan: conversion_plan.ConversionPlan,
) -> ConvertReport:
    """Write the reports and the indexes. Raises `ConvertError` if there are no documents.

    `inputs` describes the input in that error message.
    """
    if report.documents:
        for name in (name for name, split in report.splits.items() if not split["documents"]):
            logger.warning(
                "the split %s has no documents, so a loader cannot open its empty dataset. Give "
                "the split a larger share, or convert more documents",
                name,
            )
        return journal.finish(joined.datasets, report, plan)
    journal.remove()
    first = f" The first bad record is {report.bad_records[0]}." if report.bad else ""
    raise ConvertError(
        f"found no documents in {inputs} (empty documents: {report.empty:,}, bad records: "
        f"{report.bad:,}).{first} No dataset was written. Check the input and text_key (--text-key)"
    )


def _describe_names(inputs: Files | Sequence[input_records.InputUnit]) -> str:
    """Name the first file or unit, and count the other ones."""
    more = f" and {len(inputs) - 1:,} more" if len(inputs) > 1 else ""
    return f"{inputs[0].name}{more}"


def _total_bytes(units: Sequence[input_records.InputUnit]) -> int | None:
    """Return the total size of the input files in bytes, or None if the size of any is unknown."""
    files = [file for unit in units for file in unit.files]
    is_known = bool(files) and all(file.bytes is not None for file in files)
    return input_records.sum_bytes(files) if is_known else None
