"""The faults of the section `data`, which are hostile and damaged datasets."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloudload.data.mds.codecs import compress
from cloudload.data.mds.index import Column
from cloudload.data.mds.writer import ShardFormat, encode_sample
from cloudload.data.storage.objects import write_object
from stress.fault_table.reads import Act, Ground, Seen, change, read_index, zipped_name
from testkit.corpora import encode_shard, write_mds

_BOMB_BYTES = 1 << 30


def streams(column: str = "text", encoding: str = "str", values: tuple[Any, ...] = ("a",)) -> Act:
    """Return a fault that reads two streams, the second of which has only this column."""

    def act(ground: Ground) -> Seen:
        other = _write_raw(ground.place("two"), column, encoding, values)
        return ground.read([ground.data(compression=None), other])

    return act


def _write_raw(folder: Path, column: str, encoding: str, values: tuple[Any, ...]) -> str:
    """Write a dataset of one raw shard with one column of any encoding, and return its folder."""
    columns = (Column.of(column, encoding),)
    form = ShardFormat(columns, None, ())
    raw = encode_shard(form, [encode_sample(columns, {column: value}) for value in values])
    folder.mkdir(parents=True)
    (folder / "shard.mds").write_bytes(raw)
    entry = {**form.config(), "samples": len(values), "zip_data": None}
    entry["raw_data"] = {"basename": "shard.mds", "bytes": len(raw), "hashes": {}}
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    return str(folder)


def pickle_column(ground: Ground) -> Seen:
    """Change the index so that it declares the text column as pickled."""
    folder = Path(_write_raw(ground.place("pickle"), "text", "bytes", (b"abc",)))
    change(folder / "index.json", lambda data: data.replace(b'["bytes"]', b'["pkl"]'))
    return ground.read(str(folder))


def empty_stream(ground: Ground) -> Seen:
    """Read a stream without shards together with one that has documents."""
    return ground.read([write_mds(ground.place("empty"), []), ground.data()])


def no_documents(sizes: list[int] | None) -> Act:
    """Return a fault that reads a dataset without documents.

    `sizes` are the numbers of samples in its shards. If None, there are no shards.
    """
    return lambda ground: ground.read(write_mds(ground.place("empty"), [], shard_samples=sizes))


def half_a_pair(sample: dict[str, Any]) -> str:
    """Return a sample's text, or for document 77 a lone surrogate, which is not valid text."""
    return "half a pair: \ud83e" if sample["text"].startswith("77:") else str(sample["text"])


def changed_index(edit: Callable[[dict[str, Any]], object]) -> Act:
    """Return a fault that changes the index's entry of one shard."""

    def act(ground: Ground) -> Seen:
        data = ground.data(compression=None)
        index = read_index(data)
        edit(index["shards"][2])
        write_object(f"{data}/index.json", json.dumps(index).encode())
        return ground.read(data)

    return act


def index_of(data: bytes) -> Act:
    """Return a fault that replaces the index with `data`."""

    def act(ground: Ground) -> Seen:
        url = ground.data()
        write_object(f"{url}/index.json", data)
        return ground.read(url)

    return act


def wrong_offset(ground: Ground) -> Seen:
    """Change an offset in a shard without hashes, so that a sample stops beyond the shard."""
    data = ground.data(compression=None, hashes=())
    change(
        Path(data, "shard.00002.mds"), lambda raw: raw[:8] + struct.pack("<I", 1 << 31) + raw[12:]
    )
    return ground.read(data)


def bomb(ground: Ground) -> Seen:
    """Replace a shard with a few bytes that decompress to 1 GiB."""
    data = ground.data(hashes=())
    zipped = compress("zstd", bytes(_BOMB_BYTES))
    index = read_index(data)
    index["shards"][2]["zip_data"]["bytes"] = len(zipped)
    write_object(f"{data}/{zipped_name(data, 2)}", zipped)
    write_object(f"{data}/index.json", json.dumps(index).encode())
    return ground.read(data)


def fifo(name: str) -> Act:
    """Return a fault that replaces a file with a named pipe, because opening a pipe blocks."""

    def act(ground: Ground) -> Seen:
        data = ground.data(compression=None)
        Path(data, name).unlink()
        os.mkfifo(Path(data, name))
        return ground.read(data)

    return act


CASES: dict[str, Act] = {
    "text column missing in one stream of two": streams("body"),
    "text column of type int": streams("text", "int", (1,)),
    "empty stream next to a stream with documents": empty_stream,
    "no shards at all": no_documents(None),
    "shards without samples": no_documents([0, 0]),
    "invalid UTF-8 in a bytes column": streams("text", "bytes", (b"fine", b"caf\xe9")),
    "lone surrogate from a transform": lambda ground: ground.read(
        ground.data(), transform=half_a_pair
    ),
    "pickle column": pickle_column,
    "`..` in a file name of the index": changed_index(
        lambda shard: shard["raw_data"].update(basename="../../secret.mds")
    ),
    "index says more bytes than the shard has": changed_index(
        lambda shard: shard["raw_data"].update(bytes=9_999)
    ),
    "index says more samples than the shard has": changed_index(
        lambda shard: shard.update(samples=shard["samples"] + 1)
    ),
    "index says more samples than any shard has": changed_index(
        lambda shard: shard.update(samples=1 << 40)
    ),
    "offset outside the shard": wrong_offset,
    "zstd bomb": bomb,
    "index that is not JSON": index_of(bytes(range(256))),
    "index `null`": index_of(b"null"),
    "index without a list of shards": index_of(b'{"version": 2}'),
    "index nested 100,000 deep": index_of(b"[" * 100_000),
    "FIFO as index": fifo("index.json"),
    "FIFO as shard": fifo("shard.00002.mds"),
}
