"""The finished part of a segment, according to its journal.

A shard's journal entry contains the position at which the next shard of its split begins. If there
are several splits, reading continues at the earliest of these positions, and each split skips the
samples that it has already stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cloudload.data import redact
from cloudload.errors import ConvertError
from cloudload.tools.convert import input_records
from cloudload.tools.convert.conversion_report import Counts


@dataclass(frozen=True)
class InputPosition:
    """The position in the input at which a shard begins: a sample in a block of a unit.

    `unit` is the index of the unit, `start` is where the block begins, and `sample` is an index
    among the block's samples of one split. `counts` covers the earlier blocks.
    """

    unit: int = 0
    start: input_records.BlockStart = field(default_factory=input_records.BlockStart)
    sample: int = 0
    counts: Counts = field(default_factory=Counts)

    @property
    def block(self) -> tuple[int, int, int]:
        """Identifies the block, and sorts blocks, by unit, offset, and line or row."""
        return self.unit, self.start.offset, self.start.line

    def to_json(self) -> dict[str, Any]:
        """Return the position for a journal entry."""
        return asdict(self) | {"counts": self.counts.to_json()}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> InputPosition:
        """Create the position from a journal entry."""
        return InputPosition(
            value["unit"],
            input_records.BlockStart(**value["start"]),
            value["sample"],
            Counts.from_json(value["counts"]),
        )


Entries = dict[str, list[dict[str, Any]]]
"""The index entries of shards, in order, by split."""


def check_documents(location: str, stored: int, counts: Counts) -> None:
    """Raise `ConvertError` if shards with `stored` documents lack or repeat a counted document."""
    if stored != counts.documents:
        raise ConvertError(
            f"the shards in {redact(location)} have {stored:,} documents, but the input has "
            f"{counts.documents:,}, so documents are missing or repeated. The index was not "
            "written. Start over (--overwrite), and report this bug to the authors of cloudload"
        )


@dataclass(frozen=True)
class FinishedWork:
    """The finished part of a conversion.

    `entries` are the index entries of its shards. `lengths` are the token lengths of each shard, as
    `ShardLengths` encodes them; empty if tokens are not counted, such as with several splits.
    `positions` has the position at which the next shard of each split begins, or None after the
    last shard. `counts` are those of the last journal entry; after the last shard, they cover all
    blocks. `resumed` is the number of shards that earlier runs wrote.
    """

    entries: Entries
    positions: dict[str, InputPosition | None]
    lengths: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    resumed: int = 0

    @staticmethod
    def none(splits: tuple[str, ...]) -> FinishedWork:
        """Return the finished work of a conversion that has not started."""
        return FinishedWork({name: [] for name in splits}, dict.fromkeys(splits, InputPosition()))

    @property
    def next(self) -> InputPosition | None:
        """The position at which reading continues, or None if all shards are stored."""
        left = [position for position in self.positions.values() if position is not None]
        return min(left, key=lambda position: position.block, default=None)
