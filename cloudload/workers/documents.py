"""Find, fetch, read and tokenize the documents of lanes, many at a time.

    lane, ordinal ─► epoch, position ─► sample ─► shard ─► text ─► transform ─► IDs ─┐
                                                     a row of the document table ◄───┘

Once tokenized, a document is a row of integers and a range of token IDs, not a Python object. Lanes
are flat lanes, `component * num_lanes + lane`. A worker has one `LaneDocuments`.
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cloudload.arrays import NEVER, Flags, Ints, Tokens
from cloudload.cache.shard_cache import ShardCache
from cloudload.errors import DatasetError, TokenizerError
from cloudload.mds.shard import Shard
from cloudload.mds.token_columns import open_token_column
from cloudload.order.epoch_orders import EpochOrders
from cloudload.packing.tables import (
    BASE,
    COUNT,
    EPOCH,
    FLAT_LANE,
    NUM_DOCUMENT_COLUMNS,
    ORDINAL,
    SAMPLE,
    SIZE,
    STREAM,
    Documents,
)
from cloudload.run.recipe import Recipe
from cloudload.stats import DOCUMENTS, EMPTY, FILTERED
from cloudload.tokenization.tokenizer import DocumentTokenizer, decode_ids
from cloudload.workers.plan import Plan


class DocumentReader:
    """Reads the samples of a corpus, given as indices, and fetches their shards."""

    def __init__(self, recipe: Recipe, cache: ShardCache) -> None:
        self._corpus, self._cache = recipe.corpus, cache
        self._text_key, self._transform = recipe.config.text_key, recipe.config.transform
        self._columns = recipe.config.token_columns
        self._vocab_size = recipe.tokenizer.vocab_size

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
                found = [self._transformed(shard, sample) for sample in chosen]
            for place, text in zip(places.tolist(), found, strict=True):
                texts[place] = text
        return texts

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


@dataclass(frozen=True)
class FoundDocuments:
    """The lane, ordinal, epoch and sample of each document: int64 [documents] each.

    `samples` are indices in the corpus.
    """

    flat_lanes: Ints
    ordinals: Ints
    epochs: Ints
    samples: Ints

    def __len__(self) -> int:
        return len(self.flat_lanes)

    def __getitem__(self, chosen: slice | Ints) -> FoundDocuments:
        return FoundDocuments(
            self.flat_lanes[chosen],
            self.ordinals[chosen],
            self.epochs[chosen],
            self.samples[chosen],
        )


class LaneDocuments:
    """Finds and reads the documents of lanes."""

    def __init__(
        self,
        recipe: Recipe,
        orders: Sequence[EpochOrders],
        reader: DocumentReader,
        tokenizer: DocumentTokenizer | None,
    ) -> None:
        self._corpus, self._components = recipe.corpus, recipe.components
        self._min_tokens, self._num_lanes = recipe.config.min_tokens, recipe.num_lanes
        self._orders, self._reader, self._tokenizer = orders, reader, tokenizer
        self._text = recipe.tokenizer.json
        self._is_tokenized = np.array([bool(each) for each in recipe.config.token_columns])
        frames = recipe.tokenizer.frames
        self._num_bos = np.array([bos is not None for bos, _ in frames], np.int64)
        num_eos = np.array([eos is not None for _, eos in frames], np.int64)
        self._num_framing = self._num_bos + num_eos

    def find(self, flat_lanes: Ints, ordinals: Ints) -> FoundDocuments:
        """Find the epoch and sample of each document, and omit the holes at the ends of epochs.

        `flat_lanes` and `ordinals` are int64 [documents]. Raises `CacheError` if the order of an
        epoch is not on disk and cannot be written.
        """
        if len(self._components) == 1:
            epochs, samples = self._find(0, flat_lanes, ordinals)
        else:
            epochs, samples = np.empty_like(flat_lanes), np.empty_like(flat_lanes)
            components = flat_lanes // self._num_lanes
            for component in np.unique(components).tolist():
                own = np.flatnonzero(components == component)
                epochs[own], samples[own] = self._find(
                    component, flat_lanes[own] % self._num_lanes, ordinals[own]
                )
        found = FoundDocuments(flat_lanes, ordinals, epochs, samples)
        return found if samples.min(initial=0) >= 0 else found[np.flatnonzero(samples >= 0)]

    def _find(self, number: int, lanes: Ints, ordinals: Ints) -> tuple[Ints, Ints]:
        """The epoch and sample of each document of one component. The sample of a hole is -1."""
        component, order = self._components[number], self._orders[number]
        epochs, positions = component.lanes.epoch_positions(lanes, ordinals)
        samples = np.full_like(positions, -1)
        is_there = positions < component.lanes.num_positions
        first, last = int(epochs.min(initial=NEVER)), int(epochs.max(initial=-1))
        if first == last and is_there.all():
            return epochs, order(first)[positions] + np.int64(component.first_sample)
        for epoch in np.unique(epochs[is_there]).tolist():
            chosen = np.flatnonzero((epochs == epoch) & is_there)
            samples[chosen] = order(epoch)[positions[chosen]] + np.int64(component.first_sample)
        return epochs, samples

    def read(self, found: FoundDocuments, has_begun: Flags | None = None) -> Documents:
        """Read and tokenize documents, in their order. Columns `BUFFER` and `START` are 0.

        `has_begun` (bool [documents]) marks documents that are exempt from filtering, because they
        were accepted before: the one that a cursor is inside, those in a residue or in rows of the
        tail, and those that are traced. Raises `TokenizerError` if a text cannot be encoded, and
        the errors of `DocumentReader.read`.
        """
        table = np.zeros((len(found), NUM_DOCUMENT_COLUMNS), np.int64)
        table[:, FLAT_LANE], table[:, ORDINAL] = found.flat_lanes, found.ordinals
        streams = self._corpus.streams_of(found.samples)
        table[:, STREAM], table[:, EPOCH] = streams, found.epochs
        table[:, SAMPLE] = found.samples - self._corpus.stream_starts[streams]
        is_filtered = np.zeros(len(found), np.bool_)
        is_tokenized = self._is_tokenized[streams]
        parts = []
        if len(tokenized := np.flatnonzero(is_tokenized)):
            for places, ids, sizes in self._reader.read_tokens(found.samples[tokenized]):
                parts.append(IdsOfDocuments(tokenized[places], ids, sizes))
        if len(tokenized) < len(found):
            parts.append(self._tokenize(np.flatnonzero(~is_tokenized), found.samples, is_filtered))
        ids, offsets = merge_ids(parts)
        sizes = np.diff(offsets) + self._num_framing[streams]
        is_filtered |= sizes < self._min_tokens
        if has_begun is not None:
            is_filtered &= ~has_begun
        table[:, BASE] = offsets[:-1] - self._num_bos[streams]
        table[:, SIZE] = np.where(is_filtered, 0, sizes)
        table[:, COUNT] = np.where(is_filtered, FILTERED, np.where(sizes > 0, DOCUMENTS, EMPTY))
        return Documents(table, ids)

    def _tokenize(self, places: Ints, samples: Ints, is_filtered: Flags) -> IdsOfDocuments:
        """Read and tokenize the texts at `places` of `samples`, and mark those without text."""
        texts = self._reader.read_texts(samples[places])
        if None in texts:
            is_filtered[places] = [text is None for text in texts]
        ids, offsets = self._encode([text or "" for text in texts], samples[places])
        return IdsOfDocuments(places, ids, np.diff(offsets))

    def _encode(self, texts: list[str], samples: Ints) -> tuple[Tokens, Ints]:
        assert self._tokenizer is not None
        try:
            return self._tokenizer.encode_flat(texts)
        except TokenizerError as error:
            for text, sample in zip(texts, samples.tolist(), strict=True):
                if failure := self._tokenizer.explain_failure(text):
                    raise TokenizerError(f"{self._reader.where(sample)}: {failure}") from error
            raise

    def has_order(self, component: int, epoch: int) -> bool:
        """Whether the order of an epoch is available at almost no cost."""
        return self._orders[component].is_ready(epoch)

    def build_order(self, component: int, epoch: int) -> None:
        """Build the order of an epoch in a background process, unless it is cheap or available.

        Returns immediately.
        """
        self._orders[component].build_in_background(epoch)

    def decode(self, tokens: Tokens) -> str:
        """Decode token IDs (int32 [tokens]) to text, control tokens included.

        Without a tokenizer, the text is the IDs, separated by spaces.
        """
        return decode_ids(self._text, tokens)

    def prefetch(self, samples: Ints) -> None:
        """Start fetching the shards of `samples` (int64 [samples]), in the samples' order."""
        self._reader.prefetch(samples)


def open_reader(plan: Plan, cache: ShardCache) -> DocumentReader:
    """Open a reader for a plan's corpus."""
    return DocumentReader(plan.recipe, cache)


def open_documents(plan: Plan, cache: ShardCache) -> LaneDocuments:
    """Open the documents of a plan's lanes, with the plan's orders and tokenizer."""
    recipe = plan.recipe
    orders = [component.orders(plan.cache_root) for component in recipe.components]
    tokenizer = DocumentTokenizer(recipe.tokenizer, plan.backend.name) if recipe.has_text else None
    return LaneDocuments(recipe, orders, open_reader(plan, cache), tokenizer)


def open_cache(plan: Plan) -> ShardCache:
    """Open the cache for the shards of a plan's corpus."""
    delivery = plan.delivery
    return ShardCache(
        plan.recipe.corpus,
        plan.cache_root,
        delivery.retry,
        limit_bytes=delivery.cache_limit_bytes(),
        threads=delivery.download_threads,
        verify=delivery.verify,
    )
