"""Compare the input files of a conversion, by name and size, with those of an earlier run.

before   {"a.jsonl": 120, "b.jsonl": 80}
now      {"a.jsonl": 140, "c.jsonl": 80}
differ   a.jsonl had 120 bytes and now has 140, b.jsonl is gone, c.jsonl is new
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from cloudload.tools.convert.records import InputUnit

MOST_FILES = 10_000  # limits the size of the journal and the report, which list the files
_SHOWN = 5


def list_sizes(units: Iterable[InputUnit]) -> dict[str, int | None]:
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
