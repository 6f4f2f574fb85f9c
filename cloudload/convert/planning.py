"""Agree on one plan: create it, or use the stored plan if it is for the same conversion."""

from __future__ import annotations

from collections.abc import Sequence

from cloudload.convert.append import base_columns, find_appended, read_base
from cloudload.convert.claims import compare_claims
from cloudload.convert.columns import PeekableBlocks, infer_columns
from cloudload.convert.config import ConvertConfig
from cloudload.convert.inputs import FolderFiles
from cloudload.convert.journal import Journal
from cloudload.convert.output import read_if_exists
from cloudload.convert.plan import (
    PLAN_NAME,
    ConversionPlan,
    check_files,
    check_versions,
    list_versions,
    plan_input,
)
from cloudload.convert.records import InputUnit
from cloudload.convert.report import ConvertReport
from cloudload.convert.segment import read_blocks
from cloudload.convert.segments import Segments
from cloudload.convert.work import InputPosition
from cloudload.errors import ConvertError
from cloudload.storage.objects import create_object
from cloudload.storage.redaction import redact
from cloudload.storage.urls import join_url


def has_segments(folders: Sequence[FolderFiles], segment_bytes: int, journal: Journal) -> bool:
    """Whether the input has several segments.

    False if an earlier version of cloudload began this conversion as one segment.
    """
    files = [file for item in folders for file in item.files]
    return len(Segments(files, segment_bytes)) > 1 and not journal.is_begun()


def agree_on_plan(
    journal: Journal,
    config: ConvertConfig,
    folders: Sequence[FolderFiles],
    units: Sequence[InputUnit],
    append: bool,
) -> ConversionPlan | ConvertReport:
    """Create and store a plan, or return the stored plan if it is for the same conversion.

    With `append`, the plan adds to the existing dataset. If these files were already appended,
    returns the dataset's report. Raises `ConvertError` if there is no dataset to append to. If the
    stored plan is for another conversion, raises a `ConvertError` that names the difference.
    """
    url, base = join_url(journal.location, PLAN_NAME), None
    inputs = tuple(map(plan_input, folders))
    data = read_if_exists(url)
    if data is None:
        if append:
            base = read_base(journal.output, journal.claim)
            if report := find_appended(journal.location, base, journal.claim):
                return report
        columns = (
            base_columns(base)
            if base
            else infer_columns(config, PeekableBlocks(read_blocks(units, InputPosition(), config)))
        )
        formats = {file.format for item in folders for file in item.files}
        versions = list_versions(config, formats)
        first = base["segments"] if base else 0
        # a plan has neither the index entries of MDS shards nor the file order of saved datasets
        must_list = not formats.isdisjoint({"mds", "arrow"})
        plan = ConversionPlan(journal.claim, columns, versions, inputs, must_list, first, base)
        encoded = plan.encode()
        if (data := create_object(url, encoded)) == encoded:
            return plan.with_digest(data)
        del encoded
    plan = ConversionPlan.parse(data)
    if append and plan.base is None:
        raise ConvertError(
            f"cannot append to {redact(journal.location)}, because its conversion is not finished. "
            "Finish it first by converting without append (--append)"
        )
    compare_claims(journal.location, plan.claim, journal.claim, plan.sizes, journal.files)
    check_versions(plan.versions)
    check_files(plan, inputs)
    return plan
