"""Agree on one plan: create it, or use the stored plan if it is for the same conversion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cloudload.data import Location, redact, shard_entries, urls
from cloudload.errors import ConvertError
from cloudload.tools.convert import conversion_plan, input_records, rerun_check
from cloudload.tools.convert.append import has_changed, read_base, stored_columns
from cloudload.tools.convert.config import ConvertConfig
from cloudload.tools.convert.inputs import FolderFiles
from cloudload.tools.convert.journal import Journal
from cloudload.tools.convert.output_location import read_if_exists
from cloudload.tools.convert.segment_sizes import Files, Segments

_SMALL_BYTES, _MOST_SMALL = 1 << 20, 10_000


def agree_on_plan(
    journal: Journal,
    config: ConvertConfig,
    folders: Sequence[FolderFiles],
    infer: Callable[[], tuple[shard_entries.Column, ...]],
    *,
    is_files: bool,
    append: bool,
) -> conversion_plan.ConversionPlan:
    """Create and store a plan, or return the stored plan if it is for the same conversion.

    `folders` are the inputs that are files. Unless all are, there is a single segment. `infer`
    returns the columns of the kept fields; it is called only to create a plan. With `append`, the
    plan adds to the existing dataset. Raises `ConvertError` if there is no dataset to append to, if
    another conversion to this output finished meanwhile, or if the stored plan is for another one.
    """
    url, inputs = (
        urls.join_url(journal.location, conversion_plan.PLAN_NAME),
        tuple(map(conversion_plan.plan_input, folders)),
    )
    data = read_if_exists(url)
    if data is None:
        base = read_base(journal.output, journal.claim) if append else None
        has_several = is_files and _has_several(journal, folders)
        plan = make_plan(
            journal.claim
            if append or has_several
            else rerun_check.claim_one_segment(journal.claim),
            stored_columns(base["stored"]) if base else infer(),
            config,
            folders,
            is_files=is_files,
            base=base,
        )
        encoded = plan.encode()
        if (data := Location(url).create(encoded)) == encoded:
            _check_current(journal, plan)
            return plan.with_digest(data)
        del encoded
    plan = conversion_plan.ConversionPlan.parse(data)
    if append and plan.base is None:
        raise ConvertError(
            f"cannot append to {redact(journal.location)}, because its conversion is not finished. "
            "Finish it first by converting without append (--append)"
        )
    rerun_check.compare_claims(
        journal.location, plan.claim, journal.claim, plan.sizes, journal.files
    )
    conversion_plan.check_versions(plan.versions)
    conversion_plan.check_files(plan, inputs)
    return plan


def make_plan(
    claim: Mapping[str, Any],
    columns: tuple[shard_entries.Column, ...],
    config: ConvertConfig,
    folders: Sequence[FolderFiles],
    *,
    is_files: bool = True,
    base: Mapping[str, Any] | None = None,
) -> conversion_plan.ConversionPlan:
    """Create a plan, which is not stored. The arguments are as for `agree_on_plan`."""
    formats = {file.format for item in folders for file in item.files}
    # a plan has neither the index entries of MDS shards nor the file order of saved datasets
    must_list = not is_files or not formats.isdisjoint({"mds", "arrow"})
    versions, inputs = (
        conversion_plan.list_versions(config, formats),
        tuple(map(conversion_plan.plan_input, folders)),
    )
    first = base["segments"] if base else 0
    return conversion_plan.ConversionPlan(claim, columns, versions, inputs, must_list, first, base)


def list_files(
    plan: conversion_plan.ConversionPlan, folders: Sequence[FolderFiles], format: str
) -> Files:
    """Return the files of a plan. `folders` are its inputs."""
    if plan.must_list:
        return [file for item in folders for file in item.files]
    return plan.files([item.root for item in folders], format)


def _has_several(journal: Journal, folders: Sequence[FolderFiles]) -> bool:
    """Whether there are several segments. Raises `ValueError` for very many small ones."""
    files = [file for item in folders for file in item.files]
    segment_bytes = journal.claim["recipe"][rerun_check.SEGMENT_BYTES]
    number = input_records.sum_bytes(files) // segment_bytes
    if segment_bytes < _SMALL_BYTES and number > _MOST_SMALL:
        raise ValueError(
            f"segment_bytes (--segment-bytes) is {segment_bytes:,}, which would cut the input into "
            f"some {number:,} segments. Use at least {_SMALL_BYTES:,}"
        )
    return len(Segments(files, segment_bytes)) > 1


def _check_current(journal: Journal, plan: conversion_plan.ConversionPlan) -> None:
    """Remove a plan that was just stored, and raise `ConvertError`, if it came too late.

    After this process looked for a dataset at the output, and before it stored the plan, another
    conversion may have finished there.
    """
    if has_changed(journal.output, plan.base):
        Location(urls.join_url(journal.location, conversion_plan.PLAN_NAME)).delete()
        raise ConvertError(
            f"another conversion to {redact(journal.location)} finished just now. Run again to "
            "compare it with this one"
        )
