"""Convert a run of units into the shards of one folder, and a segment of a plan.

    units ─► blocks ─► samples ─► shards
             read      encoded    compressed, hashed, stored
             thread    here       thread

    NNNNN/.convert/          the segment's own journal, while it is converted
    NNNNN/shard.MMMMM…       its shards
    .convert/NNNNN.done.json the note that it is finished: its part of the index, and its counts

Every object is a pure function of the plan and the segment's number. A retry, a second copy, or a
worker that was presumed dead can only write the same bytes under the same names.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

from cloudload.convert.columns import PeekableBlocks, infer_columns
from cloudload.convert.config import ConvertConfig
from cloudload.convert.inputs import group_units
from cloudload.convert.journal import (
    Counts,
    FinishedWork,
    InputPosition,
    Journal,
    read_if_exists,
)
from cloudload.convert.plan import check_versions
from cloudload.convert.records import BlockStart, InputBlock, InputUnit
from cloudload.convert.segments import Segment, count_bytes
from cloudload.convert.shards import (
    BadRecord,
    EncodedSamples,
    ShardContext,
    ShardCutter,
    encode_block,
    store_shard,
)
from cloudload.count.group import CountWork
from cloudload.errors import ConvertError
from cloudload.mds.index import Column
from cloudload.mds.survey import JOURNAL_FOLDER
from cloudload.storage.objects import write_object
from cloudload.storage.urls import join_url
from cloudload.system.daemon_threads import DaemonThreadPool
from cloudload.system.ordered_results import run_in_order

logger = logging.getLogger(__name__)

T = TypeVar("T")

_END: Any = object()
_CLOSE_S = 30.0


@dataclass(frozen=True)
class SegmentWork:
    """The data that all segments of a plan share. It is sent to every worker."""

    location: str
    config: ConvertConfig
    columns: tuple[Column, ...]
    versions: Mapping[str, str]
    plan: str
    """The digest of the plan."""
    skip_bad: bool
    count: CountWork | None = None
    """The count of the tokens, if they are counted."""


@dataclass(frozen=True)
class Note:
    """A finished segment: the entries of its shards, with their names in its folder; its counts.

    `lengths` are the token lengths of its shards, if they are counted.
    """

    entries: list[dict[str, Any]]
    counts: Counts
    lengths: list[str]


def segment_folder(number: int) -> str:
    """The name of a segment's folder."""
    return f"{number:05}"


def note_name(number: int) -> str:
    """The name of the note that marks a segment as finished."""
    return f"{JOURNAL_FOLDER}/{number:05}.done.json"


def convert_segment(
    work: SegmentWork,
    numbered: tuple[int, Segment],
    on_bytes: Callable[[int], object] = lambda _: None,
) -> int:
    """Convert a segment unless its note is there, and return its stored input bytes.

    `numbered` is (number, parts). `on_bytes` is called with the stored bytes of each block that was
    converted. Raises the errors of `convert_units`, and `ConvertError` if this process has
    different versions than the plan, or if the note belongs to another plan.
    """
    number, parts = numbered
    size = sum(map(count_bytes, parts))
    check_versions(work.versions)
    if read_note(work.location, number, work.plan) is not None:
        on_bytes(size)
        return size
    claim = {"recipe": {}, "inputs": {"plan": work.plan}}
    journal = Journal(join_url(work.location, segment_folder(number)), claim, {})
    units = list(group_units(parts, work.config.block_bytes))
    done = convert_units(
        units,
        work.config,
        journal,
        columns=work.columns,
        skip_bad=work.skip_bad,
        on_bytes=on_bytes,
        count=work.count,
    )
    note = {"plan": work.plan, "entries": done.entries, "counts": asdict(done.counts)}
    if work.count is not None:
        note["lengths"] = done.lengths
    write_object(join_url(work.location, note_name(number)), json.dumps(note).encode())
    journal.remove_entries()
    return size


def read_note(location: str, number: int, plan: str) -> Note | None:
    """Return the note of a segment, or None if it is not finished.

    Raises `ConvertError` if the note belongs to another plan.
    """
    data = read_if_exists(join_url(location, note_name(number)))
    if data is None:
        return None
    note = json.loads(data)
    if note["plan"] != plan:
        raise ConvertError(
            f"segment {number} was converted by another plan. Two conversions with different "
            "inputs or options write to the same output. Choose another output for one of them, "
            "and start over (--overwrite)"
        )
    return Note(note["entries"], Counts.from_json(note["counts"]), note.get("lengths", []))


def convert_units(
    units: Sequence[InputUnit],
    config: ConvertConfig,
    journal: Journal,
    *,
    columns: tuple[Column, ...] | None,
    skip_bad: bool,
    on_bytes: Callable[[int], object],
    count: CountWork | None = None,
) -> FinishedWork:
    """Convert the units into the journal's folder, after the shards that it lists.

    The columns of the kept fields are inferred if `columns` is None. `on_bytes` is called with the
    stored bytes of each block, and of the work that was finished before. With `count`, the tokens
    of each shard are counted. Raises `ConvertError`, `StoreError`, the errors of readers, and those
    of `measure_shard`.
    """
    done = journal.read()
    if resumed := len(done.entries):
        logger.info("resuming after %d shards", resumed)
    if (position := done.position) is None:
        return done
    on_bytes(position.counts.input_bytes)
    # one thread stores, so that shards are stored in order
    reader, storer = (DaemonThreadPool(1, f"cloudload-{name}") for name in ("read", "store"))
    try:
        blocks = PeekableBlocks(_read_ahead(read_blocks(units, position, config), units, reader))
        if done.columns is None:
            if columns is None:
                columns = infer_columns(config, blocks)
            journal.begin(columns)
            done = replace(done, columns=columns)
        form = config.shard_format(done.columns or ())
        context = ShardContext(config, form, journal.location, count)
        cutter = ShardCutter(context.form, resumed, position)
        jobs = cutter.cut(_encode(context, blocks, skip_bad, on_bytes))
        stored = run_in_order(partial(storer.submit, store_shard, context), jobs, 1)
        entries, lengths = [*done.entries], [*done.lengths]
        for _, shard in stored:
            entries.append(shard.entry)
            lengths += shard.lengths
    finally:
        storer.close(_CLOSE_S)
        reader.close(_CLOSE_S)
    return replace(done, entries=entries, lengths=lengths, counts=cutter.counts, resumed=resumed)


def read_blocks(
    units: Sequence[InputUnit], position: InputPosition, config: ConvertConfig
) -> Iterator[tuple[int, InputBlock]]:
    """Yield (unit index, block), starting at `position`."""
    for number in range(position.unit, len(units)):
        start = position.start if number == position.unit else BlockStart()
        for block in units[number].blocks(start, config.block_bytes, config.fields()):
            yield number, block


def _read_ahead(
    items: Iterator[T], units: Sequence[InputUnit], threads: DaemonThreadPool
) -> Iterator[T]:
    """Yield the items, reading the next one in a thread while the last one is used.

    A caller's own iterator, and stdin, are read in the caller's thread, which Ctrl-C can interrupt.
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
    blocks: Iterable[tuple[int, InputBlock]],
    skip_bad: bool,
    on_bytes: Callable[[int], object],
) -> Iterator[tuple[InputPosition, EncodedSamples]]:
    """Yield (position, samples) for each block.

    Raises `ConvertError` for a block with bad records, unless `skip_bad`.
    """
    for unit, block in blocks:
        samples = encode_block(context, block)
        counts = samples.counts
        if samples.first_bad and not skip_bad:
            raise ConvertError(_describe_bad(samples.first_bad, counts))
        on_bytes(counts.input_bytes)
        yield InputPosition(unit, block.start), samples


def _describe_bad(first: BadRecord, counts: Counts) -> str:
    """Describe the first bad record of a block, which has these counts, and the next step."""
    more, others = "", counts.bad - 1
    if others:
        more = f", and {others:,} more record{'' if others == 1 else 's'} nearby"
    are_all_bad = not (counts.documents or counts.empty)
    if are_all_bad and first.has_no_text:
        advice = "Name the field that holds the text with text_key (--text-key)"
    elif are_all_bad and others:
        advice = "Check format (--format), text_key (--text-key) and keep (--keep)"
    else:
        advice = (
            "Repair the input, or run again with skip_bad (--skip-bad) to leave bad records out"
        )
    return f"{first.where}{more}: {first.problem}. {advice}"
