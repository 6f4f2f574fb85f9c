"""Runs over literal token lengths, and a naive reference for their rows. Needs only NumPy.

    run = TinyRun([3, 4, 2, 5], num_lanes=2, seq_len=5)
    run.lengths.advance(run.start, 4)       what cloudload computes from lengths
    run.naive.rows(4)                       what the reference packer makes of the same documents

There are no shards, texts, or files. The order is unshuffled, so with one canonical node lane `l`
of `L` reads samples `l`, `l + L`, `l + 2L`, …, epoch after epoch. Without bos and eos, the size of
a document is its length.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cloudload.config.rows import RowsConfig
from cloudload.config.stream import Stream
from cloudload.data.mds.dataset import Corpus, Dataset
from cloudload.data.mds.shard_entries import Column, FileInfo, ShardInfo
from cloudload.data.mds.shard_table import ShardTable
from cloudload.data.storage.locations import Location
from cloudload.order.lanes import resolve_layout
from cloudload.rows.packing.packers import PackedRow, Packer, Packing
from cloudload.rows.packing.tables import split_keys
from cloudload.rows.tokenization.tokenizer import TokenizerSpec
from cloudload.run.components import build_components, specify_components
from cloudload.run.lengths.length_files import CorpusLengths, DatasetLengths, narrow, widen
from cloudload.run.lengths.run_lengths import RunLengths
from cloudload.run.position import Position
from cloudload.run.recipe import Recipe, mixture_of
from cloudload.run.sources import describe_sources
from cloudload.system.arrays import Frame, Ints

SHARD_BYTES = 1_000
"""The size in bytes of each shard."""
Span = tuple[int, int, int, int]
"""(lane, ordinal, start, stop): tokens [start, stop) of a lane's document."""
_NOWHERE = Path("/dev/null/cloudload")  # tiny runs write no files


def name_documents(pieces: Ints) -> Ints:
    """Pieces of rows as (row, lane, ordinal, start, stop), from those with keys of documents."""
    row, key, start, stop = pieces.T
    return np.column_stack([row, *split_keys(key), start, stop])


def tiny_dataset(name: str, shard_sizes: Sequence[int], *, hashed: bool = True) -> Dataset:
    """A dataset whose shards have these numbers of samples. With `hashed`, they have hashes."""
    column = (Column.of("text", "str"),)
    shards = [
        ShardInfo(
            samples,
            column,
            FileInfo(f"{number}.mds", SHARD_BYTES, {"xxh64": f"{name}{number}"} if hashed else {}),
            None,
            None,
            f"samples {number}" if hashed else None,
        )
        for number, samples in enumerate(shard_sizes)
    ]
    return Dataset(Location(f"s3://tiny/{name}"), ShardTable.of(shards), f"index of {name}")


def tiny_recipe(
    *shards: Sequence[int],
    names: str = "abcdef",
    proportions: Sequence[float] | None = None,
    max_epochs: Sequence[int | None] | None = None,
    frames: Sequence[Frame] | None = None,
    tokenizer: str = "tiny",
    hashed: bool = True,
    **options: Any,
) -> Recipe:
    """A recipe of streams that have shards with these numbers of samples.

    `options` are those of `RowsConfig`; by default 2 lanes, rows of 5 tokens, and no shuffle.
    """
    streams = tuple(
        Stream(
            f"s3://tiny/{name}",
            name=name,
            proportion=None if proportions is None else proportions[index],
            max_epochs=None if max_epochs is None else max_epochs[index],
        )
        for index, name in enumerate(names[: len(shards)])
    )
    usual = {"seq_len": 5, "num_lanes": 2, "num_canonical_nodes": 1, "shuffle": False}
    config = RowsConfig(streams, **{**usual, "shuffle_algo": "seekable", **options})
    datasets = zip(names, shards, strict=False)
    corpus = Corpus(tuple(tiny_dataset(*each, hashed=hashed) for each in datasets))
    specs = specify_components(config, corpus, (None,) * len(config.streams))
    layout = resolve_layout(config, [(each.num_positions, len(each.shard_sizes)) for each in specs])
    of_streams = ((None, None),) * len(shards) if frames is None else tuple(frames)
    return Recipe(
        config=config,
        tokenizer=TokenizerSpec("", of_streams, 1 << 16, "ids", tokenizer),
        corpus=corpus,
        sources=describe_sources(config, tokenizer),
        layout=layout,
        components=build_components(config, specs, layout),
        mixture=mixture_of(config),
    )


def tiny_lengths(recipe: Recipe, *lengths: Sequence[int]) -> RunLengths:
    """The lengths of a recipe's streams. They may be `FILTERED` or `FAILED`."""
    datasets = tuple(map(_hold, lengths))
    starts = recipe.corpus.stream_starts
    return RunLengths(recipe, _NOWHERE, CorpusLengths(datasets, starts, "tiny", ()))


def _hold(lengths: Sequence[int]) -> DatasetLengths:
    short, indices, values = narrow(np.array(lengths, np.int64))
    return DatasetLengths(short, indices.astype(np.int64), widen(values))


class TinyRun:
    """A recipe over literal lengths, one list for each stream, and what is computed from it."""

    def __init__(self, *lengths: Sequence[int], shards: int = 1, **options: Any) -> None:
        sizes = [[len(part) for part in _cut(each, shards)] for each in lengths]
        self.recipe = tiny_recipe(*sizes, **options)
        self.lengths = tiny_lengths(self.recipe, *lengths)
        self.start = Position.start(self.recipe)
        self._streams = lengths

    @cached_property
    def naive(self) -> NaiveRun:
        """The reference for a run of one component without bos, eos, and `min_tokens`."""
        recipe = self.recipe
        sizes = [max(0, length) for length in itertools.chain.from_iterable(self._streams)]
        return NaiveRun(sizes, recipe.num_lanes, recipe.packing, recipe.config.epochs)


def _cut(values: Sequence[int], number: int) -> list[Sequence[int]]:
    step = -(-len(values) // number)
    return [values[start : start + step] for start in range(0, len(values), step)]


@dataclass
class NaiveRun:
    """Packs documents one after another with the reference packer, in plain Python."""

    sizes: list[int]
    num_lanes: int
    packing: Packing
    epochs: int | None = None

    def documents(self, lane: int, number: int) -> list[int]:
        """The sizes of a lane's first `number` documents; 0 for a hole at the end of an epoch.

        A finite lane may have fewer.
        """
        found, per_epoch = [], len(self.sizes)
        if per_epoch >= self.num_lanes:
            per_epoch = -(-per_epoch // self.num_lanes) * self.num_lanes
        for position in range(lane, lane + number * self.num_lanes, self.num_lanes):
            epoch, sample = divmod(position, per_epoch)
            if self.epochs is not None and epoch >= self.epochs:
                break
            found.append(self.sizes[sample] if sample < len(self.sizes) else 0)
        return found

    def pack(self, lane: int, number: int) -> Packer:
        """The packer of a lane after its first `number` documents."""
        packer = self.packing.packer()
        for ordinal, size in enumerate(self.documents(lane, number)):
            packer.add(ordinal, size)
        return packer

    def lane_rows(self, lane: int, number: int) -> list[PackedRow]:
        """A lane's first `number` rows, or all complete rows of a finite lane."""
        documents = 8
        while True:
            packer, is_all = self.pack(lane, documents), self.epochs is not None
            is_all &= len(self.documents(lane, documents)) < documents
            if len(packer.rows) >= number or is_all:
                return list(packer.rows)[:number]
            documents *= 2

    def rows(self, number: int) -> list[list[Span]]:
        """The spans of the run's first `number` rows. A row that its lane cannot fill has none."""
        lanes = [
            self.lane_rows(lane, -(-number // self.num_lanes)) for lane in range(self.num_lanes)
        ]
        return [
            [(lane, *piece[:3]) for piece in rows[index].pieces] if index < len(rows) else []
            for index, lane in (divmod(row, self.num_lanes) for row in range(number))
            for rows in [lanes[lane]]
        ]

    def all_rows(self) -> list[list[Span]]:
        """The spans of every row of a finite run: those of its lanes, then those of its tail.

        The tail begins at the first row that its lane cannot fill. It packs what is left of all
        documents, by ordinal and lane, as one lane.
        """
        number = 0
        while (found := self.rows(number + 1))[-1]:
            number += 1
        rows, stops = found[:-1], dict[tuple[int, int], int]()
        for lane, ordinal, _, stop in itertools.chain.from_iterable(rows):
            stops[lane, ordinal] = stop
        left = [
            (ordinal, lane, stops.get((lane, ordinal), 0), size)
            for lane in range(self.num_lanes)
            for ordinal, size in enumerate(self.documents(lane, (self.epochs or 0) * _many(self)))
            if not (self.packing.cuts and (lane, ordinal) in stops)
        ]
        packer, left = replace(self.packing, fair_from=None).packer(), sorted(left)
        for index, (_, _, start, size) in enumerate(left):
            packer.add(index, size - start)
        packer.finish()
        tail = [
            [
                (left[index][1], left[index][0], left[index][2] + start, left[index][2] + stop)
                for index, start, stop, _ in row.pieces
            ]
            for row in packer.rows
        ]
        return rows + tail


def _many(run: NaiveRun) -> int:
    return len(run.sizes) // run.num_lanes + 1
