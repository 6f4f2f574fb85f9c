"""Export the rows of a run as pre-tokenized MDS, in the run's order.

    CloudLoader ─► batches ─► rows without padding ─► shards ─► index.json

Every row becomes a sample with the column `tokens` and, if some tokens are not trained, the column
`trained` of 0 and 1. Only one shard is in memory at a time. The index is stored last, so readers
never open a partial dataset.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cloudload.config import checks, choices
from cloudload.data import (
    Location,
    own_objects,
    redact,
    refuse_to_hide,
    shard_entries,
    urls,
    writer,
)
from cloudload.errors import ConvertError
from cloudload.rows import tables
from cloudload.segments import IGNORED_LABEL
from cloudload.system import Flags, Ids, counted, option_help, reports

if TYPE_CHECKING:
    from cloudload.loading import Batch, CloudLoader  # which import torch

logger = logging.getLogger("cloudload.export")

TOKENS_COLUMN, TRAINED_COLUMN = "tokens", "trained"
EXPORT_ENCODINGS = ("ndarray", "bytes")


@dataclass(frozen=True)
class ExportReport:
    """The result of an export."""

    out: str
    """The redacted location of the dataset."""
    batches: int
    """Number of batches read. It is below `num_batches` if the data ended first."""
    rows: int
    """Number of rows written. Rows without tokens, at the end of a finite run, are omitted."""
    tokens: int
    """Number of tokens in the written rows, without padding."""
    padded: int
    """Number of rows that have padding in the run. They are written without the padding."""
    shards: int
    raw_bytes: int
    stored_bytes: int
    columns: tuple[str, ...]
    """The names of the columns: `tokens`, and `trained` if some tokens are not trained."""
    encoding: str
    """The MDS encoding of the columns."""
    dtype: str
    """The dtype of the token IDs, and of the 0 and 1 of `trained`."""

    def describe(self) -> Iterator[str]:
        """Yield the report as lines of text."""
        yield f"{self.out} is complete"
        yield (
            f"  rows       {self.rows:,} ({counted(self.tokens, 'token')}; "
            f"{counted(self.padded, 'row')} had padding)"
        )
        yield (
            f"  output     {counted(self.shards, 'shard')}, {counted(self.stored_bytes, 'byte')} "
            f"({self.raw_bytes:,} raw)"
        )
        yield f"  columns    {', '.join(self.columns)}: {self.encoding} ({self.dtype})"

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return reports.to_json(self)


@option_help.suggests_names
def export_rows(
    loader: CloudLoader,
    out: str | os.PathLike[str],
    *,
    num_batches: int | None = None,
    dtype: str = choices.AUTO,
    encoding: str = "ndarray",
    compression: str | None = "zstd",
    hashes: Sequence[str] = ("xxh64",),
    shard_bytes: int = writer.DEFAULT_SHARD_BYTES,
    overwrite: bool = False,
) -> ExportReport:
    """Write the next rows of a loader as pre-tokenized MDS, which StreamingDataset can also read.

    Starts at the loader's position, which `load_state_dict` and `seek` can set. A sample holds the
    tokens of one row without its padding, in the column `tokens`. If a stream has tokens that are
    not trained, the column `trained` has 1 for each token whose label is its ID, and 0 for the
    others; pass it as `labels_key`. Exporting the same rows again writes the same bytes.

    Args:
        loader: the loader of a run, on one rank.
        out: folder or URL of the dataset to write.
        num_batches: number of batches to write. By default, all batches until the end of a finite
            run.
        dtype: dtype of the token IDs. `auto` means `uint16` for a vocabulary of up to 65,536 tokens
            and `int32` for a larger one. With `bytes`, it means `int64`, which llm-foundry expects.
        encoding: `ndarray`, which records the dtype, or `bytes`, which old versions of llm-foundry
            need.
        compression: `zstd`, `gz`, `bz2` or `br`, optionally with `:LEVEL`; or None.
        hashes: algorithms of the hashes that the index lists for each shard.
        shard_bytes: the maximum raw size of a shard in bytes; 64 MiB by default.
        overwrite: whether to replace a dataset or an interrupted export at `out`. It is removed
            right before the first new shard is written.

    Raises:
        ValueError: an argument is invalid, the run is endless and `num_batches` is None, `out` is
            the run's data, or the loader has only a part of the rows, because its world has several
            ranks.
        ConvertError: `out` already holds a dataset or an interrupted export, or there are no rows.
        StoreError: the output cannot be written.
        CloudloadError: the rows cannot be read.
    """
    if num_batches is not None:
        num_batches = checks.as_integer("num_batches", num_batches, 1)
    elif loader.is_endless:
        raise ValueError(
            "the run has no end, because the loader was created without epochs. Pass num_batches "
            "(--steps), or create the loader with epochs=1"
        )
    if loader.world_size > 1:
        raise ValueError(
            f"the loader belongs to one of {loader.world_size} ranks, so it has only the rows of "
            "that rank. Create the loader with dp_rank=0 and dp_world_size=1"
        )
    recipe = loader.recipe
    dtype = _choose_dtype(dtype, encoding, recipe.tokenizer.vocab_size)
    stored = encoding if encoding == "bytes" else f"ndarray:{dtype}"
    names = (TOKENS_COLUMN, TRAINED_COLUMN) if recipe.has_masks else (TOKENS_COLUMN,)
    columns = tuple(shard_entries.Column.of(name, stored) for name in names)
    form = writer.ShardFormat(columns, compression, tuple(hashes), shard_bytes)
    data = [dataset.url for dataset in recipe.corpus.datasets]
    location, old = _open_location(os.fspath(out), data, overwrite=overwrite)
    shard_writer = _ShardWriter(location, form, old)
    tokens = padded = batches = 0
    for batch in loader if num_batches is None else loader.take(num_batches):
        batches += 1
        for ids, is_trained in _list_rows(batch):
            tokens += len(ids)
            padded += len(ids) < loader.seq_len
            arrays = [each.astype(dtype) for each in (ids, is_trained)[: len(names)]]
            values = [each.tobytes() for each in arrays] if encoding == "bytes" else arrays
            shard_writer.add(dict(zip(names, values, strict=True)))
    shard_writer.finish()
    return ExportReport(
        out=redact(location),
        batches=batches,
        rows=sum(entry["samples"] for entry in shard_writer.entries),
        tokens=tokens,
        padded=padded,
        shards=len(shard_writer.entries),
        raw_bytes=sum(entry["raw_data"]["bytes"] for entry in shard_writer.entries),
        stored_bytes=sum(
            (entry["zip_data"] or entry["raw_data"])["bytes"] for entry in shard_writer.entries
        ),
        columns=names,
        encoding=stored,
        dtype=dtype,
    )


def _choose_dtype(dtype: str, encoding: str, vocab_size: int) -> str:
    """Resolve the dtype `auto`. Raises `ValueError` for a dtype that cannot hold every ID."""
    checks.as_choice("encoding", encoding, EXPORT_ENCODINGS)
    checks.as_choice("dtype", dtype, (choices.AUTO, *choices.TOKEN_DTYPES))
    if dtype == choices.AUTO:
        if encoding == "bytes":
            return "int64"
        return "uint16" if vocab_size <= 1 << 16 else "int32"
    most = int(np.iinfo(dtype).max)
    if vocab_size - 1 > most:
        if vocab_size == choices.MOST_IDS:
            has, advice = "the largest ID is not known", "Pass a tokenizer to the loader, or use"
        else:
            has, advice = f"the tokenizer has IDs up to {vocab_size - 1:,}", "Use"
        raise ValueError(
            f"dtype is {dtype!r}, which can store IDs up to {most:,}, but {has}. {advice} a wider "
            "dtype or 'auto'"
        )
    return dtype


def _open_location(out: str, data: Sequence[str], *, overwrite: bool) -> tuple[str, list[str]]:
    """Resolve the output's location, and check that it holds no dataset, unless `overwrite` is set.

    Returns the location, and the names of the old objects to remove: a dataset with its report and
    token lengths, and an unfinished conversion. The index is first, so that no reader finds an
    index without its shards. `data` lists the locations of the data that the run reads, which must
    not be removed. Raises `ConvertError` if a new index would hide other datasets.
    """
    urls.check_location(out)
    location = urls.plain_location(out)
    for url in data:
        if urls.same_or_inside(location, url) or urls.same_or_inside(url, location):
            raise ValueError(
                f"the output {redact(out)} is, contains, or is inside data that the run reads, "
                f"{redact(url)}. Choose another output"
            )
    found = Location(location).list_if_exists()
    names = [urls.name_below(item.url, location) for item in found]
    own = [
        name
        for name in names
        if own_objects.is_of_dataset(name) or own_objects.JOURNAL.fullmatch(name)
    ]
    if shard_entries.INDEX_NAME not in names:
        refuse_to_hide(location, names)
    if own and not overwrite:
        raise ConvertError(
            f"{redact(location)} already contains a dataset, or an interrupted export or "
            "conversion. Choose another output, or replace the contents (--overwrite)"
        )
    return location, sorted(own, key=lambda name: (name != shard_entries.INDEX_NAME, name))


def _list_rows(batch: Batch) -> Iterator[tuple[Ids, Flags]]:
    """Yield each row's IDs without padding, and which of them are trained.

    Each is int64 [tokens] and bool [tokens]. Skips rows that are all padding.
    """
    rows, spans = batch["input_ids"].numpy(), batch.spans
    is_trained = batch["labels"].numpy() != IGNORED_LABEL
    sizes = spans[:, tables.SPAN_STOP] - spans[:, tables.SPAN_START]
    lengths = np.bincount(spans[:, tables.SPAN_ROW], sizes, len(rows)).astype(np.int64)
    for row, length in enumerate(lengths.tolist()):
        if length:
            own = row, slice(batch.num_lead + length)
            yield rows[own], is_trained[own]


class _ShardWriter:
    """Cuts samples into shards as `MDSWriter` does, and stores each shard when it is full.

    It removes the objects named in `old` right before it stores the first shard.
    """

    def __init__(self, location: str, form: writer.ShardFormat, old: list[str]) -> None:
        self._location, self._form, self._old = location, form, old
        self.entries: list[dict[str, Any]] = []
        """The index entries of the stored shards, in order."""
        self._samples: list[bytes] = []
        self._bytes = form.empty_bytes()

    def add(self, values: dict[str, Any]) -> None:
        """Add a sample. Raises `StoreError` if a full shard cannot be stored."""
        sample = writer.encode_sample(self._form.columns, values)
        cost = 4 + len(sample)
        if self._samples and self._bytes + cost > self._form.shard_bytes:
            self._store()
        self._samples.append(sample)
        self._bytes += cost

    def finish(self) -> None:
        """Store the last shard and the index. Raises `ConvertError` if there are no samples."""
        if self._samples:
            self._store()
        if not self.entries:
            raise ConvertError(
                "there are no rows to export, because the loader is at the end of its run"
            )
        Location(urls.join_url(self._location, shard_entries.INDEX_NAME)).write(
            writer.encode_index(self.entries)
        )

    def _store(self) -> None:
        sizes = np.fromiter(map(len, self._samples), np.int64, len(self._samples))
        shard = writer.pack_shard(self._form, len(self.entries), sizes, self._samples)
        while self._old:
            Location(urls.join_url(self._location, self._old.pop(0))).delete()
        Location(urls.join_url(self._location, shard.name)).write(shard.data)
        self.entries.append(shard.entry)
        logger.info("%s: %s rows", shard.name, f"{len(sizes):,}")
        self._samples, self._bytes = [], self._form.empty_bytes()
