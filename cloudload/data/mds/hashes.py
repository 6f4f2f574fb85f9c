"""The hashes that MDS indexes contain.

xxh64, sha1, …     of a stored file, or of a raw shard
samples-xxh128     of only the samples of a shard. It stays the same if they are written with
                   another compression or other hashes. `mds.writer` lists it among the hashes of
                   the raw shard
identity           no hash, but beside them in an index: the `ShardInfo.identity` of the shard from
                   which this one was copied
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import xxhash

from cloudload.system import Ints

SAMPLES_HASH, IDENTITY = "samples-xxh128", "identity"


def new_hash(algorithm: str) -> Any:
    """Create a hash object with `update` and `hexdigest`.

    `algorithm` is the hash's name in MDS indexes. Raises `ValueError` if there is no hash of a
    fixed size with this name.
    """
    if isinstance(algorithm, str) and _is_hash(algorithm):
        is_xxhash = algorithm in xxhash.algorithms_available
        return getattr(xxhash, algorithm)() if is_xxhash else hashlib.new(algorithm)
    raise ValueError(
        f"there is no hash named {algorithm!r} with a fixed size. Use a hash such as xxh64, "
        "xxh128, sha1, or sha256"
    )


def hash_bytes(algorithm: str, data: bytes | memoryview) -> str:
    """The hex digest of `data`. Raises `ValueError` if there is no such hash."""
    running = new_hash(algorithm)
    running.update(data)
    return str(running.hexdigest())


def hash_samples(sizes: Ints, samples: bytes | memoryview) -> str:
    """The `SAMPLES_HASH` of a shard, in hex digits.

    `sizes` are the sizes of the samples in bytes, int64 [samples]. `samples` are the bytes of all
    samples, which follow the header.
    """
    running = xxhash.xxh128(np.asarray(sizes, "<i8").tobytes())
    running.update(samples)
    return running.hexdigest()


def fastest_hash(hashes: Mapping[str, str]) -> str | None:
    """The name of the hash to check, or None if Python can compute none of `hashes`.

    `hashes` maps the names of algorithms to digests. An xxhash is preferred because it is fast.
    """
    quick = [name for name in ("xxh3_64", "xxh3_128", "xxh128", "xxh64", "xxh32") if name in hashes]
    known = quick or [name for name in sorted(hashes) if _is_hash(name)]
    return known[0] if known else None


@cache
def _is_hash(name: str) -> bool:
    """Whether xxhash or hashlib has a hash with this name and a fixed digest size."""
    if name in xxhash.algorithms_available:
        return True
    try:
        return name in hashlib.algorithms_available and hashlib.new(name).digest_size > 0
    except ValueError:
        return False
