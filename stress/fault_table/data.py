"""The sections `data` and `state`: hostile and damaged datasets, and damaged states."""

from __future__ import annotations

import base64
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cloudload.data.mds.codecs import compress
from cloudload.data.mds.shard_entries import INDEX_NAME
from stress.fault_table.reads import OTHERS, Case, Outcome, State, Workspace, change, zipped_name
from testkit.corpora import write_mds
from testkit.damaged_datasets import Damage, edit_entry, patch

_BOMB_BYTES = 1 << 30


def streams(column: str = "text", encoding: str = "str", values: tuple[Any, ...] = ("a",)) -> Case:
    """Return a fault that reads two streams, the second of which has only this column."""

    def act(work: Workspace) -> Outcome:
        other = write_mds(work.new_path("two"), values, column=column, encoding=encoding)
        return work.read([work.data(compression=None), other])

    return act


def pickle_column(work: Workspace) -> Outcome:
    """Change the index so that it declares the text column as pickled."""
    data = write_mds(work.new_path("pickle"), [b"abc"], encoding="bytes")
    change(Path(data, INDEX_NAME), lambda index: index.replace(b'["bytes"]', b'["pkl"]'))
    return work.read(data)


def empty_stream(work: Workspace) -> Outcome:
    """Read a stream without shards together with one that has documents."""
    return work.read([write_mds(work.new_path("empty"), []), work.data()])


def no_documents(sizes: list[int] | None) -> Case:
    """Return a fault that reads a dataset without documents.

    `sizes` are the numbers of samples in its shards. If None, there are no shards.
    """
    return lambda work: work.read(write_mds(work.new_path("empty"), [], shard_samples=sizes))


def half_a_pair(sample: dict[str, Any]) -> str:
    """Return a sample's text, or for document 77 a lone surrogate, which is not valid text."""
    return "half a pair: \ud83e" if sample["text"].startswith("77:") else str(sample["text"])


def damaged(damage: Damage) -> Case:
    """Return a fault that damages the files of a dataset of raw shards."""

    def act(work: Workspace) -> Outcome:
        data = work.data(compression=None)
        damage(Path(data))
        return work.read(data)

    return act


def changed_index(change: Callable[[dict[str, Any]], object]) -> Case:
    """Return a fault that changes the index's entry of one shard."""
    return damaged(edit_entry(change, 2))


def index_of(data: bytes) -> Case:
    """Return a fault that replaces the index with `data`."""
    return damaged(lambda folder: (folder / INDEX_NAME).write_bytes(data))


def fifo(name: str) -> Case:
    """Return a fault that replaces a file with a named pipe, because opening a pipe blocks."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return damaged(damage)


def bomb(work: Workspace) -> Outcome:
    """Replace a shard with a few bytes that decompress to 1 GiB."""
    data = work.data(hashes=())
    zipped = compress("zstd", bytes(_BOMB_BYTES))
    Path(data, zipped_name(data, 2)).write_bytes(zipped)
    edit_entry(lambda shard: shard["zip_data"].update(bytes=len(zipped)), 2)(Path(data))
    return work.read(data)


DATA: dict[str, Case] = {
    "text column missing in one stream of two": streams("body"),
    "text column of type int": streams("text", "int", (1,)),
    "empty stream next to a stream with documents": empty_stream,
    "no shards at all": no_documents(None),
    "shards without samples": no_documents([0, 0]),
    "invalid UTF-8 in a bytes column": streams("text", "bytes", (b"fine", b"caf\xe9")),
    "lone surrogate from a transform": lambda work: work.read(work.data(), transform=half_a_pair),
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
    "offset outside the shard": damaged(patch(8, struct.pack("<I", 1 << 31), "shard.00002.mds")),
    "zstd bomb": bomb,
    "index that is not JSON": index_of(bytes(range(256))),
    "index `null`": index_of(b"null"),
    "index without a list of shards": index_of(b'{"version": 2}'),
    "index nested 100,000 deep": index_of(b"[" * 100_000),
    "FIFO as index": fifo("index.json"),
    "FIFO as shard": fifo("shard.00002.mds"),
}


# ---------------------------------------------------------------- states


def changed_state(edit: Callable[[State], State], **settings: Any) -> Case:
    """Return a fault that loads a state with changed fields. `settings` are loader options."""

    def act(work: Workspace) -> Outcome:
        data = work.data()
        state = work.state(data, **settings)
        return work.read(data, state={**state, **edit(state)}, **settings)

    return act


def other_dataset(work: Workspace) -> Outcome:
    """Load the state of a run over a different dataset."""
    return work.read(work.data(), state=work.state(work.data(OTHERS)))


def _cursors(ordinal: int, offset: int, width: str = "<i4") -> str:
    return base64.b64encode(np.array([(ordinal, offset)] * 12, width).tobytes()).decode()


STATE: dict[str, Case] = {
    "truncated base64": changed_state(lambda state: {"cursors": state["cursors"][:-3]}),
    "truncated to valid base64": changed_state(lambda state: {"cursors": state["cursors"][:-32]}),
    "edited field (seed)": changed_state(lambda _: {"seed": 18}),
    "edited field (rows: -4)": changed_state(lambda _: {"rows": -4}),
    "field missing": lambda work: work.read(
        data := work.data(), state={"version": work.state(data)["version"]}
    ),
    "newer version": changed_state(
        lambda state: {"version": state["version"] + 1, "cloudload": "9.0"}
    ),
    "another dataset": other_dataset,
    "cursor beyond any run": changed_state(lambda _: {"cursors": _cursors(1 << 39, 0, "<i8")}),
    "cursor beyond its document": changed_state(lambda _: {"cursors": _cursors(0, 10**6)}),
    "zlib bomb in residues": changed_state(
        lambda _: {"residues": base64.b64encode(zlib.compress(bytes(1 << 26))).decode()},
        packing="best_fit",
    ),
}
