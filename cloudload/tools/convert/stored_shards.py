"""Store a shard, count its tokens, and list it in the journal.

ShardJob ─► compress, hash ─► count its tokens ─► entry of the journal ─► store
"""

from __future__ import annotations

from typing import Any, NamedTuple

from cloudload.data.mds.index_parser import parse_index
from cloudload.data.mds.writer import PackedShard, ShardBuffer, encode_index, pack_shard
from cloudload.data.storage.objects import write_object
from cloudload.data.storage.urls import join_url
from cloudload.tools.convert.samples import ShardContext
from cloudload.tools.convert.shards import ShardJob
from cloudload.tools.count.new_shards import measure_shard


class StoredShard(NamedTuple):
    """The result of storing a shard."""

    entry: dict[str, Any]
    """The shard's entry in the index."""
    lengths: list[str]
    """The shard's token lengths, as `ShardLengths` encodes them; empty if they are not counted."""


def store_shard(context: ShardContext, buffer: ShardBuffer, job: ShardJob) -> StoredShard:
    """Build, compress, and hash a shard, count its tokens, list it in the journal, and store it.

    `buffer` may be used again after the call. Raises `StoreError` if the shard or its journal entry
    cannot be written, `ConvertError` if another conversion wrote another shard, and the errors of
    `measure_shard`.
    """
    shard = pack_shard(context.form, job.number, job.sizes, job.parts, buffer)
    location = context.journal.output.shards(job.split)
    lengths = _count(context, location, shard)
    context.journal.record(
        job.place,
        job.split,
        shard.entry,
        following=job.next,
        counts=job.counts,
        lengths=lengths,
    )
    write_object(join_url(location, shard.name), shard.data)
    return StoredShard(shard.entry, lengths)


def _count(context: ShardContext, location: str, shard: PackedShard) -> list[str]:
    if context.work is None:
        return []
    [info] = parse_index(encode_index([shard.entry]), location)
    return [measure_shard(context.work, location, info, shard.raw).encode()]
