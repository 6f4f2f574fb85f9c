"""Streaming reads what cloudload writes. cloudload reads what Streaming writes, or refuses it with
a clear error. Both read in the same order."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload import convert_to_mds
from cloudload.errors import DatasetError
from cloudload.tools.check import check_dataset
from testkit.both_readers import read_by_cloudload, streaming_dataset, texts_in
from testkit.conversions import QUIET, write_lines
from testkit.corpora import write_mds

TEXTS = [f"document-{number}" for number in range(70)]
ALGORITHMS = ["py1e", "py1br", "py1s", "py2s", "naive", None]
pytestmark = pytest.mark.usefixtures("alone_with_streaming")


@pytest.mark.parametrize("compression", [None, "zstd", "br", "gz", "bz2"])
def test_streaming_reads_a_conversion_and_verifies_every_hash(
    tmp_path: Path, compression: str | None
) -> None:
    from streaming.base.hashing import get_hashes

    corpus, out = write_lines(tmp_path / "corpus.jsonl", TEXTS), tmp_path / "out"
    hashes = sorted(get_hashes())
    options = {**QUIET, "shard_bytes": 3000}
    convert_to_mds(corpus, out, compression=compression, hashes=hashes, **options)
    assert len(list(out.glob("*.mds*"))) > 1
    for name in hashes:
        dataset = streaming_dataset(remote=str(out), local=str(tmp_path / name), validate_hash=name)
        assert texts_in(dataset) == TEXTS, name
    assert check_dataset(out, progress=False).findings == ()


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_both_readers_read_a_conversion_in_segments(
    tmp_path: Path, compression: str | None
) -> None:
    corpus, out = write_lines(tmp_path / "corpus.jsonl", TEXTS), tmp_path / "out"
    options = {**QUIET, "segment_bytes": 300}
    report = convert_to_mds(corpus, out, compression=compression, shard_bytes=1024, **options)
    assert report.segments > 5
    local = str(tmp_path / "cache")
    assert texts_in(streaming_dataset(remote=str(out), local=local, validate_hash="xxh64")) == TEXTS
    if compression is None:
        assert texts_in(streaming_dataset(local=str(out))) == TEXTS
    assert read_by_cloudload(out, tmp_path / "ours") == TEXTS
    assert check_dataset(out, progress=False).findings == ()


def draw(number: int) -> Any:
    from PIL import Image

    return Image.new("L", (4, 4), number)


def encode_jpeg(number: int) -> bytes:
    from streaming.base.format.mds.encodings import mds_encode

    return bytes(mds_encode("jpeg", draw(number)))


IMAGES = {"pil", "jpeg", "png"}
VALUES: dict[str, Callable[[int], Any]] = {
    "str": str,
    "bytes": lambda number: b"%d" % number,
    "json": lambda number: {"number": number},
    "int": int,
    **{f"{sign}int{bits}": int for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": lambda number: number / 2 for bits in (16, 32, 64)},
    "str_int": int,
    "str_float": float,
    "str_decimal": Decimal,
    "ndarray": lambda number: np.full((2, 2), number, np.int32),
    "ndarray:uint16": lambda number: np.full(3, number, np.uint16),
    "ndarray:int64:2,3": lambda number: np.full((2, 3), number, np.int64),
    **dict.fromkeys(IMAGES, draw),
    **dict.fromkeys([f"list[{kind}]" for kind in IMAGES], lambda number: [draw(number)] * 2),
    **dict.fromkeys(["jpeg_array", "jpegarray"], lambda number: [encode_jpeg(number)] * 2),
    "pkl": lambda number: {number},
}
DECODED = {"str", "bytes", "json", "int", "float32", "float64"} | {
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("ndarray", "ndarray:uint16", "ndarray:int64:2,3"),
}
"""The encodings that cloudload decodes for a transform. It refuses any other by name."""


def test_every_encoding_of_streaming_is_tried() -> None:
    from streaming.base.format.mds.encodings import get_mds_encodings

    assert {name.partition(":")[0] for name in VALUES} == get_mds_encodings()


@pytest.mark.parametrize("encoding", sorted(VALUES))
def test_an_encoding_of_streaming_is_read_or_refused_by_name(tmp_path: Path, encoding: str) -> None:
    from streaming import MDSWriter

    folder, value = tmp_path / "data", VALUES[encoding]
    columns = {"a": encoding, "text": "str"}
    with MDSWriter(out=str(folder), columns=columns, hashes=["xxh64"]) as out:
        for number, text in enumerate(TEXTS):
            out.write({"a": value(number), "text": text})
    assert read_by_cloudload(folder, tmp_path / "cache") == TEXTS
    seen = []

    def transform(sample: dict[str, Any]) -> str:
        seen.append(sample["a"])
        return str(sample["text"])

    if encoding in DECODED:
        read_by_cloudload(folder, tmp_path / "cache", transform=transform)
        assert all(map(np.array_equal, seen, map(value, range(70))))
        assert len(seen) == 70
        expected: set[str] = set()
    else:
        with pytest.raises(DatasetError, match=re.escape(f"with the encoding {encoding!r}. cloud")):
            read_by_cloudload(folder, tmp_path / "cache", transform=transform)
        expected = {"pickle" if encoding == "pkl" else "encoding-unread"}
    assert check_dataset(folder, progress=False).counts.keys() == expected


def test_folders_joined_by_streamings_merge_index_are_read(tmp_path: Path) -> None:
    from streaming import MDSWriter
    from streaming.base.util import merge_index

    out = tmp_path / "out"
    settings = [("zstd", "xxh64"), (None, "sha1"), ("br:3", "md5"), ("snappy", "xxh128")]
    parts = np.array_split(np.array(TEXTS), len(settings))
    for part, (compression, name), texts in zip("abcd", settings, parts, strict=True):
        options = {"columns": {"text": "str"}, "compression": compression, "hashes": [name]}
        with MDSWriter(out=str(out / part), **options, size_limit=400) as writer:
            for text in texts:
                writer.write({"text": str(text)})
    merge_index(str(out))
    dataset = streaming_dataset(remote=str(out), local=str(tmp_path / "theirs"))
    theirs = texts_in(dataset)
    ours = read_by_cloudload(out, tmp_path / "ours")
    assert ours == theirs == TEXTS
    assert len(dataset.shards) > len(parts)
    # each hash algorithm was used for only some of the shards
    assert check_dataset(out, progress=False).counts == {"hash-partial": 4}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_loader_reads_in_the_order_of_a_streaming_dataset(
    tmp_path: Path, algorithm: str | None
) -> None:
    folder = tmp_path / "data"
    write_mds(folder, TEXTS, shard_samples=[20, 5, 30, 15], compression="zstd")
    order: dict[str, Any] = {"shuffle": algorithm is not None, "shuffle_algo": algorithm or "py1e"}
    order |= {"shuffle_block_size": 20, "num_canonical_nodes": 2}
    local: dict[str, Any] = {"remote": str(folder), "local": str(tmp_path / "theirs")}
    dataset = streaming_dataset(**local, shuffle_seed=5, batch_size=1, **order)
    theirs = [sample["text"] for sample in dataset]
    ours = read_by_cloudload(folder, tmp_path / "ours", num_lanes=2, **{**order, "seed": 5})
    assert ours == theirs
    assert ours != TEXTS
