"""Rebuild the missing shards of a finished dataset from its inputs.

    index.json ─► missing shards ─► their segments, converted again ─► equal to the index? ─► stored

A shard is a pure function of the inputs, the options, and the index of its segment. The segments
are converted twice. First, all fields of their shards, such as sizes and hashes, are compared with
the index. If any differs, nothing is stored. Then the missing shards are stored. The index and the
report do not change, so readers of the other shards continue.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cloudload.data import Location, own_objects, shard_entries, writer
from cloudload.errors import ConvertError
from cloudload.system import open_progress_bar
from cloudload.tools.convert import conversion_plan
from cloudload.tools.convert.conversion_plan import Segment
from cloudload.tools.convert.found_files import FolderFiles
from cloudload.tools.convert.inputs import group_units
from cloudload.tools.convert.joined_segments import JoinedShards
from cloudload.tools.convert.output_location import collect_at, name_in, segment_folder
from cloudload.tools.convert.planning import Conversion, list_files, make_plan, stored_columns
from cloudload.tools.convert.rerun_check import find_changed
from cloudload.tools.convert.run import open_engine_for, segment_target, segment_work
from cloudload.tools.convert.sample_encoding import ShardContext
from cloudload.tools.convert.segment import SegmentWork, Target, convert_units
from cloudload.tools.convert.segment_journal import SegmentJournal
from cloudload.tools.convert.shard_files import ShardJob, StoredShard, build_shard
from cloudload.tools.engines.units import run_units

logger = logging.getLogger("cloudload.convert")

_ADVICE = "Restore the missing shards from a copy, or convert all inputs again (--overwrite)"


@dataclass(frozen=True)
class _DamagedSegment:
    """A segment with missing shards: its folder, its parts, and its entries in the index by name.

    `lost` has the names of the shards to store; `version` is the `object_version` of the index.
    """

    folder: str
    parts: Segment
    entries: Mapping[str, Mapping[str, Any]]
    lost: frozenset[str]
    version: str


def rebuild_shards(run: Conversion, folders: Sequence[FolderFiles] | None) -> int:
    """Store the shards of a finished dataset that are missing or have a wrong size.

    `folders` are the inputs, or None if not all are files. Returns the number of these shards.
    Raises `ConvertError` if a shard cannot be rebuilt with the same bytes.
    """
    for location in map(run.output.dataset, run.output.splits):
        index, found = location.join(shard_entries.INDEX_NAME), JoinedShards()
        version = conversion_plan.object_version(index)
        entries = json.loads(index.read())["shards"]
        found.add("", entries)
        if not (lost := collect_at(location, found.survey)[0]):
            continue
        stored = json.loads(location.join(own_objects.REPORT_NAME).read())
        obstacle = _find_obstacle(run, stored, folders)
        if folders is None or obstacle:
            raise ConvertError(
                f"{len(lost):,} of {found.shards:,} shards in {location}, such as "
                f"{lost[0]}, are missing or have a different size than the index lists. They "
                f"cannot be rebuilt, because {obstacle}. {_ADVICE}"
            )
        logger.info("rebuilding %s of %s shards", f"{len(lost):,}", f"{found.shards:,}")
        _rebuild(run, stored, folders, entries, lost=lost, version=version)
        return len(lost)
    return 0


def _find_obstacle(
    run: Conversion, stored: Mapping[str, Any], folders: Sequence[FolderFiles] | None
) -> str | None:
    """Return the reason why the shards cannot be rebuilt with the same bytes, or None."""
    if run.share or run.finish:
        return "only a run without worker (--worker) and finish (--finish) rebuilds shards"
    if run.output.has_splits:
        return "the dataset is divided into splits"
    if "appended" in stored:
        return "documents were appended to the dataset"
    if not run.config.hashes:
        return "the index has no hashes to compare"
    if folders is None:
        return "not all inputs are files"
    changed = find_changed(stored, folders)
    return changed and f"{changed} changed since it was converted"


def _rebuild(
    run: Conversion,
    stored: Mapping[str, Any],
    folders: Sequence[FolderFiles],
    entries: Sequence[Mapping[str, Any]],
    *,
    lost: Sequence[str],
    version: str,
) -> None:
    """Convert each segment with `lost` shards again, and store these shards."""
    plan = make_plan(stored["claim"], stored_columns(stored, run.config), run.config, folders)
    segments = plan.segments(list_files(plan, folders, run.config.format))
    folder_of = segment_folder if plan.has_folders else lambda _: ""
    indices = {folder_of(index): index for index in range(len(segments))}
    wanted: dict[str, dict[str, Mapping[str, Any]]]
    wanted = {name.rpartition("/")[0]: {} for name in lost}
    if unknown := wanted.keys() - indices.keys():
        raise _refusal(run.location, f"{min(unknown)}/", "no part of the inputs belongs to it")
    for entry in entries:
        folder, _, _ = (name := _name(entry)).rpartition("/")
        if folder in wanted:
            wanted[folder][name] = entry
    total = 2 * sum(segments.sizes[indices[folder]] for folder in wanted)
    with (
        open_progress_bar("rebuild", total, shown=run.progress) as bar,
        open_engine_for(run, len(wanted), has_folders=plan.has_folders) as engine,
    ):
        work = partial(_rebuild_segment, segment_work(run), segment_target(run, plan))
        # all segments are compared before the first shard is stored
        for stored_now in (frozenset[str](), frozenset(lost)):
            damaged = (
                _DamagedSegment(folder, segments[indices[folder]], named, stored_now, version)
                for folder, named in wanted.items()
            )
            for _ in run_units(work, damaged, engine, on_bytes=bar.update):
                pass


def _name(entry: Mapping[str, Any]) -> str:
    return str((entry["zip_data"] or entry["raw_data"])["basename"])


def _rebuild_segment(
    work: SegmentWork,
    target: Target,
    segment: _DamagedSegment,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> None:
    """Convert a segment, and store its missing shards.

    Raises `ConvertError` if any shard differs from the index.
    """
    output = target.output.of_segment(int(segment.folder)) if segment.folder else target.output
    units = list(group_units(segment.parts, work.config.block_bytes))
    store = partial(_store_if_lost, segment)
    plan = target.plan
    journal = SegmentJournal(output, plan.digest)
    done = convert_units(work, journal, units, on_bytes, columns=plan.columns, store=store)
    if unmade := [*segment.entries][len(done.entries[""]) :]:
        raise _refusal(target.output.home, unmade[0], "the inputs would have fewer documents")


def _store_if_lost(
    segment: _DamagedSegment, context: ShardContext, buffer: writer.ShardBuffer, job: ShardJob
) -> StoredShard:
    """Build a shard, compare it with the index, and store it if it is missing."""
    shard = build_shard(context, buffer, job)
    location, name = context.journal.output.home, name_in(segment.folder, shard.name)
    found = JoinedShards()
    found.add(segment.folder, [shard.entry])
    [made] = json.loads(b"".join(found.index()))["shards"]
    if difference := _compare(segment.entries.get(name), made):
        raise _refusal(location, name, difference)
    if name in segment.lost:
        index = location.join(shard_entries.INDEX_NAME)
        if conversion_plan.object_version(index) != segment.version:
            raise ConvertError(
                f"the index of {location} changed while shards were rebuilt. Run again"
            )
        location.join(name).write(shard.data)
    return StoredShard(shard.entry, [])


def _compare(listed: Mapping[str, Any] | None, made: Mapping[str, Any]) -> str:
    """Describe how a shard would differ from its entry in the index; "" if it would not."""
    if listed is None or listed["raw_data"] != made["raw_data"]:
        return "its documents would differ"
    if listed["zip_data"] != made["zip_data"]:
        return "its documents would be the same, but compressed by another version of the codec"
    return "" if listed == made else "its columns or options would differ"


def _refusal(location: Location, name: str, difference: str) -> ConvertError:
    return ConvertError(
        f"cannot rebuild {name} of {location}, because {difference}, so an input or a "
        f"package changed since the conversion. {_ADVICE}"
    )
