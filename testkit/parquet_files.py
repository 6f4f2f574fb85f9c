"""Parquet files of small corpora, in the variants that writers produce.

The writers are those of the environment of tests. `scripts.write_parquet_files` has others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cloudload.data.storage.locations import Location
from cloudload.data.storage.urls import join_url

Write = Callable[[Path, Sequence[dict[str, Any]]], None]


def write_parquet(
    path: Path, rows: Sequence[dict[str, Any]], *, schema: Any = None, **options: Any
) -> Path:
    """Write rows with pyarrow, in row groups of 40 rows unless the options say otherwise."""
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.Table.from_pylist(list(rows), schema)
    pyarrow.parquet.write_table(table, path, **{"row_group_size": 40, **options})
    return path


def write_corpus(folder: Path, texts: Sequence[str], *, num_files: int = 3, **options: Any) -> Path:
    """Write documents with IDs to several files, and return their folder."""
    rows = [{"id": f"d{number}", "text": text} for number, text in enumerate(texts)]
    size = -(-len(rows) // num_files)
    for number in range(num_files):
        part = rows[number * size : (number + 1) * size]
        write_parquet(folder / f"part-{number:03}.parquet", part, **options)
    return folder


def store_corpus(url: str, texts: Sequence[str], folder: Path, **options: Any) -> str:
    """Write documents to files below a URL, and to `folder`, as `write_corpus` does."""
    for path in sorted(write_corpus(folder, texts, **options).iterdir()):
        Location(join_url(url, path.name)).write(path.read_bytes())
    return url


def _pyarrow(**options: Any) -> Write:
    return lambda path, rows: _ignore(write_parquet(path, rows, **options))


def _typed(kind: str) -> Write:
    def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
        import pyarrow

        types = {
            "dictionary": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
            "large_string": pyarrow.large_string(),
            "string_view": pyarrow.string_view(),
        }
        fields = [("id", pyarrow.string()), ("text", types[kind]), ("n", pyarrow.int64())]
        write_parquet(path, rows, schema=pyarrow.schema(fields))

    return write


def _in_many_writes(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write each 7 rows as a row group, as datatrove does, with empty row groups between them."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist(list(rows))
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.parquet.ParquetWriter(path, table.schema) as writer:
        for start in range(0, len(rows), 7):
            writer.write_table(table.slice(start, 7))
            writer.write_table(table.slice(0, 0))


def _pandas(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    import pandas

    path.parent.mkdir(parents=True, exist_ok=True)
    pandas.DataFrame(rows).to_parquet(path)


def _datasets(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    import datasets

    path.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list(list(rows)).to_parquet(path)


def _ignore(_: object) -> None:
    """Return nothing."""


WRITERS: dict[str, Write] = {
    "plain": _pyarrow(use_dictionary=False, compression="none"),
    "snappy": _pyarrow(compression="snappy"),
    "zstd": _pyarrow(compression="zstd"),
    "gzip": _pyarrow(compression="gzip"),
    "brotli": _pyarrow(compression="brotli"),
    "lz4": _pyarrow(compression="lz4"),
    "version 1": _pyarrow(version="1.0"),
    "page version 2": _pyarrow(data_page_version="2.0", compression="zstd"),
    "small pages": _pyarrow(data_page_size=200, write_page_index=True),
    "no statistics": _pyarrow(write_statistics=False),
    "delta lengths": _pyarrow(
        use_dictionary=False, column_encoding={"text": "DELTA_LENGTH_BYTE_ARRAY"}
    ),
    "delta": _pyarrow(use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"}),
    "content-defined chunks": _pyarrow(use_content_defined_chunking=True),
    "checksums": _pyarrow(write_page_checksum=True),
    "no schema": _pyarrow(store_schema=False),
    "one row group": _pyarrow(row_group_size=1 << 20),
    "dictionary": _typed("dictionary"),
    "large_string": _typed("large_string"),
    "string_view": _typed("string_view"),
    "many small row groups": _in_many_writes,
    "pandas": _pandas,
    "datasets": _datasets,
}
"""Functions that write rows to a file, each with another writer or another setting."""
