"""The writer writes the same bytes as Streaming, and StreamingDataset can read them."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.data.mds.codecs import check_codec, compress, decompress, decompress_into
from cloudload.data.mds.hashes import fastest_hash, hash_bytes
from cloudload.data.mds.shard_entries import Column
from cloudload.data.mds.writer import ShardFormat
from cloudload.errors import DatasetError
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


# ---------------------------------------------------------------- compressions


@pytest.mark.parametrize("compression", ["zstd", "gz", "bz2"])
def test_a_bomb_is_unpacked_no_further_than_the_index_says(compression: str) -> None:
    bomb = compress(compression, bytes(1 << 22))
    assert len(decompress(compression, bomb, 1_000)) == 1_001
    target = bytearray(1_010)
    assert decompress_into(compression, bomb, memoryview(target)[:1_001]) == 1_001


@pytest.mark.parametrize("compression", ["br", "br:5", "snappy"])
def test_brotli_and_snappy_are_streamings_and_bounded(compression: str) -> None:
    from streaming.base.compression import compress as pack

    data = bytes(range(256)) * 400
    assert decompress(compression, pack(compression, data), len(data)) == data
    assert decompress(compression, pack(compression, b""), 0) == b""
    size = 1 << 22
    bomb = pack(compression, bytes(size))
    if compression == "snappy":
        for unpack in (
            lambda: decompress(compression, bomb, 1_000),
            lambda: decompress_into(compression, bomb, memoryview(bytearray(1_001))),
        ):
            with pytest.raises(Exception, match=rf"size = 1001\) .* required \(size = {size}\)"):
                unpack()
    else:
        assert len(decompress(compression, bomb, 1_000)) == 1_001


@pytest.mark.parametrize(("compression", "package"), [("br", "brotli>=1.2"), ("snappy", "cramjam")])
def test_a_codec_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, compression: str, package: str
) -> None:
    check_codec(compression)
    monkeypatch.setitem(sys.modules, "brotli", None)
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(DatasetError, match=f"too old. Run: pip install .*{package}"):
        check_codec(compression)
    check_codec("zstd:3")
    with pytest.raises(ValueError, match="br:11 \\(requires the brotli package\\)"):
        compress("br", b"")


@given(st.binary(), st.sampled_from(["zstd", "zstd:1", "gz", "gz:1", "bz2", "br:5"]))
def test_what_is_compressed_is_restored(data: bytes, compression: str) -> None:
    stored = compress(compression, data)
    assert decompress(compression, stored, len(data)) == data
    target = bytearray(b"\xff" * (len(data) + 1))
    assert decompress_into(compression, stored, memoryview(target)) == len(data)
    assert target == data + b"\xff"


@pytest.mark.parametrize("compression", ["zstd", "gz", "bz2"])
def test_a_compressed_shard_cut_short_never_passes_for_whole(compression: str) -> None:
    data = bytes(range(256)) * 100
    stored = compress(compression, data)
    try:
        found = decompress(compression, stored[: len(stored) // 2], len(data))
    except (DatasetError, EOFError, OSError, ValueError):
        return
    assert len(found) < len(data)


@pytest.mark.parametrize("compression", ["lzma", "zstandard", ""])
def test_an_unknown_compression_is_refused(compression: str) -> None:
    with pytest.raises(ValueError, match="compression is"):
        compress(compression, b"")


# ---------------------------------------------------------------- hashes


def test_hashes_are_those_that_streaming_computes() -> None:
    from streaming.base.hashing import get_hash, get_hashes

    for algorithm in sorted(get_hashes() - {"shake_128", "shake_256"}):
        assert hash_bytes(algorithm, b"data") == get_hash(algorithm, b"data"), algorithm


def test_the_fastest_known_hash_is_checked() -> None:
    assert fastest_hash({"sha1": "", "xxh64": "", "md5": ""}) == "xxh64"
    assert fastest_hash({"sha1": "", "md5": ""}) == "md5"
    assert fastest_hash({"unknown": "", "shake_128": "", "md4\0": ""}) is None
    assert fastest_hash({}) is None


NO_HASHES: list[Any] = [
    *("shake_128", "shake_256", "xxh64_hexdigest", "xxh64_intdigest", "xxhash", "md6", "md5\0"),
    *("", None, 64, ["sha1"], b"sha1"),
]


@pytest.mark.parametrize("name", NO_HASHES)
def test_what_is_no_hash_of_a_fixed_size_is_refused_by_name(name: Any) -> None:
    with pytest.raises(
        ValueError, match=r"no hash named .* with a fixed size\. Use a hash such as xxh64"
    ):
        hash_bytes(name, b"data")


def test_every_hash_that_python_has_is_taken_unless_its_size_is_open() -> None:
    for name in hashlib.algorithms_guaranteed:
        if not name.startswith("shake"):
            assert hash_bytes(name, b"data") == hashlib.new(name, b"data").hexdigest()
