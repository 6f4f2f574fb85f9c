"""Hashes equal those of StreamingDataset, and the fastest known hash of a file is chosen."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from cloudload.data.mds.hashes import fastest_hash, hash_bytes


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
