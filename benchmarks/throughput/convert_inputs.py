"""Write the input files of the converter benchmark, with the same documents in each format."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FILE_TEXT_BYTES = 32e6

Row = dict[str, str]


@dataclass(frozen=True)
class Input:
    """The files of one format in a folder."""

    folder: Path
    form: str
    documents: int
    text_bytes: int
    stored_bytes: int

    def remove(self) -> None:
        """Delete the folder and its files."""
        shutil.rmtree(self.folder)


def write_inputs(
    folder: Path, form: str, pool: Sequence[str], distinct: float, total: float
) -> Input:
    """Write files with `distinct` bytes of text to the folder `form`.

    Then repeats the files, as hard links, until there are `total` bytes of text.
    """
    inputs = folder / form
    inputs.mkdir()
    found: list[tuple[Path, int, int]] = []
    for rows in _cut(_vary(pool, distinct), FILE_TEXT_BYTES):
        path = inputs / f"{len(found):05}.{form}"
        FORMS[form](rows, path)
        size = sum(len(row["text"].encode()) for row in rows)
        found.append((path, len(rows), size))
    number = 0
    while sum(size for _, _, size in found) < total:
        path, rows_of_file, size = found[number]
        os.link(path, inputs / f"{len(found):05}.{form}")
        found.append((path, rows_of_file, size))
        number += 1
    return Input(
        inputs,
        form,
        sum(count for _, count, _ in found),
        sum(size for _, _, size in found),
        sum(path.stat().st_size for path, _, _ in found),
    )


def _vary(pool: Sequence[str], num_bytes: float) -> Iterator[Row]:
    """Yield documents of the pool until their texts have `num_bytes`, in as many passes as needed.

    Each pass shuffles the documents, and rotates each text at a random space.
    """
    draw, number = random.Random(0), 0
    while num_bytes > 0:
        for text in draw.sample(pool, len(pool)):
            if num_bytes <= 0:
                return
            cut = text.find(" ", draw.randrange(len(text) + 1)) + 1
            yield {"id": f"document-{number}", "text": text[cut:] + text[:cut]}
            number += 1
            num_bytes -= len(text.encode())


def _cut(rows: Iterator[Row], num_bytes: float) -> Iterator[list[Row]]:
    """Group rows into lists that have about `num_bytes` of text each."""
    part: list[Row] = []
    filled = 0
    for row in rows:
        part.append(row)
        filled += len(row["text"].encode())
        if filled >= num_bytes:
            yield part
            part, filled = [], 0
    if part:
        yield part


def _encode_lines(rows: Sequence[Row]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _write_zstd(rows: Sequence[Row], path: Path) -> None:
    import zstandard

    path.write_bytes(zstandard.ZstdCompressor(level=3).compress(_encode_lines(rows)))


def _write_parquet(rows: Sequence[Row], path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, path, row_group_size=2000, compression="zstd")


FORMS: dict[str, Callable[[Sequence[Row], Path], object]] = {
    "jsonl.gz": lambda rows, path: path.write_bytes(gzip.compress(_encode_lines(rows), 6)),
    "jsonl": lambda rows, path: path.write_bytes(_encode_lines(rows)),
    "jsonl.zst": _write_zstd,
    "parquet": _write_parquet,
}
"""The functions that write a file, by format, which is also the file's extension."""
