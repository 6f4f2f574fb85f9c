"""Read the samples of a corpus: their texts, or their token IDs.

samples ─► by shard ─┬─► texts ─► transform ─► str or None
                     └─► bytes of IDs, of one dtype or several ─► checked, int32
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from cloudload.arrays import Ints, Tokens
from cloudload.cache.shard_cache import ShardCache
from cloudload.errors import DatasetError
from cloudload.mds.shard import Shard
from cloudload.mds.token_columns import open_token_column
from cloudload.run.recipe import Recipe
from cloudload.system.activity import doing
from cloudload.workers.text_check import TextCheck


class IdsOfDocuments(NamedTuple):
    """The IDs of some of the documents of a call."""

    places: Ints
    """The documents' indices in the call, ascending: int64 [documents]."""
    ids: Tokens
    """Their IDs, concatenated: int32 [tokens]."""
    sizes: Ints
    """The number of IDs of each document: int64 [documents]."""


def merge_ids(parts: Sequence[IdsOfDocuments]) -> tuple[Tokens, Ints]:
    """Put the IDs of all documents of a call in order, without copying if there is one part.

    Returns the IDs, int32 [tokens], and offsets, int64 [documents + 1].

    Example: places 0 2 with IDs 7 7 9 of sizes 2 1, and place 1 with ID 8, give the IDs 7 7 8 9.
    """
    sizes = np.zeros(sum(len(part.places) for part in parts), np.int64)
    for part in parts:
        sizes[part.places] = part.sizes
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    if len(parts) == 1:
        return parts[0].ids, offsets
    ids = np.empty(offsets[-1], np.int32)
    target = ids.data
    for part in parts:
        starts, stops = offsets[part.places].tolist(), offsets[part.places + 1].tolist()
        source, taken = part.ids.data, 0
        for start, stop in zip(starts, stops, strict=True):
            target[start:stop] = source[taken : taken + stop - start]
            taken += stop - start
    return ids, offsets


class DocumentReader:
    """Reads the samples of a corpus, given as indices, and fetches their shards."""

    def __init__(self, recipe: Recipe, cache: ShardCache) -> None:
        self._corpus, self._cache = recipe.corpus, cache
        self._text_key, self._transform = recipe.config.text_key, recipe.config.transform
        self._columns = recipe.config.token_columns
        self._vocab_size = recipe.tokenizer.vocab_size
        of_text = [stream for stream, column in enumerate(self._columns) if column is None]
        self._labels, self._text_check = recipe.labels, TextCheck(of_text)
        self._doubts: dict[int, str] = {}

    def read_texts(self, samples: Ints) -> list[str | None]:
        """Read the texts of `samples` (int64 [samples]), in their order.

        A text is None if the transform filters the sample out. Opens each shard once. Raises
        `DatasetError` if a text cannot be read or the transform fails, and the errors of
        `ShardCache.shard` if a shard cannot be fetched.
        """
        texts: list[str | None] = [None] * len(samples)
        for number, places, within in self._by_shard(samples):
            shard, chosen = self._cache.shard(number), within.tolist()
            found: Sequence[str | None]
            if self._transform is None:
                found = shard.read_texts(chosen, shard.column_index(self._text_key))
            else:
                with doing(f"running the transform on {len(chosen):,} documents of {shard.url}"):
                    found = [self._transformed(shard, sample) for sample in chosen]
            if not self._text_check.is_over:
                self._check_texts(number, samples[places], found)
            for place, text in zip(places.tolist(), found, strict=True):
                texts[place] = text
        return texts

    def take_doubts(self) -> dict[int, str]:
        """The new doubts that a stream's documents are text: a message by stream."""
        doubts, self._doubts = self._doubts, {}
        return doubts

    def _check_texts(self, shard: int, samples: Ints, texts: Sequence[str | None]) -> None:
        stream = self._corpus.shard_owners[shard][0]
        doubt = self._text_check.look(stream, samples, texts)
        if doubt is None:
            return
        key = self._text_key
        documents = f"in column {key!r}" if self._transform is None else "from the transform"
        advice = f"Set text_key to a column of text, or, if {key!r} holds token IDs, tokens_key"
        if self._transform is not None:
            advice = "Fix the transform, or set text_key to a column of text"
        self._doubts[stream] = (
            f"most of the first documents of stream {self._labels[stream]!r} {documents} do not "
            f"look like text. Check {self.where(doubt.sample)}: it {doubt.reason}, and "
            f"starts with {doubt.excerpt}. {advice}. Training continues on these documents"
        )

    def read_tokens(self, samples: Ints) -> list[IdsOfDocuments]:
        """Read the IDs of pre-tokenized `samples` (int64 [samples]), one item for each dtype.

        Opens each shard once. Raises `DatasetError` if a sample is damaged, or has an ID that is
        negative or not in the vocabulary, and the errors of `ShardCache.shard`.
        """
        values: list[memoryview] = [memoryview(b"")] * len(samples)
        places_of: defaultdict[np.dtype[Any], list[Ints]] = defaultdict(list)
        for number, places, within in self._by_shard(samples):
            shard, owner = self._cache.shard(number), self._corpus.shard_owners[number][0]
            column = self._columns[owner]
            assert column is not None
            for raw in open_token_column(shard, *column).read(shard, within):
                places_of[raw.dtype].append(places[raw.places])
                for place, value in zip(places[raw.places].tolist(), raw.values, strict=True):
                    values[place] = value
        return [
            self._join(np.sort(np.concatenate(places)), values, dtype, samples)
            for dtype, places in places_of.items()
        ]

    def _join(
        self, places: Ints, values: Sequence[memoryview], dtype: np.dtype[Any], samples: Ints
    ) -> IdsOfDocuments:
        """Join the IDs at `places` of `values`, and check them. Reads every ID once."""
        chosen = [values[place] for place in places.tolist()]
        sizes = np.fromiter(map(len, chosen), np.int64, len(chosen)) // dtype.itemsize
        stored = np.frombuffer(b"".join(chosen), dtype)
        # a negative ID, as an unsigned number, is above every vocabulary
        unsigned = stored.view(f"<u{dtype.itemsize}")
        if unsigned.max(initial=0) >= self._vocab_size:
            place = int(np.argmax(unsigned >= self._vocab_size))
            document = int(np.searchsorted(np.cumsum(sizes), place, side="right"))
            within = place - int(sizes[:document].sum())
            raise self._wrong_id(int(samples[places[document]]), within, int(stored[place]), dtype)
        return IdsOfDocuments(places, stored.astype(np.int32, copy=False).view(np.int32), sizes)

    def _wrong_id(self, sample: int, place: int, found: int, dtype: np.dtype[Any]) -> DatasetError:
        return DatasetError(
            f"token {place:,} of {self.where(sample)} is {found:,} as {dtype.name}, not an ID from "
            f"0 to {self._vocab_size - 1:,}. Usually tokens_dtype is not the dtype that was "
            "written, or the data was made with another tokenizer"
        )

    def _by_shard(self, samples: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        """Group samples by shard.

        Yields each shard's index, the samples' places in `samples`, and their indices in the shard.
        """
        if not len(samples):
            return
        numbers = self._corpus.shards_of(samples)
        order = np.argsort(numbers, kind="stable")
        within = (samples - self._corpus.shard_starts[numbers])[order]
        opened, firsts = np.unique(numbers[order], return_index=True)
        for number, first, stop in zip(
            opened.tolist(), firsts.tolist(), [*firsts[1:].tolist(), len(samples)], strict=True
        ):
            yield number, order[first:stop], within[first:stop]

    def read_sample(self, sample: int, columns: Sequence[str]) -> tuple[Shard, dict[str, Any]]:
        """Read a sample, and return its shard and its values by column name.

        Omits `columns` that do not exist. Raises `DatasetError` if the sample cannot be read, and
        the errors of `ShardCache.shard`.
        """
        shard, within = self._find(sample)
        return shard, shard.read_columns(within, columns)

    def has_id(self, sample: int, identifier: str) -> bool:
        """Whether a sample's value in the column `id`, as text, is `identifier`.

        Raises the errors of `read_sample`.
        """
        shard, within = self._find(sample)
        return shard.has_id(within, identifier)

    def where(self, sample: int) -> str:
        """Describe a sample for a message: its index in its shard, the shard, and its ID, if any.

        Raises the errors of `ShardCache.shard`.
        """
        shard, within = self._find(sample)
        return shard.where(within)

    def _find(self, sample: int) -> tuple[Shard, int]:
        [number] = self._corpus.shards_of(np.array([sample]))
        return self._cache.shard(int(number)), sample - int(self._corpus.shard_starts[number])

    def prefetch(self, samples: Ints) -> None:
        """Start fetching the shards of `samples` (int64 [samples]), in the samples' order."""
        self._cache.prefetch(dict.fromkeys(self._corpus.shards_of(samples).tolist()))

    def _transformed(self, shard: Shard, sample: int) -> str | None:
        assert self._transform is not None
        values = shard.read(sample)
        try:
            text = self._transform(values)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a transform's sys.exit() would look like a dead worker
            [*_, what] = traceback.format_exception_only(error)
            raise DatasetError(
                f"the transform failed on {shard.where(sample)}: {what}{traceback.format_exc()}"
                "Fix the transform, or return None to filter this sample out"
            ) from error
        if text is not None and not isinstance(text, str):
            raise DatasetError(
                f"the transform returned {type(text).__name__} for {shard.where(sample)}. Return "
                "str, or None to filter this sample out"
            )
        return text
