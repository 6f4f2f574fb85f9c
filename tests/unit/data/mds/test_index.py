"""Every field of an index is checked before it is used."""

from __future__ import annotations

import json
import struct
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.data.mds.document_columns import holds_tokens, open_token_column
from cloudload.data.mds.shard import Shard
from cloudload.data.mds.shard_entries import Column, FileInfo, ShardInfo
from cloudload.data.mds.shard_table import parse_index
from cloudload.data.mds.writer import ShardFormat
from cloudload.errors import DatasetError
from testkit.corpora import encode_shard

TEXT = (Column.of("text", "str"),)


@pytest.mark.parametrize("which", ["raw_data", "zip_data"])
@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "a/../../x",
        "/etc/passwd",
        "..",
        "a/..",
        "",
        ".",
        "a\0b",
        "..\\x",
        "C:\\x",
        "s3://other/x",
        "index.json",
        "./index.json",
        "./x",
        "a//x",
        "a/",
        "a\nx",
        "\ud800",
        "x.part",
        "x.lock",
        "x.LOCK/y",
        "*",
        "x[0]",
        "x" * 231,
        "é" * 116,
        "/".join(["x" * 200] * 6),
    ],
)
def test_a_file_name_may_not_leave_the_folder_or_shadow_the_index(
    index: dict[str, Any], which: str, name: str
) -> None:
    index["shards"][0][which]["basename"] = name
    with pytest.raises(DatasetError, match=r"s3://b/d/index\.json is not an MDS index: .*name"):
        parse_index(json.dumps(index).encode(), "s3://b/d")


@pytest.mark.parametrize(
    ("raw", "other", "message"),
    [
        ("a.mds", "a.mds", "two files have the name"),
        ("a.mds", "A.MDS", "differ only in case"),
        ("shard.00000.mds.zstd", "b.mds", "two files have the name"),
        ("a", "a/b", "'a' is the name of both a file and a folder"),
        ("a/b/c", "a", "'a' is the name of both a file and a folder"),
    ],
)
def test_no_two_files_of_a_dataset_fall_together(
    index: dict[str, Any], raw: str, other: str, message: str
) -> None:
    first, second = index["shards"][0], deepcopy(index["shards"][0])
    first["raw_data"]["basename"], second["raw_data"]["basename"] = raw, other
    second["zip_data"] = second["compression"] = None
    with pytest.raises(DatasetError, match=message):
        parse_index(json.dumps({"version": 2, "shards": [first, second]}).encode(), "d")


def test_a_million_values_are_read_but_not_more_than_an_index_of_a_million_shards_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cloudload.data.mds.shard_entries.MOST_INDEX_VALUES", 1_000)
    with pytest.raises(DatasetError, match=r"about [\d,]+ values, more than the 1,000 allowed"):
        parse_index(b'{"version": 2, "shards": [' + b"[]," * 1_000 + b"[]]}", "d")


def test_a_file_may_lie_in_a_folder_below(index: dict[str, Any]) -> None:
    index["shards"][0]["zip_data"]["basename"] = "part-0/shard.00000.mds.zstd"
    (shard,) = parse_index(json.dumps(index).encode(), "d")
    assert shard.stored.name == "part-0/shard.00000.mds.zstd"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), 1),
        (("shards",), None),
        (("shards",), {"a": 1}),
        (("shards", 0), []),
        (("shards", 0, "format"), "json"),
        (("shards", 0, "samples"), -1),
        (("shards", 0, "samples"), 1.5),
        (("shards", 0, "samples"), True),
        (("shards", 0, "samples"), "2"),
        (("shards", 0, "column_names"), []),
        (("shards", 0, "column_names"), None),
        (("shards", 0, "column_names"), [["text"]]),
        (("shards", 0, "column_encodings"), [7]),
        (("shards", 0, "column_sizes"), [-4]),
        (("shards", 0, "column_sizes"), ["4"]),
        (("shards", 0, "raw_data"), None),
        (("shards", 0, "raw_data", "bytes"), -1),
        (("shards", 0, "raw_data", "bytes"), None),
        (("shards", 0, "raw_data", "basename"), 3),
        (("shards", 0, "raw_data", "hashes"), ["xxh64"]),
        (("shards", 0, "zip_data", "bytes"), 1e9),
        (("shards", 0, "zip_data", "bytes"), 1 << 32),
        (("shards", 0, "raw_data", "bytes"), 1 << 32),
        (("shards", 0, "raw_data", "bytes"), 15),
        (("shards", 0, "samples"), 1 << 62),
        (("shards", 0, "samples"), 10**400),
        (("shards", 0, "column_names"), ["text", "text"]),
        (("shards", 0, "column_sizes"), [True]),
        (("shards", 0, "column_sizes"), [1 << 32]),
        (("shards", 0, "column_encodings"), ["int"]),
        (("shards", 0, "compression"), "lzma"),
        (("shards", 0, "compression"), None),
        (("shards", 0, "raw_data", "raw_data"), {}),
    ],
)
def test_an_index_with_a_wrong_field_is_refused(
    index: dict[str, Any], path: tuple[Any, ...], value: Any
) -> None:
    spoiled = deepcopy(index)
    inner: Any = spoiled
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(DatasetError, match="is not an MDS index"):
        parse_index(json.dumps(spoiled).encode(), "d")


@pytest.mark.parametrize("field", ["version", "shards"])
def test_an_index_without_a_field_says_which(index: dict[str, Any], field: str) -> None:
    del index[field]
    with pytest.raises(DatasetError, match=f"the field '{field}' is missing"):
        parse_index(json.dumps(index).encode(), "d")


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"7", b"\xff\xfe", b"[" * 100_000, b'{"version": 2, "shards": 7}'],
)
def test_what_is_not_an_index_is_refused(data: bytes) -> None:
    with pytest.raises(DatasetError, match="is not an MDS index"):
        parse_index(data, "d")


# ---------------------------------------------------------------- columns of documents


def open_shard(folder: Path, encoding: str, values: list[bytes], size: int | None = None) -> Shard:
    column = Column("tokens", encoding, size)
    samples = [value if size else struct.pack("<I", len(value)) + value for value in values]
    raw = encode_shard(ShardFormat((column,), None, ()), samples)
    (folder / "shard.mds").write_bytes(raw)
    info = FileInfo("shard.mds", len(raw), {})
    return Shard(folder / "shard.mds", ShardInfo(len(values), (column,), info, None, None))


def read(shard: Shard, dtype: str | None = None) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    samples = np.arange(shard.info.samples)
    for raw in open_token_column(shard, "tokens", dtype).read(shard, samples):
        for place, value in zip(raw.indices.tolist(), raw.values, strict=True):
            found[place] = np.frombuffer(value, raw.dtype).tolist()
    return [found[sample] for sample in samples.tolist()]


@pytest.mark.parametrize(
    ("encoding", "value", "message"),
    [
        ("ndarray:uint16", b"", "the value has no shape"),
        ("ndarray:uint16", b"\x04", "its shape does not match its number of uint16 values"),
        ("ndarray:uint16", b"\x04\x02\1\0", "its shape does not match"),
        ("ndarray:uint16", b"\x04\x01\1\0\2\0", "its shape does not match"),
        ("ndarray:uint16", b"\x07\xff\xff\xff\xff\xff\xff\xff\xff", "its shape does not match"),
        ("ndarray:uint16", b"\xff" * 40, "its shape does not match"),
        ("ndarray", b"", "the value is empty"),
        (
            "ndarray",
            b"\x22\x04\1\0\0\0\0",
            "its dtype has the code 34, which is not the code of an integer type",
        ),
        ("ndarray", b"\x10", "the value has no shape"),
        ("json", b"", "no list of token IDs"),
        ("json", b"[" * 100_000, "no list of token IDs"),
        ("json", b"[true]", "no list of token IDs"),
        ("json", b"[1.0]", "no list of token IDs"),
        ("json", b"null", "no list of token IDs"),
    ],
)
def test_a_value_that_does_not_match_its_encoding_is_named(
    tmp_path: Path, encoding: str, value: bytes, message: str
) -> None:
    good = {"ndarray": b"\x10\x04\x01\7\0", "json": b"[7]"}.get(encoding, b"\x04\x01\7\0")
    assert read(open_shard(tmp_path, encoding, [good])) == [[7]]
    with pytest.raises(DatasetError, match=rf"sample 1 of .*shard\.mds .*{message}"):
        read(open_shard(tmp_path, encoding, [good, value]))


def test_a_sample_whose_sizes_do_not_add_up_is_named(tmp_path: Path) -> None:
    shard = open_shard(tmp_path, "bytes", [b"\1\0", b"\2\0"])
    raw = bytearray((tmp_path / "shard.mds").read_bytes())
    raw[-6:-2] = struct.pack("<I", 3)
    (tmp_path / "shard.mds").write_bytes(raw)
    with pytest.raises(DatasetError, match=r"sample 1 of .* do not add up"):
        read(Shard(tmp_path / "shard.mds", shard.info), "uint16")


@given(value=st.binary(max_size=40))
def test_any_bytes_are_ids_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, value: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp()
    for encoding in ("ndarray", "ndarray:int32", "json"):
        try:
            [ids] = read(open_shard(folder, encoding, [value]))
        except DatasetError:
            continue
        assert len(ids) <= len(value)


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        *((each, True) for each in ("bytes", "json", "ndarray", "ndarray:int8", "ndarray:int32:3")),
        *((each, False) for each in ("str", "pkl", "int", "ndarray:float32", "ndarray:int32:")),
        *((each, False) for each in ("ndarray:", "ndarray:int32:0", "ndarray:int32:2,x", "json:1")),
    ],
)
def test_only_integers_are_token_ids(encoding: str, expected: bool) -> None:
    assert holds_tokens(encoding) is expected
