"""Ways to damage a dataset of 70 documents in two shards, in a local folder.

write_mds(folder, TEXTS, shard_samples=SHARDS)
edit_entry(lambda entry: entry.update(samples=29))(folder)    # changes the index
patch(8, b"\\xff")(folder)                                    # changes bytes of the second shard
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testkit.corpora import write_mds

TEXTS = [f"document-{number}" for number in range(70)]
SHARDS = [40, 30]
FIRST, SECOND = "shard.00000.mds", "shard.00001.mds"

Index = dict[str, Any]
Damage = Callable[[Path], object]


def edit(change: Callable[[Index], Any]) -> Damage:
    """Damage that applies `change` to the parsed index and saves it."""

    def apply(folder: Path) -> None:
        index = json.loads((folder / "index.json").read_text())
        change(index)
        (folder / "index.json").write_text(json.dumps(index))

    return apply


def edit_entry(change: Callable[[Index], Any], number: int = 1) -> Damage:
    """Damage that changes the index entry of a shard: by default, the second one."""
    return edit(lambda index: change(index["shards"][number]))


def update(number: int = 1, **fields: Any) -> Damage:
    """Damage that changes fields of a shard's index entry: by default, of the second one."""
    return edit_entry(lambda entry: entry.update(fields), number)


def update_raw(number: int = 1, **fields: Any) -> Damage:
    """Damage that changes what a shard's index entry says about its raw file."""
    return edit_entry(lambda entry: entry["raw_data"].update(fields), number)


def patch(place: int, data: bytes, name: str = SECOND) -> Damage:
    """Damage that overwrites bytes of a file, and removes its hashes from the index."""

    def apply(folder: Path) -> None:
        raw = bytearray((folder / name).read_bytes())
        raw[place : place + len(data)] = data
        (folder / name).write_bytes(raw)
        edit(lambda index: [entry["raw_data"].update(hashes={}) for entry in index["shards"]])(
            folder
        )

    return apply


def replace_bytes(old: bytes, new: bytes) -> Damage:
    """Damage that replaces the first `old` in the second shard, and removes the shard's hashes."""
    return lambda folder: patch((folder / SECOND).read_bytes().index(old), new)(folder)


def rename(name: str) -> Damage:
    """Damage that renames the second shard, in the index and in the folder."""

    def apply(folder: Path) -> None:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (folder / SECOND).rename(target)
        edit_entry(lambda entry: entry["raw_data"].update(basename=name))(folder)

    return apply


def truncate(name: str, by: int) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-by])


def append(name: str) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + b"more")


def flip_middle(name: str) -> Damage:
    def apply(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[-3] ^= 1
        (folder / name).write_bytes(data)

    return apply


def write_raw_beside(folder: Path) -> None:
    """Write an empty raw file beside the compressed second shard."""
    (folder / SECOND).write_bytes(b"")


def keep_raw_alone(folder: Path) -> None:
    (folder / f"{SECOND}.zstd").unlink()
    (folder / SECOND).write_bytes(b"the only copy")


def exceed_32_bits(folder: Path) -> None:
    """Make the second shard a sparse file of more than 4 GiB.

    Its 32-bit offsets wrap around, as in such a shard from MDSWriter.
    """
    raw = (folder / SECOND).read_bytes()
    count = struct.unpack_from("<I", raw)[0]
    offsets = list(struct.unpack_from(f"<{count + 1}I", raw, 4))
    last = raw[offsets[-2] :]
    with (folder / SECOND).open("r+b") as file:
        file.seek((1 << 32) + offsets[-2])
        file.write(last)
    size = (folder / SECOND).stat().st_size
    with (folder / SECOND).open("r+b") as file:
        file.seek(offsets[-2])
        file.write(b"\0" * len(last))
    edit_entry(lambda entry: entry["raw_data"].update(bytes=size, hashes={}))(folder)


def change_encoding(encoding: str, field_name: str = "more") -> Damage:
    """Damage that changes the encoding of a `float64` column in the index and in shard headers."""

    def apply(folder: Path) -> None:
        for name in (FIRST, SECOND):
            raw, old = (folder / name).read_bytes(), b'"float64"'
            assert raw.count(old) == 1
            padded = f'"{encoding}"'.encode().ljust(len(old))
            (folder / name).write_bytes(raw.replace(old, padded))

        def change(index: Index) -> None:
            for entry in index["shards"]:
                place = entry["column_names"].index(field_name)
                entry["column_encodings"][place] = encoding
                entry["raw_data"]["hashes"] = {}

        edit(change)(folder)

    return apply


def write_json_shards(folder: Path) -> None:
    """Replace the dataset with one that Streaming's JSONWriter writes."""
    from streaming import JSONWriter

    shutil.rmtree(folder)
    with JSONWriter(out=str(folder), columns={"text": "str"}) as writer:
        for text in TEXTS:
            writer.write({"text": text})


def add_md5(folder: Path) -> None:
    digest = hashlib.md5((folder / FIRST).read_bytes()).hexdigest()
    edit_entry(lambda entry: entry["raw_data"]["hashes"].update(md5=digest), 0)(folder)


def drop_column(folder: Path) -> None:
    """Replace the second shard with a shard that has no column `more`."""
    other = folder.parent / "other"
    write_mds(other, TEXTS[40:], shard_samples=[30])
    (folder / SECOND).write_bytes((other / FIRST).read_bytes())
    entry = json.loads((other / "index.json").read_text())["shards"][0]
    entry["raw_data"]["basename"] = SECOND
    edit(lambda index: index["shards"].__setitem__(1, entry))(folder)
