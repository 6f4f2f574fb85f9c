"""A position in the input means the same rows whenever the input is read again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest

from cloudload.convert import convert_to_mds
from cloudload.errors import ConvertError
from cloudload.tools.convert.input_files import InputFile
from cloudload.tools.convert.input_records import BlockStart, Fields
from cloudload.tools.convert.readers import arrow_block
from cloudload.tools.convert.readers.arrow_block import ArrowBlock
from cloudload.tools.convert.readers.parquet import ParquetUnit
from testkit.conversions import SETTINGS, convert_until, documents, make_input, texts

BLOCK_BYTES = 1 << 20
FIELDS = Fields(["text"])


def read_blocks(unit: ParquetUnit, start: BlockStart) -> list[ArrowBlock]:
    """The blocks of a unit from `start` on."""
    return [cast(ArrowBlock, block) for block in unit.blocks(start, BLOCK_BYTES, FIELDS)]


@pytest.fixture
def long_rows(tmp_path: Path) -> ParquetUnit:
    """A Parquet file of 20 KB, in which 3 row groups of 500 rows have 32 MB of text each."""
    texts = pyarrow.array(["y" * (1 << 16), "z" * (1 << 16)])
    index = pyarrow.array([0] * 750 + [1] * 750, pyarrow.int32())
    table = pyarrow.table({"text": pyarrow.DictionaryArray.from_arrays(index, texts)})
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=500, store_schema=False)
    return ParquetUnit(InputFile(str(path), "a.parquet", path.stat().st_size, "parquet", None))


def test_the_memory_of_a_parquet_block_is_bounded_whatever_its_metadata_say(
    long_rows: ParquetUnit,
) -> None:
    blocks = read_blocks(long_rows, BlockStart())
    assert sum(block.batch.num_rows for block in blocks) == 1_500
    assert max(block.batch.nbytes for block in blocks) <= 1.1 * BLOCK_BYTES
    assert sum(block.input_bytes for block in blocks) == long_rows.size


def test_a_parquet_file_read_from_any_block_has_the_same_blocks(long_rows: ParquetUnit) -> None:
    def read(start: BlockStart) -> list[tuple[BlockStart, int]]:
        return [(block.start, block.batch.num_rows) for block in read_blocks(long_rows, start)]

    whole = read(BlockStart())
    for place in range(0, len(whole), 7):
        assert read(whole[place][0]) == whole[place:]


def write_parquet(folder: Path, table: Any) -> None:
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=400)


def write_feather(folder: Path, table: Any) -> None:
    pyarrow.feather.write_feather(table, folder / "a.feather", chunksize=300)


def cut_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut batches as another version of pyarrow, which measures their memory otherwise, would."""

    real = arrow_block.cut_batches

    def cut(batches: Iterator[Any], block_bytes: int) -> Iterator[Any]:
        return real(batches, block_bytes * 3 // 5)

    monkeypatch.setattr(arrow_block, "cut_batches", cut)


@pytest.mark.parametrize("write", [write_parquet, write_feather])
@pytest.mark.parametrize("shards", [1, 5, 8])
def test_blocks_that_are_cut_otherwise_at_a_resume_lose_and_repeat_no_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., None], shards: int
) -> None:
    expected = documents(900)
    (tmp_path / "in").mkdir()
    write(tmp_path / "in", pyarrow.table({"text": expected}))
    options = {**SETTINGS, "shard_bytes": 5_000, "block_bytes": 20_000}
    convert_until(shards, tmp_path / "in", tmp_path / "out", **options)
    cut_otherwise(monkeypatch)
    report = convert_to_mds(tmp_path / "in", tmp_path / "out", **options)
    assert (report.documents, report.resumed_shards) == (900, shards)
    assert texts(str(tmp_path / "out"), tmp_path) == expected


@pytest.mark.parametrize("segment_bytes", [1 << 20, 4_000])
def test_a_conversion_whose_counts_and_shards_disagree_does_not_finish(
    tmp_path: Path, segment_bytes: int
) -> None:
    source, options = make_input(tmp_path / "in", "jsonl", documents(300))
    options |= {**SETTINGS, "segment_bytes": segment_bytes}
    convert_until(2, source(), tmp_path / "out", **options)
    [path] = (tmp_path / "out").rglob(".convert/00001.json")
    entry = json.loads(path.read_text())
    entry["next"]["sample"] += 1
    path.write_text(json.dumps(entry))
    for name in ("00002.json", "00003.json"):  # shards that were listed, but not stored
        path.with_name(name).unlink(missing_ok=True)
    with pytest.raises(ConvertError, match="so documents are missing or repeated"):
        convert_to_mds(source(), tmp_path / "out", **options)
    assert not (tmp_path / "out" / "index.json").exists()
