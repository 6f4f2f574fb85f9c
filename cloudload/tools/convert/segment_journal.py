"""The journal of a segment: its finished shards, so that a killed conversion resumes after them.

    .convert/00000.json      the first shard: the digest of the plan, the shard's index entry, and
                             where the next shard begins
    shard.00000.mds.zstd     stored after its journal entry

They are in the segment's folder; the only segment of a small conversion has no folder. A rerun
resumes after the longest run of entries, from 00000, whose shards exist. An entry is stored only if
there is none, and never changes. So if two conversions with different documents write to the same
place, one of them is refused before it replaces a shard of the other.

An entry contains the position at which the next shard of its split begins. If there are several
splits, reading continues at the earliest of these positions, and each split skips the samples that
it has already stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cloudload.data import JOURNAL_FOLDER, Location, own_objects
from cloudload.errors import ConvertError
from cloudload.system import map_in_order
from cloudload.tools.convert import conversion_plan, input_records
from cloudload.tools.convert.conversion_report import Counts
from cloudload.tools.convert.output_location import Output, is_stored, list_sizes_at

_NUM_THREADS = 16
_ENTRY_NAME = re.compile(re.escape(JOURNAL_FOLDER) + r"/\d{5,}\.json")


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


def check_documents(location: Location, stored: int, counts: Counts) -> None:
    """Raise `ConvertError` if shards with `stored` documents lack or repeat a counted document."""
    if stored != counts.documents:
        raise ConvertError(
            f"the shards in {location} have {stored:,} documents, but the input has "
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


class SegmentJournal:
    """The journal of the segment at an output, for the plan with the digest `plan`.

    `version` is the plan's `plan_version`, or "" if the plan need not be there. Methods raise
    `StoreError` if they cannot read or write the journal, and `ConvertError` if an entry belongs to
    another plan.
    """

    def __init__(self, output: Output, plan: str, version: str = "") -> None:
        self.output, self.plan, self._version = output, plan, version
        self._location = output.journal

    def read(self) -> FinishedWork:
        """Read the finished work, up to the first entry or shard that is missing."""
        none = FinishedWork.none(self.output.splits)
        done, counts = none, none.counts
        names = list_sizes_at(self._location)
        shards = {split: self._list_shards(split, names) for split in self.output.splits}
        found = sorted(filter(_ENTRY_NAME.fullmatch, names), key=lambda name: (len(name), name))
        entries = map_in_order(self._read, found, _NUM_THREADS, "cloudload-journal")
        for index, data in enumerate(entries):
            if data is None or found[index] != _entry_name(index):
                break
            entry = json.loads(data)
            self._check_plan(entry, index)
            split, shard = entry.get("split", ""), entry["shard"]
            if not is_stored(shard["zip_data"] or shard["raw_data"], shards[split]):
                break
            done.entries[split].append(shard)
            done.lengths.extend(entry.get("lengths", []))
            following = InputPosition.from_json(entry["next"]) if entry["next"] else None
            done.positions[split] = following
            counts = Counts.from_json(entry["counts"])
        return replace(done, counts=counts, resumed=sum(map(len, done.entries.values())))

    def record(
        self,
        index: int,
        split: str,
        shard: Mapping[str, Any],
        *,
        following: InputPosition | None,
        counts: Counts,
        lengths: Sequence[str] = (),
    ) -> None:
        """Store the entry of a shard, before the shard is stored.

        `index` is the shard's index across all splits, and `shard` is its entry for `index.json`.
        `following` is the position of the split's next shard, or None after the last one. `counts`
        are the counts before that position. `lengths` are the shard's token lengths, if they are
        counted. Raises `ConvertError` if the stored entry is of another shard, or if the plan was
        removed or replaced.
        """
        if self._version and conversion_plan.plan_version(self.output.home) != self._version:
            raise conversion_plan.refuse_replaced(self.output.home)
        content: dict[str, Any] = {
            "plan": self.plan,
            "shard": shard,
            "next": following.to_json() if following else None,
            "counts": counts.to_json(),
        }
        if split:
            content["split"] = split
        if lengths:
            content["lengths"] = list(lengths)
        location = self._location.join(_entry_name(index))
        entry = json.loads(location.create(json.dumps(content).encode()))
        self._check_plan(entry, index)
        if entry["shard"] != shard:
            raise self._refusal(index)

    def remove(self) -> None:
        """Remove the entries.

        The folder and temporary files remain, because another process that converts the same
        segment may still write to them.
        """
        for name in list_sizes_at(self._location.join(JOURNAL_FOLDER)):
            if _ENTRY_NAME.fullmatch(f"{JOURNAL_FOLDER}/{name}"):
                self._location.join(f"{JOURNAL_FOLDER}/{name}").delete()

    def _check_plan(self, entry: Mapping[str, Any], index: int) -> None:
        if entry.get("plan") != self.plan:
            raise self._refusal(index)

    def _refusal(self, index: int) -> ConvertError:
        return ConvertError(
            "another conversion, with different inputs or options, or by another version of "
            f"cloudload, wrote shard {index} to {self._location}. Use a separate output "
            "for each conversion, and start over (--overwrite)"
        )

    def _list_shards(self, split: str, names: Mapping[str, int]) -> dict[str, int]:
        """Map the names of a split's shards to their sizes in bytes. `names` is the listing."""
        found = list_sizes_at(self.output.shards(split)) if split else names
        return {name: size for name, size in found.items() if own_objects.SHARD.fullmatch(name)}

    def _read(self, name: str) -> bytes | None:
        # another process may finish the same segment at the same time, and remove the journal
        return self._location.join(name).read_if_exists()


def _entry_name(index: int) -> str:
    return f"{JOURNAL_FOLDER}/{index:05}.json"
