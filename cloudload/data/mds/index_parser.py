"""Parse an untrusted `index.json` into a table of its shards."""

from __future__ import annotations

import json
from typing import Any

from cloudload.data.mds import shard_entries
from cloudload.data.mds.shard_table import ShardTable, TableBuilder
from cloudload.errors import DatasetError


class _Row:
    """A placeholder for a parsed entry that has been added to the table."""

    __slots__ = ()


_ROW = _Row()


def parse_index(data: bytes, dataset: str) -> ShardTable:
    """Parse the shards of an `index.json`, in order.

    `dataset` is the dataset's URL, for messages. Raises `DatasetError` if the index is invalid or
    too large.
    """
    builder = TableBuilder()

    def take_shard_or_keep(entry: dict[str, Any]) -> Any:
        # add entries while the JSON is parsed, so that their dicts do not fill memory
        if "raw_data" not in entry:
            return entry
        builder.add(shard_entries.parse_shard(entry))
        return _ROW

    try:
        shard_entries.check_extent(data)
        index = json.loads(data, object_hook=take_shard_or_keep)
        shard_entries.check_version(index)
        shards = index["shards"]
        if not isinstance(shards, list) or not all(shard is _ROW for shard in shards):
            raise ValueError("'shards' is not a list of entries with raw_data")
        if len(shards) != len(builder):
            raise ValueError("an entry with raw_data is outside 'shards'")
        shard_entries.check_names(builder.names)
        return builder.build()
    except shard_entries.FAULTS as error:
        reason = shard_entries.explain_fault(error)[:500]
        raise DatasetError(
            f"{dataset}/{shard_entries.INDEX_NAME} is not an MDS index: {reason}. Convert the raw "
            "corpus "
            "with cloudload convert, or copy the dataset again"
        ) from error
