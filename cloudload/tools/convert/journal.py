"""The journal of a conversion, stored at its output: what is finished, and what a rerun must match.

    .convert/plan.json            first: the inputs and options, which a rerun must match
    .convert/00000.json           the finished shards of the only segment, or
    00003/.convert/00000.json     of each segment (`cloudload.tools.convert.segment_journal`)
    .convert/00003.done.json      the note of a finished segment
    convert-report.json           the report, with the same inputs and options
    index.json                    stored last, so a partial dataset is never readable

The plan is stored only if there is none, and its digest is in every entry and note. So of two
conversions that write to the same place, one is refused. The journal is removed once the index is
stored, and the plan last of all.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cloudload.data import (
    JOURNAL_FOLDER,
    Location,
    own_objects,
    refuse_to_hide,
    shard_entries,
    urls,
)
from cloudload.errors import CloudloadError, ConvertError, StoreError
from cloudload.tools.convert import conversion_plan, input_files, rerun_check
from cloudload.tools.convert.conversion_report import ConvertReport
from cloudload.tools.convert.output_location import (
    Output,
    check_removed,
    collect_at,
    does_exist,
    list_sizes_at,
    name_in,
)

_OLD_PLAN = f"{JOURNAL_FOLDER}/config.json"
_PARTITIONS = f"{JOURNAL_FOLDER}/{own_objects.PARTITIONS_NAME}"
_EMPTY_FOLDERS = (f"[0-9]*/{JOURNAL_FOLDER}", JOURNAL_FOLDER, "[0-9]*", "lengths/*", "lengths")


class Journal:
    """The journal at an output location. `claim` identifies the conversion by config and input.

    `files` maps input files to their sizes, so that errors can list the changes; it may be empty.
    With `is_cleared`, an index was removed from the output, so a new one may hide what it hid.
    Methods raise `StoreError` if they cannot read or write the journal.
    """

    def __init__(
        self,
        output: Output,
        claim: Mapping[str, Any],
        files: Mapping[str, int | None],
        *,
        is_cleared: bool = False,
    ) -> None:
        self.output, self.location = output, output.journal
        self.claim, self.files = claim, files
        self.parent: Location | None = None
        """The location of the dataset if the output is one of its splits."""
        self._began = time.monotonic()
        self.is_cleared = is_cleared

    def clear(self, inputs: Iterable[input_files.InputFile] = ()) -> None:
        """Remove the datasets and their journal, starting with the indexes.

        Raises `ConvertError` if a new index would hide other datasets, or if a file of `inputs`
        would be removed.
        """
        names = list_sizes_at(self.location)
        self._refuse_to_hide(names)
        self.is_cleared = True
        owned = {name: self._name_in_dataset(name) for name in names}
        removed = [
            name
            for name in names
            if own_objects.JOURNAL.fullmatch(name) or own_objects.is_of_dataset(owned[name] or "")
        ]
        check_removed(self.location.url, removed, inputs)
        for name in sorted(
            removed,
            key=lambda name: (
                owned[name] != shard_entries.INDEX_NAME,
                not name.startswith(JOURNAL_FOLDER),
                name,
            ),
        ):
            self.location.join(name).delete()
        self._remove_empty_folders()

    def _name_in_dataset(self, name: str) -> str | None:
        """Return the name of an object within its dataset, or None if it belongs to no split."""
        for split in self.output.splits:
            if not split or name.startswith(f"{split}/"):
                return name.removeprefix(f"{split}/") if split else name
        return None

    def finished_report(self) -> ConvertReport | None:
        """Return the report if this conversion is already complete, otherwise None.

        Some of its shards may be missing. Removes a journal that a complete conversion left behind.
        Raises `ConvertError` if the output holds a different dataset, or shards without a journal,
        or if a new index would hide other datasets.
        """
        names = list_sizes_at(self.location)
        if _PARTITIONS in names or own_objects.PARTITIONS_NAME in names:
            raise ConvertError(
                f"{self.location} belongs to a conversion with partition_by (--partition-by). "
                "Convert with the same option, or choose another output"
            )
        self._refuse_to_hide(names)
        indexes = [name_in(split, shard_entries.INDEX_NAME) for split in self.output.splits]
        is_begun = conversion_plan.PLAN_NAME in names
        found = [name in names for name in indexes]
        if all(found) or (any(found) and not is_begun):
            report_name = name_in(self.output.splits[-1], own_objects.REPORT_NAME)
            data = self._read(report_name) if report_name in names else None
            if data is None or not all(found):
                raise ConvertError(
                    f"{self.location} already contains a dataset. Choose another output, "
                    "or replace the dataset (--overwrite)"
                )
            stored = json.loads(data)
            rerun_check.compare_claims(
                self.location, stored["claim"], self.claim, stored.get("files"), self.files
            )
            plan = self._read(conversion_plan.PLAN_NAME)
            if plan is not None and json.loads(plan)["base"] is not None:
                raise ConvertError(
                    f"an append to {self.location} is not finished. To finish it, run "
                    "again with append (--append) and the same input files"
                )
            self.remove()
            return ConvertReport.of_stored(stored)
        if _OLD_PLAN in names:
            raise ConvertError(
                f"an earlier version of cloudload began a conversion to {self.location}, "
                "which this version cannot resume. Finish it with that version, or start over "
                "(--overwrite)"
            )
        owned = filter(None, map(self._name_in_dataset, names))
        if not is_begun and any(map(own_objects.SHARD.fullmatch, owned)):
            raise ConvertError(
                f"{self.location} has shards, but no journal to resume from. "
                "Choose another output, or replace the shards (--overwrite)"
            )
        return None

    def remove_unused_plan(self, digest: str) -> None:
        """Remove the plan of a conversion that failed before its first shard.

        So it may be run again with other options, such as another `text_key`.
        """
        with contextlib.suppress(CloudloadError):
            self.check_plan(digest)
            if not any(
                own_objects.JOURNAL.fullmatch(name) and name != conversion_plan.PLAN_NAME
                for name in list_sizes_at(self.location)
            ):
                self.location.join(conversion_plan.PLAN_NAME).delete()
                self._remove_empty_folders()

    def check_plan(self, digest: str) -> None:
        """Raise `ConvertError` if the stored plan is gone, or does not have this digest."""
        data = self._read(conversion_plan.PLAN_NAME)
        if data is None or conversion_plan.digest_plan(data) != digest:
            raise conversion_plan.refuse_replaced(self.location)

    def seconds(self) -> float:
        """Return the duration of this run, in seconds."""
        return round(time.monotonic() - self._began, 3)

    def remove(self) -> None:
        """Remove this journal, the segments' journals, and temporary files of killed writers."""
        names = collect_at(self.location, self._select_own)
        for name in sorted(names, key=lambda name: name == conversion_plan.PLAN_NAME):
            self.location.join(name).delete()
        self._remove_empty_folders()

    def _select_own(self, found: Iterable[tuple[str, int]]) -> list[str]:
        """Return the names of the journals' objects, and of temporary files."""
        return [
            name
            for name, _ in found
            if own_objects.JOURNAL.fullmatch(name)
            or own_objects.TEMPORARY.fullmatch(self._name_in_dataset(name) or "")
        ]

    def _refuse_to_hide(self, names: Mapping[str, int]) -> None:
        """Raise `ConvertError` if a new index would hide datasets, or be hidden by another index.

        An index that replaces an older index of the same dataset does not count as new.
        """
        if self.is_cleared:
            return
        if self.output.has_splits and shard_entries.INDEX_NAME in names:
            raise ConvertError(
                own_objects.describe_hidden_datasets(self.location.url, self.output.splits)
            )
        new = [
            each
            for each in self.output.splits
            if name_in(each, shard_entries.INDEX_NAME) not in names
        ]
        if new and self.parent and _is_dataset(self.parent):
            name = self.location.url.removeprefix(self.parent.url).lstrip("/")
            raise ConvertError(own_objects.describe_hidden_datasets(self.parent.url, [name]))
        for split in new:
            prefix = f"{split}/" if split else ""
            below = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
            refuse_to_hide(self.output.dataset(split).url, below)

    def _remove_empty_folders(self) -> None:
        if not self.location.is_local:
            return
        homes = dict.fromkeys(["", *self.output.splits])
        for home, pattern in itertools.product(homes, _EMPTY_FOLDERS):
            for folder in urls.local_path(self.location.join(home).url).glob(pattern):
                _remove_if_empty(folder)
        for home in reversed(homes):
            remove_if_empty(self.location.join(home))

    def _read(self, name: str) -> bytes | None:
        return self.location.join(name).read_if_exists()


def remove_if_empty(folder: Location) -> None:
    """Remove a local folder that has no files."""
    if folder.is_local:
        _remove_if_empty(urls.local_path(folder.url))


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _is_dataset(location: Location) -> bool:
    with contextlib.suppress(StoreError):  # the user may have access only to the split's folder
        return does_exist(location.join(shard_entries.INDEX_NAME))
    return False
