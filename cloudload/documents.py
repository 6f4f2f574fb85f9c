"""Documents by sample number, out of mapped shards."""

from __future__ import annotations

import numpy as np

from cloudload.cache import ShardCache
from cloudload.dataset import Corpus
from cloudload.errors import DatasetError
from cloudload.lanes import Ints
from cloudload.mds import Shard


class DocumentReader:
    """Reads the texts of a corpus' samples, fetching their shards."""

    def __init__(self, corpus: Corpus, cache: ShardCache, text_key: str) -> None:
        self._corpus, self._cache, self._text_key = corpus, cache, text_key

    def read(self, samples: Ints) -> list[str]:
        """The texts of samples, in their order; each shard is opened once."""
        shards = self.shards_of(samples)
        texts = [""] * len(samples)
        for number in dict.fromkeys(shards.tolist()):
            shard = self._cache.shard(number)
            column = shard.column_index(self._text_key)
            start = int(self._corpus.shard_starts[number])
            for place in np.flatnonzero(shards == number).tolist():
                texts[place] = self._read_text(shard, int(samples[place]) - start, column)
        return texts

    def prefetch(self, samples: Ints) -> None:
        """Begin to fetch the shards of samples, those of the first samples first."""
        self._cache.prefetch(dict.fromkeys(self.shards_of(samples).tolist()))

    def shards_of(self, samples: Ints) -> Ints:
        """The shard of each sample."""
        return np.searchsorted(self._corpus.shard_starts, samples, side="right") - 1

    @staticmethod
    def _read_text(shard: Shard, sample: int, column: int) -> str:
        try:
            return shard.read_bytes(sample, column).decode("utf-8")
        except UnicodeDecodeError as error:
            raise DatasetError(f"{shard.path}: sample {sample} is not UTF-8 ({error}). Convert the corpus again") from error
