"""Compute the sizes of the documents in lanes, from lengths and orders.

    lane, ordinal ─► epoch, position ─► sample ─► length ─► + bos, eos ─► 0 if filtered out

`workers.documents` finds the same sizes by reading and tokenizing the documents. This module needs
only two array lookups for each document.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cloudload.order import EpochOrders
from cloudload.rows import Framing, Packing, counts_of_sizes, tables
from cloudload.run.components import Component
from cloudload.stats import (
    COUNTS,
    PADDING,
    READ,
    TOKENS,
    TRUNCATED,
)
from cloudload.system import NEVER, Flags, Ints


@dataclass(frozen=True)
class DocumentSizes:
    """The sizes of documents. All arrays are int64, in the shape of the arguments of `measure`."""

    streams: Ints
    """Index of each document's stream."""
    samples: Ints
    """Index of each document's sample in the corpus; meaningless for a hole."""
    sizes: Ints
    """Number of tokens to pack, framing included, or a `tables.Size`: `Size.ABSENT` for a hole, a
    position at the end of an epoch without a document."""
    whole: Ints
    """Number of tokens, framing included, even if the document is filtered out."""

    @cached_property
    def tokens(self) -> Ints:
        """Number of tokens to pack, framing included; 0 if there is nothing to pack."""
        return np.maximum(self.sizes, 0)


@dataclass(frozen=True)
class LaneSizes:
    """Computes the sizes of the documents in a component's lanes."""

    component: Component
    orders: EpochOrders
    lengths_of: Callable[[Ints], Ints]
    """Returns the lengths of samples, given by their indices in the corpus."""
    streams_of: Callable[[Ints], Ints]
    """Returns the stream indices of samples, given by their indices in the corpus."""
    framing: Framing
    """The bos and eos tokens around a document, and the padding after it."""
    min_tokens: int
    max_tokens: int = NEVER

    def is_barren(self, count: Ints) -> Flags:
        """Whether endless lanes with `count` ordinals in a row without tokens have none at all.

        At most half of the ordinals are holes. If no document has tokens, one epoch is enough.
        Raises `CacheError` if the order of the first epoch cannot be built.
        """
        found: Flags = count > 2 * self.component.lanes.num_positions
        # most lanes have tokens, so look for other documents with tokens only now
        return found & (count > self._most_barren) if found.any() else found

    @cached_property
    def _most_barren(self) -> int:
        num_positions, most = self.component.lanes.num_positions, self.component.most_barren
        return 2 * (most if most == num_positions or self._has_tokens() else num_positions)

    def _has_tokens(self) -> bool:
        """Whether any document of the first epoch has tokens."""
        division = self.component.lanes
        lanes = np.flatnonzero(division.first_positions < division.stride)[:, None]
        ordinals = np.arange(-(-division.stride // division.num_lanes))
        found = self.measure(*np.broadcast_arrays(lanes, ordinals))
        return bool((found.sizes > 0).any())

    def measure(self, lanes: Ints, ordinals: Ints) -> DocumentSizes:
        """Measure documents, given by lane and ordinal: int64 arrays of the same shape.

        Raises `CacheError` if the order of an epoch cannot be built.
        """
        _, samples = self.component.find_samples(self.orders, lanes, ordinals)
        is_hole = samples < 0
        samples[is_hole] = self.component.first_sample
        streams, lengths = self.streams_of(samples), self.lengths_of(samples)
        whole = np.maximum(lengths, 0) + self.framing.num_framing[streams]
        is_filtered = (whole < self.min_tokens) | (whole > self.max_tokens)
        whole = self.framing.pad_sizes(whole)
        sizes = np.where(is_filtered, np.int64(tables.Size.FILTERED), whole)
        # a negative length says why the sample is left out
        sizes = np.where(lengths < 0, lengths, sizes)
        sizes[is_hole] = tables.Size.ABSENT
        return DocumentSizes(streams=streams, samples=samples, sizes=sizes, whole=whole)


def list_counts(packing: Packing, found: DocumentSizes) -> list[Ints]:
    """The amounts that documents add to each of `stats.COUNTS` after their lane has read them.

    Returns one int64 array per count, of the shape of `found.sizes`.
    """
    packed = np.minimum(found.tokens, packing.seq_len) if packing.cuts else found.tokens
    is_padded = packing.name == "one_per_row"
    full = packing.units_of(found.tokens) * packing.seq_len if is_padded else packed
    kinds = counts_of_sizes(found.sizes)
    counts = {
        TOKENS: packed,
        TRUNCATED: found.tokens - packed,
        PADDING: full - packed,
        **{kind: (kinds == kind).astype(np.int64) for kind in READ},
    }
    return [counts[index] for index in range(len(COUNTS))]
