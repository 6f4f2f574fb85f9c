"""Finish a conversion: join its segments, and write token lengths, report, and index, in order.

    notes of segments ─┬─► lengths of each shard ─► groups, index of the lengths
                       └─► report ─────────────────────► convert-report.json ─► index.json

If the dataset's index exists, so do its lengths, because they are written just before it. If a run
is killed before it writes the index, the next run writes the same files again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from cloudload.data import (
    Dataset,
    Location,
    own_objects,
    parse_index,
    refuse_to_hide,
    shard_entries,
)
from cloudload.errors import ConvertError
from cloudload.tools.convert.conversion_report import ConvertReport
from cloudload.tools.convert.joined_segments import (
    JoinedSegments,
    JoinedShards,
    join_notes,
    list_finished,
    read_notes,
)
from cloudload.tools.convert.journal import Journal
from cloudload.tools.convert.output_location import collect_at, list_sizes_at
from cloudload.tools.convert.planning import Planned, join_base
from cloudload.tools.convert.rerun_check import CONVERTED, encode_files, join_files
from cloudload.tools.convert.sample_encoding import join_rejects
from cloudload.tools.convert.segment_journal import check_documents
from cloudload.tools.count.group import count_group, finish_count, list_groups
from cloudload.tools.count.new_shards import ShardLengths, write_groups
from cloudload.tools.engines.units import choose_engine, run_units

logger = logging.getLogger("cloudload.convert")

_MOST_NAMED = 20


def join_segments(
    planned: Planned, segments: Sequence[int], journal: Journal
) -> tuple[JoinedSegments, ConvertReport]:
    """Join segments, which are all, or this run's share, and return their shards and their report.

    If they are all, also writes their rejects and token lengths. Raises `ConvertError` if segments
    are missing, or if the plan was replaced.
    """
    run, plan, total = planned.run, planned.plan, len(planned.indices)
    is_part = len(segments) < total
    start = JoinedSegments.none(run.output.splits) if is_part else join_base(run.output, plan)
    num_old = start.num_shards
    joined, missing = join_notes(run.location, segments, plan, start)
    if missing:
        raise ConvertError(_describe_missing(run.location, missing, total))
    report = replace(
        _report(planned, joined),
        segments=plan.first_segment + total,
        unfinished_segments=total - len(segments),
    )
    if is_part:
        return joined, report
    journal.check_plan(plan.digest)
    if run.rejects:
        _join_rejects(planned, joined)
    return joined, _write_lengths(planned, joined, num_old, report)


def _report(planned: Planned, joined: JoinedSegments) -> ConvertReport:
    """Return the report of the joined segments, and of the dataset to which they are appended."""
    run, plan = planned.run, planned.plan
    base = ConvertReport.of_stored(plan.base["stored"]) if plan.base else None
    counts, datasets = joined.counts, joined.datasets
    return ConvertReport(
        out=str(run.location),
        **counts.to_report(),
        **plan.hidden,
        **_sum_sizes(datasets.values()),
        files=plan.num_files + (base.files if base else 0),
        columns=run.config.own_columns | {each.name: each.encoding for each in plan.columns},
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


def _join_rejects(planned: Planned, joined: JoinedSegments) -> None:
    """Store the rejects of all segments.

    Raises `ConvertError` if a segment left out bad records without storing its rejects.
    """
    run = planned.run
    assert run.rejects
    finished = list_finished(run.location, joined.with_bad, planned.plan.digest, with_rejects=True)
    if lacking := sorted({*joined.with_bad} - {*finished}):
        raise ConvertError(
            f"the workers of segments {_name_some(lacking)} of {run.location} left out bad "
            "records without storing them. Run these workers again with rejects (--rejects), or "
            "finish without rejects"
        )
    join_rejects(run.location, joined.with_bad, run.rejects)


def _write_lengths(
    planned: Planned, joined: JoinedSegments, num_old: int, report: ConvertReport
) -> ConvertReport:
    """Write the token lengths, if they are counted, and add the number of tokens to the report.

    The shards after the first `num_old` are those of the segments, whose notes have their lengths.
    If a group contains older shards that were not counted, an engine counts the group. Raises the
    errors of `count_group` and `finish_count`.
    """
    run = planned.run
    if run.count is None:
        _warn_of_lengths(planned)
    if run.count is None:
        return report
    if not report.documents:
        return replace(report, tokens=0)
    [shards] = joined.datasets.values()
    index = parse_index(b"".join(shards.index()), str(run.location))
    dataset = Dataset(run.location, index, "")
    lengths = map(ShardLengths.decode, _read_lengths(planned))
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


def _warn_of_lengths(planned: Planned) -> None:
    """Warn if a dataset to which documents were appended has token lengths."""
    location = planned.run.location
    folder = location.join(own_objects.LENGTHS_FOLDER)
    if planned.plan.base and list_sizes_at(folder):
        logger.warning(
            "the token lengths of %s do not cover the documents that were appended. Count them: "
            "cloudload count %s --tokenizer NAME",
            *[location] * 2,
        )


def _read_lengths(planned: Planned) -> Iterator[str]:
    """Yield the token lengths of the shards of all segments, in order.

    Raises `ConvertError` if a segment's note disappeared.
    """
    location, segments = planned.run.location, planned.indices
    for segment, note in read_notes(location, segments, planned.plan.digest):
        if note is None:
            raise ConvertError(_describe_missing(location, [segment], len(segments)))
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


def describe_no_documents(planned: Planned, report: ConvertReport) -> str:
    """Describe the error of a conversion that found no documents."""
    first = f" The first bad record is {report.bad_records[0]}." if report.bad else ""
    return (
        f"found no documents in {planned.describe_inputs()} (empty documents: {report.empty:,}, "
        f"bad records: {report.bad:,}).{first} No dataset was written to {report.out}. Check the "
        "input and text_key (--text-key)"
    )


def finish_dataset(
    planned: Planned, joined: JoinedSegments, report: ConvertReport, journal: Journal
) -> ConvertReport:
    """Store the report and then the index of each dataset, and remove the journal.

    Returns the report, with the duration added. Raises `ConvertError` if the shards lack or repeat
    a document, if a stored shard is missing or has the wrong size, or if a new index would hide
    other datasets.
    """
    run = planned.run
    for name in (name for name, split in report.splits.items() if not split["documents"]):
        logger.warning(
            "the split %s has no documents, so a loader cannot open its empty dataset. Give "
            "the split a larger share, or convert more documents",
            name,
        )
    documents = sum(found.documents for found in joined.datasets.values())
    check_documents(journal.location, documents, report.counts())
    for split, found in joined.datasets.items():
        _check_stored(run.output.dataset(split), found, replaces=journal.is_cleared)
    report = replace(report, seconds=journal.seconds())
    content = _identify(planned, journal)
    for split, found in joined.datasets.items():
        location = run.output.dataset(split)
        stored = content | report.to_store(split)
        location.join(own_objects.REPORT_NAME).write(json.dumps(stored, indent=2).encode())
        location.join(shard_entries.INDEX_NAME).write_pieces(found.index())
    journal.remove()
    return report


def _identify(planned: Planned, journal: Journal) -> dict[str, Any]:
    """Return the fields of a stored report by which a rerun or an append recognizes the inputs."""
    inputs, base = planned.plan.inputs, planned.plan.base
    if base is None:
        return {"claim": journal.claim, "files": journal.files, CONVERTED: encode_files(inputs)}
    before: Mapping[str, Any] = base["stored"]
    return {
        "claim": before["claim"],
        "files": before["files"],
        CONVERTED: join_files(before, inputs),
        "appended": [*before.get("appended", []), journal.claim["inputs"]],
    }


def _check_stored(location: Location, found: JoinedShards, *, replaces: bool) -> None:
    """Check that the shards are stored, and that a new index hides no other dataset."""
    lost, indexes = collect_at(location, found.survey)
    if shard_entries.INDEX_NAME not in indexes and not replaces:
        refuse_to_hide(location.url, indexes)
    if lost:
        raise ConvertError(
            f"{len(lost)} of {found.shards} shards in {location}, such as {lost[0]}, "
            "disappeared or changed size during the conversion. Run again to resume"
        )
