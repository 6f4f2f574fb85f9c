"""The journal of a conversion's finished shards, stored at the conversion's output.

It allows a killed conversion to resume without losing or repeating a document.

    .convert/config.json     the config and the digest of the input, which a rerun must match; and
                             the sizes of up to 10,000 input files
    .convert/00000.json      a finished shard: its index entry, and where the next shard begins
    shard.00000.mds.zstd     stored before its journal entry
    convert-report.json      the report, with the same config and digest
    index.json               stored last, so a partial dataset is never readable

A rerun resumes after the longest run of entries, from 00000, whose shards exist. The journal is
removed once the index is stored. A conversion in segments has a plan instead
(`cloudload.convert.plan`), and such a journal in the folder of each segment.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cloudload.convert.changed_files import describe_changes
from cloudload.convert.records import BlockStart
from cloudload.errors import ConvertError, StoreError
from cloudload.mds.index import INDEX_NAME, Column
from cloudload.mds.survey import JOURNAL_FOLDER
from cloudload.storage.objects import delete_object, list_objects, read_object, write_object
from cloudload.storage.redaction import redact
from cloudload.storage.urls import is_local, join_url, local_path

REPORT_NAME = "convert-report.json"
MAX_LISTED = 20
LENGTHS_FIELD = "lengths"
"""The field of a claim's recipe with the key of the token lengths, if they are counted."""
_SEGMENT_BYTES = "segment_bytes"
_SEGMENT = r"(\d{5,}/)?"
_SHARD_NAME = re.compile(_SEGMENT + r"shard\.\d{5,}\.mds(\.\w+)?")
_JOURNAL_NAME = re.compile(_SEGMENT + re.escape(JOURNAL_FOLDER) + "/.+")
_ENTRY_NAME = re.compile(re.escape(JOURNAL_FOLDER) + r"/\d{5,}\.json")
_LENGTHS_NAME = re.compile(
    r"lengths/[0-9a-f]{16}/(\d{5,}-[0-9a-f]{16}\.lengths|index-[0-9a-f]{16}\.json)"
)
_LEFTOVER_NAME = re.compile(
    _SEGMENT + r"\.(shard\.\d{5,}\.mds.*|index\.json|convert-report\.json)\.\d+\.tmp"
)


@dataclass(frozen=True)
class Counts:
    """Counts of written documents, empty documents, bad records, stored input bytes and text bytes.

    `bad_records` describes the first 20 bad records.
    """

    documents: int = 0
    empty: int = 0
    bad: int = 0
    bad_records: tuple[str, ...] = ()
    input_bytes: int = 0
    text_bytes: int = 0

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Counts:
        """Create the counts from a journal entry."""
        return Counts(**dict(value) | {"bad_records": tuple(value["bad_records"])})

    def plus(self, other: Counts) -> Counts:
        """Return the sums of both, with the first 20 bad records."""
        return Counts(
            self.documents + other.documents,
            self.empty + other.empty,
            self.bad + other.bad,
            (self.bad_records + other.bad_records)[:MAX_LISTED],
            self.input_bytes + other.input_bytes,
            self.text_bytes + other.text_bytes,
        )


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
    tokens: int | None = None
    """Number of tokens, without bos and eos; None if they are not counted, or not by now."""

    def to_json(self) -> str:
        """Return the report as indented JSON."""
        return json.dumps(asdict(self), indent=2)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> ConvertReport:
        """Create a report from a mapping with the fields that `to_json` writes."""
        return ConvertReport(**dict(values) | {"bad_records": tuple(values["bad_records"])})


@dataclass(frozen=True)
class InputPosition:
    """Where a shard begins in the input: at a sample of a block of a unit.

    `unit` is the index of the unit, `start` the start of the block, and `sample` an index among the
    block's samples. `counts` covers the blocks before this one.
    """

    unit: int = 0
    start: BlockStart = field(default_factory=BlockStart)
    sample: int = 0
    counts: Counts = field(default_factory=Counts)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> InputPosition:
        """Create the position from a journal entry."""
        return InputPosition(
            value["unit"],
            BlockStart(**value["start"]),
            value["sample"],
            Counts.from_json(value["counts"]),
        )


@dataclass(frozen=True)
class FinishedWork:
    """The finished part of a conversion.

    `entries` are the index entries of its shards. `columns` are the columns of the kept fields, or
    None until they are known. `position` is where the next shard begins, or None after the last.
    `counts` covers the blocks before the one in which it begins; after the last shard, all blocks.
    `resumed` is the number of shards that earlier runs wrote. If tokens are counted, `lengths` are
    the lengths of each shard, as `ShardLengths` encodes them.
    """

    entries: list[dict[str, Any]] = field(default_factory=list)
    lengths: list[str] = field(default_factory=list)
    columns: tuple[Column, ...] | None = None
    position: InputPosition | None = field(default_factory=InputPosition)
    counts: Counts = field(default_factory=Counts)
    resumed: int = 0


class Journal:
    """The journal at an output location. `claim` identifies the conversion by config and input.

    `files` are the sizes of the input files by name, to say which of them changed; or empty.
    The methods that read or write it raise `StoreError` if that fails.
    """

    def __init__(
        self, location: str, claim: Mapping[str, Any], files: Mapping[str, int | None]
    ) -> None:
        self.location, self.claim, self.files = location, claim, files
        self._began = time.monotonic()
        self._is_cleared = False

    def clear(self) -> None:
        """Remove the dataset and its journal, starting with the index.

        Raises `ConvertError` if a new index would hide other datasets.
        """
        names = self._list()
        self._refuse_to_hide(names)
        self._is_cleared = True
        for name in sorted(
            names, key=lambda name: (name != INDEX_NAME, not name.startswith(JOURNAL_FOLDER), name)
        ):
            if (
                name in (INDEX_NAME, REPORT_NAME)
                or _JOURNAL_NAME.fullmatch(name)
                or _LEFTOVER_NAME.fullmatch(name)
                or _SHARD_NAME.fullmatch(name)
                or _LENGTHS_NAME.fullmatch(name)
            ):
                delete_object(join_url(self.location, name))
        self._remove_empty_folders()

    def finished_report(self) -> ConvertReport | None:
        """Return the report if this conversion is already complete, otherwise None.

        Removes a journal that a complete conversion left behind. Raises `ConvertError` if the
        output holds a different dataset, or shards without a journal, or if a new index would hide
        other datasets.
        """
        names = self._list()
        self._refuse_to_hide(names)
        if INDEX_NAME in names:
            data = self._read(REPORT_NAME) if REPORT_NAME in names else None
            if data is None:
                raise ConvertError(
                    f"{redact(self.location)} already holds a dataset. Choose another output, or "
                    "overwrite it (--overwrite)"
                )
            stored = json.loads(data)
            self._compare(stored)
            plan = self._read(f"{JOURNAL_FOLDER}/plan.json")
            if plan is not None and json.loads(plan)["base"] is not None:
                raise ConvertError(
                    f"data is being appended to {redact(self.location)}. Run again with append "
                    "(--append) and the files that were appended, to finish"
                )
            self.remove()
            return ConvertReport.from_dict(stored["report"])
        journals = {f"{JOURNAL_FOLDER}/config.json", f"{JOURNAL_FOLDER}/plan.json"}
        if not journals & names.keys() and any(map(_SHARD_NAME.fullmatch, names)):
            raise ConvertError(
                f"{redact(self.location)} holds shards, but no journal to resume from. "
                "Choose another output, or overwrite it (--overwrite)"
            )
        return None

    def read(self) -> FinishedWork:
        """Read the finished work, up to the first entry or shard that is missing.

        Raises `ConvertError` if the journal belongs to a different conversion that stored a shard.
        """
        names = self._list()
        if f"{JOURNAL_FOLDER}/config.json" not in names or not any(
            map(_SHARD_NAME.fullmatch, names)
        ):
            return FinishedWork()
        # a copy of this segment's work may finish at the same time, and remove the journal
        if (data := self._read(f"{JOURNAL_FOLDER}/config.json")) is None:
            return FinishedWork()
        config = json.loads(data)
        self._compare(config)
        done = FinishedWork(
            columns=tuple(Column.of(name, encoding) for name, encoding in config["columns"])
        )
        found = sorted(filter(_ENTRY_NAME.fullmatch, names), key=lambda name: (len(name), name))
        with ThreadPoolExecutor(16) as threads:
            for number, data in enumerate(threads.map(self._read, found)):
                if data is None or found[number] != _entry_name(number):
                    break
                entry = json.loads(data)
                if not self._is_stored(entry["shard"], names):
                    break
                done.entries.append(entry["shard"])
                done.lengths.extend(entry.get("lengths", []))
                following = InputPosition.from_json(entry["next"]) if entry["next"] else None
                done = replace(done, position=following, counts=Counts.from_json(entry["counts"]))
        return replace(done, resumed=len(done.entries))

    def is_begun(self) -> bool:
        """Whether the journal lists shards, so that the conversion was begun as one segment."""
        return any(map(_ENTRY_NAME.fullmatch, self._list()))

    def _is_stored(self, entry: Mapping[str, Any], names: Mapping[str, int]) -> bool:
        stored = entry["zip_data"] or entry["raw_data"]
        return bool(names.get(stored["basename"]) == stored["bytes"])

    def begin(self, columns: Sequence[Column]) -> None:
        """Write the claim, which a rerun must match, and the columns of the kept fields."""
        config = {
            "claim": self._claim_of_one(),
            "files": self.files,
            "columns": [[column.name, column.encoding] for column in columns],
        }
        write_object(
            join_url(self.location, f"{JOURNAL_FOLDER}/config.json"),
            json.dumps(config, indent=1).encode(),
        )

    def finish(
        self,
        index: bytes,
        stored: Mapping[str, int],
        report: ConvertReport,
        base: Mapping[str, Any] | None = None,
    ) -> ConvertReport:
        """Store the report and then the index, remove the journal, and return the report.

        `stored` has the size in bytes of each shard's file. `base` is the stored report of the
        dataset to which data was appended. Adds the duration to the report. Raises
        `ConvertError` if a stored shard is missing or has the wrong size.
        """
        names = self._list()
        if lost := [name for name, size in stored.items() if names.get(name) != size]:
            raise ConvertError(
                f"{len(lost)} of {len(stored)} shards in {redact(self.location)} disappeared or "
                f"changed size during the conversion, such as {lost[0]}. Run again to resume"
            )
        report = replace(report, seconds=self.seconds())
        claim = self.claim if report.segments > 1 else self._claim_of_one()
        content: dict[str, Any] = {"claim": claim, "files": self.files, "report": asdict(report)}
        if base is not None:
            appended = [*base.get("appended", []), self.claim["inputs"]]
            content |= {"claim": base["claim"], "files": base["files"], "appended": appended}
        write_object(join_url(self.location, REPORT_NAME), json.dumps(content, indent=2).encode())
        write_object(join_url(self.location, INDEX_NAME), index)
        self.remove()
        return report

    def seconds(self) -> float:
        """The duration of this run."""
        return round(time.monotonic() - self._began, 3)

    def _claim_of_one(self) -> dict[str, Any]:
        """The claim of a single segment, whose bytes do not depend on the size of segments."""
        recipe = {
            key: value for key, value in self.claim["recipe"].items() if key != _SEGMENT_BYTES
        }
        return {**self.claim, "recipe": recipe}

    def remove(self) -> None:
        """Remove the journal, those of all segments, and the temporary files of killed writers."""
        for name in self._list():
            if _JOURNAL_NAME.fullmatch(name) or _LEFTOVER_NAME.fullmatch(name):
                delete_object(join_url(self.location, name))
        self._remove_empty_folders()

    def remove_entries(self) -> None:
        """Remove the journal of a segment.

        Its folder and temporary files remain, because a copy of the work may still write to it.
        """
        for name in self._list():
            if _ENTRY_NAME.fullmatch(name) or name == f"{JOURNAL_FOLDER}/config.json":
                delete_object(join_url(self.location, name))

    def _refuse_to_hide(self, names: Mapping[str, int]) -> None:
        """Raise `ConvertError` if folders of the output hold datasets that a new index would hide.

        One that is written again, or a conversion that has begun, is not new.
        """
        suffix = f"/{INDEX_NAME}"
        folders = [name.removesuffix(suffix) for name in sorted(names) if name.endswith(suffix)]
        is_begun = INDEX_NAME in names or any(name.startswith(JOURNAL_FOLDER) for name in names)
        if not folders or is_begun or self._is_cleared:
            return
        named = ", ".join(map(redact, folders[:MAX_LISTED]))
        more = f", and {len(folders) - MAX_LISTED:,} more" if len(folders) > MAX_LISTED else ""
        place = redact(self.location)
        raise ConvertError(
            f"{place} has datasets in its folders: {named}{more}. A dataset in {place} itself "
            "would hide them. Pass split (--split NAME) to write to a folder, or choose another "
            "output"
        )

    def _remove_empty_folders(self) -> None:
        if not is_local(self.location):
            return
        folders = (f"[0-9]*/{JOURNAL_FOLDER}", JOURNAL_FOLDER, "[0-9]*", "lengths/*", "lengths")
        for pattern in folders:
            for folder in local_path(self.location).glob(pattern):
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def _list(self) -> dict[str, int]:
        """Map the name of each object at the output to its size in bytes."""
        try:
            found = list_objects(self.location)
        except StoreError as error:
            if error.is_missing:
                return {}
            raise
        return {item.url.removeprefix(self.location).lstrip("/"): item.bytes for item in found}

    def _read(self, name: str) -> bytes | None:
        return read_if_exists(join_url(self.location, name))

    def _compare(self, stored: Mapping[str, Any]) -> None:
        files = stored.get("files")
        compare_claims(self.location, stored["claim"], self.claim, files, self.files)


def compare_claims(
    location: str,
    stored: Mapping[str, Any],
    claim: Mapping[str, Any],
    files_before: Any = None,
    files_now: Mapping[str, int | None] | None = None,
) -> None:
    """Raise `ConvertError` if the claim of a stored report, config or plan differs.

    `files_before` and `files_now` are the sizes of the files, to say which of them changed.
    """
    for part in ("recipe", "inputs"):
        for key in [*claim[part], *({LENGTHS_FIELD} & stored[part].keys() - claim[part].keys())]:
            before, now = stored[part].get(key), claim[part].get(key)
            if before == now or (key == _SEGMENT_BYTES and before is None):
                continue
            change = f"{key} was {before!r} and is now {now!r}"
            if part == "inputs":
                change = describe_changes(files_before, files_now or {}) or change
            raise ConvertError(
                f"the {part} of {redact(location)} changed: {change}. Run with the original "
                f"{part}, choose another output, or start over (--overwrite)"
            )


def read_if_exists(url: str) -> bytes | None:
    """Read an object, or return None if there is none."""
    try:
        return read_object(url)
    except StoreError as error:
        if error.is_missing:
            return None
        raise


def record_shard(
    location: str,
    number: int,
    entry: Mapping[str, Any],
    following: InputPosition | None,
    counts: Counts,
    *,
    lengths: Sequence[str] = (),
) -> None:
    """Write the journal entry of a stored shard.

    `number` is the shard's index, `entry` its entry for the index, `following` the position of the
    next shard (None after the last), and `counts` the counts before that position. `lengths` are
    the shard's token lengths, if they are counted.
    """
    content = {
        "shard": entry,
        "next": asdict(following) if following else None,
        "counts": asdict(counts),
        **({"lengths": list(lengths)} if lengths else {}),
    }
    write_object(join_url(location, _entry_name(number)), json.dumps(content).encode())


def _entry_name(number: int) -> str:
    return f"{JOURNAL_FOLDER}/{number:05}.json"
