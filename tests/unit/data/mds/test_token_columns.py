"""Damaged token IDs raise an error that names the sample, and are never read as other IDs."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.data.mds.document_columns import holds_tokens, open_token_column
from cloudload.data.mds.shard import Shard
from cloudload.data.mds.shard_entries import Column, FileInfo, ShardInfo
from cloudload.data.mds.writer import ShardFormat
from cloudload.errors import DatasetError
from testkit.corpora import encode_shard


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
