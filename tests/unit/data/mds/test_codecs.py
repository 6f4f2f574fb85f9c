"""Decompression restores the data, and the size in the index limits how much it unpacks."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.data.mds.codecs import check_codec, compress, decompress, decompress_into
from cloudload.errors import DatasetError


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
        with pytest.raises(
            ValueError, match=f"the data unpacks to {size:,} bytes, but the index says 1,000"
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
