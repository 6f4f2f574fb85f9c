"""The writer writes the same bytes as Streaming, and StreamingDataset can read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.data.mds.codecs import decompress
from cloudload.data.mds.shard_entries import Column
from cloudload.data.mds.writer import ShardFormat
from testkit.corpora import cut_into_shards, encode_shard, random_documents, write_mds

TEXT = (Column.of("text", "str"),)


ALL_COLUMNS: dict[str, tuple[str, list[Any]]] = {
    "a_json": ("json", [{"b": [number, None]} for number in range(50)]),
    "b_bytes": ("bytes", [bytes([number]) * number for number in range(50)]),
    "c_int": ("int", [number - 25 for number in range(50)]),
    "d_uint16": ("uint16", list(range(50))),
    "u_float32": ("float32", [number / 2 for number in range(50)]),
    "z_float64": ("float64", [number / 3 for number in range(50)]),
}


@pytest.mark.parametrize(
    ("compression", "hashes", "extra"),
    [
        (None, (), {}),
        (None, ("sha1", "xxh3_64"), ALL_COLUMNS),
        ("bz2", ("xxh64",), ALL_COLUMNS),
        ("zstd", ("xxh64",), ALL_COLUMNS),
    ],
    ids=["plain", "hashed", "bz2", "zstd"],
)
def test_a_dataset_is_the_bytes_that_streaming_writes(
    tmp_path: Path,
    compression: str | None,
    hashes: tuple[str, ...],
    extra: dict[str, tuple[str, list[Any]]],
) -> None:
    from streaming import MDSWriter

    documents = random_documents(0, 50)
    write_mds(
        tmp_path / "ours",
        documents,
        shard_bytes=1500,
        compression=compression,
        hashes=hashes,
        extra=extra,
    )
    columns = {"text": "str"} | {name: encoding for name, (encoding, _) in extra.items()}
    theirs = str(tmp_path / "theirs")
    with MDSWriter(
        out=theirs, columns=columns, compression=compression, hashes=list(hashes), size_limit=1500
    ) as writer:
        for number, text in enumerate(documents):
            writer.write(
                {"text": text} | {name: values[number] for name, (_, values) in extra.items()}
            )

    files = {
        folder: sorted(path.name for path in (tmp_path / folder).iterdir())
        for folder in ("ours", "theirs")
    }
    assert files["ours"] == files["theirs"]
    assert len(files["ours"]) > 3
    our_index, their_index = (
        json.loads((tmp_path / folder / "index.json").read_text()) for folder in ("ours", "theirs")
    )
    # zstd libraries may compress data to different bytes, so only the file names are compared
    if compression == "zstd":
        for entry in our_index["shards"] + their_index["shards"]:
            entry["zip_data"] = entry["zip_data"]["basename"]
    else:
        for name in files["ours"]:
            assert (tmp_path / "ours" / name).read_bytes() == (
                tmp_path / "theirs" / name
            ).read_bytes(), name
    assert our_index == their_index


@pytest.mark.parametrize("compression", [None, "zstd", "zstd:19", "gz", "bz2"])
def test_streaming_reads_what_we_write(tmp_path: Path, compression: str | None) -> None:
    from streaming.base.format import reader_from_json

    documents = random_documents(1, 40)
    write_mds(tmp_path, documents, shard_bytes=800, compression=compression, extra=ALL_COLUMNS)
    found = []
    for entry in json.loads((tmp_path / "index.json").read_text())["shards"]:
        reader = reader_from_json(str(tmp_path), None, entry)
        if compression is not None:
            raw = decompress(
                compression,
                (tmp_path / entry["zip_data"]["basename"]).read_bytes(),
                entry["raw_data"]["bytes"],
            )
            (tmp_path / entry["raw_data"]["basename"]).write_bytes(raw)
        found += [reader[sample] for sample in range(len(reader))]
    assert [sample["text"] for sample in found] == documents
    for name, (encoding, values) in ALL_COLUMNS.items():
        expected = pytest.approx(values[:40]) if encoding == "float32" else values[:40]
        assert [sample[name] for sample in found] == expected


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(150, 500))
def test_shards_cover_the_samples_in_order(samples: list[bytes], shard_bytes: int) -> None:
    form = ShardFormat(TEXT, None, (), shard_bytes)
    shards = cut_into_shards(form, samples)
    assert [sample for shard in shards for sample in shard] == samples
    assert all(len(encode_shard(form, shard)) <= shard_bytes or len(shard) == 1 for shard in shards)
