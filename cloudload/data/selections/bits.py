"""The selected samples of a dataset, and of a corpus: one bit for each sample.

samples   0 1 2 3 4 5 6 7 8 …
bits      1 0 0 1 1 1 1 1 1 …   packed, the first sample in the lowest bit
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cloudload.data.mds.dataset import Corpus, join_columns
from cloudload.system import Flags, Ids, Ints

_SAMPLES_AT_ONCE = 1 << 23
_ONES = np.array([number.bit_count() for number in range(256)], np.uint8)


class Selection:
    """The selected samples of a dataset.

    `bits` is uint8 [bytes]. If it is mapped from a file, that is the file at `path`.
    """

    def __init__(self, bits: Ids, num_samples: int, path: Path | None = None) -> None:
        self._bits, self.num_samples, self._path = bits, num_samples, path

    @staticmethod
    def map_file(path: Path, num_samples: int) -> Selection:
        """Map the packed bits in a file."""
        bits: Ids = np.memmap(path, np.uint8, "r", 0, (count_packed(num_samples),)).view(np.ndarray)
        return Selection(bits, num_samples, path)

    @staticmethod
    def join(parts: Iterable[Flags], num_samples: int) -> Selection:
        """Pack flags of consecutive samples, bool [samples] each, in memory."""
        bits: Ids = np.frombuffer(b"".join(pack_parts(parts)), np.uint8)
        return Selection(bits, num_samples)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._path is not None:  # a worker maps the file instead of receiving its data
            return Selection.map_file, (self._path, self.num_samples)
        return Selection, (self._bits, self.num_samples)

    def of(self, samples: Ints) -> Flags:
        """Whether each sample of the dataset is selected: bool, in the shape of `samples`."""
        is_selected: Flags = (self._bits[samples >> 3] >> (samples & 7).astype(np.uint8)) & 1 > 0
        return is_selected

    def take(self, num_samples: int) -> Selection | None:
        """Return the selection of the first `num_samples` samples; None if it has all of them."""
        found = Selection(self._bits, num_samples, self._path)
        return found if found.num_selected < num_samples else None

    def read(self, start: int, stop: int) -> Flags:
        """Whether each of the samples [start, stop) is selected: bool [stop - start]."""
        packed = self._bits[start >> 3 : count_packed(stop)]
        flags: Flags = np.unpackbits(packed, bitorder="little").astype(np.bool_)
        return flags[start & 7 : (start & 7) + stop - start]

    @cached_property
    def _last(self) -> int:
        """The last byte, if only some of its bits belong to samples; otherwise 0."""
        over = self.num_samples & 7
        return int(self._bits[self.num_samples >> 3]) & ((1 << over) - 1) if over else 0

    @cached_property
    def num_selected(self) -> int:
        """Number of selected samples."""
        whole = self._bits[: self.num_samples >> 3]
        parts = range(0, len(whole), _SAMPLES_AT_ONCE)
        ones = sum(int(_ONES[whole[at : at + _SAMPLES_AT_ONCE]].sum()) for at in parts)
        return ones + self._last.bit_count()

    @cached_property
    def digest(self) -> str:
        """16 hex digits that identify the selected samples, however they were selected."""
        digest = hashlib.sha256(self._bits[: self.num_samples >> 3].data)
        digest.update(f"{self._last} {self.num_samples}".encode())
        return digest.hexdigest()[:16]

    def count_between(self, bounds: Ints) -> Ints:
        """The number of selected samples from each of `bounds` to the next: int64 [bounds - 1].

        `bounds` is int64 [bounds], ascending.
        """
        counts = np.zeros(len(bounds) - 1, np.int64)
        first = 0
        while first < len(counts):
            # as many ranges as have about `_SAMPLES_AT_ONCE` samples, but at least one
            most = int(bounds[first]) + _SAMPLES_AT_ONCE
            stop = max(first + 1, int(np.searchsorted(bounds, most, side="right")) - 1)
            flags = self.read(int(bounds[first]), int(bounds[stop]))
            before = np.append(0, np.cumsum(flags))
            counts[first:stop] = np.diff(before[bounds[first : stop + 1] - bounds[first]])
            first = stop
        return counts


@dataclass(frozen=True)
class CorpusSelection:
    """The selected samples of a corpus. Can be pickled."""

    datasets: tuple[Selection | None, ...]
    """The selection of each dataset; None for a dataset of which all samples are read."""
    stream_starts: Ints
    """First sample of each dataset, and the total number of samples: int64 [datasets + 1]."""

    @staticmethod
    def join(datasets: tuple[Selection | None, ...], corpus: Corpus) -> CorpusSelection | None:
        """Join the selections of a corpus's datasets; None if all samples are selected."""
        return CorpusSelection(datasets, corpus.stream_starts) if any(datasets) else None

    def take(self, corpus: Corpus) -> CorpusSelection | None:
        """Return the selection of a corpus that has only the first shards of each dataset."""
        sizes = np.diff(corpus.stream_starts).tolist()
        datasets = [own and own.take(size) for own, size in zip(self.datasets, sizes, strict=True)]
        return CorpusSelection.join(tuple(datasets), corpus)

    @property
    def digest(self) -> str:
        """Identifies the selected samples."""
        return ",".join(each.digest if each else "" for each in self.datasets)

    def of(self, samples: Ints) -> Flags:
        """Whether each sample of the corpus is selected: bool, in the shape of `samples`."""
        if len(self.datasets) == 1:
            [selection] = self.datasets
            assert selection is not None
            return selection.of(samples)
        streams = np.searchsorted(self.stream_starts, samples, side="right") - 1
        is_selected = np.ones(samples.shape, np.bool_)
        for stream in np.unique(streams).tolist():
            if (selection := self.datasets[stream]) is not None:
                own = streams == stream
                is_selected[own] = selection.of(samples[own] - self.stream_starts[stream])
        return is_selected

    def count_of_shards(self, corpus: Corpus) -> Ints:
        """The number of selected samples of each shard: int64 [shards]."""
        counts = [
            dataset.table.samples
            if selection is None
            else selection.count_between(np.append(0, np.cumsum(dataset.table.samples)))
            for dataset, selection in zip(corpus.datasets, self.datasets, strict=True)
        ]
        return join_columns(counts)


def count_packed(num_samples: int) -> int:
    """The number of bytes that the bits of samples take."""
    return -(-num_samples // 8)


def pack_parts(parts: Iterable[Flags]) -> Iterable[bytes]:
    """Pack flags that come in parts, bool [samples] each, to consecutive bytes."""
    rest: Sequence[Any] | Flags = np.zeros(0, np.bool_)
    for part in parts:
        flags = np.concatenate([rest, part])
        whole = len(flags) & ~7
        yield np.packbits(flags[:whole], bitorder="little").tobytes()
        rest = flags[whole:]
    yield np.packbits(rest, bitorder="little").tobytes()
