"""The hashes that MDS indexes name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any

import xxhash

# ---------------------------------------------------------------- hashes and compression


class Hasher:
    """A running hash of one algorithm, from `hashlib` or `xxhash`, under the names that MDS indexes
    use."""

    def __init__(self, algorithm: str) -> None:
        try:
            self._hash: Any = (
                getattr(xxhash, algorithm)()
                if algorithm.startswith("xxh")
                else hashlib.new(algorithm)
            )
        except (AttributeError, ValueError):
            raise ValueError(
                f"no hash named {algorithm!r}; use xxh64, xxh128, sha1, sha256, …"
            ) from None

    def update(self, data: bytes) -> None:
        self._hash.update(data)

    def hexdigest(self) -> str:
        return str(self._hash.hexdigest())


def hash_bytes(algorithm: str, data: bytes) -> str:
    """The hex digest of `data`."""
    hasher = Hasher(algorithm)
    hasher.update(data)
    return hasher.hexdigest()


def fastest_hash(hashes: Mapping[str, str]) -> str | None:
    """The hash of an index entry that is cheapest to check, or None where there is none that we
    know."""
    quick = [name for name in ("xxh3_64", "xxh3_128", "xxh128", "xxh64", "xxh32") if name in hashes]
    known = quick or [name for name in sorted(hashes) if _is_hash(name)]
    return known[0] if known else None


@cache
def _is_hash(name: str) -> bool:
    """Whether this machine has a hash of that name, with digests of one size."""
    try:
        return name in hashlib.algorithms_available and hashlib.new(name).digest_size > 0
    except ValueError:
        return False
