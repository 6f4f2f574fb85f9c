"""Plan an append to a finished dataset, and start the new index with the existing shards.

    index.json   shard.00000 …   00001/shard.00000 …          │ 00007/shard.00000 …
                 existing shards, not changed                 │ the segments that are appended

The existing dataset remains readable until its index is replaced, in one step. The names in the IDs
of appended documents begin with `+` and the number of the first segment of the same append, so they
differ from those of earlier files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from cloudload.data import own_objects, redact, shard_entries, urls, writer
from cloudload.errors import ConvertError
from cloudload.tools.convert import conversion_plan, rerun_check
from cloudload.tools.convert.conversion_report import ConvertReport
from cloudload.tools.convert.finish import JoinedSegments
from cloudload.tools.convert.output_location import Output, does_exist, read_if_exists

_FOLDER = re.compile(r"(\d{5,})/")


def read_base(output: Output, claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `base` of a plan: the digest and the report of the datasets at the output.

    Its `segments` is the number of the first segment to append. Raises `ConvertError` if there is
    no dataset, or if its recipe differs from the claim's.
    """
    location, recipe = output.home, rerun_check.without_segment_bytes(claim["recipe"])
    report = _read_report(output)
    if report is None or not all(map(does_exist, _index_urls(output))):
        raise ConvertError(
            f"cannot append to {redact(location)}, because it has no finished conversion. Finish "
            "the conversion first, or convert without append (--append)"
        )
    rerun_check.compare_claims(
        location,
        {"recipe": rerun_check.without_lengths(report["claim"]["recipe"]), "inputs": {}},
        {"recipe": rerun_check.without_lengths(recipe), "inputs": {}},
    )
    entries = _read_entries(output)
    numbers = (_segment_of(entry) for several in entries.values() for entry in several)
    return {"index": _digest(entries), "stored": report, "segments": max(numbers, default=0) + 1}


def read_appended_report(output: Output) -> dict[str, Any] | None:
    """Return the stored report of the dataset to append to, or None if there is none.

    If an append is unfinished, it is the report from before that append.
    """
    plan = read_if_exists(urls.join_url(output.home, conversion_plan.PLAN_NAME))
    base = json.loads(plan)["base"] if plan is not None else None
    return dict(base["stored"]) if base else _read_report(output)


def stored_columns(stored: Mapping[str, Any]) -> tuple[shard_entries.Column, ...]:
    """Return the columns of the kept fields of a dataset, which appended data must also have."""
    columns = stored["report"]["columns"].items()
    return tuple(
        shard_entries.Column.of(name, kind) for name, kind in columns if name not in ("text", "id")
    )


def join_base(output: Output, plan: conversion_plan.ConversionPlan) -> JoinedSegments:
    """Return the shards of the datasets to which the plan appends; empty for new datasets.

    The result is the same whether or not the indexes already list the appended shards. Raises
    `ConvertError` if a dataset changed in any other way.
    """
    joined = JoinedSegments.none(output.splits)
    if plan.base is None:
        return joined
    entries = {
        split: [entry for entry in several if _segment_of(entry) < plan.first_segment]
        for split, several in _read_entries(output).items()
    }
    if _digest(entries) != plan.base["index"]:
        raise ConvertError(
            f"the index of {redact(output.home)} changed after the append started. Restore the "
            "index, and run again to resume"
        )
    joined.add("", entries, ConvertReport.of_stored(plan.base["stored"]).counts())
    return joined


def has_changed(output: Output, base: Mapping[str, Any] | None) -> bool:
    """Whether the indexes differ from those of `base`; without it, whether they list any shards."""
    entries = _read_entries(output)
    return _digest(entries) != base["index"] if base else any(entries.values())


def read_report_if_joined(
    output: Output, plan: conversion_plan.ConversionPlan
) -> ConvertReport | None:
    """Return the stored report if the indexes already list the plan's segments, else None.

    Raises `ConvertError` if they list the segments of another conversion.
    """
    report, entries = _read_report(output), _read_entries(output)
    numbers = (_segment_of(entry) for several in entries.values() for entry in several)
    if report is None or not any(number >= plan.first_segment for number in numbers):
        return None
    inputs = report.get("appended", [None])[-1] if plan.base else report["claim"]["inputs"]
    joined = {"recipe": report["claim"]["recipe"], "inputs": inputs}
    if plan.base is None:
        rerun_check.compare_claims(output.home, joined, plan.claim)
    elif inputs != plan.claim["inputs"]:
        raise ConvertError(
            f"another conversion was appended to {redact(output.home)} at the same time. Append "
            "again"
        )
    return ConvertReport.of_stored(report)


def _read_report(output: Output) -> dict[str, Any] | None:
    """Return the report of the last split, which is stored after those of all other splits."""
    data = read_if_exists(urls.join_url(output.dataset(output.splits[-1]), own_objects.REPORT_NAME))
    return None if data is None else dict(json.loads(data))


def _index_urls(output: Output) -> list[str]:
    return [
        urls.join_url(output.dataset(split), shard_entries.INDEX_NAME) for split in output.splits
    ]


def _read_entries(output: Output) -> dict[str, list[dict[str, Any]]]:
    """Return the entries of the indexes by split; no entries for an index that does not exist."""
    texts = [read_if_exists(url) or b'{"shards": []}' for url in _index_urls(output)]
    return {
        split: json.loads(text)["shards"] for split, text in zip(output.splits, texts, strict=True)
    }


def _digest(entries: Mapping[str, list[dict[str, Any]]]) -> str:
    return hashlib.sha256(b"".join(map(writer.encode_index, entries.values()))).hexdigest()


def _segment_of(entry: Mapping[str, Any]) -> int:
    """Return the number of a shard's segment, or 0 if there is only one segment."""
    found = _FOLDER.match(entry["raw_data"]["basename"])
    return int(found[1]) if found else 0
