"""Small corpora of each kind that the converter reads, a conversion that is interrupted, and the
objects that a conversion stores."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard

from cloudload.errors import StoreError
from cloudload.storage.objects import write_object

FORMS = ("jsonl", "gz", "bz2", "xz", "zst", "lines", "text", "parquet", "dataset", "iterable")
"""The kinds of input."""

SETTINGS: dict[str, Any] = {
    "shard_bytes": 2000,
    "block_bytes": 3000,
    "progress": False,
    "processes": 1,
}
"""Many shards and blocks of few documents."""


def documents(number: int) -> list[str]:
    """Documents of unequal lengths."""
    return [f"document {place} " * (place % 17 + 1) for place in range(number)]


def make_input(
    folder: Path, form: str, texts: Sequence[str]
) -> tuple[Callable[[], Any], dict[str, Any]]:
    """A function that gives the same input again, and the options that it needs."""
    folder.mkdir()
    rows = [{"text": text} for text in texts]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if form == "iterable":
        return lambda: iter(rows), {}
    if form == "dataset":
        import datasets

        return lambda: datasets.Dataset.from_list(rows), {}
    if form == "lines":
        (folder / "a.txt").write_text("\n".join(texts))
        return lambda: folder, {"format": "lines"}
    if form == "text":
        for number, text in enumerate(texts):
            (folder / f"{number:04}.txt").write_text(text)
    elif form == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist(rows), folder / "a.parquet", row_group_size=70
        )
    else:
        # more than one member, as tools that write in parallel leave them
        (folder / f"a.json{EXTENSIONS[form]}").write_bytes(
            COMPRESSORS[form](lines[:5000]) + COMPRESSORS[form](lines[5000:])
        )
    return lambda: folder, {}


EXTENSIONS = {"jsonl": "l", "gz": ".gz", "bz2": ".bz2", "xz": ".xz", "zst": ".zst"}
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "jsonl": bytes,
    "gz": lambda data: gzip.compress(data, mtime=0),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.compress,
}


def digest(folder: Path) -> str:
    """The hash of the names and bytes of a dataset's files but the report, which tells the time."""
    hashed = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "convert-report.json":
            data = path.read_bytes()
            hashed.update(f"{path.relative_to(folder)} {len(data)} ".encode() + data)
    return hashed.hexdigest()


def stop_after(monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    """Let the converter fail after it has stored that many shards."""
    left = [shards]

    def failing(url: str, data: bytes) -> None:
        left[0] -= Path(url).name.startswith("shard.")
        if left[0] < 0:
            raise StoreError("no room")
        write_object(url, data)

    monkeypatch.setattr("cloudload.convert.shards.write_object", failing)
