"""Write the token lengths of a conversion's dataset, just before its index.

    journal, or notes of segments ─► lengths of each shard ─► groups, index of the lengths
                                                           ─► then index.json of the dataset

Therefore, if the dataset's index exists, so do its lengths. If a run is killed before it writes the
index, the next run writes the same files again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from cloudload.data.mds.dataset import Dataset
from cloudload.data.mds.index_parser import parse_index
from cloudload.data.storage.redaction import redact
from cloudload.tools.convert.joined_shards import JoinedShards
from cloudload.tools.count.finish import finish_count
from cloudload.tools.count.group import CountWork, count_group, list_groups
from cloudload.tools.count.new_shards import ShardLengths, write_groups
from cloudload.tools.engines.units import Engine, run_units


def write_lengths(
    work: CountWork,
    location: str,
    joined: JoinedShards,
    *,
    num_old: int,
    lengths: Iterable[str],
    engine: Engine | None,
) -> int:
    """Write the lengths of the joined shards, and return the number of tokens.

    `lengths` has the encoded lengths of the shards after the first `num_old`, in order. If a group
    contains older shards that were not counted, the engine counts the group. Raises the errors of
    `count_group` and `finish_count`.
    """
    index = b"".join(joined.index())
    dataset = Dataset(location, parse_index(index, redact(location)), "")
    new = map(ShardLengths.decode, lengths)
    uncounted = write_groups(work, dataset, num_old, new)
    for _ in run_units(partial(count_group, work), uncounted, engine):
        pass
    return finish_count(work, dataset, list_groups(work, dataset)).index.total("tokens")
