"""An MDS dataset can be converted to one with other shard sizes, compression, and columns."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload.data.mds.shard_table import parse_index
from cloudload.errors import ConvertError
from cloudload.tools.convert.convert import convert_to_mds
from testkit.conversions import (
    QUIET,
    convert,
    convert_and_read,
    convert_until,
    dataset_bytes,
    documents,
    read_dataset,
    refuse,
)
from testkit.readers import check_blocks

DOCUMENTS = documents(300)
COLUMNS = {
    "text": "str",
    "id": "str",
    "small": "int8",
    "score": "float32",
    "raw": "bytes",
    "meta": "json",
    "vector": "ndarray:float32",
}


def write_dataset(folder: Path, **options: Any) -> list[dict[str, Any]]:
    """Write 300 samples with `MDSWriter`, and return them."""
    from streaming import MDSWriter

    settings: dict[str, Any] = {
        "columns": COLUMNS,
        "size_limit": 4000,
        "hashes": ["sha1"],
    } | options
    samples = [
        {
            "text": text,
            "id": f"id-{number}",
            "small": number % 100,
            "score": number / 2,
            "raw": bytes([number % 256]),
            "meta": {"n": number},
            "vector": np.zeros(2, np.float32),
        }
        for number, text in enumerate(DOCUMENTS)
    ]
    chosen = [{name: sample[name] for name in settings["columns"]} for sample in samples]
    with MDSWriter(out=str(folder), **settings) as writer:
        for sample in chosen:
            writer.write(sample)
    return chosen


@pytest.mark.parametrize("compression", [None, "zstd:7", "gz"])
def test_a_dataset_of_mdswriter_is_cut_and_compressed_again(
    tmp_path: Path, compression: str | None
) -> None:
    from streaming import StreamingDataset

    samples = write_dataset(tmp_path / "in", compression=compression)
    report = convert(
        tmp_path / "in", keep=["small", "score", "raw", "meta"], compression="bz2", hashes=["md5"]
    )
    for sample in samples:
        del sample["vector"]
    assert read_dataset(str(tmp_path / "out"), tmp_path) == samples
    assert report.columns == {
        **{"text": "str", "id": "str", "small": "int8", "score": "float32"},
        **{"raw": "bytes", "meta": "json"},
    }
    shards = parse_index((tmp_path / "in" / "index.json").read_bytes(), "in")
    assert (len(shards) > 9, report.shards) == (True, 1)
    assert report.input_bytes == sum(shard.stored.bytes for shard in shards)
    with tempfile.TemporaryDirectory() as local:
        read = StreamingDataset(remote=str(tmp_path / "out"), local=local, batch_size=1)
        assert read[7]["small"] == samples[7]["small"]
    check_blocks(tmp_path / "in")


def test_without_an_id_column_a_sample_is_named_by_its_shard(tmp_path: Path) -> None:
    from streaming import MDSWriter

    for name in ("a", "b"):
        with MDSWriter(out=str(tmp_path / name), columns={"body": "bytes"}) as writer:
            for number in range(3):
                writer.write({"body": f"{name}{number}".encode()})
    samples = convert_and_read([tmp_path / "a", tmp_path / "b"], tmp_path / "out", text_key="body")
    assert [(sample["id"], sample["text"]) for sample in samples[2:4]] == [
        ("0/shard.00000.mds:3", "a2"),
        ("1/shard.00000.mds:1", "b0"),
    ]


@pytest.mark.parametrize("kind", ["same input", "other input"])
def test_a_resumed_conversion_of_a_dataset_writes_the_same_bytes(tmp_path: Path, kind: str) -> None:
    write_dataset(tmp_path / "in", compression="zstd")
    settings = {**QUIET, "shard_bytes": 3000, "block_bytes": 700, "keep": ["small"]}
    convert_to_mds(tmp_path / "in", tmp_path / "whole", **settings)
    convert_until(9, tmp_path / "in", tmp_path / "out", **settings)
    if kind == "other input":
        (tmp_path / "in" / "shard.00003.mds.zstd").unlink()
        with pytest.raises(ConvertError, match=r"shard.00003.mds.zstd is missing, but the index"):
            convert_to_mds(tmp_path / "in", tmp_path / "out", **settings)
        return
    report = convert_to_mds(tmp_path / "in", tmp_path / "out", **settings)
    assert report.resumed_shards == 9
    assert dataset_bytes(str(tmp_path / "out")) == dataset_bytes(str(tmp_path / "whole"))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_damaged_shard_is_named(tmp_path: Path, compression: str | None) -> None:
    write_dataset(tmp_path / "in", compression=compression)
    path = sorted((tmp_path / "in").glob("shard*"))[3]
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    refuse(rf"{path} (has|cannot be decompressed)", tmp_path / "in")
    path.write_bytes(data[:-1])
    refuse(rf"{path} has .* bytes, but the index lists it with", tmp_path / "in")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_key": "body"}, "has no column 'body'. Its columns are: id (str), meta (json), r"),
        ({"keep": ["vector"]}, "column 'vector' of .* has the encoding 'ndarray:float32', which"),
        ({"keep": ["nope"]}, "cannot infer the encoding of the field 'nope'"),
        ({"keep": ["small:uint8", "meta:str"]}, "the field 'meta' is an object, not str"),
    ],
)
def test_a_column_that_cannot_be_converted_is_named(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    write_dataset(tmp_path / "in")
    refuse(message.replace("(", r"\(").replace(")", r"\)"), tmp_path / "in", **options)


def test_a_dataset_of_token_ids_needs_no_conversion(tmp_path: Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(tmp_path / "in"), columns={"tokens": "bytes"}) as writer:
        writer.write({"tokens": np.arange(9).tobytes()})
    refuse(r"has no column 'text'. Its columns are: tokens \(byte", tmp_path / "in")


def test_an_index_is_answered_with_its_folder(tmp_path: Path) -> None:
    write_dataset(tmp_path / "in")
    refuse(
        r"in/index.json is the index of an MDS dataset. Pass",
        tmp_path / "in" / "index.json",
        tmp_path / "out",
    )
    (tmp_path / "index.json").write_text('[{"text": "a"}]')
    assert convert(tmp_path / "index.json").documents == 1


def test_an_index_is_needed_for_the_format_mds(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "a"}')
    refuse(r"in has no index.json. Pass the folder of an MDS", tmp_path / "in", format="mds")
    (tmp_path / "in" / "index.json").write_text('{"version": 3, "shards": []}')
    refuse(r"in/index.json is not an MDS index: its version is 3", tmp_path / "in", format="mds")
