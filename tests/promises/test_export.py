"""StreamingDataset, or a loader with `tokens_key`, reads the run's rows from an export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload import ExportReport, check_dataset, convert_to_mds, export_rows
from cloudload.data.mds import writer
from cloudload.data.mds.shard_entries import INDEX_NAME, Column
from cloudload.errors import CloudloadError, ConvertError
from cloudload.testing import Leg, Row, run_leg
from cloudload.tools.inspect.info import read_info
from testkit.conversions import QUIET, write_lines
from testkit.corpora import byte_tokenizer, random_documents, write_mds
from testkit.loaders import SEQ_LEN, make_loader, ranks

ROW_SHARD_BYTES = 1_000


@pytest.fixture
def text(tmp_path: Path) -> str:
    return write_mds(tmp_path / "text", random_documents(5, 40), shard_bytes=1_000)


def read_rows(data: str, leg: Leg, **options: Any) -> list[Row]:
    return run_leg(ranks(data, **options), leg)[0]


# options to read an export as rows in their order
AGAIN: dict[str, Any] = {"tokens_key": "tokens", "packing": "one_per_row", "shuffle": False}
AGAIN |= {"num_canonical_nodes": 1, "epochs": 1, "tokenizer": None}


def read_by_streaming(folder: str) -> list[list[int]]:
    from streaming import StreamingDataset

    dataset = StreamingDataset(local=folder, shuffle=False, batch_size=1)
    samples = [sample["tokens"] for sample in dataset]
    return [
        np.frombuffer(each, np.int64).tolist() if isinstance(each, bytes) else each.tolist()
        for each in samples
    ]


@pytest.mark.parametrize(
    ("encoding", "dtype", "stored"),
    [
        ("ndarray", "auto", "ndarray:uint16"),
        ("ndarray", "int32", "ndarray:int32"),
        ("bytes", "auto", "bytes"),
    ],
)
@pytest.mark.usefixtures("alone_with_streaming")
def test_streaming_and_a_loader_read_the_rows_of_an_epoch(
    text: str, tmp_path: Path, encoding: str, dtype: str, stored: str
) -> None:
    options: dict[str, Any] = {"packing": "best_fit", "local": tmp_path / "cache"}
    expected = read_rows(text, Leg(batch_size=4, batches=None), epochs=1, **options)
    expected = [row for row in expected if not row.is_padding]
    with make_loader(text, epochs=1, **options) as loader:
        report = export_rows(
            loader, tmp_path / "rows", encoding=encoding, dtype=dtype, shard_bytes=ROW_SHARD_BYTES
        )
    tokens = [[each for each in row.labels if each != -100] for row in expected]
    assert read_by_streaming(str(tmp_path / "rows")) == tokens
    assert report == ExportReport(
        out=str(tmp_path / "rows"),
        batches=report.batches,
        rows=len(expected),
        tokens=sum(map(len, tokens)),
        padded=sum(len(row) < SEQ_LEN for row in tokens),
        shards=report.shards,
        raw_bytes=report.raw_bytes,
        stored_bytes=report.stored_bytes,
        columns=("tokens",),
        encoding=stored,
        dtype="int64" if stored == "bytes" else stored.partition(":")[2],
    )
    assert report.shards > 3
    again = {**AGAIN, "tokens_dtype": "int64" if stored == "bytes" else None, "eos": "auto"}
    out = str(tmp_path / "rows")
    found = read_rows(out, Leg(2, batch_size=3, batches=None), **{**options, **again})
    assert [row.input_ids for row in found][: len(expected)] == [row.input_ids for row in expected]
    assert [row.labels for row in found][: len(expected)] == [row.labels for row in expected]


def test_steps_are_exported_to_any_store_from_a_state(
    text: str, tmp_path: Path, store_url: str, tokenizer_file: str, cli: Any
) -> None:
    options: dict[str, Any] = {"tokenizer": tokenizer_file, "local": tmp_path / "cache"}
    expected = read_rows(text, Leg(batch_size=4, batches=6), **options)
    with make_loader(text, **options) as loader:
        next(iter(loader))
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    command = ["export", tmp_path / "state.json", store_url, "--steps", "3:6", "--workers=0"]
    command += ["--local", tmp_path / "cache", "--quiet"]
    assert json.loads(cli(*command, "--json").out)["rows"] == 12
    again = {**options, **AGAIN, "eos": None}
    found = read_rows(store_url, Leg(batch_size=12, batches=1), **again)
    assert [row.input_ids for row in found] == [row.input_ids for row in expected[8:20]]
    assert not [each for each in check_dataset(store_url).findings if each.severity == "error"]
    assert "already contains a dataset" in cli(*command, status=1).err
    assert "12 (192 tokens; 0 rows had padding)" in cli(*command, "--overwrite").out


def test_an_export_that_fails_leaves_no_index_and_the_next_one_the_same_bytes(
    text: str, tmp_path: Path
) -> None:
    def export(name: str, **options: Any) -> dict[str, bytes]:
        ordered = {"epochs": 1, "shuffle": False, "num_canonical_nodes": 1}
        with make_loader(text, **ordered, local=tmp_path / "cache") as loader:
            export_rows(loader, tmp_path / name, shard_bytes=ROW_SHARD_BYTES, **options)
        return {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()}

    whole = export("whole")
    *_, last = sorted((tmp_path / "text").glob("shard.*"))
    last.rename(tmp_path / "away")
    with pytest.raises(CloudloadError, match=last.name):
        export("part")
    (tmp_path / "away").rename(last)
    stored = {file.name for file in (tmp_path / "part").iterdir()}
    assert stored
    assert stored < whole.keys() - {INDEX_NAME}
    with pytest.raises(ConvertError, match="interrupted export"):
        export("part")
    (tmp_path / "part" / "shard.00099.mds.zstd").touch()
    (tmp_path / "part" / "notes.txt").touch()
    assert export("part", overwrite=True) == whole | {"notes.txt": b""}


@pytest.mark.parametrize("lost", ["shard", "rows"])
def test_an_export_that_cannot_read_its_first_rows_leaves_the_dataset_that_it_would_replace(
    text: str, tmp_path: Path, lost: str
) -> None:
    def export() -> None:
        with make_loader(text, epochs=1, local=tmp_path / "cache") as loader:
            if lost == "rows" and (tmp_path / "rows").exists():
                list(loader)
            export_rows(loader, tmp_path / "rows", overwrite=True)

    export()
    before = {file.name: file.read_bytes() for file in (tmp_path / "rows").iterdir()}
    if lost == "shard":
        for shard in (tmp_path / "text").glob("shard.*"):
            shard.unlink()
    with pytest.raises(CloudloadError):
        export()
    assert {file.name: file.read_bytes() for file in (tmp_path / "rows").iterdir()} == before


def test_exports_that_make_no_sense_are_refused(text: str, tmp_path: Path) -> None:
    def export(options: dict[str, Any], **rank: Any) -> None:
        with make_loader(text, local=tmp_path / "cache", **rank) as loader:
            export_rows(loader, tmp_path / "rows", **options)

    two = {"dp_rank": 0, "dp_world_size": 2}
    refused: list[tuple[dict[str, Any], dict[str, int], str]] = [
        ({}, {}, r"the run has no end.*Pass num_batches"),
        ({"num_batches": 1}, two, r"one of 2 ranks, so it has only the rows of that rank"),
        (
            {"num_batches": 1, "dtype": "uint8"},
            {},
            "dtype is 'uint8', which can store IDs up to 255",
        ),
        (
            {"num_batches": 1, "encoding": "json"},
            {},
            r"encoding is 'json'. Use one of ndarray, bytes",
        ),
    ]
    for options, rank, message in refused:
        with pytest.raises(ValueError, match=message):
            export(options, **rank)
    assert not (tmp_path / "rows").exists()
    with make_loader(text, local=tmp_path / "cache") as loader:
        (tmp_path / "link").symlink_to(text)
        same = (text, f"file://{text}/", tmp_path / "x" / ".." / "text", tmp_path / "link")
        for place in (*same, Path(text, "rows"), Path(text).parent):
            with pytest.raises(ValueError, match="or is inside data that the run reads"):
                export_rows(loader, place, num_batches=1, overwrite=True)


@pytest.mark.parametrize("size", [1, 255, 256, 65_536])
def test_an_array_is_written_byte_for_byte_as_streaming_does(size: int) -> None:
    from streaming.base.format.mds.encodings import mds_encode

    array = np.arange(size, dtype=np.uint32)
    assert writer._encode("ndarray:uint32", array) == mds_encode("ndarray:uint32", array)
    with pytest.raises(ValueError, match="does not fit its encoding ndarray:uint16"):
        writer.encode_sample([Column.of("a", "ndarray:uint16")], {"a": array})


def test_an_export_replaces_a_converted_dataset_with_its_report_and_lengths(
    text: str, tmp_path: Path
) -> None:
    write_lines(tmp_path / "a.jsonl", ["a document of the old dataset"])
    out = tmp_path / "out"
    convert_to_mds(tmp_path / "a.jsonl", out, tokenizer=byte_tokenizer(), **QUIET)
    with make_loader(text, local=tmp_path / "cache") as loader:
        report = export_rows(loader, out, num_batches=3, overwrite=True)
    stored = {path.relative_to(out).parts[0] for path in out.rglob("*") if path.is_file()}
    assert stored == {INDEX_NAME, *(f"shard.{n:05}.mds.zstd" for n in range(report.shards))}
    found = read_info(out)
    assert (found.samples, found.writer, found.text_bytes) == (report.rows, None, None)


def test_an_export_does_not_hide_the_splits_of_its_folder(text: str, tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["a"])
    convert_to_mds(tmp_path / "a.jsonl", tmp_path / "out", split="train", progress=False)
    with (
        make_loader(text, local=tmp_path / "cache") as loader,
        pytest.raises(ConvertError, match="has datasets in its subfolders: train"),
    ):
        export_rows(loader, tmp_path / "out", num_batches=3)


def test_a_report_of_another_dataset_is_not_shown(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["a"])
    convert_to_mds(tmp_path / "a.jsonl", tmp_path / "out", progress=False)
    assert read_info(tmp_path / "out").text_bytes == 1
    report = (tmp_path / "out" / "convert-report.json").read_bytes()
    write_mds(tmp_path / "other", random_documents(5, 40))
    (tmp_path / "other" / "convert-report.json").write_bytes(report)
    assert read_info(tmp_path / "other").writer is None
