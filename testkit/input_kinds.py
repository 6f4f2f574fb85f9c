"""Files of the formats that the converter reads, each written by another library."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def write_csv(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file with pandas, which quotes values only where necessary."""
    import pandas

    pandas.DataFrame(rows).to_csv(folder / "a.csv", index=False)


def write_tsv_gz(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a gzipped TSV file with pandas."""
    import pandas

    pandas.DataFrame(rows).to_csv(folder / "a.tsv.gz", index=False, sep="\t")


def write_json(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a JSON array of objects with pandas."""
    import pandas

    pandas.DataFrame(rows).to_json(folder / "a.json", orient="records", indent=1)


def write_arrow(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write two Feather files with pyarrow."""
    import pyarrow
    import pyarrow.feather

    half = len(rows) // 2
    for name, part in (("a", rows[:half]), ("b", rows[half:])):
        table = pyarrow.Table.from_pylist(list(part))
        pyarrow.feather.write_feather(table, folder / f"{name}.feather", chunksize=40)


def write_saved(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a Hugging Face dataset with `save_to_disk`, in 3 shards."""
    import datasets

    datasets.Dataset.from_list(list(rows)).save_to_disk(folder, num_shards=3)


def write_webdataset(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a WebDataset archive with Python's tarfile."""
    stored = io.BytesIO()
    with tarfile.open(fileobj=stored, mode="w") as tar:
        for number, row in enumerate(rows):
            for extension, value in row.items():
                data = str(value).encode()
                member = tarfile.TarInfo(f"{number:05}.{'txt' if extension == 'text' else 'n'}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    (folder / "a.tar.gz").write_bytes(gzip.compress(stored.getvalue()))


def write_mds(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a compressed MDS dataset of many shards with `MDSWriter`."""
    from streaming import MDSWriter

    options: dict[str, Any] = {"size_limit": 9000, "compression": "zstd", "hashes": ["sha1"]}
    with MDSWriter(out=str(folder), columns={"text": "str", "n": "int"}, **options) as writer:
        for row in rows:
            writer.write(dict(row))


INPUT_KINDS: dict[str, Callable[[Path, Sequence[Mapping[str, Any]]], None]] = {
    "csv": write_csv,
    "tsv.gz": write_tsv_gz,
    "json": write_json,
    "arrow": write_arrow,
    "saved": write_saved,
    "webdataset": write_webdataset,
    "mds": write_mds,
}
"""The function that writes rows to a folder, for each kind of input."""
