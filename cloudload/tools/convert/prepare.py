"""Prepare a conversion: list its inputs, and agree on a plan, or find the complete dataset.

    ConversionRequest ─► list_request ─► prepare_dataset ─┬─► Planned: run its segments
                                                └─► Complete: rebuild its missing shards

A worker of an array does not list the inputs if another has stored the plan.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cloudload.data import Location, own_objects
from cloudload.tools.convert import conversion_plan, input_records, rerun_check
from cloudload.tools.convert.conversion_plan import ConversionPlan
from cloudload.tools.convert.conversion_report import ConvertReport
from cloudload.tools.convert.dry_run import describe_inputs, list_left_out
from cloudload.tools.convert.found_files import FolderFiles
from cloudload.tools.convert.indexed_shards import list_columns
from cloudload.tools.convert.inputs import list_hidden, list_inputs, list_roots, list_units
from cloudload.tools.convert.journal import Journal
from cloudload.tools.convert.listed_files import digest_lists
from cloudload.tools.convert.output_location import check_listed
from cloudload.tools.convert.planning import (
    Conversion,
    Planned,
    agree_on_plan,
    check_sizes,
    list_files,
    read_appended_report,
    read_base,
)
from cloudload.tools.convert.rebuild import rebuild_shards
from cloudload.tools.convert.rerun_check import check_same_files, leave_out_converted
from cloudload.tools.convert.segment import read_blocks
from cloudload.tools.convert.segment_journal import InputPosition
from cloudload.tools.convert.values import PeekableBlocks, infer_columns

logger = logging.getLogger("cloudload.convert")

Listed = Sequence[FolderFiles | input_records.InputUnit]
"""The inputs: the files of each, or the unit of an input without files."""


@dataclass(frozen=True)
class ConversionRequest:
    """A run, and what to convert in it."""

    run: Conversion
    recipe: Mapping[str, Any]
    """The options that a rerun must match."""
    inputs: Any
    split: str | None
    append: bool


@dataclass(frozen=True)
class Complete:
    """A dataset that an earlier run finished."""

    run: Conversion
    report: ConvertReport
    journal: Journal | None = None
    """The journal of a dataset to check. None if all files of an append are in the dataset."""
    listed: Listed = ()
    units: Sequence[input_records.InputUnit] = ()

    def settle(self) -> ConvertReport:
        """Return the report, after missing shards are rebuilt, and the inputs checked."""
        if self.journal is None:
            return self.run.already_complete(self.report)
        folders, location = _folders(self.listed), self.run.location
        rebuilt = rebuild_shards(self.run, folders if are_files(self.listed) else None)
        check_sizes(location, self.units)
        check_same_files(location, read_appended_report(self.run.output) or {}, folders)
        seconds = self.journal.seconds() if rebuilt else 0.0
        return replace(self.run.already_complete(self.report, rebuilt), seconds=seconds)


def read_recipe(location: Location) -> dict[str, Any]:
    """Return the options of the conversion at an output, from its plan or its report, or {}."""
    data = location.join(conversion_plan.PLAN_NAME).read_if_exists()
    data = data or location.join(own_objects.REPORT_NAME).read_if_exists()
    stored: dict[str, Any] = {} if data is None else json.loads(data).get("claim", {})
    recipe: dict[str, Any] = stored.get("recipe", {})
    return recipe


def prepare_request(
    request: ConversionRequest, parent: Location | None
) -> tuple[Planned | Complete, int]:
    """Plan the conversion of all inputs to one dataset, or find the complete dataset.

    Also returns the number of files that are not appended, because the dataset has them. If the
    output is a split of a dataset, `parent` is the dataset's location, otherwise None.
    """
    run = request.run
    if (run.share or run.finish) and (plan := _read_plan(request)):
        roots = list_roots(request.inputs, [item.root for item in plan.inputs])
        return Planned(run, plan, plan.files(roots, run.config.format)), 0
    return prepare_dataset(request, list_request(request), parent)


def list_request(request: ConversionRequest) -> list[FolderFiles | input_records.InputUnit]:
    """List the inputs, log a table of them, and check that the output contains none."""
    run = request.run
    listed = list_inputs(request.inputs, run.config.format, request.split)
    units = list_units(listed, run.config.block_bytes)
    table = describe_inputs(units) + list_left_out(list_hidden(listed))
    logger.info("%s", "\n".join(table))
    check_listed(run.location.url, [file for unit in units for file in unit.files])
    return listed


def prepare_dataset(
    request: ConversionRequest, listed: Listed, parent: Location | None = None
) -> tuple[Planned | Complete, int]:
    """Plan the conversion of listed inputs to one dataset, as `prepare_request` does."""
    run, skipped = request.run, 0
    if request.append and (stored := read_appended_report(run.output)):
        listed, skipped = _leave_out(run.location, stored, listed)
        if not any(not isinstance(item, FolderFiles) or item.files for item in listed):
            base = read_base(run.output, {"recipe": request.recipe})
            return Complete(run, ConvertReport.of_stored(base["stored"])), skipped
    units = list_units(listed, run.config.block_bytes)
    identity = rerun_check.identify_inputs(units, with_tags=request.append)
    if digest := digest_lists(request.inputs):
        identity[rerun_check.LIST_FIELD] = digest
    claim = {"recipe": request.recipe, "inputs": identity}
    journal = Journal(run.output, claim, rerun_check.list_sizes(units))
    journal.parent = parent
    if run.overwrite:
        journal.clear([file for unit in units for file in unit.files])
    return _agree(request, listed, units, journal), skipped


def _read_plan(request: ConversionRequest) -> ConversionPlan | None:
    """Return the stored plan, or None if there is no plan, or if the inputs must be listed.

    With a stored plan, a thousand workers need not each list a million files. Raises `ConvertError`
    if the plan has a different recipe, or another list of files.
    """
    location = request.run.location
    data = location.join(conversion_plan.PLAN_NAME).read_if_exists()
    if data is None:
        return None
    plan = ConversionPlan.parse(data)
    digest = digest_lists(request.inputs)
    claim = {"recipe": request.recipe, "inputs": {rerun_check.LIST_FIELD: digest}}
    rerun_check.compare_claims(location, plan.claim, claim)
    return None if plan.must_list else plan


def _leave_out(location: Location, stored: Mapping[str, Any], listed: Listed) -> tuple[Listed, int]:
    """Return the inputs without the files that the dataset has, and the number of these files."""
    folders = _folders(listed)
    kept = leave_out_converted(location, stored, folders)
    total, left = (sum(len(item.files) for item in each) for each in (folders, kept))
    if total > left:
        logger.info("%s of %s files are in the dataset already", f"{total - left:,}", f"{total:,}")
    new = iter(kept)
    return [next(new) if isinstance(item, FolderFiles) else item for item in listed], total - left


def _folders(listed: Listed) -> list[FolderFiles]:
    return [item for item in listed if isinstance(item, FolderFiles)]


def are_files(listed: Listed) -> bool:
    """Whether all inputs are files, of which none is stdin."""
    folders = _folders(listed)
    return len(folders) == len(listed) and all(item.root != "-" for item in folders)


def _agree(
    request: ConversionRequest,
    listed: Listed,
    units: Sequence[input_records.InputUnit],
    journal: Journal,
) -> Planned | Complete:
    """Agree on a plan, or find the complete dataset."""
    run, folders, is_files = request.run, _folders(listed), are_files(listed)
    append = request.append
    if append and not is_files:
        raise ValueError(
            "append (--append) accepts only files. Write the rows to a file first, and append it"
        )
    if not append and (report := journal.finished_report()):
        return Complete(run, report, journal, listed, units)
    blocks = PeekableBlocks(read_blocks(units, InputPosition(), run.config))
    infer = partial(infer_columns, run.config, blocks)
    if run.config.like:
        infer = partial(list_columns, folders)
    plan = agree_on_plan(journal, run.config, folders, infer, is_files=is_files, append=append)
    if not is_files:
        return Planned(run, plan, units=units, blocks=blocks)
    return Planned(run, plan, list_files(plan, folders, run.config.format))
