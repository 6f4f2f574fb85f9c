"""Write the small Parquet files of other writers, which `tests/promises` reads where they are.

    pip install duckdb polars fastparquet pandas deltalake datafusion chdb pyspark datatrove orjson
    python -m scripts.write_parquet_files tests/data/parquet_writers

Each file has the name of its writer, the writer's version, and the setting. All files have the
same documents. pyspark needs Java. A writer whose packages are missing is left out, and the files
that it wrote before are kept.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]
Write = Callable[[Path, Rows], None]
"""Writes rows to a file, or to a folder with one Parquet file."""

GROUP = 12
"""The rows of a row group, for the writers that allow a number so small."""


def make_rows(number: int = 30) -> Rows:
    """Documents with IDs, a title that may be null, a struct, and tags."""
    words = ["the", "fox", "jumps", "Grüße", "狐", "🦊", "\x00", "lazy\n"]
    return [
        {
            "id": f"d{n}",
            "text": " ".join([f"{n}:", *(words[(n * k + k) % 8] for k in range(n % 11))]),
            "title": None if n % 5 == 0 else f"title {n % 3}",
            "meta": {"url": f"https://example.org/{n}", "n": n},
            "tags": [f"tag {k}" for k in range(n % 3)],
        }
        for n in range(number)
    ]


def _with_duckdb(options: str) -> Write:
    def write(path: Path, rows: Rows) -> None:
        import duckdb
        import pyarrow

        connection = duckdb.connect()
        connection.register("rows", pyarrow.Table.from_pylist(rows))
        connection.execute("SET preserve_insertion_order = true")
        connection.execute(f"COPY (SELECT * FROM rows) TO '{path}' (FORMAT parquet, {options})")

    return write


def _with_polars(**options: Any) -> Write:
    def write(path: Path, rows: Rows) -> None:
        import polars

        polars.DataFrame(rows).write_parquet(path, row_group_size=GROUP, **options)

    return write


def _with_categories(path: Path, rows: Rows) -> None:
    import polars

    frame = polars.DataFrame(rows).with_columns(polars.col("text").cast(polars.Categorical))
    frame.write_parquet(path, row_group_size=GROUP)


def _with_polars_stream(path: Path, rows: Rows) -> None:
    import polars

    polars.LazyFrame(rows).sink_parquet(path, row_group_size=GROUP)


def _with_fastparquet(**options: Any) -> Write:
    def write(path: Path, rows: Rows) -> None:
        import fastparquet
        import pandas

        keys = ("id", "text", "title") if options.get("has_nulls", True) else ("id", "text")
        flat = [{key: row[key] for key in keys} for row in rows]
        fastparquet.write(str(path), pandas.DataFrame(flat), row_group_offsets=GROUP, **options)

    return write


def _with_pandas(path: Path, rows: Rows) -> None:
    import pandas

    flat = [{key: row[key] for key in ("id", "text", "title")} for row in rows]
    pandas.DataFrame(flat).to_parquet(path, engine="fastparquet", compression="gzip")


def _with_delta(path: Path, rows: Rows) -> None:
    """The `parquet` crate of Rust, as used by delta-rs."""
    import deltalake
    import pyarrow

    deltalake.write_deltalake(str(path), pyarrow.Table.from_pylist(rows))


def _with_datafusion(path: Path, rows: Rows) -> None:
    """The `parquet` crate of Rust, with bloom filters and small pages."""
    import datafusion
    import pyarrow

    context = datafusion.SessionContext()
    frame = context.from_arrow(pyarrow.Table.from_pylist(rows))
    options = datafusion.ParquetWriterOptions(
        bloom_filter_on_write=True, data_page_row_count_limit=4, max_row_group_size=GROUP
    )
    frame.write_parquet_with_options(str(path), options)


def _with_clickhouse(path: Path, rows: Rows) -> None:
    import chdb
    import pyarrow
    import pyarrow.parquet

    source = path.with_suffix(".source")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), source)
    settings = f"output_format_parquet_row_group_size = {GROUP}"
    query = f"SELECT * FROM file('{source}', Parquet) INTO OUTFILE '{path}' FORMAT Parquet"
    chdb.query(f"{query} SETTINGS {settings}")
    source.unlink()


def _with_spark(**options: str) -> Write:
    def write(path: Path, rows: Rows) -> None:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        session = builder.getOrCreate()
        schema = (
            "id string, text string, title string, "
            "meta struct<url: string, n: bigint>, tags array<string>"
        )
        frame = session.createDataFrame(rows, schema).coalesce(1)
        writer = frame.write
        for name, value in options.items():
            writer = writer.option(name.replace("_", "."), value)
        writer.parquet(str(path))

    return write


def _with_datatrove(path: Path, rows: Rows) -> None:
    from datatrove.data import Document
    from datatrove.pipeline.writers.parquet import ParquetWriter

    with ParquetWriter(str(path), batch_size=GROUP) as writer:
        for row in rows:
            writer.write(Document(text=row["text"], id=row["id"], metadata=row["meta"]))


WRITERS: tuple[tuple[str, str, Write], ...] = (
    ("duckdb", "zstd", _with_duckdb("COMPRESSION zstd, ROW_GROUP_SIZE 2048")),
    ("duckdb", "version_2", _with_duckdb("COMPRESSION snappy, PARQUET_VERSION v2")),
    ("duckdb", "lz4_raw", _with_duckdb("COMPRESSION lz4_raw")),
    ("duckdb", "brotli", _with_duckdb("COMPRESSION brotli, PARQUET_VERSION v2")),
    ("polars", "default", _with_polars()),
    ("polars", "no_statistics", _with_polars(statistics=False, compression="uncompressed")),
    ("polars", "gzip", _with_polars(compression="gzip")),
    ("polars", "categories", _with_categories),
    ("polars", "streamed", _with_polars_stream),
    ("fastparquet", "snappy", _with_fastparquet(compression="SNAPPY")),
    ("fastparquet", "no_nulls", _with_fastparquet(has_nulls=False, compression="ZSTD")),
    ("pandas", "fastparquet", _with_pandas),
    ("deltalake", "default", _with_delta),
    ("datafusion", "bloom_filters", _with_datafusion),
    ("chdb", "default", _with_clickhouse),
    ("pyspark", "default", _with_spark()),
    ("pyspark", "version_2", _with_spark(parquet_writer_version="v2", compression="zstd")),
    ("pyspark", "lz4", _with_spark(compression="lz4")),
    ("pyspark", "gzip", _with_spark(compression="gzip", parquet_enable_dictionary="false")),
    ("datatrove", "default", _with_datatrove),
)
"""Each package, with a setting and the function that writes with it."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder of the files")
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for package, setting, write in WRITERS:
        try:
            _write_one(write, folder / f"{package}-{version(package)}-{setting}.parquet")
        except ImportError as error:
            print(f"left out {package}: {error}", file=sys.stderr)
    return 0


def _write_one(write: Write, path: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        made = Path(work) / "made.parquet"
        write(made, make_rows())
        [file] = [made] if made.is_file() else made.rglob("*.parquet")
        path.write_bytes(file.read_bytes())
        print(f"{path.stat().st_size:6,} {path}")


if __name__ == "__main__":
    sys.exit(main())
