"""Divide documents into splits by a keyed hash, so that a document is always in the same split.

    spec       train=0.9,val=0.1
    limits     train: 0.9 * 2**64    val: 2**64
    document   id "doc-7" ─ keyed hash ─► 0x1f3c… < 0.9 * 2**64 ─► train

The split is a function of the seed and of the document's own ID, or of its text if it has no ID. It
does not depend on the order, number, or names of the inputs. If the first share grows, no document
leaves the first split.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction

_HASHES = 1 << 64
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NUMBER = re.compile(r"\d*\.?\d+|\d+\.")
_EXAMPLE = "train=0.999,val=0.001"


@dataclass(frozen=True)
class SplitShares:
    """Splits and their shares, as ranges of 64-bit hashes.

    Split `names[i]` has the hashes from `limits[i - 1]` to `limits[i] - 1`, and the first split has
    those from 0. The last limit is 2**64.
    """

    names: tuple[str, ...]
    limits: tuple[int, ...]

    def choose(self, own_id: str | None, text: str, seed: int = 0) -> str:
        """Return the name of the document's split.

        `own_id` is the ID in the document's record, or None. Without an ID, the text determines the
        split. `seed` may be any integer. Splits with different seeds are independent.
        """
        return self.names[bisect_right(self.limits, hash_document(own_id, text, seed))]


def parse_shares(spec: str) -> SplitShares:
    """Parse shares such as `train=0.999,val=0.001`. They must add up to exactly 1.

    Each limit is the exact sum of the shares so far, times 2**64, rounded down. Raises
    `ValueError` if a name or share is invalid.
    """
    parts = [part.strip() for part in spec.split(",")]
    pairs = [_parse_part(part, spec) for part in parts]
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the splits {spec!r} have {twice[0]!r} twice. List each split once")
    total = sum((share for _, share in pairs), Fraction(0))
    if total != 1:
        raise ValueError(
            f"the shares of {spec!r} add up to {Decimal(total.numerator) / total.denominator}, "
            f"not 1. Use shares that add up to 1, such as {_EXAMPLE}"
        )
    return SplitShares(tuple(names), tuple(_limits([share for _, share in pairs])))


def _parse_part(part: str, spec: str) -> tuple[str, Fraction]:
    name, sign, number = (each.strip() for each in part.partition("="))
    if not sign:
        raise ValueError(
            f"the splits {spec!r} have no share for {part!r}. Use NAME=SHARE,…, such as {_EXAMPLE}"
        )
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the splits {spec!r} have the invalid name {name!r}. Use letters, digits, '_', '-', "
            "and '.'"
        )
    try:
        share = Fraction(Decimal(number)) if _NUMBER.fullmatch(number) else Fraction(0)
    except InvalidOperation:
        share = Fraction(0)
    if not 0 < share <= 1:
        raise ValueError(
            f"the share of {name!r} in {spec!r} is {number!r}. Use a number above 0 and at most 1"
        )
    return name, share


def _limits(shares: Sequence[Fraction]) -> list[int]:
    return [int(sum(shares[: count + 1], Fraction(0)) * _HASHES) for count in range(len(shares))]


def hash_document(own_id: str | None, text: str, seed: int = 0) -> int:
    """Return the keyed hash of a document, from 0 to 2**64 - 1.

    The hash is an 8-byte BLAKE2b digest, keyed with the seed. Raises `UnicodeEncodeError` if the ID
    or text has an unpaired surrogate.
    """
    kind, value = (b"text", text) if own_id is None else (b"id", own_id)
    key = str(seed).encode()
    if len(key) > hashlib.blake2b.MAX_KEY_SIZE:
        key = hashlib.sha512(key).digest()
    digest = hashlib.blake2b(value.encode(), digest_size=8, key=key, person=kind)
    return int.from_bytes(digest.digest(), "big")
