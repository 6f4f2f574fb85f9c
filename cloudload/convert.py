"""Raw corpora to MDS: the same bytes whatever the number of processes, however often the conversion was killed.

    inputs ─► blocks ─► samples ─► shards ─► index.json
              in order  in workers  cut in order, then compressed, hashed and stored in workers

Shards are cut by the rule of MosaicML's `MDSWriter`: a sample that would make a shard larger than `shard_bytes` begins the
next one. A sample larger than a whole shard has a shard to itself; no shard is ever empty.

A conversion that was killed goes on behind the shards that its journal (`cloudload.journal`) lists.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import re
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from cloudload.errors import ConvertError
from cloudload.journal import MAX_LISTED, ConvertReport, Counts, Done, Journal, Position, note_shard
from cloudload.mds.codecs import compress, compression_extension
from cloudload.mds.hashes import hash_bytes
from cloudload.mds.index import Column
from cloudload.mds.writer import DEFAULT_SHARD_BYTES, ShardFormat, encode_sample, encode_shard_head
from cloudload.pool import SharedBytes, open_executor, run_in_order
from cloudload.sources import DEFAULT_BLOCK_BYTES, Block, Record, Start, Unit, list_units, sum_bytes
from cloudload.storage.objects import write_object
from cloudload.storage.urls import check_location, is_local, join_url, local_path

logger = logging.getLogger(__name__)

_MAX_SAMPLE_BYTES = (1 << 32) - (1 << 20)
_BLOCKS_SEARCHED = 8
_WRITABLE = re.compile(r"str|bytes|json|u?int(8|16|32|64)|int|float(32|64)")


@dataclass(frozen=True)
class Recipe:
    """Everything but the input that decides the output's bytes; a conversion goes on only under the recipe it began with."""

    text_key: str = "text"
    """The field that holds the document."""
    id_key: str = "id"
    """The field that becomes `id` where it is a string or an integer; else the id is file name and line."""
    keep: tuple[str, ...] = ()
    """Further fields to keep, as `name` or `name:encoding`."""
    format: str = "auto"
    """`auto` goes by the file's name; `jsonl`, `parquet`, `text` (a file a document) or `lines` (a line a document)."""
    compression: str | None = "zstd"
    """`zstd`, `zstd:LEVEL`, `gz`, `bz2` or None."""
    hashes: tuple[str, ...] = ("xxh64",)
    """Hashes of each shard, for the index."""
    shard_bytes: int = DEFAULT_SHARD_BYTES
    """The most raw bytes of a shard."""
    block_bytes: int = DEFAULT_BLOCK_BYTES
    """How much input is one piece of work."""

    def __post_init__(self) -> None:
        names = [name for name, _ in self.kept()]
        if clash := sorted({name for name in names if names.count(name) > 1 or name in ("text", "id")}):
            raise ValueError(f"cannot keep {clash}: `text` and `id` are written anyway, and each field once")
        for name, encoding in self.kept():
            if not name or (encoding and not _WRITABLE.fullmatch(encoding)):
                raise ValueError(f"cannot keep {name!r} as {encoding!r}; use str, bytes, json, int, int32, float64, …")
        if self.block_bytes < 1:
            raise ValueError(f"block_bytes is {self.block_bytes}; use at least 1")
        if not 1024 <= self.shard_bytes < 1 << 32:
            raise ValueError(
                f"shard_bytes is {self.shard_bytes:,}; use 1,024 to 4,294,967,295, which is what an MDS shard can hold"
            )
        self.shard_format([])

    def kept(self) -> list[tuple[str, str | None]]:
        """The fields to keep, each with its encoding where one is given."""
        return [(name, encoding or None) for name, _, encoding in (item.partition(":") for item in self.keep)]

    def fields(self) -> list[str]:
        """The fields of a record that matter."""
        return [self.text_key, self.id_key, *(name for name, _ in self.kept())]

    def shard_format(self, kept: Iterable[Column]) -> ShardFormat:
        """How shards are written, once the encodings of all columns are known."""
        columns = [Column.of("text", "str"), Column.of("id", "str"), *kept]
        columns.sort(key=lambda column: column.name)
        return ShardFormat(tuple(columns), self.compression, self.hashes, self.shard_bytes)


# ---------------------------------------------------------------- the conversion


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
    processes: int | None = None,
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> ConvertReport:
    """Write the documents of `inputs` to an MDS dataset at `out` (below `split`, where given), or go on with doing so.

    `inputs` is one input or a list of them: a file, folder or glob, local or in a store; `-` for stdin; `hf://NAME`; a `datasets`
    object; an iterator (not a list) over mappings or strings. A bad record stops the run with a `ConvertError` unless `skip_bad`;
    a run that stopped or was killed goes on when it is called again, and knows its input again by names and sizes. `processes`
    is one for each core by default; with 1 everything happens in this process.
    """
    for name, value in {"keep": keep, "hashes": hashes}.items():
        if isinstance(value, str):
            raise ValueError(f"{name} is the text {value!r}; give a list: {name}=[{value!r}]")
    # Streaming's writer sorts them, too
    recipe = Recipe(text_key, id_key, tuple(keep), format, compression, tuple(sorted(set(hashes))), shard_bytes, block_bytes)
    processes = len(os.sched_getaffinity(0)) if processes is None else processes
    if processes < 1:
        raise ValueError(f"processes is {processes}; use at least 1")
    location = _location(os.fspath(out), split)
    _refuse_output_within(inputs, location)
    units = list_units(inputs, format, split, block_bytes)
    if any(file.url.startswith(f"{location}/") for unit in units for file in unit.files):
        raise ValueError(f"the output {location} lies among the inputs; choose a folder beside them")
    journal = Journal(
        location, {"recipe": asdict(recipe) | {"keep": list(keep), "hashes": list(hashes)}, "inputs": _identity(units)}
    )
    if overwrite:
        journal.clear()
    if report := journal.finished_report():
        if unknown := [unit.name for unit in units if unit.size is None]:
            raise ConvertError(
                f"{location} is complete, and whether {unknown[0]} is what it was made of cannot be told. "
                "Choose another output, or overwrite it (--overwrite)"
            )
        return replace(report, already_complete=True, seconds=0.0, resumed_shards=report.shards)
    return _convert(units, recipe, journal, processes=processes, skip_bad=skip_bad, progress=progress)


def _location(out: str, split: str | None) -> str:
    check_location(out)
    if split is not None and (not split or split.startswith(("/", ".")) or ".." in split):
        raise ValueError(f"split is {split!r}; use a plain name such as 'train'")
    return join_url(str(local_path(out)) if is_local(out) else out.rstrip("/"), split or "")


def _refuse_output_within(inputs: Any, location: str) -> None:
    """An output inside an input folder would be read as input when the run goes on."""
    for item in inputs if isinstance(inputs, list | tuple) else [inputs]:
        folder = os.fspath(item) if isinstance(item, str | os.PathLike) else ""
        if not folder or folder == "-" or is_local(folder) != is_local(location):
            continue
        inner, outer = (os.path.abspath(local_path(url)) if is_local(url) else url.rstrip("/") for url in (location, folder))
        if f"{inner}/".startswith(f"{outer}/"):
            raise ValueError(f"the output {location} lies within the input {folder}; choose a folder beside it")


def _identity(units: Sequence[Unit]) -> dict[str, Any]:
    """By what a rerun knows that the input is the same: names and sizes."""
    files = [file for unit in units for file in unit.files]
    listing = [[unit.name, unit.size, [[file.name, file.bytes] for file in unit.files]] for unit in units]
    digest = hashlib.sha256(json.dumps(listing).encode()).hexdigest()
    return {"names and sizes": digest[:32], "files": len(files), "bytes": sum_bytes(files)}


def _convert(
    units: Sequence[Unit], recipe: Recipe, journal: Journal, *, processes: int, skip_bad: bool, progress: bool
) -> ConvertReport:
    done = journal.read()
    resumed = len(done.entries)
    if resumed:
        logger.info("going on after %d shards", resumed)
    if (position := done.position) is not None:
        blocks = _Peekable(_blocks(units, position, recipe))
        if done.columns is None:
            done = replace(done, columns=_infer_columns(recipe, blocks))
            journal.begin(done.columns or ())
        plan = Plan(recipe, recipe.shard_format(done.columns or ()), journal.location)
        with _Progress(units, position.counts.input_bytes, progress) as bar, open_executor(plan, processes) as pool:
            samples = run_in_order(pool, _encode_block, blocks, 2 * processes)
            cutter = _Cutter(plan.form, resumed, position)
            jobs = cutter.cut(_checked(samples, skip_bad, bar))
            stored = [entry for _, entry in run_in_order(pool, _store_shard, jobs, processes // 2 + 1)]
        done = replace(done, entries=done.entries + stored, counts=cutter.counts)
    if not done.entries:
        journal.tidy()
        counts = f"{done.counts.empty:,} empty, {done.counts.bad:,} bad"
        raise ConvertError(f"no documents in {_describe(units)}: {counts}. Nothing was written")
    return journal.finish(done.entries, _report(journal.location, units, done, resumed))


def _describe(units: Sequence[Unit]) -> str:
    first = units[0].name
    return first if len(units) == 1 else f"{first} and {len(units) - 1:,} more inputs"


def _blocks(units: Sequence[Unit], position: Position, recipe: Recipe) -> Iterator[tuple[int, Block]]:
    for number in range(position.unit, len(units)):
        start = position.start if number == position.unit else Start()
        for block in units[number].blocks(start, recipe.block_bytes, recipe.fields()):
            yield number, block


def _checked(
    results: Iterable[tuple[tuple[int, Block], Samples]], skip_bad: bool, bar: _Progress
) -> Iterator[tuple[Position, Samples]]:
    for (unit, block), samples in results:
        if samples.counts.bad and not skip_bad:
            more = f" (and {samples.counts.bad - 1:,} more close by)" if samples.counts.bad > 1 else ""
            advice = "Mend the input, or run again with skip_bad (--skip-bad) to leave bad records out"
            raise ConvertError(f"{samples.counts.bad_records[0]}{more}. {advice}")
        bar.update(samples.counts.input_bytes)
        yield Position(unit, block.start), samples


def _report(location: str, units: Sequence[Unit], done: Done, resumed: int) -> ConvertReport:
    return ConvertReport(
        out=location,
        **vars(done.counts),
        files=sum(len(unit.files) for unit in units),
        raw_bytes=sum(entry["raw_data"]["bytes"] for entry in done.entries),
        stored_bytes=sum((entry["zip_data"] or entry["raw_data"])["bytes"] for entry in done.entries),
        shards=len(done.entries),
        columns={"text": "str", "id": "str"} | {column.name: column.encoding for column in done.columns or ()},
        resumed_shards=resumed,
    )


# ---------------------------------------------------------------- columns


class _Peekable:
    """An iterator whose first items can be looked at without being taken."""

    def __init__(self, items: Iterator[tuple[int, Block]]) -> None:
        self._items, self._seen = items, deque[tuple[int, Block]]()

    def peek(self, count: int) -> Iterator[tuple[int, Block]]:
        """The next `count` items, which stay."""
        for number in range(count):
            if number == len(self._seen):
                try:
                    self._seen.append(next(self._items))
                except StopIteration:
                    return
            yield self._seen[number]

    def __iter__(self) -> Iterator[tuple[int, Block]]:
        while self._seen:
            yield self._seen.popleft()
        yield from self._items


def _infer_columns(recipe: Recipe, blocks: _Peekable) -> tuple[Column, ...]:
    """The kept columns; an encoding that is not given is that of the first record that has the field."""
    encodings = {name: encoding for name, encoding in recipe.kept() if encoding}
    missing = {name for name, encoding in recipe.kept() if not encoding}
    for _, block in blocks.peek(_BLOCKS_SEARCHED if missing else 0):
        for record in block.records(recipe.text_key):
            for name in [name for name in missing if (record.fields or {}).get(name) is not None]:
                encodings[name] = _encoding_of((record.fields or {})[name])
                missing.remove(name)
            if not missing:
                break
        if not missing:
            break
    if missing:
        name = min(missing)
        raise ConvertError(
            f"no record near the start of the input has a field {name!r}; check the name, or say what it is: {name}:json"
        )
    return tuple(Column.of(name, encodings[name]) for name, _ in recipe.kept())


def _encoding_of(value: Any) -> str:
    return {str: "str", int: "int", float: "float64", bytes: "bytes"}.get(type(value), "json")


# ---------------------------------------------------------------- in workers


@dataclass(frozen=True)
class Plan:
    """What a worker knows."""

    recipe: Recipe
    form: ShardFormat
    location: str


@dataclass(frozen=True)
class Samples:
    """The encoded samples of a block, end to end, with the size of each."""

    data: bytes | SharedBytes
    sizes: np.ndarray[Any, np.dtype[np.int64]]
    counts: Counts


@dataclass(frozen=True)
class ShardJob:
    """A shard to be stored: its samples, where the next shard begins (None: nowhere), and the counts of what was read by then."""

    number: int
    parts: tuple[bytes | SharedBytes, ...]
    sizes: np.ndarray[Any, np.dtype[np.int64]]
    next: Position | None
    counts: Counts


class _BadRecordError(Exception):
    """Why a record cannot be converted."""


def _encode_block(plan: Plan, numbered: tuple[int, Block]) -> Samples:
    block = numbered[1]
    columns, text_size = plan.form.columns, struct.Struct("<I")
    variable = [column.name for column in columns if column.bytes is None]
    text_at = 4 * variable.index("text")
    samples: list[bytes] = []
    bad: list[str] = []
    empty = text_bytes = 0
    for record in block.records(plan.recipe.text_key):
        try:
            sample = encode_sample(columns, _sample(plan, record))
            if len(sample) > _MAX_SAMPLE_BYTES:
                raise _BadRecordError(f"{len(sample):,} bytes are more than an MDS shard can hold")
        except _BadRecordError as error:
            bad.append(f"{record.where}: {error}")
            continue
        except UnicodeEncodeError:
            bad.append(f"{record.where}: not UTF-8 (half of a surrogate pair)")
            continue
        except (struct.error, OverflowError, TypeError, ValueError, RecursionError) as error:
            bad.append(f"{record.where}: a kept field does not fit its column ({error})")
            continue
        size = text_size.unpack_from(sample, text_at)[0]
        text_bytes += size
        if size:
            samples.append(sample)
        else:
            empty += 1
    counts = Counts(len(samples), empty, len(bad), tuple(bad[:MAX_LISTED]), block.input_bytes, text_bytes)
    return Samples(b"".join(samples), np.fromiter(map(len, samples), np.int64, len(samples)), counts)


def _sample(plan: Plan, record: Record) -> dict[str, Any]:
    if record.fields is None:
        raise _BadRecordError(record.problem)
    text = _text(record.fields, plan.recipe.text_key)
    own_id = record.fields.get(plan.recipe.id_key)
    usable = isinstance(own_id, str | int) and not isinstance(own_id, bool) and own_id != ""
    sample = {"text": text, "id": str(own_id) if usable else record.name}
    for column in plan.form.columns:
        if column.name not in sample:
            sample[column.name] = _kept_value(record.fields.get(column.name), column)
    return sample


def _text(fields: Mapping[str, Any], key: str) -> str:
    if key not in fields:
        names = ", ".join(sorted(map(str, fields))[:8]) or "no fields at all"
        raise _BadRecordError(f"no text field {key!r}; it has: {names}")
    value = fields[key]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise _BadRecordError(f"not UTF-8 (byte 0x{value[error.start]:02x} at {error.start} of {key!r})") from None
    if not isinstance(value, str):
        raise _BadRecordError(f"{key!r} is {type(value).__name__}, not a string")
    return value


def _kept_value(value: Any, column: Column) -> Any:
    if column.encoding == "json":
        # what JSON cannot say, such as a date, is written as its text
        return value if isinstance(value, str | int | float | None) else json.loads(json.dumps(value, default=str))
    kinds: dict[str, tuple[type, ...]] = {"str": (str,), "bytes": (bytes,)}
    fits = kinds.get(column.encoding, (int, float) if column.encoding.startswith("float") else (int,))
    if isinstance(value, bool) or not isinstance(value, fits):
        found = "missing" if value is None else type(value).__name__
        raise _BadRecordError(
            f"the field {column.name!r} is {found}, not {column.encoding}; {column.name}:json would keep any value"
        )
    return value


def _store_shard(plan: Plan, job: ShardJob) -> dict[str, Any]:
    """Build, compress, hash and store a shard, then enter it in the journal; returns its index entry."""
    parts = [part.read() if isinstance(part, SharedBytes) else part for part in job.parts]
    raw = b"".join([encode_shard_head(plan.form, job.sizes), *parts])
    name = f"shard.{job.number:05}.mds"
    entry = {"samples": len(job.sizes), "raw_data": _file_entry(plan.form, name, raw), "zip_data": None} | plan.form.config()
    stored = raw
    if plan.form.compression:
        stored, name = compress(plan.form.compression, raw), f"{name}.{compression_extension(plan.form.compression)}"
        entry["zip_data"] = _file_entry(plan.form, name, stored)
    parent = multiprocessing.parent_process()
    if parent and not parent.is_alive():
        raise SystemExit("the conversion was stopped")  # another run may be writing here by now
    write_object(join_url(plan.location, name), stored)
    note_shard(plan.location, job.number, entry, job.next, job.counts)
    return entry


def _file_entry(form: ShardFormat, name: str, data: bytes) -> dict[str, Any]:
    return {"basename": name, "bytes": len(data), "hashes": {algorithm: hash_bytes(algorithm, data) for algorithm in form.hashes}}


# ---------------------------------------------------------------- cutting


class _Cutter:
    """Cuts the samples into shards as `MDSWriter` does, and knows where in the input each shard ends."""

    def __init__(self, form: ShardFormat, number: int, position: Position) -> None:
        self.counts, self._number, self._skip = position.counts, number, position.sample
        self._limit, self._empty_bytes = form.shard_bytes, form.empty_bytes()
        self._reset()

    def _reset(self) -> None:
        self._parts: list[bytes | SharedBytes] = []
        self._sizes: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        self._bytes = self._empty_bytes

    def cut(self, blocks: Iterable[tuple[Position, Samples]]) -> Iterator[ShardJob]:
        """The shards of these blocks' samples, in order."""
        for position, samples in blocks:
            yield from self._cut_block(replace(position, counts=self.counts), samples)
            self.counts = self.counts.plus(samples.counts)
        if self._parts:
            yield self._flush(None)

    def _cut_block(self, position: Position, samples: Samples) -> Iterator[ShardJob]:
        ends = np.concatenate([[0], np.cumsum(samples.sizes)])
        costs = ends + 4 * np.arange(len(ends))
        first, self._skip = self._skip, 0
        while first < len(samples.sizes):
            room = self._limit - self._bytes
            last = int(np.searchsorted(costs, costs[first] + room, side="right")) - 1
            if last <= first and self._parts:
                yield self._flush(replace(position, sample=first))
                continue
            last = max(last, first + 1)
            self._parts.append(samples.data[int(ends[first]) : int(ends[last])])
            self._sizes.append(samples.sizes[first:last])
            self._bytes += int(costs[last] - costs[first])
            first = last

    def _flush(self, following: Position | None) -> ShardJob:
        job = ShardJob(self._number, tuple(self._parts), np.concatenate(self._sizes), following, self.counts)
        self._number += 1
        self._reset()
        return job


# ---------------------------------------------------------------- progress


class _Progress:
    """A bar in input bytes on stderr; a line now and then where stderr is no terminal."""

    def __init__(self, units: Sequence[Unit], done: int, shown: bool) -> None:
        import sys

        from tqdm import tqdm

        known = all(file.bytes is not None for unit in units for file in unit.files) and any(unit.files for unit in units)
        total = sum_bytes(file for unit in units for file in unit.files) if known else None
        interval = 0.2 if sys.stderr.isatty() else 30.0
        self._bar = tqdm(
            total=total,
            initial=done,
            unit="B",
            unit_scale=True,
            disable=not shown,
            mininterval=interval,
            desc="convert",
            dynamic_ncols=True,
        )

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def update(self, count: int) -> None:
        self._bar.update(count)
