"""JSON Lines files of small corpora, and their index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from cloudload.convert import index_files
from cloudload.data.storage.locations import Location
from cloudload.data.storage.urls import join_url
from testkit.conversions import COMPRESSORS


def encode_lines(rows: Sequence[Any]) -> bytes:
    """One line of JSON for each row."""
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    """Write rows as JSON Lines, compressed as the file's name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(COMPRESSORS.get(path.suffix, bytes)(encode_lines(rows)))
    return path


def write_line_corpus(
    folder: Path, texts: Sequence[str], *, num_files: int = 3, suffix: str = ".jsonl"
) -> Path:
    """Write documents with IDs to several files, and return their folder."""
    rows = [{"id": f"d{number}", "text": text} for number, text in enumerate(texts)]
    size = -(-len(rows) // num_files)
    for number in range(num_files):
        part = rows[number * size : (number + 1) * size]
        write_lines(folder / f"part-{number:03}{suffix}", part)
    return folder


def store_line_corpus(url: str, texts: Sequence[str], folder: Path, **options: Any) -> str:
    """Write documents to files below a URL, and to `folder`, as `write_line_corpus` does."""
    for path in sorted(write_line_corpus(folder, texts, **options).iterdir()):
        Location(join_url(url, path.name)).write(path.read_bytes())
    return url


def index(data: str | PathLike[str], out: str | PathLike[str], **options: Any) -> str:
    """Index files in this process, and return the location of the index."""
    index_files(data, out, **{"processes": 1, "progress": False, **options})
    return str(out)
