"""The claim of a conversion: its recipe and a digest of its inputs, which a rerun must match.

If the digest differs, the names and sizes of the input files show which of them changed:

    before   {"a.jsonl": 120, "b.jsonl": 80}
    now      {"a.jsonl": 140, "c.jsonl": 80}
    differ   a.jsonl had 120 bytes and now has 140, b.jsonl is gone, c.jsonl is new
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cloudload.data import redact
from cloudload.errors import ConvertError
from cloudload.tools.convert import input_records

LENGTHS_FIELD = "lengths"
"""The field of a claim's recipe with the key of the token lengths. Absent without a tokenizer."""
SEGMENT_BYTES = "segment_bytes"
"""The field of a claim's recipe that a conversion of one segment lacks."""

MOST_FILES = 10_000  # limits the size of the journal and the report, which list the files
_SHOWN = 5


def claim_one_segment(claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claim of a single segment, whose bytes do not depend on `segment_bytes`."""
    return {**claim, "recipe": without_segment_bytes(claim["recipe"])}


def without_segment_bytes(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe without `segment_bytes`."""
    return {key: value for key, value in recipe.items() if key != SEGMENT_BYTES}


def without_lengths(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe without the key of the token lengths, which may differ in an append."""
    return {key: value for key, value in recipe.items() if key != LENGTHS_FIELD}


def compare_claims(
    location: str,
    stored: Mapping[str, Any],
    claim: Mapping[str, Any],
    files_before: Any = None,
    files_now: Mapping[str, int | None] | None = None,
) -> None:
    """Raise `ConvertError` if `claim` differs from the one `stored` in a report, config or plan.

    `files_before` and `files_now` map file names to sizes, so that the error can list the changes.
    """
    for part in ("recipe", "inputs"):
        for key in _list_keys(part, stored, claim):
            before, now = stored[part].get(key), claim[part].get(key)
            if before == now or (key == SEGMENT_BYTES and None in (before, now)):
                continue
            change = f"{key} was {before!r} and is now {now!r}"
            if part == "inputs":
                change = describe_changes(files_before, files_now or {}) or change
            raise ConvertError(
                f"{redact(location)} belongs to a conversion with different inputs or options: "
                f"{change}. Run with the original inputs and options, choose another output, or "
                "start over (--overwrite)"
            )


def _list_keys(part: str, stored: Mapping[str, Any], claim: Mapping[str, Any]) -> list[str]:
    """Return the keys to compare. If the claim has a recipe, they include the stored recipe's."""
    is_whole = part == "recipe" and claim[part]
    return list(claim[part] | stored[part]) if is_whole else list(claim[part])


def identify_inputs(units: Sequence[input_records.InputUnit], *, with_tags: bool) -> dict[str, Any]:
    """Return a digest of names and sizes, with totals, by which a rerun recognizes its input.

    With `with_tags`, adds a digest of tags, which also differs if a file has the same name and size
    but different contents.
    """
    files = [file for unit in units for file in unit.files]
    listing = (
        [unit.name, unit.size, [[file.name, file.bytes] for file in unit.files]] for unit in units
    )
    found = {
        "names and sizes": _digest(listing),
        "files": len(files),
        "bytes": input_records.sum_bytes(files),
    }
    return found | {"tags": _digest(file.tag for file in files)} if with_tags else found


def _digest(items: Iterable[Any]) -> str:
    """Hash the JSON of a list without storing the whole list in memory."""
    left, hashed, separator = iter(items), hashlib.sha256(b"["), ""
    while some := list(itertools.islice(left, 1_000)):
        hashed.update((separator + json.dumps(some)[1:-1]).encode())
        separator = ", "
    hashed.update(b"]")
    return hashed.hexdigest()[:32]


def list_sizes(units: Iterable[input_records.InputUnit]) -> dict[str, int | None]:
    """Map file names to sizes in bytes. Empty if there are more than 10,000 files."""
    files = (file for unit in units for file in unit.files)
    sizes = {file.name: file.bytes for file in itertools.islice(files, MOST_FILES + 1)}
    return sizes if len(sizes) <= MOST_FILES else {}


def describe_changes(before: Any, now: Mapping[str, int | None]) -> str:
    """Describe the files that differ. Returns "" if either list of files is unknown."""
    if not isinstance(before, Mapping) or not before or not now:
        return ""
    changes = []
    for name in sorted(before.keys() | now.keys()):
        if name not in now:
            changes.append(f"{name} is gone")
        elif name not in before:
            changes.append(f"{name} is new")
        elif before[name] != now[name]:
            changes.append(f"{name} had {before[name]} bytes and now has {now[name]}")
    if not changes and list(before) != list(now):
        changes.append("the files are in a different order")
    more = f", and {len(changes) - _SHOWN:,} more" if len(changes) > _SHOWN else ""
    return ", ".join(changes[:_SHOWN]) + more
