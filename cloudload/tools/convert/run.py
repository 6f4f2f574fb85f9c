"""Run planned conversions: convert this run's share of their segments in any processes.

    Planned ─┬─► files of segments ─► processes, executor ─┬─► shards, notes ─► finish
             └─► units, one segment ─► this process ───────┘

The segments of all plans share the processes. If all segments of a plan are finished, the run
finishes its dataset. Otherwise, another run does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from cloudload.errors import ConvertError, StoreError
from cloudload.system import open_progress_bar
from cloudload.tools.convert import conversion_plan, input_records
from cloudload.tools.convert.conversion_report import ConvertReport
from cloudload.tools.convert.finish import describe_no_documents, finish_dataset, join_segments
from cloudload.tools.convert.joined_segments import list_finished
from cloudload.tools.convert.journal import Journal
from cloudload.tools.convert.planning import Conversion, Planned, check_sizes, read_report_if_joined
from cloudload.tools.convert.segment import SegmentWork, Target, convert_segment, convert_whole
from cloudload.tools.engines.units import Engine, choose_engine, for_each, run_units

logger = logging.getLogger("cloudload.convert")


@dataclass
class _OwnShare:
    """A planned conversion, and this run's share of its segments."""

    planned: Planned
    journal: Journal
    mine: Sequence[int]
    """The segments of this run's share."""
    finished: frozenset[int]
    """The segments that were finished before this run."""
    resumed: int = 0
    """The number of shards of the only segment that earlier runs stored."""

    @property
    def waiting(self) -> list[int]:
        """The segments of this run's share that are not finished."""
        return [each for each in self.mine if each not in self.finished]

    def size_of(self, segment: int) -> int:
        """Return the number of stored bytes of a segment."""
        return self.planned.segments.sizes[segment - self.planned.plan.first_segment]


def run_conversions(several: Sequence[Planned]) -> list[ConvertReport]:
    """Convert this run's share of the segments, and finish each dataset that lacks no segment.

    Returns the report of each conversion. All of them have the same options. If one cannot be
    finished, the others are, and then its error is raised.
    """
    parts = for_each(_open_part, several)
    try:
        _convert(parts)
    except BaseException as error:
        if isinstance(error, ConvertError | StoreError):
            found = [report for report in for_each(_read_if_joined, parts) if report]
            if len(found) == len(parts):
                return found
        for_each(_remove_unused_plan, parts)
        raise
    return for_each(_finish, parts)


def _open_part(planned: Planned) -> _OwnShare:
    run, plan = planned.run, planned.plan
    journal = Journal(run.output, plan.claim, plan.sizes, is_cleared=run.overwrite)
    mine = run.share.take(planned.indices) if run.share else planned.indices
    return _OwnShare(planned, journal, mine, frozenset(_list_done(planned)))


def _list_done(planned: Planned) -> list[int]:
    run, plan = planned.run, planned.plan
    has_rejects = bool(run.rejects)
    return list_finished(run.location, planned.indices, plan.digest, with_rejects=has_rejects)


def _read_if_joined(part: _OwnShare) -> ConvertReport | None:
    """Return the report if another worker has joined the segments, or None.

    It has then also removed the plan, the notes, and the rejects.
    """
    planned = part.planned
    found = read_report_if_joined(planned.run.output, planned.plan)
    if found is None:
        return None
    check_sizes(planned.run.location, planned.units)
    return planned.run.already_complete(found)


def _remove_unused_plan(part: _OwnShare) -> None:
    if not part.planned.plan.has_folders:
        part.journal.remove_unused_plan(part.planned.plan.digest)


def _finish(part: _OwnShare) -> ConvertReport:
    """Finish a dataset, or return the report of this run's share if segments are missing."""
    planned, journal = part.planned, part.journal
    every = planned.indices
    try:
        is_part = planned.run.share is not None and len(_list_done(planned)) < len(every)
        joined, report = join_segments(planned, part.mine if is_part else every, journal)
    except (ConvertError, StoreError):
        if (found := _read_if_joined(part)) is not None:
            return found
        _remove_unused_plan(part)
        raise
    resumed = part.resumed + sum(joined.new_shards.get(each, 0) for each in part.finished)
    report = replace(report, resumed_shards=resumed)
    if report.unfinished_segments or (planned.run.may_be_empty and not report.documents):
        return replace(report, seconds=journal.seconds())
    if not report.documents:
        journal.remove()
        raise ConvertError(describe_no_documents(planned, report))
    return finish_dataset(planned, joined, report, journal)


def _convert(parts: Sequence[_OwnShare]) -> None:
    """Convert the segments of this run's share that are not finished."""
    run = parts[0].planned.run
    waiting = [(place, each) for place, part in enumerate(parts) for each in part.waiting]
    total = sum(len(part.mine) for part in parts)
    if waiting and len(waiting) < total:
        logger.info("%d of %d segments are finished", total - len(waiting), total)
    if not waiting or run.finish:
        return
    if parts[0].planned.blocks is None:
        _convert_files(run, parts, waiting)
    else:
        [part] = parts
        part.resumed = _convert_units(part.planned, part.waiting)


def _convert_files(
    run: Conversion, parts: Sequence[_OwnShare], waiting: Sequence[tuple[int, int]]
) -> None:
    """Convert the segments that are waiting on an engine. `waiting` has (part, segment)."""
    total = sum(part.size_of(each) for part in parts for each in part.mine)
    left = sum(parts[place].size_of(segment) for place, segment in waiting)
    targets = for_each(lambda part: segment_target(part.planned.run, part.planned.plan), parts)
    indexed = (
        (targets[place], segment, parts[place].planned.segment(segment))
        for place, segment in waiting
    )
    has_folders = len(parts) > 1 or parts[0].planned.plan.has_folders
    with (
        open_progress_bar("convert", total, done_bytes=total - left, shown=run.progress) as bar,
        open_engine_for(run, len(waiting), has_folders=has_folders) as engine,
    ):
        work = partial(convert_segment, segment_work(run))
        for done, resumed in run_units(work, indexed, engine, on_bytes=bar.update):
            parts[waiting[done][0]].resumed += resumed


def _convert_units(planned: Planned, waiting: Sequence[int]) -> int:
    """Convert inputs that are not all files, as the only segment, in this process.

    Returns the number of shards that earlier runs stored.
    """
    run, units = planned.run, planned.units
    work, target = segment_work(run), segment_target(run, planned.plan)
    with open_progress_bar("convert", _total_bytes(units), shown=run.progress) as bar:
        return sum(
            convert_whole(work, target, each, units, bar.update, blocks=planned.blocks)
            for each in waiting
        )


def segment_work(run: Conversion) -> SegmentWork:
    """Return the options that all segments of a run share."""
    return SegmentWork(run.config, run.skip_bad, bool(run.rejects), run.count)


def segment_target(run: Conversion, plan: conversion_plan.ConversionPlan) -> Target:
    """Return the datasets to which the segments of a plan belong."""
    version = conversion_plan.plan_version(run.location)
    return Target(run.output, replace(plan, inputs=(), base=None), version)


def open_engine_for(
    run: Conversion, num_segments: int, *, has_folders: bool
) -> AbstractContextManager[Engine | None]:
    """Open the engine on which segments run. A single segment runs in this process."""
    executor = run.executor if has_folders else None
    return choose_engine(executor, min(run.processes, num_segments))


def _total_bytes(units: Sequence[input_records.InputUnit]) -> int | None:
    """Return the total size of the input files in bytes, or None if the size of any is unknown."""
    files = [file for unit in units for file in unit.files]
    is_known = bool(files) and all(file.bytes is not None for file in files)
    return input_records.sum_bytes(files) if is_known else None
