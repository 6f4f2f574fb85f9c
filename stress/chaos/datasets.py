"""Write the datasets of training runs: MDS shards, or Parquet files that are read where they are.

    documents ─► MDS shards                         the undisturbed run reads the same shards
    documents ─► Parquet files ─► with or without a stored index
                   └► pyarrow ─► local MDS shards   the undisturbed run reads these

The shards of the undisturbed run have as many samples as those of the Parquet files, because the
order depends on the cuts. Their documents are those that pyarrow reads, in the order of the names.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet

from cloudload import convert_to_mds
from cloudload.convert import index_files
from cloudload.data.mds import virtual_index
from cloudload.data.mds.dataset import open_corpus
from cloudload.data.mds.virtual_index import ColumnChoice
from cloudload.data.storage.locations import Location
from testkit.conversions import QUIET
from testkit.corpora import write_mds

SHARD_BYTES = 1_500
_WORDS = ("the", "fox", "jumps", "über", "狐", "🦊", "lazy", "import", "self")
# the first request for a footer reads a whole file of this size, so a damaged byte near the start
# of a response is never one of the footer, which has no checksum
_DOCUMENTS_PER_FILE = 50


def cut_small_shards() -> None:
    """Make this process cut Parquet files into shards of about 1.5 kB."""
    vars(virtual_index)["SHARD_BYTES"] = SHARD_BYTES


def draw_documents(draw: random.Random, number: int) -> list[str]:
    """Documents that vary in length. 1% of them are empty."""
    return [
        ""
        if draw.random() < 0.01
        else " ".join([str(each), *draw.choices(_WORDS, k=int(draw.lognormvariate(3.5, 1.0)))])
        for each in range(number)
    ]


def write_shards(url: str, documents: Sequence[str]) -> None:
    """Convert documents to MDS shards."""
    rows = ({"text": text} for text in documents)
    convert_to_mds(rows, url, shard_bytes=SHARD_BYTES, **QUIET)


def write_files(url: str, documents: Sequence[str], draw: random.Random, folder: Path) -> str:
    """Write documents to Parquet files, whose settings are random.

    Writes the undisturbed run's dataset to `folder`. Returns the location that jobs read.
    """
    # the names contain `shard`, so that the faults of shards apply to them
    for number, start in enumerate(range(0, len(documents), _DOCUMENTS_PER_FILE)):
        table = pyarrow.table({"text": documents[start : start + _DOCUMENTS_PER_FILE]})
        path = folder / f"shard-{number:04}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(
            table,
            path,
            row_group_size=draw.choice([2, 3, 8, 1_000]),
            compression=draw.choice(["none", "snappy", "zstd"]),
            use_dictionary=draw.random() < 0.5,
            data_page_version=draw.choice(["1.0", "2.0"]),
            write_page_checksum=True,  # because the proxy damages pages
        )
        Location(f"{url}/{path.name}").write(path.read_bytes())
    data = draw.choice([url, f"{url}/*.parquet", f"{url}-index"])
    if data.endswith("-index"):
        index_files(url, data)
    _write_undisturbed(data, folder)
    return data


def _write_undisturbed(data: str, folder: Path) -> None:
    texts: list[str] = []
    for path in sorted(folder.glob("*.parquet")):
        texts += pyarrow.parquet.read_table(path)["text"].to_pylist()
        path.unlink()
    corpus = open_corpus([Location(data)], choices=[ColumnChoice("text", has_others=False)])
    write_mds(folder, texts, shard_samples=corpus.shard_sizes.tolist())
    assert sum(corpus.shard_sizes.tolist()) == len(texts)
