"""The counts and the report of a conversion."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from cloudload.data import redact, urls
from cloudload.system import counted, reports

MAX_LISTED = 20
_MOST_BAD_FILES = 1_000
_SUMMED = ("documents", "empty", "bad", "input_bytes", "text_bytes", "replaced")
_OPTIONAL = ("bad_files", "split_bytes", "causes", "replaced")
_MOST_CAUSES, _OTHER_CAUSES = 100, "other causes"
_MOST_SHOWN, _BELOW = 5, " " * 13


@dataclass(frozen=True)
class Counts:
    """Counts of written documents, empty documents, bad records, stored input bytes and text bytes.

    `bad_records` describes the first 20 bad records. `bad_files` maps each file or dataset with bad
    records, named relative to its root, to the number of its bad records. `split_bytes` has the
    number of bytes of text in each split; it is empty without splits. `causes` maps each cause of
    bad records to their number. `replaced` is the number of documents in which characters were
    replaced.
    """

    documents: int = 0
    empty: int = 0
    bad: int = 0
    bad_records: tuple[str, ...] = ()
    input_bytes: int = 0
    text_bytes: int = 0
    bad_files: Mapping[str, int] = field(default_factory=dict)
    split_bytes: Mapping[str, int] = field(default_factory=dict)
    causes: Mapping[str, int] = field(default_factory=dict)
    replaced: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the counts for a journal entry, without optional counts that are zero or empty."""
        values = asdict(self)
        return {name: value for name, value in values.items() if value or name not in _OPTIONAL}

    def to_report(self) -> dict[str, Any]:
        """Return the counts for a report, with only the 1,000 files with the most bad records."""
        most = {"bad_files": order(self.bad_files, _MOST_BAD_FILES), "causes": order(self.causes)}
        values = vars(self) | most
        del values["split_bytes"]
        return values

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Counts:
        """Create the counts from a journal entry."""
        return Counts(**dict(value) | {"bad_records": tuple(value["bad_records"])})

    def plus(self, other: Counts) -> Counts:
        """Return the sums of these and the `other` counts, with the first 20 bad records."""
        return sum_counts([self, other])


def order(counts: Mapping[str, int], most: int | None = None) -> dict[str, int]:
    """Return the `most` largest counts, in descending order."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most])


def cause_of(problem: str) -> str:
    """Return the cause of a bad record: its problem without details and advice.

    Details are in parentheses, and advice follows in other sentences.
    """
    return problem.partition(" (")[0].partition(". ")[0]


def merge_causes(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of several counts by cause. After 100 causes, all others are one cause."""
    return _merge(parts, _MOST_CAUSES)


def _merge(parts: Iterable[Mapping[str, int]], most: float = math.inf) -> dict[str, int]:
    """Return the sums of several counts by name. After `most` names, all others are one name."""
    sums: dict[str, int] = {}
    for name, count in itertools.chain.from_iterable(part.items() for part in parts):
        key = name if name in sums or len(sums) < most else _OTHER_CAUSES
        sums[key] = sums.get(key, 0) + count
    return sums


def sum_counts(parts: Iterable[Counts]) -> Counts:
    """Return the sums of several counts, with the first 20 bad records."""
    several = list(parts)
    sums: dict[str, Any]
    sums = {name: sum(getattr(each, name) for each in several) for name in _SUMMED}
    described = itertools.chain.from_iterable(each.bad_records for each in several)
    return Counts(
        bad_records=tuple(itertools.islice(described, MAX_LISTED)),
        bad_files=_merge(each.bad_files for each in several),
        split_bytes=_merge(each.split_bytes for each in several),
        causes=merge_causes(each.causes for each in several),
        **sums,
    )


@dataclass(frozen=True)
class ConvertReport:
    """The result of a conversion.

    `seconds`, `resumed_shards`, `rebuilt_shards`, `already_complete` and `skipped_files` describe
    this run. All other fields describe the whole dataset.
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
    """Number of input files; datasets and iterators are not counted. With `like`, the number of
    shards in the index."""
    input_bytes: int
    """Stored bytes of the input files, or 0 for datasets and iterators."""
    text_bytes: int
    """Bytes of UTF-8 text in the documents, or 0 if `text_key` is None."""
    raw_bytes: int
    """Bytes of the shards before compression."""
    stored_bytes: int
    """Bytes of the shards as stored."""
    shards: int
    """Number of shards."""
    columns: Mapping[str, str]
    """The MDS encoding of each column, by name."""
    seconds: float = 0.0
    """Duration of this run in seconds, or 0 if the dataset was already complete."""
    resumed_shards: int = 0
    """Number of shards that earlier runs wrote."""
    already_complete: bool = False
    """Whether the dataset was complete before this run."""
    segments: int = 1
    """Number of segments."""
    unfinished_segments: int = 0
    """Number of segments that other workers have not finished. If it is not 0, all counts cover
    only this worker's share, and the dataset is not complete."""
    tokens: int | None = None
    """Number of tokens, without bos and eos, or None if they are not counted, or not yet."""
    bad_files: Mapping[str, int] = field(default_factory=dict)
    """The number of bad records in each file or dataset, named relative to its root. Contains the
    1,000 files with the most bad records, in descending order."""
    splits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The values `documents`, `text_bytes`, `raw_bytes`, `stored_bytes` and `shards` of each split,
    by the split's name; empty without `splits`."""
    partitions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The same values, `files`, `input_bytes`, and `tokens` if they are counted, of each partition
    by its name; empty without `partition_by`. A partition without documents has no dataset."""
    hidden: int = 0
    """Number of files and folders in the input that are left out, because they are hidden,
    uncommitted, or about the data, such as `README.md`."""
    hidden_names: tuple[str, ...] = ()
    """The names of the first 20 of them. The name of a folder ends in `/`."""
    causes: Mapping[str, int] = field(default_factory=dict)
    """The number of bad records by cause, in descending order."""
    replaced: int = 0
    """Number of documents in which bytes that are not UTF-8, or unpaired surrogates, were replaced
    with U+FFFD, because `errors` is `replace`."""

    added_documents: int | None = None
    """The number of documents that the last append added, or None if nothing was appended."""
    added_input_bytes: int | None = None
    """Stored bytes of the input files of the last append, or None if nothing was appended."""
    skipped_files: int = 0
    """Number of input files that this append left out, because they are in the dataset already."""
    rebuilt_shards: int = 0
    """Number of shards of a finished dataset that were missing and that this run stored again."""

    def describe(self) -> Iterator[str]:
        """Yield the report as lines of text."""
        added = "" if self.added_documents is None else f", {self.added_documents:,} appended"
        text = f" ({counted(self.text_bytes, 'byte')} of text)" if self.text_bytes else ""
        raw = f"{self.raw_bytes:,} raw"
        yield f"{self.out} {self._describe_progress()}"
        yield f"  documents  {self.documents:,}{text}{added}"
        yield f"  left out   {self.empty:,} empty, {self.bad:,} bad"
        yield from self._describe_bad()
        files, size = counted(self.files, "file"), counted(self.input_bytes, "byte")
        yield f"  input      {files}, {size}{self._describe_speed()}"
        if self.skipped_files:
            skipped = counted(self.skipped_files, "file")
            yield f"  skipped    {skipped}, in the dataset already"
        shards, size = counted(self.shards, "shard"), counted(self.stored_bytes, "byte")
        yield f"  output     {shards}, {size} ({raw})"
        if splits := [f"{name} {split['documents']:,}" for name, split in self.splits.items()]:
            yield f"  splits     {', '.join(splits)} (documents)"
        if self.partitions:
            yield f"  partitions {self._describe_partitions()}"
        empty = [name for name, each in self.partitions.items() if not each["documents"]]
        if empty and not self.unfinished_segments:
            more = f", and {len(empty) - _MOST_SHOWN:,} more" if len(empty) > _MOST_SHOWN else ""
            names = ", ".join(empty[:_MOST_SHOWN])
            yield f"{_BELOW}no documents, so no dataset: {names}{more}"
        columns = (f"{name}: {encoding}" for name, encoding in self.columns.items())
        yield f"  columns    {', '.join(columns)}"
        if self.tokens is not None:
            yield f"  tokens     {self.tokens:,}"

    def _describe_partitions(self) -> str:
        documents = {name: each["documents"] for name, each in self.partitions.items()}
        most = [f"{name} {count:,}" for name, count in order(documents, _MOST_SHOWN).items()]
        more = len(documents) - len(most)
        shown = [*most, f"fewer in each of {more:,} more"] if more else most
        return f"{len(documents):,}: {', '.join(shown)} (documents)"

    def _describe_progress(self) -> str:
        if self.unfinished_segments:
            segments = counted(self.segments, "segment")
            return f"lacks {self.unfinished_segments:,} of {segments}"
        if self.rebuilt_shards:
            shards = counted(self.shards, "shard")
            return f"is complete: rebuilt {self.rebuilt_shards:,} of {shards}"
        return "was already complete" if self.already_complete else "is complete"

    def _describe_speed(self) -> str:
        if not self.seconds or self.resumed_shards:
            return ""
        read = self.input_bytes if self.added_documents is None else self.added_input_bytes
        return f", {(read or 0) / 1e6 / self.seconds:.1f} MB/s"

    def _describe_bad(self) -> Iterator[str]:
        """Yield the first bad records, their causes and files, and what else is left out."""
        yield from (f"{_BELOW}{record}" for record in self.bad_records)
        if more := self.bad - len(self.bad_records):
            yield f"{_BELOW}… and {more:,} more"
        causes = [f"{cause} ({count:,})" for cause, count in self.causes.items()]
        if others := causes[_MOST_SHOWN:]:
            causes[_MOST_SHOWN:] = [f"fewer of {counted(len(others), 'other cause')}"]
        yield from (f"  because    {cause}" for cause in causes)
        if self.replaced:
            documents = counted(self.replaced, "document")
            yield f"  replaced   characters that are not Unicode, in {documents}"
        if self.hidden:
            yield f"{_BELOW}{describe_hidden_files(self.hidden, self.hidden_names)}"
        worst = [f"{count:,} in {name}" for name, count in self.bad_files.items()]
        if others := worst[_MOST_SHOWN:]:
            worst[_MOST_SHOWN:] = [f"fewer in {counted(len(others), 'other file')}"]
        if worst:
            yield f"  bad        {', '.join(worst)}"

    def counts(self) -> Counts:
        """Return the counts of the conversion."""
        values: dict[str, Any]
        values = {item.name: getattr(self, item.name, {}) for item in fields(Counts)}
        split_bytes = {name: split["text_bytes"] for name, split in self.splits.items()}
        return Counts(**values | {"split_bytes": split_bytes})

    def to_json(self) -> str:
        """Return the report as indented JSON."""
        return reports.to_json(self)

    def to_store(self, split: str) -> dict[str, Any]:
        """Return the JSON to store with a split: its report, and that of the whole conversion.

        The split "" is the whole conversion, so it has only one report.
        """
        if not split:
            return {"report": asdict(self)}
        own = {"out": urls.join_url(self.out, split), **self.splits[split], "splits": {}}
        return {"report": asdict(self) | own, "whole": asdict(self)}

    @staticmethod
    def of_stored(stored: Mapping[str, Any]) -> ConvertReport:
        """Create the report of the whole conversion from JSON that `to_store` returned."""
        return ConvertReport.from_dict(stored.get("whole", stored["report"]))

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> ConvertReport:
        """Create a report from a mapping with the fields that `to_json` writes."""
        lists = {name: tuple(values.get(name, ())) for name in ("bad_records", "hidden_names")}
        return ConvertReport(**dict(values) | lists)


def join_reports(out: str, reports: Mapping[str, ConvertReport]) -> ConvertReport:
    """Return the report of a conversion to partitions, from the report of each by its name."""
    several = list(reports.values())
    counts = sum_counts(each.counts() for each in several)

    def total(name: str) -> Any:
        values = [getattr(each, name) for each in several]
        return None if None in values else sum(values)

    sums = "files segments unfinished_segments resumed_shards rebuilt_shards tokens raw_bytes "
    sums += "stored_bytes shards"
    added = [each for each in several if each.added_documents is not None]
    return ConvertReport(
        out=out,
        **counts.to_report(),
        **{name: total(name) for name in sums.split()},
        columns={name: kind for each in several for name, kind in each.columns.items()},
        already_complete=all(each.already_complete or not each.documents for each in several),
        splits=_join_splits(each.splits for each in several),
        partitions={name: _total(each) for name, each in reports.items()},
        added_documents=sum(each.added_documents or 0 for each in added) if added else None,
        added_input_bytes=sum(each.added_input_bytes or 0 for each in added) if added else None,
    )


def _total(report: ConvertReport) -> dict[str, int]:
    names = ["documents", "files", "input_bytes", "text_bytes"]
    names += ["raw_bytes", "stored_bytes", "shards"]
    tokens = {} if report.tokens is None else {"tokens": report.tokens}
    return {name: getattr(report, name) for name in names} | tokens


def _join_splits(
    several: Iterable[Mapping[str, Mapping[str, int]]],
) -> dict[str, Mapping[str, int]]:
    sums: dict[str, Mapping[str, int]] = {}
    for name, values in itertools.chain.from_iterable(each.items() for each in several):
        sums[name] = _merge([sums.get(name, {}), values])
    return sums


def describe_hidden_files(count: int, names: Sequence[str]) -> str:
    """Describe the files and folders that are left out. `names` has the first of them."""
    noun = "file or folder that is" if count == 1 else "files and folders that are"
    shown = ", ".join(map(redact, names[:_MOST_SHOWN]))
    more = f", and {count - _MOST_SHOWN:,} more" if count > _MOST_SHOWN else ""
    return f"{count:,} {noun} not data: {shown}{more}"
