"""Documents by sample number, out of mapped shards."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np

from cloudload.arrays import Ints
from cloudload.cache.shard_cache import ShardCache
from cloudload.config import Transform
from cloudload.errors import DatasetError
from cloudload.mds.dataset import Corpus
from cloudload.mds.shard import Shard


class DocumentReader:
    """Reads the texts of a corpus' samples, fetching their shards."""

    def __init__(self, corpus: Corpus, cache: ShardCache, text_key: str, transform: Transform | None = None) -> None:
        self._corpus, self._cache, self._text_key, self._transform = corpus, cache, text_key, transform

    def read(self, samples: Ints) -> list[str | None]:
        """The texts of samples, in their order, None where the transform leaves one out; each shard is opened once."""
        if not len(samples):
            return []
        numbers = self._corpus.shards_of(samples)
        order = np.argsort(numbers, kind="stable")
        within = (samples - self._corpus.shard_starts[numbers])[order].tolist()
        opened, firsts = np.unique(numbers[order], return_index=True)
        texts: list[str | None] = []
        for number, first, stop in zip(opened.tolist(), firsts.tolist(), [*firsts[1:].tolist(), len(samples)], strict=True):
            shard = self._cache.shard(number)
            if self._transform is None:
                texts += shard.read_texts(within[first:stop], shard.column_index(self._text_key))
            else:
                texts += [self._transformed(shard, sample) for sample in within[first:stop]]
        in_order: list[str | None] = [None] * len(samples)
        for place, text in zip(order.tolist(), texts, strict=True):
            in_order[place] = text
        return in_order

    def read_sample(self, sample: int, columns: Sequence[str]) -> tuple[Shard, dict[str, Any]]:
        """The shard of a sample, and those of `columns` that it has."""
        shard, within = self._find(sample)
        return shard, shard.read_columns(within, columns)

    def where(self, sample: int) -> str:
        """A sample's place for a message: its number in its shard, the shard, and its id where it has one."""
        shard, within = self._find(sample)
        return shard.where(within)

    def _find(self, sample: int) -> tuple[Shard, int]:
        [number] = self._corpus.shards_of(np.array([sample]))
        return self._cache.shard(int(number)), sample - int(self._corpus.shard_starts[number])

    def prefetch(self, samples: Ints) -> None:
        """Begin to fetch the shards of samples, those of the first samples first."""
        self._cache.prefetch(dict.fromkeys(self._corpus.shards_of(samples).tolist()))

    def _transformed(self, shard: Shard, sample: int) -> str | None:
        assert self._transform is not None
        values = shard.read(sample)
        try:
            text = self._transform(values)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() in a worker would look as if it had died
            [*_, what] = traceback.format_exception_only(error)
            raise DatasetError(f"the transform failed on {shard.where(sample)}: {what}{traceback.format_exc()}") from error
        if text is not None and not isinstance(text, str):
            raise DatasetError(
                f"the transform gave {type(text).__name__} for {shard.where(sample)}; it must give text, or None to leave it out"
            )
        return text
