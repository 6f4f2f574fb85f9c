"""Plan an append to a finished dataset, and start the new index from the dataset's index.

    index.json   shard.00000 …   00001/shard.00000 …          │ 00007/shard.00000 …
                 existing shards, not changed                 │ the segments that are appended

The dataset remains readable as it was until its index is replaced, in one step. The names in the
IDs of appended documents begin with `+` and the number of the first segment that is appended with
them, so that they differ from those of earlier files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from cloudload.convert.finish import Joined
from cloudload.convert.journal import (
    LENGTHS_FIELD,
    REPORT_NAME,
    ConvertReport,
    Counts,
    compare_claims,
    read_if_exists,
)
from cloudload.convert.plan import Plan
from cloudload.errors import ConvertError
from cloudload.mds.index import INDEX_NAME, Column
from cloudload.mds.writer import encode_index
from cloudload.storage.redaction import redact
from cloudload.storage.urls import join_url

_FOLDER = re.compile(r"(\d{5,})/")


def read_base(location: str, claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `base` of a plan, for the dataset at a location: its digest and its report.

    `segments` is the number of the first segment that can be appended. Raises `ConvertError` if
    there is no dataset, or if its recipe differs from that of the claim.
    """
    index = read_if_exists(join_url(location, INDEX_NAME))
    report = read_if_exists(join_url(location, REPORT_NAME))
    if index is None or report is None:
        raise ConvertError(
            f"{redact(location)} holds no finished conversion to append to. Finish it first, or "
            "convert without append (--append)"
        )
    stored = json.loads(report)
    free = ("segment_bytes", LENGTHS_FIELD)
    recipe = {key: value for key, value in claim["recipe"].items() if key not in free}
    before = {key: value for key, value in stored["claim"]["recipe"].items() if key not in free}
    compare_claims(location, {"recipe": before, "inputs": {}}, {"recipe": recipe, "inputs": {}})
    entries = json.loads(index)["shards"]
    following = max(map(_segment_of, entries), default=0) + 1
    return {"index": _digest(entries), "stored": stored, "segments": following}


def find_appended(
    location: str, base: Mapping[str, Any], claim: Mapping[str, Any]
) -> ConvertReport | None:
    """Return the dataset's report if these files were appended before, unchanged.

    Raises `ConvertError` if they have the names and sizes of the files of which it was made,
    because the dataset's report holds nothing else about its files.
    """
    stored = base["stored"]
    if claim["inputs"] in stored.get("appended", []):
        return ConvertReport.from_dict(stored["report"])
    first = stored["claim"]["inputs"]
    if all(claim["inputs"].get(key) == value for key, value in first.items()):
        raise ConvertError(
            f"{redact(location)} was made of files with the names and sizes of those to append. "
            "If their contents differ, rename one of them"
        )
    return None


def base_columns(base: Mapping[str, Any]) -> tuple[Column, ...]:
    """The columns of the kept fields, which appended data must have, too."""
    columns = base["stored"]["report"]["columns"].items()
    return tuple(Column.of(name, kind) for name, kind in columns if name not in ("text", "id"))


def join_base(location: str, plan: Plan) -> Joined:
    """Return the shards of the dataset to which the plan appends; none if it makes a new one.

    They are the same whether or not the index has the appended shards already. Raises
    `ConvertError` if something else changed the dataset.
    """
    joined = Joined()
    if plan.base is None:
        return joined
    index = json.loads(read_if_exists(join_url(location, INDEX_NAME)) or b'{"shards": []}')
    entries = [entry for entry in index["shards"] if _segment_of(entry) < plan.first_segment]
    if _digest(entries) != plan.base["index"]:
        raise ConvertError(
            f"the index of {redact(location)} changed since data began to be appended. Restore "
            "it, and run again to resume"
        )
    report = ConvertReport.from_dict(plan.base["stored"]["report"])
    names = (item.name for item in fields(Counts))
    joined.add("", entries, Counts(**{name: getattr(report, name) for name in names}))
    return joined


def read_report_if_joined(location: str, plan: Plan) -> ConvertReport | None:
    """Return the dataset's report if the segments of the plan are in its index, otherwise None."""
    index = json.loads(read_if_exists(join_url(location, INDEX_NAME)) or b'{"shards": []}')
    report = read_if_exists(join_url(location, REPORT_NAME))
    is_joined = any(_segment_of(entry) >= plan.first_segment for entry in index["shards"])
    return ConvertReport.from_dict(json.loads(report)["report"]) if report and is_joined else None


def _digest(entries: list[dict[str, Any]]) -> str:
    return hashlib.sha256(encode_index(entries)).hexdigest()


def _segment_of(entry: Mapping[str, Any]) -> int:
    """The number of the segment that has a shard; 0 for the shards of a single one."""
    found = _FOLDER.match(entry["raw_data"]["basename"])
    return int(found[1]) if found else 0
