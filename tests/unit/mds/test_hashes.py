"""Hashes are StreamingDataset's, and the fastest is checked."""

from __future__ import annotations

from cloudload.mds.hashes import fastest_hash, hash_bytes


def test_hashes_are_those_that_streaming_computes() -> None:
    from streaming.base.hashing import get_hash, get_hashes

    for algorithm in sorted(get_hashes() - {"shake_128", "shake_256"}):
        assert hash_bytes(algorithm, b"data") == get_hash(algorithm, b"data"), algorithm


def test_the_fastest_known_hash_is_checked() -> None:
    assert fastest_hash({"sha1": "", "xxh64": "", "md5": ""}) == "xxh64"
    assert fastest_hash({"sha1": "", "md5": ""}) == "md5"
    assert fastest_hash({"unknown": "", "shake_128": "", "md4\0": ""}) is None
    assert fastest_hash({}) is None
