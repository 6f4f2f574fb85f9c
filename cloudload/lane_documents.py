"""The documents of the lanes: found in the order of their epoch, fetched, read, tokenized.

    lane, ordinal ─► epoch, position ─► sample ─► shard ─► text ─► transform ─► ids ─► Document

One per process. All that is lazy, shared or in threads below this is its shard cache's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cloudload.cache import ShardCache
from cloudload.documents import DocumentReader
from cloudload.lanes import Ints
from cloudload.order import EpochOrders
from cloudload.plan import Plan
from cloudload.recipe import Recipe
from cloudload.tokenizer import DocumentTokenizer, Tokens


class Place(NamedTuple):
    """Where a document stands: `ordinal` of a lane of a component; `sample` counts through the corpus."""

    component: int
    lane: int
    ordinal: int
    epoch: int
    sample: int


@dataclass(frozen=True)
class Document:
    """A tokenized document of a lane. `sample` counts within its stream."""

    ordinal: int
    stream: int
    epoch: int
    sample: int
    tokens: Tokens
    is_filtered: bool
    """Whether the transform or `min_tokens` leaves it out."""

    @property
    def size(self) -> int:
        """Tokens that are to be packed."""
        return 0 if self.is_filtered else len(self.tokens)


class LaneDocuments:
    """Finds and reads the documents of lanes."""

    def __init__(
        self, recipe: Recipe, orders: Sequence[EpochOrders], reader: DocumentReader, tokenizer: DocumentTokenizer
    ) -> None:
        self._corpus, self._components, self._min_tokens = recipe.corpus, recipe.components, recipe.config.min_tokens
        self._orders, self._reader, self._tokenizer = orders, reader, tokenizer

    def find(self, component: int, lane: int, ordinal: int) -> Place | None:
        """The place of a lane's document, or None for a hole."""
        lanes = self._components[component].lanes
        epoch, position = lanes.place(lane, ordinal)
        if position >= lanes.num_positions:
            return None
        sample = int(self._orders[component](epoch)[position]) + self._components[component].first_sample
        return Place(component, lane, ordinal, epoch, sample)

    def stream_of(self, place: Place) -> int:
        """The stream of a place."""
        return int(self._corpus.streams_of(np.array([place.sample]))[0])

    def read(self, places: Sequence[Place]) -> list[Document]:
        """The documents at places, in their order."""
        if not places:
            return []
        samples = np.array([place.sample for place in places], np.int64)
        streams = self._corpus.streams_of(samples)
        within = samples - self._corpus.stream_starts[streams]
        texts = self._reader.read(samples)
        encoded = self._tokenizer.encode([text or "" for text in texts], streams.tolist())
        return [
            Document(place.ordinal, stream, place.epoch, sample, tokens, text is None or len(tokens) < self._min_tokens)
            for place, stream, sample, text, tokens in zip(places, streams.tolist(), within.tolist(), texts, encoded, strict=True)
        ]

    def decode(self, tokens: Tokens) -> str:
        """The text of ids, control tokens included."""
        return self._tokenizer.decode(tokens)

    def prefetch(self, samples: Ints) -> None:
        """Begin to fetch the shards of samples of the corpus, those of the first samples first."""
        self._reader.prefetch(samples)


def open_reader(plan: Plan, cache: ShardCache) -> DocumentReader:
    """The texts of a plan's corpus."""
    return DocumentReader(plan.recipe.corpus, cache, plan.recipe.config.text_key, plan.recipe.config.transform)


def open_documents(plan: Plan, cache: ShardCache) -> LaneDocuments:
    """The documents of a plan's lanes."""
    recipe = plan.recipe
    orders = [component.orders(plan.cache_root) for component in recipe.components]
    tokenizer = DocumentTokenizer(recipe.tokenizer, plan.backend.name)
    return LaneDocuments(recipe, orders, open_reader(plan, cache), tokenizer)


def open_cache(plan: Plan) -> ShardCache:
    """The shards of a plan's corpus."""
    delivery = plan.delivery
    limit_bytes = delivery.cache_limit_bytes()
    return ShardCache(plan.recipe.corpus, plan.cache_root, delivery.retry, limit_bytes, delivery.download_threads)
