"""Run a planned conversion: convert this run's share of the segments in any processes.

    Planned ─┬─► files of segments ─► processes, executor ─┬─► shards, notes ─► finish
             └─► units, one segment ─► this process ───────┘

If all segments of the plan are finished, the run finishes the dataset. Otherwise, another does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from cloudload.errors import ConvertError, StoreError
from cloudload.system import open_progress_bar
from cloudload.tools.convert import conversion_plan, input_records
from cloudload.tools.convert.conversion_report import ConvertReport
from cloudload.tools.convert.finish import finish_dataset, join_segments
from cloudload.tools.convert.joined_segments import list_finished
from cloudload.tools.convert.journal import Journal
from cloudload.tools.convert.planning import Conversion, Planned, check_sizes, read_report_if_joined
from cloudload.tools.convert.segment import SegmentWork, convert_segment, convert_whole
from cloudload.tools.engines.units import Engine, choose_engine, run_units

logger = logging.getLogger("cloudload.convert")


def run_conversion(planned: Planned) -> ConvertReport:
    """Convert this run's share of the segments, and finish the dataset if no segment is missing."""
    run, plan = planned.run, planned.plan
    journal = Journal(run.output, plan.claim, plan.sizes, is_cleared=run.overwrite)
    try:
        segments, finished, resumed = _convert_share(planned)
        joined, report = join_segments(planned, segments, journal)
    except (ConvertError, StoreError):
        # another worker may have joined the segments, and removed the plan, notes, and rejects
        if found := read_report_if_joined(run.output, plan):
            check_sizes(run.location, planned.units)
            return run.already_complete(found)
        raise
    finally:
        if not plan.has_folders:
            journal.remove_unused_plan(plan.digest)
    resumed += sum(joined.new_shards.get(each, 0) for each in finished)
    report = replace(report, resumed_shards=resumed)
    if report.unfinished_segments:
        return replace(report, seconds=journal.seconds())
    return finish_dataset(planned, joined, report, journal)


def _convert_share(planned: Planned) -> tuple[Sequence[int], list[int], int]:
    """Convert the segments of this run's share that are not finished.

    Returns the segments to join, which are only the share if others are not finished; the segments
    that were finished before; and the number of shards of the others that earlier runs stored.
    """
    run, every, resumed = planned.run, planned.indices, 0
    list_done = partial(
        list_finished, run.location, every, planned.plan.digest, with_rejects=bool(run.rejects)
    )
    finished = list_done()
    mine = run.share.take(every) if run.share else every
    waiting = sorted({*mine} - {*finished})
    if finished and waiting:
        logger.info("%d of %d segments are finished", len(mine) - len(waiting), len(mine))
    if waiting and not run.finish:
        convert = _convert_files if planned.blocks is None else _convert_units
        resumed = convert(planned, mine, waiting)
    is_part = run.share is not None and len(list_done()) < len(every)
    return mine if is_part else every, finished, resumed


def _convert_files(planned: Planned, mine: Sequence[int], waiting: Sequence[int]) -> int:
    """Convert the segments that are waiting, of those of this run's share, on an engine."""
    run, plan, segments = planned.run, planned.plan, planned.segments
    first = plan.first_segment
    total, left = (sum(segments.sizes[each - first] for each in some) for some in (mine, waiting))
    indexed = ((each, segments[each - first]) for each in waiting)
    with (
        open_progress_bar("convert", total, done_bytes=total - left, shown=run.progress) as bar,
        open_engine_for(run, plan, len(waiting)) as engine,
    ):
        work = partial(convert_segment, segment_work(run, plan))
        return sum(found for _, found in run_units(work, indexed, engine, on_bytes=bar.update))


def _convert_units(planned: Planned, _: Sequence[int], waiting: Sequence[int]) -> int:
    """Convert inputs that are not all files, as the only segment, in this process."""
    run, units, work = planned.run, planned.units, segment_work(planned.run, planned.plan)
    with open_progress_bar("convert", _total_bytes(units), shown=run.progress) as bar:
        return sum(convert_whole(work, each, units, bar.update, planned.blocks) for each in waiting)


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


def _total_bytes(units: Sequence[input_records.InputUnit]) -> int | None:
    """Return the total size of the input files in bytes, or None if the size of any is unknown."""
    files = [file for unit in units for file in unit.files]
    is_known = bool(files) and all(file.bytes is not None for file in files)
    return input_records.sum_bytes(files) if is_known else None
