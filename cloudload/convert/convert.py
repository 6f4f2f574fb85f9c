"""Raw corpora to MDS: the same bytes whatever the number of processes, however often the conversion
was killed.

    inputs ─► blocks ─► samples ─► shards ─► index.json
              in order  in workers  cut in order, then compressed, hashed and stored in workers

Shards are cut by the rule of MosaicML's `MDSWriter`: a sample that would make a shard larger than
`shard_bytes` begins the next one. A sample larger than a whole shard has a shard to itself; no
shard is ever empty.

A conversion that was killed goes on behind the shards that its journal (`cloudload.journal`) lists.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from cloudload.convert.columns import Peekable, infer_columns
from cloudload.convert.config import ConvertConfig
from cloudload.convert.inputs import list_units
from cloudload.convert.journal import ConvertReport, Done, InputPosition, Journal
from cloudload.convert.process_pool import open_executor, run_in_order
from cloudload.convert.records import DEFAULT_BLOCK_BYTES, InputBlock, Start, Unit, sum_bytes
from cloudload.convert.shards import Cutter, Samples, ShardContext, encode_block, store_shard
from cloudload.errors import ConvertError
from cloudload.mds.writer import DEFAULT_SHARD_BYTES
from cloudload.storage.urls import check_location, is_local, join_url, local_path

logger = logging.getLogger(__name__)

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
    """Write the documents of `inputs` to an MDS dataset at `out` (below `split`, where given), or
    go on with doing so.

    `inputs` is one input or a list of them: a file, folder or glob, local or in a store; `-` for
    stdin; `hf://NAME`; a `datasets` object; an iterator (not a list) over mappings or strings. A
    bad record stops the run with a `ConvertError` unless `skip_bad`; a run that stopped or was
    killed goes on when it is called again, and knows its input again by names and sizes.
    `processes` is one for each core by default; with 1 everything happens in this process.
    """
    for name, value in {"keep": keep, "hashes": hashes}.items():
        if isinstance(value, str):
            raise ValueError(f"{name} is the text {value!r}; give a list: {name}=[{value!r}]")
    # Streaming's writer sorts them, too
    config = ConvertConfig(
        text_key,
        id_key,
        tuple(keep),
        format,
        compression,
        tuple(sorted(set(hashes))),
        shard_bytes,
        block_bytes,
    )
    processes = len(os.sched_getaffinity(0)) if processes is None else processes
    if processes < 1:
        raise ValueError(f"processes is {processes}; use at least 1")
    location = _location(os.fspath(out), split)
    _refuse_output_within(inputs, location)
    units = list_units(inputs, format, split, block_bytes)
    if any(file.url.startswith(f"{location}/") for unit in units for file in unit.files):
        raise ValueError(
            f"the output {location} lies among the inputs; choose a folder beside them"
        )
    journal = Journal(
        location,
        {
            "recipe": asdict(config) | {"keep": list(keep), "hashes": list(hashes)},
            "inputs": _identity(units),
        },
    )
    if overwrite:
        journal.clear()
    if report := journal.finished_report():
        if unknown := [unit.name for unit in units if unit.size is None]:
            raise ConvertError(
                f"{location} is complete, and whether {unknown[0]} is what it "
                "was made of cannot be told. "
                "Choose another output, or overwrite it (--overwrite)"
            )
        return replace(report, already_complete=True, seconds=0.0, resumed_shards=report.shards)
    return _convert(
        units, config, journal, processes=processes, skip_bad=skip_bad, progress=progress
    )


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
        inner, outer = (
            os.path.abspath(local_path(url)) if is_local(url) else url.rstrip("/")
            for url in (location, folder)
        )
        if f"{inner}/".startswith(f"{outer}/"):
            raise ValueError(
                f"the output {location} lies within the input {folder}; choose a folder beside it"
            )


def _identity(units: Sequence[Unit]) -> dict[str, Any]:
    """By what a rerun knows that the input is the same: names and sizes."""
    files = [file for unit in units for file in unit.files]
    listing = [
        [unit.name, unit.size, [[file.name, file.bytes] for file in unit.files]] for unit in units
    ]
    digest = hashlib.sha256(json.dumps(listing).encode()).hexdigest()
    return {"names and sizes": digest[:32], "files": len(files), "bytes": sum_bytes(files)}


def _convert(
    units: Sequence[Unit],
    config: ConvertConfig,
    journal: Journal,
    *,
    processes: int,
    skip_bad: bool,
    progress: bool,
) -> ConvertReport:
    done = journal.read()
    resumed = len(done.entries)
    if resumed:
        logger.info("going on after %d shards", resumed)
    if (position := done.position) is not None:
        blocks = Peekable(_blocks(units, position, config))
        if done.columns is None:
            done = replace(done, columns=infer_columns(config, blocks))
            journal.begin(done.columns or ())
        context = ShardContext(config, config.shard_format(done.columns or ()), journal.location)
        with (
            _Progress(units, position.counts.input_bytes, progress) as bar,
            open_executor(context, processes) as pool,
        ):
            samples = run_in_order(pool, encode_block, blocks, 2 * processes)
            cutter = Cutter(context.form, resumed, position)
            jobs = cutter.cut(_checked(samples, skip_bad, bar))
            stored = [
                entry for _, entry in run_in_order(pool, store_shard, jobs, processes // 2 + 1)
            ]
        done = replace(done, entries=done.entries + stored, counts=cutter.counts)
    if not done.entries:
        journal.tidy()
        counts = f"{done.counts.empty:,} empty, {done.counts.bad:,} bad"
        raise ConvertError(f"no documents in {_describe(units)}: {counts}. Nothing was written")
    return journal.finish(done.entries, _report(journal.location, units, done, resumed))


def _describe(units: Sequence[Unit]) -> str:
    first = units[0].name
    return first if len(units) == 1 else f"{first} and {len(units) - 1:,} more inputs"


def _blocks(
    units: Sequence[Unit], position: InputPosition, config: ConvertConfig
) -> Iterator[tuple[int, InputBlock]]:
    for number in range(position.unit, len(units)):
        start = position.start if number == position.unit else Start()
        for block in units[number].blocks(start, config.block_bytes, config.fields()):
            yield number, block


def _checked(
    results: Iterable[tuple[tuple[int, InputBlock], Samples]], skip_bad: bool, bar: _Progress
) -> Iterator[tuple[InputPosition, Samples]]:
    for (unit, block), samples in results:
        if samples.counts.bad and not skip_bad:
            more = (
                f" (and {samples.counts.bad - 1:,} more close by)" if samples.counts.bad > 1 else ""
            )
            advice = (
                "Mend the input, or run again with skip_bad (--skip-bad) to leave bad records out"
            )
            raise ConvertError(f"{samples.counts.bad_records[0]}{more}. {advice}")
        bar.update(samples.counts.input_bytes)
        yield InputPosition(unit, block.start), samples


def _report(location: str, units: Sequence[Unit], done: Done, resumed: int) -> ConvertReport:
    return ConvertReport(
        out=location,
        **vars(done.counts),
        files=sum(len(unit.files) for unit in units),
        raw_bytes=sum(entry["raw_data"]["bytes"] for entry in done.entries),
        stored_bytes=sum(
            (entry["zip_data"] or entry["raw_data"])["bytes"] for entry in done.entries
        ),
        shards=len(done.entries),
        columns={"text": "str", "id": "str"}
        | {column.name: column.encoding for column in done.columns or ()},
        resumed_shards=resumed,
    )


# ---------------------------------------------------------------- progress


class _Progress:
    """A bar in input bytes on stderr; a line now and then where stderr is no terminal."""

    def __init__(self, units: Sequence[Unit], done: int, shown: bool) -> None:
        import sys

        from tqdm import tqdm

        known = all(file.bytes is not None for unit in units for file in unit.files) and any(
            unit.files for unit in units
        )
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
