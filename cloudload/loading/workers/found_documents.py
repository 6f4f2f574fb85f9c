"""The documents that lanes read: their samples, and which were partly read before the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cloudload.rows.packing.residue import residue_spans
from cloudload.rows.packing.tables import CURSOR_OFFSET, CURSOR_ORDINAL, CURSOR_SIZE
from cloudload.system.arrays import Ints


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

    def begun_sizes(self, starts: Ints, residues: Sequence[bytes] | None = None) -> Ints:
        """The size of each document that its lane had partly read at the start: int64 [documents].

        The size is -1 for other documents, and 0 if it is unknown. `starts` is int64
        [flat_lanes, 3], the starting cursors. `residues` ([flat_lanes]) are the lanes' residues at
        the start, whose documents also count as partly read; None if the packing has no residue.
        """
        start = starts[self.flat_lanes]
        is_begun = (start[:, CURSOR_ORDINAL] == self.ordinals) & (start[:, CURSOR_OFFSET] > 0)
        sizes = np.where(is_begun, start[:, CURSOR_SIZE], -1)
        before = np.flatnonzero(self.ordinals < start[:, CURSOR_ORDINAL])
        if residues is not None and len(before):
            lanes, ordinals = self.flat_lanes[before], self.ordinals[before].tolist()
            of_lanes = {
                lane: {
                    document: size
                    for document, _, size in residue_spans(
                        residues[lane], int(starts[lane, CURSOR_ORDINAL])
                    )
                }
                for lane in np.unique(lanes).tolist()
            }
            pairs = zip(lanes.tolist(), ordinals, strict=True)
            sizes[before] = [of_lanes[lane][ordinal] for lane, ordinal in pairs]
        return sizes
