"""Count a dataset in groups: tokenize the samples of each, write their lengths, and index them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cloudload.config import RowsConfig, choices
from cloudload.data import (
    Corpus,
    Dataset,
    Location,
    MemoryShards,
    Shard,
    ShardCache,
    explain,
)
from cloudload.errors import DatasetError
from cloudload.loading import DocumentReader, ShardSource, TokenReader
from cloudload.rows import DocumentTokenizer, TokenizerSpec, tables
from cloudload.run import Recipe, length_files, lengths_index
from cloudload.system import Ints, map_in_order, temp_files
from cloudload.tools.count.length_report import LengthCounter, Tally

BYTES_AT_ONCE = 1 << 19
"""Bytes of samples that are tokenized at once, so that texts and IDs stay in the CPU's cache."""
_SHARDS_AHEAD = 2
_TOTALS = ("tokens", "empty", "filtered", "failed", "text_bytes")

_READ_AT_ONCE = 8


@dataclass(frozen=True)
class CountWork:
    """The settings for counting a dataset, which all groups share. Every worker receives them."""

    recipe: Recipe | None
    """The recipe of a run that reads only this dataset, with an empty corpus, to keep it small.
    None if the lengths are only joined."""
    backend: str
    """The tokenizer backend."""
    key: lengths_index.LengthsKey
    location: Location
    """The location of the lengths."""

    @property
    def folder(self) -> Location:
        """The folder of the lengths that belong to `key`."""
        return self.location.join(self.key.digest)


@dataclass(frozen=True)
class GroupJob:
    """A group to count."""

    dataset: Dataset
    """The dataset with only the group's shards."""
    shards: lengths_index.ShardRange
    is_counted: bool = False
    """Whether the group's file exists. If so, only the values of a column are read."""

    @property
    def raw_bytes(self) -> int:
        """Total uncompressed size of the group's shards."""
        return int(self.dataset.table.raw_bytes.sum())


class CountedGroup(NamedTuple):
    """The result of counting a group."""

    raw_bytes: int
    """Total uncompressed size of the group's shards."""
    tally: Tally | None
    """Documents and tokens by the values of a column, or None if the caller chose no column."""


@dataclass(frozen=True)
class Counted:
    """The result of a finished count."""

    location: Location
    """The location of the index."""
    index: lengths_index.LengthsIndex
    spread: LengthCounter
    """The distribution of the lengths."""


def check_limit(config: RowsConfig) -> None:
    """Raise `ValueError` if the most tokens of conversations are unknown without a `seq_len`."""
    for chat in (source.chat for source in config.sources):
        if chat is not None and chat.max_tokens is None and chat.overlong != "split":
            raise ValueError(
                "max_tokens of Chat is missing. By default, it is the run's seq_len, which a count "
                "does not know. Pass Chat(max_tokens=N) with the run's seq_len"
            )


def list_groups(work: CountWork, dataset: Dataset) -> list[GroupJob]:
    """Return the groups of a dataset, in order."""
    return [
        GroupJob(dataset.part(shards.first, shards.stop), shards)
        for shards in lengths_index.cut_groups(dataset.table, work.key)
    ]


def list_found(work: CountWork) -> set[str]:
    """Return the names of the existing files. Raises `StoreError` if they cannot be listed."""
    found = work.folder.list_if_exists()
    return {item.url.rpartition("/")[2] for item in found}


def count_group(work: CountWork, job: GroupJob, by: str | None = None) -> CountedGroup:
    """Count a group, and write its file unless it exists. `by` is the column of the tally, or None.

    Raises the errors of `DocumentReader` and of `Tally.add_shard`, `TokenizerError` for a text that
    cannot be encoded, and `StoreError` if the file cannot be written.
    """
    if work.recipe is None:
        raise DatasetError(
            f"{job.dataset.location} has shards without token lengths. Pass the tokenizer, and "
            "the transform of the run, if it has one"
        )
    recipe = replace(work.recipe, corpus=Corpus((job.dataset,)))
    tally = Tally(by) if by is not None else None
    with (
        temp_files.explained_full_disk(),
        tempfile.TemporaryDirectory(prefix="cloudload-count-") as folder,
        open_meter(recipe, work.backend, Path(folder)) as meter,
    ):
        if job.is_counted:
            _, lengths = read_group(work, job)
            _tally(meter, recipe.corpus, lengths, tally)
        else:
            lengths, text_bytes = _measure(meter, recipe.corpus, tally)
            write_group(work, job.shards, lengths, text_bytes)
    return CountedGroup(job.raw_bytes, tally)


def write_group(
    work: CountWork, shards: lengths_index.ShardRange, lengths: Ints, text_bytes: int
) -> None:
    """Write the file of a group.

    `lengths` is int64 [samples]. A length may be `FILTERED` or `FAILED`. Raises `StoreError` if the
    file cannot be written.
    """
    header = {
        "key": work.key.digest,
        "shards": shards.digest,
        "samples": len(lengths),
        "tokens": int(lengths[lengths > 0].sum()),
        "empty": int((lengths == 0).sum()),
        "filtered": int((lengths == tables.Size.FILTERED).sum()),
        "failed": int((lengths == tables.Size.FAILED).sum()),
        "text_bytes": text_bytes,
    }
    work.folder.join(shards.name).write(length_files.encode_group(header, lengths))


def read_group(work: CountWork, job: GroupJob) -> tuple[lengths_index.Group, Ints]:
    """Read the file of a counted group. Returns its entry for the index, and its lengths.

    Raises `DatasetError` if the file is damaged, and `StoreError` if it cannot be read.
    """
    location = work.folder.join(job.shards.name)
    data = location.read()
    try:
        found = length_files.decode_group(data)
        if len(found.short) != job.shards.samples:
            raise ValueError(
                f"it has {len(found.short):,} samples, but its shards have {job.shards.samples:,}"
            )
        totals = {name: int(found.header[name]) for name in _TOTALS}
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{location} is damaged: {explain(error)}. Remove the file, and count again"
        ) from error
    group = lengths_index.Group(
        name=job.shards.name,
        hash=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        samples=len(found.short),
        **totals,
    )
    return group, found.widen()


def _measure(meter: LengthMeter, corpus: Corpus, tally: Tally | None) -> tuple[Ints, int]:
    """Return the length of each sample, int64 [samples], and the total bytes of all texts."""
    parts, text_bytes = [np.empty(0, np.int64)], 0
    for index, (start, stop) in enumerate(itertools.pairwise(corpus.shard_starts.tolist())):
        if start < stop:
            lengths, size = meter.measure(np.arange(start, stop))
            if tally is not None:
                tally.add_shard(meter.shard(index), lengths)
            parts.append(lengths)
            text_bytes += size
    return np.concatenate(parts), text_bytes


def _tally(meter: LengthMeter, corpus: Corpus, lengths: Ints, tally: Tally | None) -> None:
    for index, (start, stop) in enumerate(itertools.pairwise(corpus.shard_starts.tolist())):
        if start < stop and tally is not None:
            tally.add_shard(meter.shard(index), lengths[start:stop])


class LengthMeter:
    """Reads and tokenizes samples of a corpus to find their lengths."""

    def __init__(self, recipe: Recipe, backend: str, shards: ShardSource) -> None:
        self._shards, self._corpus = shards, recipe.corpus
        self.reader = DocumentReader(recipe, shards)
        self._recipe, self._backend = recipe, backend
        [source] = recipe.config.sources
        # a transform changes the text, so its size differs from that of the stored column
        self._stored_column = source.text_key if source.is_column else None

    @functools.cached_property
    def _tokens(self) -> TokenReader:
        """The reader of tokens, whose tokenizer is opened when the first sample is measured."""
        recipe = self._recipe
        tokenizer = _open_tokenizer(recipe.tokenizer, self._backend) if recipe.tokenizes else None
        return TokenReader(recipe, self.reader, tokenizer)

    def measure(self, samples: Ints) -> tuple[Ints, int]:
        """Return the lengths of samples of one shard, and the total bytes of their texts.

        `samples` and the lengths are int64 [samples]. A length may be `FILTERED` or `FAILED`.
        Raises the errors of `DocumentReader`, and `TokenizerError` for a text that cannot be
        encoded.
        """
        index = int(self._corpus.shards_of(samples[:1])[0])
        shard = self.shard(index)
        within = samples - self._corpus.shard_starts[index]
        ends = np.cumsum(shard.sample_bytes()[within]) // BYTES_AT_ONCE
        parts = np.split(samples, np.flatnonzero(np.diff(ends)) + 1)
        found = [self._tokens.read(part) for part in parts]
        lengths = np.concatenate([each.lengths for each in found])
        if self._stored_column is None:
            return lengths, sum(each.text_bytes for each in found)
        return lengths, int(self._stored_bytes(shard, within)[lengths != tables.Size.FAILED].sum())

    def shard(self, index: int) -> Shard:
        """Return a shard, given its index, and prefetch the next two."""
        last = len(self._corpus.shard_sizes)
        self._shards.prefetch(dict.fromkeys(range(index, min(index + 1 + _SHARDS_AHEAD, last))))
        return self._shards.shard(index)

    def _stored_bytes(self, shard: Shard, within: Ints) -> Ints:
        """Return the size of each sample's text in a shard, in bytes: int64 [samples]."""
        assert self._stored_column is not None
        starts, stops = shard.find_values(within, shard.column_index(self._stored_column))
        return stops - starts


@contextlib.contextmanager
def open_meter(recipe: Recipe, backend: str, folder: Path) -> Iterator[LengthMeter]:
    """Open a meter that stores shards in `folder` if they are too large for memory."""
    cache = ShardCache(recipe.corpus, folder, threads=_SHARDS_AHEAD, verify=choices.ONCE)
    shards = MemoryShards(recipe.corpus, cache, threads=_SHARDS_AHEAD)
    try:
        yield LengthMeter(recipe, backend, shards)
    finally:
        shards.close()


@functools.lru_cache(1)
def _open_tokenizer(spec: TokenizerSpec, backend: str) -> DocumentTokenizer:
    """Open a tokenizer once for all groups that a process counts."""
    return DocumentTokenizer(spec, backend)


def finish_count(work: CountWork, dataset: Dataset, jobs: Sequence[GroupJob]) -> Counted:
    """Read the groups of a dataset, write their index, and return it.

    `jobs` are all groups of the dataset. Raises `DatasetError` if a file is damaged, and
    `StoreError` if a file cannot be read or written.
    """
    spread, groups = LengthCounter(), []
    for group, lengths in read_groups(work, jobs):
        groups.append(group)
        spread.add(lengths)
    data = Corpus((dataset,)).fingerprint(range(1))
    index = lengths_index.LengthsIndex(asdict(work.key), data, tuple(groups))
    location = work.folder.join(lengths_index.index_name(data))
    location.write(index.encode())
    return Counted(location, index, spread)


def read_groups(
    work: CountWork, jobs: Sequence[GroupJob]
) -> Iterator[tuple[lengths_index.Group, Ints]]:
    """Read groups in order, several at a time; see `read_group`."""
    return map_in_order(partial(read_group, work), jobs, _READ_AT_ONCE, "cloudload-count")
