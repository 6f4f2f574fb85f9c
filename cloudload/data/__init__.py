"""Bytes by URL, MDS datasets in them, and the shards that this node keeps.

    URL ─► storage ─► bytes ─► mds ─► index, shards, samples
                                 cache ─► the shards of this node, checked and shared

    storage  objects by URL      cache       shards on this node
    mds      the shard format    file_kinds  which files are text
    file_content  chunks, and whole lines of files
    selections    which samples of a dataset are read

What comes from a store or a dataset is untrusted, and checked in this room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudload._door import open_door

if TYPE_CHECKING:
    from cloudload.data import file_content, file_kinds, selections
    from cloudload.data.cache import cache_folder, kept_tokenizers
    from cloudload.data.cache.counters import FirstFetch, TrafficCounter, WorkerCounts
    from cloudload.data.cache.fetch import ALWAYS, OFF, ONCE, Fetcher, Verification
    from cloudload.data.cache.memory_shards import MemoryShards
    from cloudload.data.cache.shard_cache import ShardCache
    from cloudload.data.mds import (
        codecs,
        document_columns,
        file_records,
        file_selection,
        footers,
        hashes,
        json_records,
        own_objects,
        record_values,
        shard_entries,
        synthetic,
        virtual_index,
        writer,
    )
    from cloudload.data.mds.dataset import (
        Corpus,
        Dataset,
        are_in_place,
        is_in_place,
        join_columns,
        list_warnings,
        open_corpus,
    )
    from cloudload.data.mds.download import check_hash, download_shard
    from cloudload.data.mds.folder_globs import find_folders
    from cloudload.data.mds.open_index import read_index
    from cloudload.data.mds.own_objects import (
        JOURNAL_FOLDER,
        refuse_to_hide,
    )
    from cloudload.data.mds.shard import (
        ID_KEY,
        REPAIR_ADVICE,
        SKIP_ADVICE,
        BadDocumentError,
        Shard,
        decode_value,
    )
    from cloudload.data.mds.shard_start import open_shard_start, open_temporary
    from cloudload.data.mds.shard_table import ShardTable, parse_index
    from cloudload.data.mds.virtual_index import ColumnChoice
    from cloudload.data.storage import globs, hub, nearby, urls
    from cloudload.data.storage.base import Retry, StoredObject, check_seconds
    from cloudload.data.storage.clients import skip_bytes
    from cloudload.data.storage.locations import Location
    from cloudload.data.storage.redaction import contains_secrets, explain, redact
else:
    __getattr__, __dir__ = open_door(__name__)
