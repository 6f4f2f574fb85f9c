"""Convert each partition of the inputs to a dataset, in one job.

    by             path below the input                partition     dataset
    folder         science/part-0.jsonl.zst            science       out/science
    lang           lang=de/2024/a.parquet              de            out/de

    out/.convert/partitions.json   stored first: how the inputs are divided, and into what
    out/science/…                  as a conversion of the partition's files alone stores it
    out/partitions.json            stored at the end: the partitions, and their totals

A partition is a conversion with its own plan, segments, and journal, so no segment crosses a
partition, and its bytes do not depend on other partitions. The segments of all partitions share the
processes and the workers of one run.

A partition without documents is in the list, but has no dataset. Until the list is stored, its
journal says to all workers that its segments are finished.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cloudload.data import JOURNAL_FOLDER, Location, own_objects, shard_entries
from cloudload.errors import ConvertError, StoreError
from cloudload.tools.convert.conversion_report import MAX_LISTED, ConvertReport, join_reports
from cloudload.tools.convert.finish import describe_no_documents
from cloudload.tools.convert.found_files import FolderFiles
from cloudload.tools.convert.input_records import sum_bytes
from cloudload.tools.convert.inputs import list_hidden
from cloudload.tools.convert.journal import Journal, remove_if_empty
from cloudload.tools.convert.output_location import Output, check_file, check_output, does_exist
from cloudload.tools.convert.partition_files import check_case, divide
from cloudload.tools.convert.planning import Planned
from cloudload.tools.convert.prepare import (
    Complete,
    ConversionRequest,
    Listed,
    list_request,
    prepare_dataset,
    read_recipe,
)
from cloudload.tools.convert.rerun_check import describe_changes
from cloudload.tools.convert.run import run_conversions
from cloudload.tools.engines.units import for_each

_LIST = own_objects.PARTITIONS_NAME
_BEGUN = f"{JOURNAL_FOLDER}/{_LIST}"


@dataclass(frozen=True)
class PartitionList:
    """The partitions of a conversion, with their totals once all are complete."""

    by: str
    totals: Mapping[str, Mapping[str, int]]

    def encode(self) -> bytes:
        """Return the list as JSON. Equal lists have equal bytes."""
        values = {"partition_by": self.by, "partitions": self.totals}
        return json.dumps(values, indent=1, sort_keys=True).encode()

    @staticmethod
    def parse(data: bytes) -> PartitionList:
        """Parse a stored list."""
        values = json.loads(data)
        return PartitionList(values["partition_by"], values["partitions"])


def read_recipe_of_any(home: Location) -> dict[str, Any]:
    """Return the options of the partitioned conversion at an output, or {}."""
    found = _read_list(home, _BEGUN) or _read_list(home, _LIST)
    recipes = (read_recipe(home.join(name)) for name in sorted(found.totals if found else ()))
    return next(filter(None, recipes), {})


def convert_partitions(request: ConversionRequest, by: str) -> ConvertReport:
    """Convert each partition of the inputs to a dataset, and list the datasets."""
    began, run = time.monotonic(), request.run
    home = run.location
    listed = list_request(request)
    divided = divide(listed, by)
    check_output(home.url, [*divided], request.inputs)
    check_file("the list of partitions", home.join(_LIST).url, request.inputs)
    before = _begin(request, by, divided)
    found = for_each(partial(_prepare, request, before), enumerate(divided.items()))
    settled = [each.settle() if isinstance(each, Complete) else None for each, _ in found]
    planned = [each for each, _ in found if isinstance(each, Planned)]
    try:
        converted = iter(run_conversions(planned) if planned else ())
    except (ConvertError, StoreError):
        if _read_list(home, _LIST) in (None, before):
            raise
        # another run has finished the job, and removed the journals of partitions without documents
        return convert_partitions(replace(request, run=replace(run, overwrite=False)), by)
    reports = {
        name: report or next(converted) for name, report in zip(divided, settled, strict=True)
    }
    report = replace(
        join_reports(str(home), reports),
        hidden=len(hidden := list_hidden(listed)),
        hidden_names=tuple(hidden[:MAX_LISTED]),
        skipped_files=sum(skipped for _, skipped in found),
        seconds=round(time.monotonic() - began, 3),
    )
    if report.unfinished_segments:
        return report
    after = PartitionList(by, {**before.totals, **report.partitions})
    empty = [name for name, each in after.totals.items() if not each["documents"]]
    is_empty = len(empty) == len(after.totals)
    if after != before and not is_empty:
        home.join(_LIST).write(after.encode())
    for_each(partial(_remove_journal, run.output), empty)
    _remove_begun(home)
    if is_empty:
        raise ConvertError(describe_no_documents(planned[0], report))
    return report


def _prepare(
    request: ConversionRequest, before: PartitionList, partition: tuple[int, tuple[str, Listed]]
) -> tuple[Planned | Complete, int]:
    """Prepare the conversion of a partition, which is appended if its dataset is in the list.

    If the list has the same files without documents, they are not read again.
    """
    place, (name, listed) = partition
    run, home = request.run, request.run.location.join(name)
    count = run.count and replace(run.count, location=home.join(own_objects.LENGTHS_FOLDER))
    # so that a partition of one segment is not always the first worker's
    share = run.share and run.share.shift(place)
    output = replace(run.output, home=home)
    run = replace(run, output=output, count=count, share=share, may_be_empty=True)
    totals = before.totals.get(name, {"documents": 0})
    files = [file for item in listed if isinstance(item, FolderFiles) for file in item.files]
    now = {"files": len(files), "input_bytes": sum_bytes(files)}
    if not totals["documents"] and now.items() <= totals.items():
        known = {**totals, "out": str(home), "empty": 0, "bad": 0, "columns": {}}
        return Complete(run, ConvertReport.from_dict(known)), 0
    append = request.append and totals["documents"] > 0
    return prepare_dataset(replace(request, run=run, append=append), listed)


def _begin(request: ConversionRequest, by: str, names: Iterable[str]) -> PartitionList:
    """Store the names of the partitions, and return the list of the complete datasets, or {}.

    Raises `ConvertError` if the output belongs to a conversion with other partitions, or has a
    dataset that would hide them.
    """
    home = request.run.location
    complete, begun = _read_list(home, _LIST), _read_list(home, _BEGUN)
    if does_exist(home.join(shard_entries.INDEX_NAME)):
        raise ConvertError(
            f"{home} has an {shard_entries.INDEX_NAME}, so it is a dataset that would hide the "
            "partitions. Choose another output, or move the dataset to a subfolder"
        )
    if request.append and complete is None:
        raise ConvertError(
            f"cannot append to {home}, because it has no {_LIST}. Finish the conversion first, or "
            "convert without append (--append)"
        )
    wanted = PartitionList(by, {name: {} for name in names})
    if request.run.overwrite:
        _clear(request.run.output, [each for each in (complete, begun) if each], wanted)
        complete = None
    elif complete is not None and not request.append:
        _compare(home, complete, wanted)
        return complete
    elif complete is not None:
        _compare(home, complete, replace(complete, by=by))
        wanted = replace(wanted, totals={**{name: {} for name in complete.totals}, **wanted.totals})
        check_case(wanted.totals)
    data = wanted.encode()
    if (stored := home.join(_BEGUN).create(data)) != data:
        _compare(home, PartitionList.parse(stored), wanted)
    return complete or PartitionList(by, {})


def _compare(home: Location, before: PartitionList, now: PartitionList) -> None:
    """Raise `ConvertError` if the partitions differ from those of the conversion at the output."""
    names = (dict.fromkeys(sorted(each.totals), 0) for each in (before, now))
    change = describe_changes(*names)
    if before.by != now.by:
        change = f"partition_by was {before.by!r} and is now {now.by!r}"
    if change:
        raise ConvertError(
            f"{home} has other partitions: {change}. Run with the original inputs and options, add "
            "partitions with append (--append), choose another output, or start over (--overwrite)"
        )


def _clear(output: Output, before: Sequence[PartitionList], now: PartitionList) -> None:
    """Remove the lists, and the datasets of partitions that the inputs no longer have."""
    home = output.home
    home.join(_LIST).delete()
    _remove_begun(home)
    gone = {name for each in before for name in each.totals} - now.totals.keys()
    for name in sorted(gone):
        Journal(replace(output, home=home.join(name)), {}, {}).clear()


def _remove_begun(home: Location) -> None:
    home.join(_BEGUN).delete()
    remove_if_empty(home.join(JOURNAL_FOLDER))
    remove_if_empty(home)


def _remove_journal(output: Output, name: str) -> None:
    """Remove the journal of a partition without documents, and its folder."""
    Journal(replace(output, home=output.home.join(name)), {}, {}).remove()


def _read_list(home: Location, name: str) -> PartitionList | None:
    location = home.join(name)
    if (data := location.read_if_exists()) is None:
        return None
    try:
        return PartitionList.parse(data)
    except (ValueError, KeyError, TypeError) as error:
        raise ConvertError(
            f"{location} is not a list that cloudload wrote ({error!r:.100}). Choose another "
            "output, or remove the file"
        ) from error
