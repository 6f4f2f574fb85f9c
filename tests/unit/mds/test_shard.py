"""The MDS format: the same bytes as Streaming's writer, readable by its reader, and nothing taken
on trust."""

from __future__ import annotations

import json
import struct
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.errors import DatasetError
from cloudload.mds.codecs import check_codec, compress, decompress
from cloudload.mds.hashes import fastest_hash, hash_bytes
from cloudload.mds.index import Column, FileInfo, ShardInfo, parse_index
from cloudload.mds.shard import Shard
from cloudload.mds.writer import ShardFormat, encode_sample
from tests.support.corpora import cut_into_shards, encode_shard, random_documents, write_mds

TEXT = (Column.of("text", "str"),)


def read_dataset(folder: Path) -> list[dict[str, Any]]:
    """All samples of an uncompressed dataset in a local folder, by our reader."""
    shards = parse_index(Path(folder, "index.json").read_bytes(), str(folder))
    opened = [Shard(Path(folder, shard.raw.name), shard) for shard in shards]
    return [shard.read(sample) for shard in opened for sample in range(shard.info.samples)]


def write_shard(
    folder: Path,
    raw: bytes,
    samples: int,
    columns: tuple[Column, ...] = TEXT,
    size: int | None = None,
) -> Shard:
    """Open `raw` as a shard that its index says has `samples` samples and `size` bytes."""
    path = folder / "shard.mds"
    path.write_bytes(raw)
    return Shard(
        path,
        ShardInfo(
            samples,
            columns,
            FileInfo("shard.mds", len(raw) if size is None else size, {}),
            None,
            None,
        ),
    )


# ---------------------------------------------------------------- Streaming's format


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
    if compression == "zstd":  # two libraries may frame the same bytes in two ways
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
        assert (
            [sample[name] for sample in found] == pytest.approx(values[:40])
            if encoding == "float32"
            else values[:40]
        )


def test_we_read_what_streaming_writes(tmp_path: Path) -> None:
    from streaming import MDSWriter

    samples = [{"n": number, "text": text} for number, text in enumerate(random_documents(2, 40))]
    with MDSWriter(
        out=str(tmp_path / "mds"), columns={"text": "str", "n": "int"}, size_limit=800
    ) as writer:
        for sample in samples:
            writer.write(sample)
    assert read_dataset(tmp_path / "mds") == samples


@given(st.lists(st.text(), max_size=20), st.integers(100, 400))
def test_every_text_survives(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], shard_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("mds")
    write_mds(folder, documents, shard_bytes=shard_bytes)
    assert [sample["text"] for sample in read_dataset(folder)] == documents


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(150, 500))
def test_shards_cover_the_samples_in_order(samples: list[bytes], shard_bytes: int) -> None:
    form = ShardFormat(TEXT, None, (), shard_bytes)
    shards = cut_into_shards(form, samples)
    assert [sample for shard in shards for sample in shard] == samples
    assert all(len(encode_shard(form, shard)) <= shard_bytes or len(shard) == 1 for shard in shards)


def test_an_empty_shard_is_a_shard(tmp_path: Path) -> None:
    form = ShardFormat(TEXT, None, ())
    assert write_shard(tmp_path, encode_shard(form, []), 0).info.samples == 0


def test_a_sample_may_be_empty(tmp_path: Path) -> None:
    write_mds(tmp_path, ["", "a", ""])
    assert [sample["text"] for sample in read_dataset(tmp_path)] == ["", "a", ""]


def test_a_shard_stays_readable_when_its_file_is_deleted(tmp_path: Path) -> None:
    shard = write_shard(
        tmp_path,
        encode_shard(ShardFormat(TEXT, None, ()), [encode_sample(TEXT, {"text": "still here"})]),
        1,
    )
    shard.path.unlink()
    assert shard.read(0) == {"text": "still here"}


# ---------------------------------------------------------------- an index that lies


@pytest.fixture
def index(tmp_path: Path) -> dict[str, Any]:
    """A sound index of one compressed shard, to be spoiled."""
    write_mds(tmp_path / "sound", ["one", "two"], compression="zstd")
    found: dict[str, Any] = json.loads((tmp_path / "sound" / "index.json").read_text())
    return found


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
    monkeypatch.setattr("cloudload.mds.index._MOST_INDEX_VALUES", 1_000)
    with pytest.raises(DatasetError, match="it has more than 1,000 values"):
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
    with pytest.raises(DatasetError, match=f"no field '{field}'"):
        parse_index(json.dumps(index).encode(), "d")


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"7", b"\xff\xfe", b"[" * 100_000, b'{"version": 2, "shards": 7}'],
)
def test_what_is_not_an_index_is_refused(data: bytes) -> None:
    with pytest.raises(DatasetError, match="is not an MDS index"):
        parse_index(data, "d")


# ---------------------------------------------------------------- a shard that lies


@pytest.fixture
def raw() -> bytes:
    """A sound shard of the samples `one` and `three`."""
    return encode_shard(
        ShardFormat(TEXT, None, ()),
        [encode_sample(TEXT, {"text": text}) for text in ("one", "three")],
    )


def test_a_shard_of_another_size_is_refused(tmp_path: Path, raw: bytes) -> None:
    for spoiled in (raw[:-1], raw + b"x", b""):
        with pytest.raises(DatasetError, match=r"shard\.mds has .* bytes, but the index says"):
            write_shard(tmp_path, spoiled, 2, size=len(raw))


@pytest.mark.parametrize("samples", [0, 1, 3, 1 << 40])
def test_a_shard_of_another_count_is_refused(tmp_path: Path, raw: bytes, samples: int) -> None:
    with pytest.raises(DatasetError, match="does not hold the"):
        write_shard(tmp_path, raw, samples)


@pytest.mark.parametrize("length", range(17))
def test_a_shard_cut_anywhere_in_its_head_is_refused(
    tmp_path: Path, raw: bytes, length: int
) -> None:
    with pytest.raises(DatasetError, match="shard"):
        write_shard(tmp_path, raw[:length], 2)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("offset", [0, 15, (1 << 32) - 1])
def test_offsets_outside_the_shard_are_refused(
    tmp_path: Path, raw: bytes, place: int, offset: int
) -> None:
    spoiled = bytearray(raw)
    struct.pack_into("<I", spoiled, 4 + 4 * place, offset)
    with pytest.raises(DatasetError, match="offsets outside the shard"):
        write_shard(tmp_path, bytes(spoiled), 2)


@pytest.mark.parametrize("size", [4, 1 << 20, (1 << 32) - 1])
def test_a_column_that_reaches_outside_its_sample_is_refused(
    tmp_path: Path, raw: bytes, size: int
) -> None:
    spoiled = bytearray(raw)
    struct.pack_into("<I", spoiled, raw.index(b"one") - 4, size)
    shard = write_shard(tmp_path, bytes(spoiled), 2)
    assert shard.read(1) == {"text": "three"}
    with pytest.raises(DatasetError, match=r"sample 0 of .* has columns that do not add up"):
        shard.read(0)


def test_a_column_that_does_not_fill_its_sample_is_refused(tmp_path: Path, raw: bytes) -> None:
    spoiled = bytearray(raw)
    struct.pack_into("<I", spoiled, raw.index(b"three") - 4, 4)
    with pytest.raises(DatasetError, match=r"sample 1 of .* has columns"):
        write_shard(tmp_path, bytes(spoiled), 2).read(1)


@pytest.mark.parametrize(
    "change",
    [
        (b'"str"', b'"pkl"'),
        (b'["text"]', b'["tex_"]'),
        (b"[null]", b"[1234]"),
        (b'"column_names"', b'"column_nam_s"'),
        (b"{", b"["),
        (b'"mds"', b'"\xff\xfe\xfd"'),
    ],
)
def test_a_header_that_says_other_than_the_index_is_refused(
    tmp_path: Path, raw: bytes, change: tuple[bytes, bytes]
) -> None:
    with pytest.raises(
        DatasetError, match=r"shard\.mds (has a header without valid columns|has the columns)"
    ):
        write_shard(tmp_path, raw.replace(*change, 1), 2)


def test_a_shard_without_a_header_is_read(tmp_path: Path) -> None:
    sample = encode_sample(TEXT, {"text": "one"})
    assert write_shard(tmp_path, struct.pack("<III", 1, 12, 12 + len(sample)) + sample, 1).read(
        0
    ) == {"text": "one"}


def test_text_that_is_not_utf8_names_the_sample(tmp_path: Path, raw: bytes) -> None:
    shard = write_shard(tmp_path, raw.replace(b"three", b"th\xff\xfee"), 2)
    with pytest.raises(DatasetError, match=r"sample 1 of .*shard\.mds does not match its columns"):
        shard.read(1)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    form = ShardFormat((Column("text", "pkl", None),), None, ())
    pickled = encode_sample([Column.of("text", "bytes")], {"text": b"cos\nsystem\n"})
    shard = write_shard(tmp_path, encode_shard(form, [pickled]), 1, form.columns)
    with pytest.raises(DatasetError, match="'pkl' cannot be read"):
        shard.read(0)


@given(st.data())
def test_a_shard_with_any_byte_changed_is_read_or_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    form = ShardFormat(TEXT, None, ())
    raw = bytearray(
        encode_shard(form, [encode_sample(TEXT, {"text": text}) for text in ("one", "", "three")])
    )
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        shard = write_shard(tmp_path_factory.mktemp("mds"), bytes(raw), 3)
        for sample in range(3):
            shard.read(sample)
    except DatasetError:
        pass


# ---------------------------------------------------------------- compression and hashes


@pytest.mark.parametrize("compression", ["zstd", "gz", "bz2"])
def test_a_bomb_is_unpacked_no_further_than_the_index_says(compression: str) -> None:
    bomb = compress(compression, bytes(1 << 26))
    assert len(decompress(compression, bomb, 1_000)) == 1_001


@pytest.mark.parametrize("compression", ["br", "br:5", "snappy"])
def test_brotli_and_snappy_are_streamings_and_bounded(compression: str) -> None:
    from streaming.base.compression import compress as pack

    data = bytes(range(256)) * 4_000
    assert decompress(compression, pack(compression, data), len(data)) == data
    assert decompress(compression, pack(compression, b""), 0) == b""
    bomb = pack(compression, bytes(1 << 26))
    if compression == "snappy":
        with pytest.raises(
            ValueError, match="it unpacks to 67,108,864 bytes, but the index says 1,000"
        ):
            decompress(compression, bomb, 1_000)
    else:
        assert len(decompress(compression, bomb, 1_000)) == 1_001


@pytest.mark.parametrize(
    ("compression", "package"), [("br", "brotli>=1.2"), ("snappy", "python-snappy")]
)
def test_a_codec_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, compression: str, package: str
) -> None:
    check_codec(compression)
    monkeypatch.setitem(sys.modules, "brotli", None)
    monkeypatch.setitem(sys.modules, "snappy", None)
    with pytest.raises(DatasetError, match=f"To read them, pip install .*{package}"):
        check_codec(compression)
    check_codec("zstd:3")


@given(st.binary(), st.sampled_from(["zstd", "zstd:1", "gz", "gz:1", "bz2"]))
def test_what_is_compressed_is_restored(data: bytes, compression: str) -> None:
    assert decompress(compression, compress(compression, data), len(data)) == data


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


def test_hashes_are_those_that_streaming_computes() -> None:
    from streaming.base.hashing import get_hash, get_hashes

    for algorithm in sorted(get_hashes() - {"shake_128", "shake_256"}):
        assert hash_bytes(algorithm, b"data") == get_hash(algorithm, b"data"), algorithm


def test_the_fastest_known_hash_is_checked() -> None:
    assert fastest_hash({"sha1": "", "xxh64": "", "md5": ""}) == "xxh64"
    assert fastest_hash({"sha1": "", "md5": ""}) == "md5"
    assert fastest_hash({"unknown": "", "shake_128": "", "md4\0": ""}) is None
    assert fastest_hash({}) is None
