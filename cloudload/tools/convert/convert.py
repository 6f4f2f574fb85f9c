"""Convert raw corpora to MDS, and resume a conversion that was stopped or killed.

    inputs ─► plan ─► segments, on any processes ──► NNNNN/shards, notes ─► index.json

The output has the same bytes for any number of processes, machines and interruptions. A conversion
resumes after the shards that its journals (`cloudload.tools.convert.journal`) list.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, fields, replace
from typing import Any

from cloudload.config import TEXT_KEY, Chat, OnError, RowsConfig, Transform, checks, choices
from cloudload.data import Location, urls, writer
from cloudload.system import option_help
from cloudload.tools.convert import input_records, rerun_check
from cloudload.tools.convert.config import ConvertConfig
from cloudload.tools.convert.conversion_plan import DEFAULT_SEGMENT_BYTES
from cloudload.tools.convert.conversion_report import ConvertReport
from cloudload.tools.convert.inputs import join_inputs
from cloudload.tools.convert.output_location import (
    Output,
    check_file,
    check_output,
    check_rejects,
)
from cloudload.tools.convert.partitions import convert_partitions, read_recipe_of_any
from cloudload.tools.convert.planning import Conversion
from cloudload.tools.convert.prepare import (
    Complete,
    ConversionRequest,
    prepare_request,
    read_recipe,
)
from cloudload.tools.convert.run import run_conversions
from cloudload.tools.count.group import CountWork
from cloudload.tools.count.new_shards import join_count_work, open_count_work
from cloudload.tools.engines.units import Share, count_processes

_LIKE_OPTIONS = ("like", "text_key", "compression", "hashes")
"""The options in a config that `like` allows."""


@option_help.suggests_names
def convert_to_mds(
    inputs: Any,
    out: str | os.PathLike[str],
    *,
    inputs_from: str | os.PathLike[str] | None = None,
    like: str | os.PathLike[str] | None = None,
    text_key: str | None = "text",
    tokens_key: str | None = None,
    all_columns: bool = False,
    id_key: str = "id",
    keep: Sequence[str] = (),
    format: choices.InputFormat = "auto",
    quoting: choices.Quoting = "csv",
    errors: choices.TextErrors = "strict",
    partition_by: str | None = None,
    split: str | None = None,
    splits: str | Mapping[str, float] | None = None,
    compression: str | None = "zstd",
    hashes: Sequence[str] = ("xxh64",),
    shard_bytes: int = writer.DEFAULT_SHARD_BYTES,
    block_bytes: int = input_records.DEFAULT_BLOCK_BYTES,
    segment_bytes: int = DEFAULT_SEGMENT_BYTES,
    tokenizer: Any = None,
    transform: Transform | None = None,
    transform_id: str | None = None,
    chat: Chat | None = None,
    on_error: OnError = "raise",
    processes: int | None = None,
    executor: Executor | None = None,
    worker: str | None = None,
    finish: bool = False,
    skip_bad: bool = False,
    rejects: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    append: bool = False,
    progress: bool = True,
) -> ConvertReport:
    """Convert the documents of `inputs` to an MDS dataset, or resume a conversion.

    The input is cut into segments of about `segment_bytes`. Each process or machine takes whole
    segments. The output has the same bytes on any number of processes and machines. Shards of
    several segments are in folders `00000`, `00001`, and so on; a single segment has no folder.

    To resume a conversion that was stopped or killed, call this again with the same arguments, but
    without `overwrite`. `processes`, `executor`, `worker`, `finish`, `skip_bad`, `rejects` and
    `progress` may differ. File names and sizes identify the input. A file that changes between the
    start and the end of the conversion is refused, if its store has ETags, generations, or times of
    change, or if its size changes. Of two different conversions to one output, one is refused.

    Args:
        inputs: one input or a list of them: a file, folder or glob, local or in a store, such as
            `hf://datasets/OWNER/NAME/PATH`; the folder of an MDS dataset, or one that
            `datasets.save_to_disk` wrote; `hf://NAME`; or `-` for stdin. In Python, also a
            `datasets` object, or an iterator (not a list) of mappings or strings.
        inputs_from: a path or URL of a list of files, gzipped or not, with one URL or path a line,
            and comments that begin with `#`. The files are read in this order. `inputs` is then the
            folder or URL below which relative lines are, such as `https://data.commoncrawl.org`, or
            an empty list if there are none.
        like: copy each shard of this index to a shard with the same samples, columns, and order, so
            that a run that began on the index continues on the copies, exact to the token. It is
            the location of a stored index, of Parquet files, or of an MDS dataset, as for a loader.
            `inputs` must be an empty list. No document is left out, and a bad one stays bad, so
            options that would change documents or shards are refused.
        out: the location of the dataset: a folder or URL that neither contains an input nor is
            inside one.
        text_key: the field that contains the document. `meta.url` is the field `url` in `meta`.
            With `messages:json`, the document is the JSON of the field `messages`, which a
            transform can render. None is for data without a text, such as conversations: only the
            fields in `keep` are written, and the first of them, which is the document, must not be
            missing or null. With `like`, the column that holds the document; it keeps its name.
        tokens_key: with `like`, the column that holds the documents as token IDs, instead of
            `text_key`.
        all_columns: with `like` and Parquet files, copy all columns, as for a run with a transform
            or with conversations. A stored index says which columns it has.
        id_key: the field that becomes `id` if it is an integer or a nonempty string. Otherwise `id`
            is `NAME:NUMBER`: the name of the file or dataset, and the number of the line or row.
            For a file that is one document (format `text`), it is the file name alone. In a file of
            lines that is cut into segments, it is `NAME:@OFFSET`, with the line's offset in bytes.
        keep: other fields to keep, each as `name` or `name:encoding`. If the encoding is omitted,
            it is that of the column in an MDS dataset; `bytes` for bytes; otherwise `json`, which
            can hold null and values of any type. If a record has no such field, the value is taken
            from a folder `name=value` in the path of its file, as text unless an encoding of
            numbers is given.
        format: the format of all inputs. `auto` chooses by file name: `text` for unknown
            extensions, `jsonl` for stdin; it refuses extensions of spreadsheets, zip archives, and
            other files that are not text. Others are `jsonl`, `json` (an array of objects, or JSON
            Lines), `csv`,
            `tsv`, `parquet`, `arrow`, `webdataset`, `wet` (of Common Crawl), `mds`, `text` (one
            document per file) or `lines` (one document per line).
        quoting: how quotes in CSV and TSV files are read. `csv`: a quote at the start of a value
            encloses it. `none`: quotes are plain text, and every line is a record, as in the TSV
            dumps of many databases.
        errors: what to do with bytes that are not UTF-8, and unpaired surrogates. `strict`: they
            make a record bad. `replace`: they become U+FFFD, and the report counts the documents.
        split: write to this folder below `out`, and read this split of an `hf://` input without
            `?split=`, or of a `DatasetDict`, in memory or saved.
        splits: divide the documents into the datasets `out/train`, `out/val`, and so on, by their
            shares, such as `train=0.999,val=0.001` or `{"train": 0.999, "val": 0.001}`. A hash of a
            document's own ID, or of its text or first kept field if it has no ID, chooses its
            split, so the same document is always in the same split.
        partition_by: convert each partition of the files to a dataset `out/PARTITION`, for a
            mixture. `folder`: each first folder below the input is a partition. Any other name,
            such as `lang`: the value of a folder `lang=VALUE` in a file's path is its partition.
            `out/partitions.json` lists the partitions, also those without documents, which have no
            dataset. It is written at the end.
        compression: `zstd`, `gz`, `bz2` or `br`, optionally with `:LEVEL`; or None.
        hashes: names of hash algorithms. The index contains one hash per shard and algorithm.
        shard_bytes: the maximum raw size, in bytes, of a shard with more than one document; 64 MiB
            by default.
        block_bytes: approximate bytes of input per block, 8 MiB by default. A block is the unit of
            work.
        segment_bytes: the stored size of a segment's input, in bytes; 256 MiB by default. Larger
            Parquet files and uncompressed files of lines are cut. A compressed file is never cut.
            The last shard of each segment may be short. An iterator, a `datasets` object and stdin
            are one segment.
        tokenizer: also count the tokens of each document with this tokenizer, as for `CloudLoader`,
            and store the same lengths as `count_tokens` does for the finished dataset. It cannot be
            combined with `splits`. Instead, count each split after the conversion. Documents
            without a text require a `chat` or a `transform`.
        transform: the transform of the runs that will use the lengths, as for `CloudLoader`. It
            does not change what is written.
        transform_id: as for `CloudLoader`.
        chat: the chat of the runs that will use the lengths, as for `CloudLoader`. It does not
            change what is written. Its `max_tokens` must be set, as for `count_tokens`.
        on_error: as for `CloudLoader`; it applies to the transform and the chat.
        processes: number of worker processes, one per available core by default. Each takes one
            segment at a time. With 1, all work is done in this process.
        executor: run the segments on this `concurrent.futures.Executor` instead, such as a
            `cloudload.engines.ray.RayExecutor`. Its workers must have access to the input and the
            output, and have the same versions of cloudload and of the codecs installed.
        worker: convert only one share of the segments, as one of several jobs: `I/N`, with I from 0
            to N - 1, or `auto` in a job of a Slurm array, a Kubernetes Indexed Job, or AWS Batch.
            The worker that finishes last also writes the index.
        finish: convert nothing, but write the index if all segments are finished. Otherwise, raise
            a `ConvertError` that names the unfinished segments. Options that have their default are
            those of the conversion, from its stored plan.
        skip_bad: leave out and count bad records instead of raising `ConvertError`.
        rejects: with `skip_bad`, also write the bad records to this file or URL, as JSON Lines: the
            file, the place in it, the error, and the record as text, up to 65,536 characters. The
            worker that finishes last writes it. With `append`, the file has only the bad records of
            this run.
        overwrite: first remove the dataset, or an unfinished conversion, at `out`.
        append: add the documents to the finished dataset at `out`, after its existing documents and
            with its columns. Existing shards do not change, and the dataset stays readable. Files
            that are in the dataset already are left out; a file that changed since then is refused.
            All other options except `segment_bytes` must be those that created the dataset.
        progress: show a progress bar on stderr.

    Returns:
        The report, which is also stored in `convert-report.json` beside the index. If the dataset
        is finished, but shards are missing or have a wrong size, they are rebuilt.

    Raises:
        ValueError: an argument is invalid, or a file is in the inputs twice.
        ConvertError: an input has no files or cannot be read as its format, a record is bad, a kept
            field is not found, a package is not installed, there are no documents, `out` contains a
            dataset or conversion that differs or cannot be compared, or a new index at `out` would
            hide datasets in its folders.
        TokenizerError: the tokenizer cannot be loaded, or cannot encode a document.
        DatasetError: the transform failed on a document.
        StoreError: an input is missing or cannot be read, or the output cannot be written.
        WorkerError: a worker process failed or died.
    """
    for name, value in {"keep": keep, "hashes": hashes}.items():
        if isinstance(value, str):
            raise ValueError(f"{name} is the string {value!r}. Pass a list: {name}=[{value!r}]")
    config = ConvertConfig(
        text_key=None if like and tokens_key else text_key,
        id_key=id_key,
        keep=tuple(keep),
        format=format,
        compression=compression,
        hashes=tuple(hashes),
        shard_bytes=shard_bytes,
        block_bytes=block_bytes,
        splits=_join_shares(splits),
        quoting=quoting,
        errors=errors,
        like=like is not None,
    )
    if like is not None:
        _check_like(
            config,
            {"inputs": inputs, "inputs_from": inputs_from, "partition_by": partition_by}
            | {"split": split, "append": append, "skip_bad": skip_bad, "rejects": rejects},
        )
    inputs = join_inputs(
        inputs, inputs_from, like, text_key=text_key, tokens_key=tokens_key, all_columns=all_columns
    )
    processes = count_processes(processes)
    segment_bytes = checks.as_integer("segment_bytes", segment_bytes, 1)
    if rejects is not None and partition_by is not None:
        raise ValueError(
            "rejects (--rejects) and partition_by (--partition-by) cannot be combined yet. Omit "
            "rejects. The convert-report.json of each partition names its bad records"
        )
    if rejects is not None and not (skip_bad or finish):
        raise ValueError(
            "rejects (--rejects) requires skip_bad (--skip-bad). Set skip_bad (--skip-bad), or "
            "omit rejects (--rejects)"
        )
    if splits is not None and tokenizer is not None:
        raise ValueError(
            "splits (--split NAME=SHARE,...) and tokenizer (--tokenizer) cannot be combined yet. "
            "Convert with splits, then run cloudload count on each split"
        )
    if text_key is None and tokenizer is not None and transform is None and chat is None:
        raise ValueError(
            "tokenizer (--tokenizer) counts the tokens of texts, but text_key (--text-key) is "
            "None. Pass chat=Chat() for conversations, or a transform (--transform) that returns a "
            "text, or omit the tokenizer"
        )
    share = Share.parse(worker) if worker is not None else None
    _check_overwrite(overwrite, is_array=bool(share or finish), append=append)
    location = _locate(os.fspath(out), split)
    read = read_recipe if partition_by is None else read_recipe_of_any
    stored = read(location) if finish else {}
    config = config.completed(stored)
    if config.like and like is None:
        raise ValueError(
            f"the conversion to {location} copies the shards of an index. To finish it, pass the "
            "index as like"
        )
    if segment_bytes == DEFAULT_SEGMENT_BYTES:
        segment_bytes = stored.get(rerun_check.SEGMENT_BYTES, segment_bytes)
    check_output(location.url, config.split_names, inputs)
    kept = None if rejects is None else _locate(os.fspath(rejects), None)
    if kept:
        check_file("rejects (--rejects)", kept.url, inputs)
        check_rejects(kept)
    recipe = config.recipe() | {rerun_check.SEGMENT_BYTES: segment_bytes}
    output = Output(location, config.split_names)
    count = _open_count(
        location,
        tokenizer,
        {
            **{"transform": transform, "transform_id": transform_id},
            **{"chat": chat, "on_error": on_error},
        },
        text_key if like else TEXT_KEY,
        tokens_key,
    )
    if count is None and (key := stored.get(rerun_check.LENGTHS_FIELD)):
        count = join_count_work(location, key)
    recipe |= {rerun_check.LENGTHS_FIELD: asdict(count.key)} if count is not None else {}
    run = Conversion(
        output,
        config,
        processes,
        executor,
        share,
        finish,
        skip_bad,
        kept,
        progress,
        count,
        overwrite,
    )
    request = ConversionRequest(run, recipe, inputs, split, append)
    if partition_by is not None:
        return convert_partitions(request, partition_by)
    parent = None if split is None else _locate(os.fspath(out), None)
    # on return, `prepare_request` has freed its listing, which may have a million files
    found, skipped = prepare_request(request, parent)
    report = found.settle() if isinstance(found, Complete) else run_conversions([found])[0]
    return replace(report, skipped_files=skipped)


def _join_shares(splits: str | Mapping[str, float] | None) -> str | None:
    if isinstance(splits, Mapping):
        return ",".join(f"{name}={share}" for name, share in splits.items())
    return None if splits is None else "".join(splits.split())


def _check_like(config: ConvertConfig, given: Mapping[str, Any]) -> None:
    """Raise `ValueError` if options are set that `like` contradicts."""
    changed = [
        each.name
        for each in fields(config)
        if each.name not in _LIKE_OPTIONS and getattr(config, each.name) != each.default
    ]
    if refused := [*(name for name, value in given.items() if value), *changed]:
        raise ValueError(
            f"like is set, which copies the shards of an index as they are, so {refused[0]} cannot "
            f"be set. Omit {refused[0]}, or convert without like"
        )


def _open_count(
    location: Location,
    tokenizer: Any,
    documents: Mapping[str, Any],
    text_key: str | None,
    tokens_key: str | None,
) -> CountWork | None:
    if tokenizer is not None and tokens_key is not None:
        raise ValueError(
            "tokenizer (--tokenizer) counts the tokens of texts, but with tokens_key "
            "(--tokens-key), the documents are token IDs. Omit the tokenizer, and run cloudload "
            f"count --tokens-key {tokens_key} after the conversion"
        )
    if tokenizer is not None:
        column = {} if text_key is None else {"text_key": text_key}
        return open_count_work(location, tokenizer, **documents, **column)
    for name, value in documents.items():
        if value != getattr(RowsConfig, name):
            raise ValueError(
                f"{name} applies only when tokens are counted. Set tokenizer, too, or remove {name}"
            )
    return None


def _check_overwrite(overwrite: bool, *, is_array: bool, append: bool) -> None:
    if overwrite and is_array:
        raise ValueError(
            "overwrite (--overwrite) cannot be combined with worker or finish, because each worker "
            "would remove the work of the others. Remove the output first, and run without "
            "overwrite"
        )
    if overwrite and append:
        raise ValueError(
            "overwrite (--overwrite) would remove the dataset to which append (--append) adds. "
            "Use only one of these options"
        )


def _locate(out: str, split: str | None) -> Location:
    urls.check_location(out)
    if split is not None and (not split or split.startswith(("/", ".")) or ".." in split):
        raise ValueError(f"split is {split!r}. Use a plain name such as 'train'")
    return Location(urls.plain_location(out)).join(split or "")
