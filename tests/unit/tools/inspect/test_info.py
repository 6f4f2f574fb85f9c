"""`read_info` summarizes a dataset, and reports how many of its shards it read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload import cli, convert_to_mds
from cloudload.errors import DatasetError, StoreError
from cloudload.inspect import Bin, Distribution, read_info
from testkit.corpora import random_documents, write_mds

TEXTS = random_documents(3, 90)


def sizes_of(texts: list[str]) -> list[int]:
    """Return each sample's bytes if `text` is its only column: a 4-byte size and the text."""
    return [4 + len(text.encode()) for text in texts]


@pytest.mark.parametrize("compression", [None, "zstd", "gz", "bz2"])
def test_sizes_of_all_shards_are_exact(tmp_path: Path, compression: str | None) -> None:
    write_mds(tmp_path, TEXTS, shard_samples=[20, 30, 40], compression=compression)
    info = read_info(tmp_path)
    stored = [path.stat().st_size for path in tmp_path.glob("shard.*")]
    assert (info.samples, info.shards, info.stored_bytes) == (90, 3, sum(stored))
    assert info.compression == {compression or "none": 3}
    assert info.hashes == {"xxh64": 3}
    assert info.samples_per_shard is not None
    assert (info.samples_per_shard.least, info.samples_per_shard.most) == (20, 40)
    assert info.sample_bytes is not None
    assert info.sample_bytes.count == 90
    assert info.sample_bytes.mean == round(float(np.mean(sizes_of(TEXTS))), 1)
    assert (info.sample_bytes.least, info.sample_bytes.most) == (
        min(sizes_of(TEXTS)),
        max(sizes_of(TEXTS)),
    )


def test_a_sample_of_the_shards_is_spread_evenly(tmp_path: Path) -> None:
    write_mds(tmp_path, TEXTS, shard_samples=[15] * 6)
    info = read_info(tmp_path, sample=2)
    assert (info.shards, info.shards_read) == (6, 2)
    read = sizes_of([*TEXTS[:15], *TEXTS[45:60]])
    assert info.sample_bytes is not None
    assert (info.sample_bytes.count, info.sample_bytes.most) == (30, max(read))


def test_with_a_sample_of_0_no_shard_is_read(tmp_path: Path) -> None:
    write_mds(tmp_path, TEXTS)
    (tmp_path / "shard.00000.mds").unlink()
    info = read_info(tmp_path, sample=0)
    assert (info.samples, info.shards_read, info.sample_bytes) == (90, 0, None)


@pytest.mark.parametrize(
    ("encoding", "bytes_", "holds", "tokens"),
    [
        ("str", None, "text", None),
        ("bytes", None, "text or token IDs", None),
        ("ndarray:uint16:2048", 4096, "token IDs", 90 * 2048),
        ("ndarray:int32:4,8", 128, "token IDs", 90 * 32),
        ("ndarray:uint16", None, "token IDs", None),
        ("ndarray:float32:8", 32, "other", None),
        ("int64", 8, "a number", None),
        ("json", None, "JSON", None),
        ("pkl", None, "other", None),
    ],
)
def test_a_column_says_what_it_holds(
    tmp_path: Path, encoding: str, bytes_: int | None, holds: str, tokens: int | None
) -> None:
    write_mds(tmp_path, TEXTS)
    index = json.loads((tmp_path / "index.json").read_text())
    for shard in index["shards"]:
        shard["column_encodings"], shard["column_sizes"] = [encoding], [bytes_]
    (tmp_path / "index.json").write_text(json.dumps(index))
    [column] = read_info(tmp_path, sample=0).columns
    assert (column.name, column.encoding, column.bytes) == ("text", encoding, bytes_)
    assert (column.holds, column.tokens, column.shards) == (holds, tokens, len(index["shards"]))


def test_a_column_that_only_some_shards_have_says_how_many(tmp_path: Path) -> None:
    write_mds(tmp_path, TEXTS, shard_samples=[30] * 3)
    index = json.loads((tmp_path / "index.json").read_text())
    index["shards"][1]["column_encodings"] = ["bytes"]
    (tmp_path / "index.json").write_text(json.dumps(index))
    columns = read_info(tmp_path, sample=0).columns
    assert [(column.encoding, column.shards) for column in columns] == [("str", 2), ("bytes", 1)]


def test_what_the_converter_wrote_says_so_and_how_much_text(tmp_path: Path) -> None:
    lines = [json.dumps({"text": text}) for text in TEXTS]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    convert_to_mds(tmp_path / "in.jsonl", tmp_path / "out", processes=1, progress=False)
    info = read_info(tmp_path / "out")
    assert info.writer == "cloudload convert"
    assert info.text_bytes == sum(len(text.encode()) for text in TEXTS)


@pytest.mark.parametrize("report", ["", "{", "[]", '{"report": 1}', '{"report": {}}', "[" * 9999])
def test_a_report_of_something_else_is_no_writer(tmp_path: Path, report: str) -> None:
    write_mds(tmp_path, TEXTS)
    (tmp_path / "convert-report.json").write_text(report)
    info = read_info(tmp_path)
    assert (info.writer, info.text_bytes) == (None, None)


def test_a_damaged_shard_is_an_error_that_names_it(tmp_path: Path) -> None:
    write_mds(tmp_path, TEXTS, compression="zstd")
    path = tmp_path / "shard.00000.mds.zstd"
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(DatasetError, match=r"shard\.00000\.mds\.zstd cannot be decompressed"):
        read_info(tmp_path)
    path.unlink()
    with pytest.raises(StoreError, match=r"shard\.00000\.mds\.zstd"):
        read_info(tmp_path)


def test_a_negative_sample_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sample is -1\. Use an integer of at least 0"):
        read_info(tmp_path, sample=-1)


# ---------------------------------------------------------------- the command


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert cli.main(["info", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_command_prints_the_values_of_the_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mds(tmp_path / "train", TEXTS, shard_samples=[30] * 3)
    printed = run(capsys, tmp_path, "--split", "train", "--json")
    assert printed == read_info(tmp_path, split="train").to_json() + "\n"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["aa"], "    1\n\n  bytes per sample, all columns\n    6\n"),
        (["aa"] * 5, "    5\n\n  bytes per sample, all columns\n    6 in each of 5\n"),
        (
            ["a", "a" * 900],
            "    2\n\n  bytes per sample, all columns\n    5 to 904, median 5, mean",
        ),
    ],
)
def test_a_small_dataset_has_numbers_and_no_bars(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], texts: list[str], expected: str
) -> None:
    write_mds(tmp_path, texts)
    printed = run(capsys, tmp_path)
    assert f"  samples per shard\n{expected}" in printed
    assert "█" not in printed


def test_the_summary_says_what_is_sampled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mds(tmp_path, TEXTS, shard_samples=[30] * 3)
    printed = run(capsys, tmp_path, "--sample", 2)
    assert "  samples      90\n  shards       3\n" in printed
    assert "  columns      text  str  text\n" in printed
    assert "samples per shard\n    30 in each of 3\n" in printed
    assert "bytes per sample, all columns (sampled: 60 samples of 2 shards)\n" in printed
    assert "all columns\n" in run(capsys, tmp_path, "--sample", 3)


def test_names_from_the_index_cannot_drive_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mds(tmp_path, TEXTS, column="te\x1b[31mxt", hashes=())
    index = json.loads((tmp_path / "index.json").read_text())
    for shard in index["shards"]:
        shard["raw_data"]["hashes"] = {"\x1b]0;title\x07": "0"}
        shard["column_encodings"] = ["\u202eencoding"]
    (tmp_path / "index.json").write_text(json.dumps(index))
    printed = run(capsys, tmp_path, "--sample", 0)
    assert r"te\x1b[31mxt  \u202eencoding  other" in printed
    assert r"\x1b]0;title\x07" in printed
    assert "\x1b" not in printed


# ---------------------------------------------------------------- distributions


def test_the_bins_double_and_have_no_gaps() -> None:
    found = Distribution.of(np.array([3, 5, 6, 7, 12, 40]))
    assert found is not None
    assert found.bins == (Bin(2, 4, 1), Bin(4, 8, 3), Bin(8, 16, 1), Bin(16, 32, 0), Bin(32, 64, 1))
    assert (found.least, found.median, found.mean, found.most) == (3, 6, 12.2, 40)


def test_zero_has_its_own_bin() -> None:
    found = Distribution.of(np.array([0, 0, 1]))
    assert found is not None
    assert found.bins == (Bin(0, 1, 2), Bin(1, 2, 1))


def test_no_values_have_no_distribution() -> None:
    assert Distribution.of(np.empty(0, np.int64)) is None


@given(st.lists(st.integers(0, 1 << 32), min_size=1))
def test_every_value_is_in_the_bin_of_its_range(values: list[int]) -> None:
    found = Distribution.of(np.array(values, np.int64))
    assert found is not None
    assert sum(each.count for each in found.bins) == len(values)
    for each in found.bins:
        assert each.count == sum(each.start <= value < each.stop for value in values)
    assert all(
        one.stop == next_.start for one, next_ in zip(found.bins, found.bins[1:], strict=False)
    )
    assert found.median == sorted(values)[(len(values) - 1) // 2]
