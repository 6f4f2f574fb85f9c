"""The counts and the report of a conversion."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

REPORT_NAME = "convert-report.json"
MAX_LISTED = 20
_MOST_BAD_FILES = 1_000


@dataclass(frozen=True)
class Counts:
    """Counts of written documents, empty documents, bad records, stored input bytes and text bytes.

    `bad_records` describes the first 20 bad records. `bad_files` has the number of bad records in
    each file or dataset that has any, by its name below its root.
    """

    documents: int = 0
    empty: int = 0
    bad: int = 0
    bad_records: tuple[str, ...] = ()
    input_bytes: int = 0
    text_bytes: int = 0
    bad_files: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the counts for a journal entry, which has `bad_files` only if there are any."""
        values = asdict(self)
        if not self.bad_files:
            del values["bad_files"]
        return values

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Counts:
        """Create the counts from a journal entry."""
        return Counts(**dict(value) | {"bad_records": tuple(value["bad_records"])})

    def plus(self, other: Counts) -> Counts:
        """Return the sums of both, with the first 20 bad records."""
        return sum_counts([self, other])


def sum_counts(parts: Iterable[Counts]) -> Counts:
    """Return the sums of several counts, with the first 20 bad records."""
    several, bad_files = list(parts), Counter[str]()
    for each in several:
        bad_files.update(each.bad_files)
    described = itertools.chain.from_iterable(each.bad_records for each in several)
    return Counts(
        sum(each.documents for each in several),
        sum(each.empty for each in several),
        sum(each.bad for each in several),
        tuple(itertools.islice(described, MAX_LISTED)),
        sum(each.input_bytes for each in several),
        sum(each.text_bytes for each in several),
        dict(bad_files),
    )


def list_worst(bad_files: Mapping[str, int]) -> dict[str, int]:
    """The 1,000 files with the most bad records, in descending order."""
    ordered = sorted(bad_files.items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:_MOST_BAD_FILES])


@dataclass(frozen=True)
class ConvertReport:
    """The result of a conversion.

    `seconds`, `resumed_shards` and `already_complete` describe this run. All other fields describe
    the whole dataset.
    """

    out: str
    """The dataset's location, without secrets."""
    documents: int
    """Number of documents written."""
    empty: int
    """Number of empty documents, which are left out."""
    bad: int
    """Number of bad records, which are left out."""
    bad_records: tuple[str, ...]
    """Location and problem of each of the first 20 bad records."""
    files: int
    """Number of input files; datasets and iterators are not counted."""
    input_bytes: int
    """Stored bytes of the input files; 0 for datasets and iterators."""
    text_bytes: int
    """Bytes of UTF-8 text in the documents."""
    raw_bytes: int
    """Bytes of the shards before compression."""
    stored_bytes: int
    """Bytes of the shards as stored."""
    shards: int
    """Number of shards."""
    columns: Mapping[str, str]
    """The MDS encoding of each column, by name."""
    seconds: float = 0.0
    """Duration of this run in seconds; 0 if the dataset was already complete."""
    resumed_shards: int = 0
    """Number of shards that earlier runs wrote."""
    already_complete: bool = False
    """Whether the dataset was complete before this run."""
    segments: int = 1
    """Number of segments."""
    unfinished_segments: int = 0
    """Number of segments that other workers have not finished. If there are any, all counts are
    those of this worker's share, and the dataset is not complete."""
    bad_files: Mapping[str, int] = field(default_factory=dict)
    """The number of bad records in each file or dataset that has any, by its name below its root;
    the 1,000 with the most, in descending order."""

    def to_json(self) -> str:
        """Return the report as indented JSON."""
        return json.dumps(asdict(self), indent=2)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> ConvertReport:
        """Create a report from a mapping with the fields that `to_json` writes."""
        return ConvertReport(**dict(values) | {"bad_records": tuple(values["bad_records"])})
