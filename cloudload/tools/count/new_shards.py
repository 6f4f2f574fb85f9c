"""Count the tokens of shards as they are written, and join their lengths to a dataset's groups.

    shard in memory ─► ShardLengths ─► text in a journal        while the data is written
    all of them, in order ─► groups ─► 00000-….lengths          before the data's own index
    groups with older shards that were not counted ─► counted as `count_tokens` does

The files have the same bytes as those that `count_tokens` writes for the finished dataset.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cloudload.config import RowsConfig, Stream
from cloudload.data import (
    Corpus,
    Dataset,
    Location,
    Shard,
    cache_folder,
    own_objects,
    shard_entries,
)
from cloudload.loading import OneShard
from cloudload.rows import choose_backend
from cloudload.run import length_files, lengths_index, open_recipe_without_data
from cloudload.system import Ints
from cloudload.tools.count.group import (
    CountWork,
    GroupJob,
    LengthMeter,
    check_limit,
    list_found,
    list_groups,
    read_group,
    write_group,
)


@dataclass(frozen=True)
class ShardLengths:
    """The lengths of consecutive shards."""

    lengths: Ints
    """Length of each sample, or `FILTERED` or `FAILED`: int64 [samples]."""
    text_bytes: int
    """Bytes of UTF-8 text that were tokenized."""

    def encode(self) -> str:
        """Return the lengths as ASCII text, to store them in a journal."""
        header = {"samples": len(self.lengths), "text_bytes": self.text_bytes}
        return base64.b64encode(length_files.encode_group(header, self.lengths)).decode()

    @staticmethod
    def decode(text: str) -> ShardLengths:
        """Decode text that `encode` returned. Raises `ValueError` if it is damaged."""
        found = length_files.decode_group(base64.b64decode(text))
        return ShardLengths(found.widen(), found.header["text_bytes"])


def open_count_work(location: Location, tokenizer: Any, **documents: Any) -> CountWork:
    """Return the settings for counting a dataset that will be written to `location`.

    `documents` are options of `RowsConfig`, such as `transform`. Raises `TokenizerError` if the
    tokenizer cannot be loaded, and `ValueError` for an invalid option.
    """
    config = RowsConfig((Stream(location.url),), seq_len=1, bos=None, eos=None, **documents)
    check_limit(config)
    recipe = open_recipe_without_data(config, tokenizer)
    backend = choose_backend(recipe.tokenizer.json, "auto", cache_folder.default_cache()).name
    lengths = location.join(own_objects.LENGTHS_FOLDER)
    return CountWork(recipe, backend, lengths_index.make_key(recipe, 0), lengths)


def join_count_work(location: Location, key: Mapping[str, str]) -> CountWork:
    """Return the settings for joining the lengths with a key, all of which are counted."""
    lengths = location.join(own_objects.LENGTHS_FOLDER)
    return CountWork(None, "", lengths_index.LengthsKey(**key), lengths)


def measure_shard(
    work: CountWork, location: Location, info: shard_entries.ShardInfo, raw: bytes | memoryview
) -> ShardLengths:
    """Count the tokens of each sample of a shard in the dataset at `location`.

    `raw` are the raw bytes of the shard, which need not be stored yet.
    Raises the errors of `LengthMeter.measure`.
    """
    assert work.recipe is not None
    dataset = Dataset(location, (info,), "")
    recipe = replace(work.recipe, corpus=Corpus((dataset,)))
    shard = Shard(Path(info.raw.name), info, memoryview(raw))
    shard.url = str(dataset.locate(info))
    meter = LengthMeter(recipe, work.backend, OneShard(shard))
    return ShardLengths(*meter.measure(np.arange(info.samples)))


def write_groups(
    work: CountWork, dataset: Dataset, num_old: int, new: Iterable[ShardLengths]
) -> list[GroupJob]:
    """Write the files of all groups with shards after the first `num_old`, from their lengths.

    `new` has one item for each of these shards, in order. Returns the groups that still need
    counting, because they contain older shards that were not counted. Raises `StoreError` if a file
    cannot be read or written, and `DatasetError` if an older group's file is damaged.
    """
    found, following = list_found(work), iter(new)
    old = list_groups(work, replace(dataset, shards=dataset.shards[:num_old]))
    uncounted = []
    for job in list_groups(work, dataset):
        if job.shards.stop > num_old:
            own = job.shards.stop - max(job.shards.first, num_old)
            parts = list(itertools.islice(following, own))
            before = [group for group in old if group.shards.first == job.shards.first]
            if all(group.shards.name in found for group in before):
                parts[:0] = _read_parts(work, before)
                lengths = np.concatenate([part.lengths for part in parts])
                write_group(work, job.shards, lengths, sum(part.text_bytes for part in parts))
                continue
        if job.shards.name not in found:
            uncounted.append(job)
    return uncounted


def _read_parts(work: CountWork, groups: Sequence[GroupJob]) -> Iterator[ShardLengths]:
    for job in groups:
        group, lengths = read_group(work, job)
        yield ShardLengths(lengths, group.text_bytes)
