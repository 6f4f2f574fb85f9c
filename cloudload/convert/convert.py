"""Convert raw corpora to MDS, and resume a conversion that was stopped or killed.

    inputs ─► blocks ─► samples ────► shards ────► index.json
              in order  encoded in    cut in order, then compressed, hashed and stored in workers
                        workers

The output has the same bytes for any number of processes and interruptions. A conversion resumes
after the shards that its journal (`cloudload.convert.journal`) lists.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from cloudload.convert.changed_files import list_sizes
from cloudload.convert.columns import PeekableBlocks, infer_columns
from cloudload.convert.config import ConvertConfig
from cloudload.convert.inputs import list_units
from cloudload.convert.journal import ConvertReport, FinishedWork, InputPosition, Journal
from cloudload.convert.process_pool import open_executor
from cloudload.convert.records import (
    DEFAULT_BLOCK_BYTES,
    BlockStart,
    InputBlock,
    InputUnit,
    sum_bytes,
)
from cloudload.convert.shards import (
    EncodedSamples,
    ShardContext,
    ShardCutter,
    encode_block,
    store_shard,
)
from cloudload.errors import ConvertError
from cloudload.mds.writer import DEFAULT_SHARD_BYTES
from cloudload.option_names import suggests_names
from cloudload.storage.redaction import redact
from cloudload.storage.urls import check_location, is_local, join_url, local_path
from cloudload.system.ordered_results import run_in_order
from cloudload.system.progress_bar import open_progress_bar

logger = logging.getLogger(__name__)


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
    processes: int | None = None,
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> ConvertReport:
    """Convert the documents of `inputs` to an MDS dataset, or resume a conversion.

    To resume a conversion that was stopped or killed, call this again with the same arguments, but
    without `overwrite`. `processes`, `skip_bad` and `progress` may differ. File names and sizes
    identify the input, so an edit that keeps a file's size goes unnoticed.

    Args:
        inputs: one input or a list of them: a file, folder or glob, local or in a store, such as
            `hf://datasets/OWNER/NAME/PATH`; the folder of an MDS dataset, or one that
            `datasets.save_to_disk` wrote; `-` for stdin; `hf://NAME`; a `datasets` object; an
            iterator (not a list) of mappings or strings.
        out: the location of the dataset: a folder or URL that neither contains an input nor is
            inside one.
        text_key: the field that holds the document. `meta.url` is a field within another one.
        id_key: the field that becomes `id` if it is an integer or a nonempty string. Otherwise `id`
            is `NAME:NUMBER`, from the name of the file or dataset and the line or row; or the file
            name alone, for a file that is one document (format `text`).
        keep: other fields to keep, each as `name` or `name:encoding`. If the encoding is omitted,
            it is inferred from the first record in which the field is not null.
        format: `auto` chooses by file name: `text` for unknown extensions, `jsonl` for stdin; it
            refuses extensions of spreadsheets, zip archives, and other files that are not text. To
            choose for all files, pass `jsonl`, `json` (an array of objects, or JSON Lines), `csv`,
            `tsv`, `parquet`, `arrow`, `webdataset`, `mds`, `text` (one document per file) or
            `lines` (one document per line).
        split: write to this folder below `out`. Also the split to read from a `DatasetDict`, in
            memory or saved, or from an `hf://` input without `?split=`.
        compression: `zstd`, `gz`, `bz2` or `br`, optionally with `:LEVEL`; or None.
        hashes: hash algorithms. The index lists these hashes of each shard.
        shard_bytes: the maximum raw size, in bytes, of a shard that holds several documents; 64 MiB
            by default.
        block_bytes: approximate bytes of input per block, 8 MiB by default. A block is the unit of
            work.
        processes: number of worker processes, one per available core by default. With 1, all work
            is done in this process.
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
    if processes < 1:
        raise ValueError(f"processes is {processes}. Use at least 1")
    location = _output_location(os.fspath(out), split)
    _check_not_within(location, inputs)
    units = list_units(inputs, format, split, block_bytes)
    if any(file.url.startswith(f"{location}/") for unit in units for file in unit.files):
        raise ValueError(
            f"the output {redact(location)} contains inputs. Choose a folder beside them"
        )
    recipe = asdict(config) | {"keep": list(keep), "hashes": list(hashes)}
    claim = {"recipe": recipe, "inputs": _identify(units)}
    journal = Journal(location, claim, list_sizes(units))
    if overwrite:
        journal.clear()
    if report := journal.finished_report():
        if unknown := [unit.name for unit in units if unit.size is None]:
            raise ConvertError(
                f"{redact(location)} is already complete, but cloudload cannot check that it was "
                f"made from {unknown[0]}. Choose another output, or overwrite it (--overwrite)"
            )
        return replace(
            report,
            out=redact(location),
            already_complete=True,
            seconds=0.0,
            resumed_shards=report.shards,
        )
    return _convert(
        units, config, journal, processes=processes, skip_bad=skip_bad, progress=progress
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


def _convert(
    units: Sequence[InputUnit],
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
        logger.info("resuming after %d shards", resumed)
    if (position := done.position) is not None:
        blocks = PeekableBlocks(_read_blocks(units, position, config))
        if done.columns is None:
            done = replace(done, columns=infer_columns(config, blocks))
            journal.begin(done.columns or ())
        context = ShardContext(config, config.shard_format(done.columns or ()), journal.location)
        with (
            open_progress_bar(
                "convert",
                _total_bytes(units),
                done_bytes=position.counts.input_bytes,
                shown=progress,
            ) as bar,
            open_executor(context, processes) as executor,
        ):
            samples = run_in_order(partial(executor.submit, encode_block), blocks, 2 * processes)
            cutter = ShardCutter(context.form, resumed, position)
            jobs = cutter.cut(_checked(samples, skip_bad, bar))
            stored = run_in_order(partial(executor.submit, store_shard), jobs, processes // 2 + 1)
            entries = [*done.entries, *(entry for _, entry in stored)]
        done = replace(done, entries=entries, counts=cutter.counts)
    if not done.entries:
        journal.remove()
        first, more = units[0].name, len(units) - 1
        name = f"{first} and {more:,} more" if more else first
        counts = f"{done.counts.empty:,} empty, {done.counts.bad:,} bad"
        raise ConvertError(
            f"no documents in {name}: {counts}. No dataset was written. Check the input"
        )
    return journal.finish(done.entries, _report(journal.location, units, done, resumed))


def _read_blocks(
    units: Sequence[InputUnit], position: InputPosition, config: ConvertConfig
) -> Iterator[tuple[int, InputBlock]]:
    """Yield (unit index, block), starting at `position`."""
    for number in range(position.unit, len(units)):
        start = position.start if number == position.unit else BlockStart()
        for block in units[number].blocks(start, config.block_bytes, config.fields()):
            yield number, block


def _checked(
    results: Iterable[tuple[tuple[int, InputBlock], EncodedSamples]], skip_bad: bool, bar: Any
) -> Iterator[tuple[InputPosition, EncodedSamples]]:
    """Yield (position, samples) for each block.

    Raises `ConvertError` for a block with bad records, unless `skip_bad`.
    """
    for (unit, block), samples in results:
        counts = samples.counts
        if counts.bad and not skip_bad:
            more = f" (and {counts.bad - 1:,} more nearby)" if counts.bad > 1 else ""
            raise ConvertError(
                f"{counts.bad_records[0]}{more}. Repair the input, or run again with skip_bad "
                "(--skip-bad) to leave bad records out"
            )
        bar.update(counts.input_bytes)
        yield InputPosition(unit, block.start), samples


def _report(
    location: str, units: Sequence[InputUnit], done: FinishedWork, resumed: int
) -> ConvertReport:
    kept = {column.name: column.encoding for column in done.columns or ()}
    stored = [entry["zip_data"] or entry["raw_data"] for entry in done.entries]
    return ConvertReport(
        out=redact(location),
        **vars(done.counts),
        files=sum(len(unit.files) for unit in units),
        raw_bytes=sum(entry["raw_data"]["bytes"] for entry in done.entries),
        stored_bytes=sum(file["bytes"] for file in stored),
        shards=len(done.entries),
        columns={"text": "str", "id": "str"} | kept,
        resumed_shards=resumed,
    )


def _total_bytes(units: Sequence[InputUnit]) -> int | None:
    """The size of all input files, or None if the input is not only files of known sizes."""
    files = [file for unit in units for file in unit.files]
    is_known = bool(files) and all(file.bytes is not None for file in files)
    return sum_bytes(files) if is_known else None
