"""The names of the objects that cloudload writes into a dataset's folder.

    index.json  convert-report.json                   the dataset, and how it was converted
    shard.00000.mds.zstd  00003/shard.00000.mds.zstd  a shard; each segment has a folder
    .convert/plan.json    00003/.convert/00000.json   the journal of an unfinished conversion
    lengths/<key>/index-<data>.json                   token lengths
    lengths/<key>/00000-<digest>.lengths
    .shard.00000.mds.zstd.4711.tmp                    a file whose writer was killed

Whoever removes, replaces, or reports objects of a dataset's folder matches their names with these
patterns. Names are relative to the folder.
"""

from __future__ import annotations

import re

from cloudload.data.mds import shard_entries
from cloudload.data.mds.survey import JOURNAL_FOLDER

REPORT_NAME = "convert-report.json"
LENGTHS_FOLDER = "lengths"

_SEGMENT = r"(\d{5,}/)?"
SHARD = re.compile(_SEGMENT + r"shard\.\d{5,}\.mds(\.\w+)?")
JOURNAL = re.compile(_SEGMENT + re.escape(JOURNAL_FOLDER) + "/.+")
LENGTHS = re.compile(
    rf"{LENGTHS_FOLDER}/(?P<key>[0-9a-f]{{16}})/"
    r"(index-[0-9a-f]{16}\.json|\d{5,}-[0-9a-f]{16}\.lengths(\.[0-9a-f]{12}\.\d+\.part)?)"
)
TEMPORARY = re.compile(
    _SEGMENT + r"\.(shard\.\d{5,}\.mds.*|index\.json|convert-report\.json)\.\d+\.tmp"
)


def is_of_dataset(name: str) -> bool:
    """Whether an object belongs to a dataset: its index, report, shards, or token lengths.

    The journal of a conversion does not belong to a dataset, but to its location.
    """
    return name in (shard_entries.INDEX_NAME, REPORT_NAME) or any(
        pattern.fullmatch(name) for pattern in (SHARD, LENGTHS, TEMPORARY)
    )
