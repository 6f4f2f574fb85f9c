"""Convert units of the input to the shards of one folder, and convert a segment of a plan.

    units ─► blocks ─► samples ─► shards
             read      encoded    compressed, hashed, stored
             thread    caller     thread

    NNNNN/.convert/          the segment's own journal, while it is converted
    NNNNN/shard.MMMMM…       its shards, which have no folder if there is only one segment
    .convert/NNNNN.done.json the note of a finished segment: its part of the index, and its counts
    .convert/NNNNN.rejects.jsonl   its bad records, if they are kept

Every object is a pure function of the plan and the segment's index. A retry, a second copy, or a
worker that was presumed dead can only write the same bytes under the same names.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, NamedTuple, TypeVar

from cloudload.data import JOURNAL_FOLDER, Location, shard_entries, writer
from cloudload.errors import ConvertError
from cloudload.system import DaemonThreadPool, map_in_order, temp_files
from cloudload.tools.convert import conversion_plan, input_files, input_records
from cloudload.tools.convert.config import ConvertConfig
from cloudload.tools.convert.conversion_plan import Segment, count_bytes
from cloudload.tools.convert.conversion_report import Counts, order
from cloudload.tools.convert.inputs import group_units
from cloudload.tools.convert.output_location import Output, does_exist
from cloudload.tools.convert.sample_encoding import (
    BadRecord,
    EncodedBlock,
    ShardContext,
    encode_block,
    rejects_name,
    store_rejects,
)
from cloudload.tools.convert.segment_journal import (
    Entries,
    FinishedWork,
    InputPosition,
    SegmentJournal,
    check_documents,
)
from cloudload.tools.convert.shard_files import (
    ShardCopier,
    ShardCutter,
    ShardJob,
    StoredShard,
    store_shard,
)
from cloudload.tools.convert.values import PeekableBlocks
from cloudload.tools.count.group import CountWork

logger = logging.getLogger("cloudload.convert")

T = TypeVar("T")
StoreShard = Callable[[ShardContext, writer.ShardBuffer, ShardJob], StoredShard]

_END: Any = object()
_CLOSE_S = 30.0
_MOST_CAUSES = 5


class Target(NamedTuple):
    """The datasets to which a segment belongs, and their plan."""

    output: Output
    plan: conversion_plan.ConversionPlan
    """The plan without its inputs and its base, to keep it small."""
    version: str
    """The plan's `plan_version`."""


@dataclass(frozen=True)
class SegmentWork:
    """The options that all segments of a run share. It is sent to every worker."""

    config: ConvertConfig
    skip_bad: bool
    keeps_rejects: bool
    count: CountWork | None = None
    """How to count tokens, or None if they are not counted."""


@dataclass(frozen=True)
class Note:
    """The note of a finished segment: its counts, and the index entries of its shards.

    Names in the entries are relative to the segment's folder. `lengths` are the token lengths of
    the shards, if they are counted.
    """

    entries: Entries
    counts: Counts
    lengths: list[str]


def note_name(segment: int) -> str:
    """Return the name of the note that marks a segment as finished."""
    return f"{JOURNAL_FOLDER}/{segment:05}.done.json"


def convert_segment(
    work: SegmentWork,
    indexed: tuple[Target, int, Segment],
    on_bytes: Callable[[int], object] = lambda _: None,
) -> int:
    """Convert a segment unless its note exists. `indexed` is (target, index, parts).

    See `convert_whole`.
    """
    target, segment, parts = indexed
    conversion_plan.check_versions(target.plan.versions)
    home, digest = target.output.home, target.plan.digest
    if is_finished(home, segment, digest, with_rejects=work.keeps_rejects):
        on_bytes(sum(map(count_bytes, parts)))
        return 0
    units = list(group_units(parts, work.config.block_bytes))
    return convert_whole(work, target, segment, units, on_bytes)


def convert_whole(
    work: SegmentWork,
    target: Target,
    segment: int,
    units: Sequence[input_records.InputUnit],
    on_bytes: Callable[[int], object],
    *,
    blocks: PeekableBlocks | None = None,
) -> int:
    """Convert the units of a segment, and store its note.

    Returns the number of shards that earlier runs stored, but 0 if there are several segments.

    `on_bytes` is called with the number of stored bytes of each converted block. Raises the errors
    of `convert_units`, and `ConvertError` if this process's versions differ from the plan's, or if
    the note belongs to another plan.
    """
    home, plan = target.output.home, target.plan
    output = target.output.of_segment(segment) if plan.has_folders else target.output
    journal = SegmentJournal(output, plan.digest, target.version)
    with temp_files.scratch_file() as rejects:
        kept = rejects if work.keeps_rejects else None
        done = convert_units(
            work, journal, units, on_bytes, columns=plan.columns, rejects=kept, blocks=blocks
        )
        if work.keeps_rejects:
            store_rejects(rejects, home.join(rejects_name(segment)))
    stored = sum(entry["samples"] for entries in done.entries.values() for entry in entries)
    check_documents(output.journal, stored, done.counts)
    note = {"plan": plan.digest, "entries": done.entries, "counts": done.counts.to_json()}
    if work.count is not None:
        note["lengths"] = done.lengths
    home.join(note_name(segment)).write(json.dumps(note).encode())
    journal.remove()
    # two processes that convert the same segment must return the same
    return 0 if plan.has_folders else done.resumed


def is_finished(location: Location, segment: int, plan: str, *, with_rejects: bool) -> bool:
    """Whether a segment has a note.

    With `with_rejects`, a segment with bad records must also have a file of rejects. Raises
    `ConvertError` if the note belongs to another plan.
    """
    note = read_note(location, segment, plan)
    if note is None or not (with_rejects and note.counts.bad):
        return note is not None
    return does_exist(location.join(rejects_name(segment)))


def read_note(location: Location, segment: int, plan: str) -> Note | None:
    """Return the note of a segment, or None if it is not finished.

    Raises `ConvertError` if the note belongs to another plan.
    """
    data = location.join(note_name(segment)).read_if_exists()
    if data is None:
        return None
    note = json.loads(data)
    if note["plan"] != plan:
        raise ConvertError(
            "another conversion, with different inputs or options, wrote segment "
            f"{segment} to this output. Use a separate output for each conversion, and start over "
            "(--overwrite)"
        )
    entries = note["entries"]
    return Note(
        entries if isinstance(entries, dict) else {"": entries},
        Counts.from_json(note["counts"]),
        note.get("lengths", []),
    )


def convert_units(
    work: SegmentWork,
    journal: SegmentJournal,
    units: Sequence[input_records.InputUnit],
    on_bytes: Callable[[int], object],
    *,
    columns: Iterable[shard_entries.Column],
    rejects: BinaryIO | None = None,
    blocks: PeekableBlocks | None = None,
    store: StoreShard = store_shard,
) -> FinishedWork:
    """Convert units to shards in the journal's folder, starting after the shards that it lists.

    `on_bytes` is called with the number of stored bytes of the work that was finished before, and
    then of each block. `columns` are those of the kept fields. Bad records are written to `rejects`
    as JSON Lines. `blocks` are all blocks of the units, if some were already read, because an
    iterator cannot be read twice. `store` is called with each shard. Raises `ConvertError`,
    `StoreError`, the errors of readers, and those of `measure_shard`.
    """
    is_begun = blocks is not None and blocks.is_begun
    done = FinishedWork.none(journal.output.splits) if is_begun else journal.read()
    if done.resumed:
        logger.info("resuming after %d shards", done.resumed)
    if (position := _first_to_read(done, rejects)) is None:
        return done
    on_bytes(position.counts.input_bytes)
    reader = DaemonThreadPool(1, "cloudload-read")
    try:
        form = work.config.shard_format(columns)
        context = ShardContext(work.config, form, journal, rejects is not None, work.count)
        cutter: ShardCutter | ShardCopier
        if work.config.like:
            cutter = ShardCopier(units, position.counts, work.config.text_key)
            jobs = cutter.copy(position.unit, on_bytes)
        else:
            unread = blocks if blocks and is_begun else read_blocks(units, position, work.config)
            ahead = _read_ahead(iter(unread), units, reader)
            cutter = ShardCutter(form, done, position.counts)
            jobs = cutter.cut(_encode(context, ahead, work.skip_bad, on_bytes, rejects))
        buffer = writer.ShardBuffer()

        def store_job(job: ShardJob) -> tuple[str, StoredShard]:
            return job.split, store(context, buffer, job)

        # one thread stores, so that shards are stored in order
        stored = map_in_order(store_job, jobs, 1, "cloudload-store", ahead=1, close_s=_CLOSE_S)
        for split, shard in stored:
            done.entries[split].append(shard.entry)
            done.lengths.extend(shard.lengths)
    finally:
        reader.close(_CLOSE_S)
    return replace(done, counts=cutter.counts)


def _first_to_read(done: FinishedWork, rejects: BinaryIO | None) -> InputPosition | None:
    """Return the position at which to start reading, or None if nothing is left to read.

    It is the position at which the next shard begins. If rejects of stored shards must be written
    again, it is the start of the segment, but these shards are not stored again.
    """
    counts = done.next.counts if done.next else done.counts
    return InputPosition() if rejects is not None and counts.bad else done.next


def read_blocks(
    units: Sequence[input_records.InputUnit], position: InputPosition, config: ConvertConfig
) -> Iterator[tuple[int, input_records.InputBlock]]:
    """Yield (unit index, block), starting at `position`.

    Raises `StoreError` after the last block of a file that changed since it was listed.
    """
    start = position.start
    for index, unit in enumerate(units[position.unit :], position.unit):
        for block in unit.blocks(start, config.block_bytes, config.fields()):
            yield index, block
        start = input_records.BlockStart()
        # whole text files are not read before their block is used
        if isinstance(unit, input_records.FileUnit):
            input_files.check_unchanged(unit.file)


def _read_ahead(
    items: Iterator[T], units: Sequence[input_records.InputUnit], threads: DaemonThreadPool
) -> Iterator[T]:
    """Yield the items. A thread reads the next item while the caller uses the current one.

    The user's iterators and stdin are read in the caller's thread, which Ctrl-C can interrupt.
    """
    if not all(unit.files and all(file.url != "-" for file in unit.files) for unit in units):
        yield from items
        return
    waiting = threads.submit(next, items, _END)
    while (item := waiting.result()) is not _END:
        waiting = threads.submit(next, items, _END)
        yield item


def _encode(
    context: ShardContext,
    blocks: Iterable[tuple[int, input_records.InputBlock]],
    skip_bad: bool,
    on_bytes: Callable[[int], object],
    rejects: BinaryIO | None,
) -> Iterator[tuple[InputPosition, EncodedBlock]]:
    """Yield (position, samples) for each block, after writing its rejects.

    Raises `ConvertError` for a block with bad records, unless `skip_bad`.
    """
    for unit, block in blocks:
        samples = encode_block(context, block)
        counts = samples.counts
        if samples.first_bad and not skip_bad:
            raise ConvertError(_describe_bad(samples.first_bad, counts))
        if rejects is not None:
            rejects.write(samples.rejects)
        on_bytes(counts.input_bytes)
        yield InputPosition(unit, block.start), samples


def _describe_bad(first: BadRecord, counts: Counts) -> str:
    """Describe the first bad record of a block, and the next step. `counts` are the block's."""
    more, others, good = "", counts.bad - 1, counts.documents + counts.empty
    if others:
        more = f", the first of {counts.bad:,} bad records in a block of {counts.bad + good:,}"
    are_all_bad = not good
    if are_all_bad and first.advice:
        advice = first.advice
    elif are_all_bad and others:
        advice = "Check format (--format), text_key (--text-key) and keep (--keep)"
    else:
        advice = (
            "Repair the input, or run again with skip_bad (--skip-bad) to leave bad records out"
        )
    return f"{first.where}{more}: {first.problem}. {_list_causes(counts)}{advice}"


def _list_causes(counts: Counts) -> str:
    """List the most frequent causes of bad records in a sentence. There is none for one cause."""
    if len(counts.causes) < 2:
        return ""
    most = order(counts.causes, _MOST_CAUSES).items()
    return f"Causes: {'; '.join(f'{cause} ({count:,})' for cause, count in most)}. "
