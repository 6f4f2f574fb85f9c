"""The options of a conversion that a resumed run may not change, such as the shares of its splits.

    spec       train=0.9,val=0.1
    limits     train: 0.9 * 2**64    val: 2**64
    document   id "doc-7" ─ keyed hash ─► 0x1f3c… < 0.9 * 2**64 ─► train

A document is always in the same split. The split is a function of the seed and of the document's
own ID, or of its text if it has no ID. It does not depend on the order, number, or names of the
inputs. If the first share grows, no document leaves the first split.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any

from cloudload.config import checks, choices
from cloudload.data import shard_entries, writer
from cloudload.tools.convert import input_records

_HASHES = 1 << 64
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NUMBER = re.compile(r"\d*\.?\d+|\d+\.")
_EXAMPLE = "train=0.999,val=0.001"

_WRITABLE = re.compile(r"str|bytes|json|u?int(8|16|32|64)|int|float(32|64)")

_JSON = ":json"
_ADDED = {"like": False, "splits": None, "quoting": choices.CSV_QUOTING, "errors": choices.STRICT}

SEGMENT_FOLDER = re.compile(r"\d{5,}")


@dataclass(frozen=True)
class ConvertConfig:
    """The options of a conversion that a resumed run may not change.

    The journal stores them and compares them on resume. All but `block_bytes` determine the bytes
    of the output. Raises `ValueError` if an option other than `format` is invalid. `list_inputs`
    checks `format`.
    """

    text_key: str | None = "text"
    """The field that contains the document. With `:json` after the name, the document is the JSON
    of the field's value. With None, a document has no text, but only the fields in `keep`."""
    id_key: str = "id"
    """The field that becomes `id` if it is an integer or a nonempty string. Otherwise `id` is
    `NAME:NUMBER`: the name of the file or dataset, and the number of the line or row. For a file
    that is one document (format `text`), it is the file name alone."""
    keep: tuple[str, ...] = ()
    """Other fields to keep, each as `name` or `name:encoding`. A field that a record does not have
    may be a folder `name=value` in the path of its file. If `text_key` is None, the first field is
    the document."""
    format: str = "auto"
    """`auto` (by file name), `jsonl`, `json` (an array of objects, or JSON Lines), `csv`, `tsv`,
    `parquet`, `arrow`, `webdataset`, `wet`, `mds`, `text` (one document per file) or `lines` (one
    document per line)."""
    compression: str | None = "zstd"
    """`zstd`, `gz`, `bz2` or `br`, optionally with `:LEVEL`; or None."""
    hashes: tuple[str, ...] = ("xxh64",)
    """Names of hash algorithms. The index contains one hash per shard and algorithm."""
    shard_bytes: Annotated[int, checks.within(1024, (1 << 32) - 1)] = writer.DEFAULT_SHARD_BYTES
    """The maximum raw size, in bytes, of a shard with more than one document."""
    block_bytes: checks.Count = input_records.DEFAULT_BLOCK_BYTES
    """Approximate bytes of input per block. A block is the unit of work."""
    splits: str | None = None
    """The splits and their shares, such as `train=0.999,val=0.001`, or None without splits."""
    quoting: choices.Quoting = "csv"
    """How quotes in CSV and TSV files are read: as `csv`, or as plain text with `none`."""
    errors: choices.TextErrors = "strict"
    """Bytes that are not UTF-8, and unpaired surrogates, make a record bad (`strict`), or are
    replaced with U+FFFD (`replace`)."""

    like: bool = False
    """Whether each shard is a copy of a shard of the input, with its columns. If so, `text_key`
    only says which column to count."""

    def __post_init__(self) -> None:
        if self.text_key is None and not self.keep and not self.like:
            raise ValueError(
                "keep is empty and text_key is None, so there is nothing to write. Set keep to "
                "the fields of the documents, such as ['messages'] (--keep messages)"
            )
        names, written = [name for name, _ in self.kept()], list(self.own_columns)
        if clash := {name for name in names if names.count(name) > 1 or name in written}:
            raise ValueError(
                f"cannot keep {sorted(clash)}, because `{'` and `'.join(written)}` "
                f"{'is' if len(written) == 1 else 'are'} always written, and each field can be "
                "kept only once. Remove the extra names from keep"
            )
        for name, encoding in self.kept():
            if not name or (encoding and not _WRITABLE.fullmatch(encoding)):
                raise ValueError(
                    f"cannot keep {name!r} as {encoding!r}. Use NAME or NAME:ENCODING, with an "
                    "encoding such as str, bytes, json, int, int32, or float64"
                )
        checks.check_fields(self)
        self.shard_format([])
        if folders := [name for name in self.split_names if SEGMENT_FOLDER.fullmatch(name)]:
            raise ValueError(
                f"a split has the name {folders[0]!r}, which is reserved for a segment's folder. "
                "Rename the split"
            )

    @cached_property
    def shares(self) -> SplitShares | None:
        """The splits and their shares, or None."""
        return None if self.splits is None else parse_shares(self.splits)

    @property
    def split_names(self) -> tuple[str, ...]:
        """The names of the splits; only "" if all documents are in one dataset."""
        return self.shares.names if self.shares else ("",)

    def recipe(self) -> dict[str, Any]:
        """Return the options that a rerun must match, by name."""
        values = asdict(self) | {"keep": list(self.keep), "hashes": list(self.hashes)}
        # recipes that earlier versions stored do not have these keys
        for name, default in _ADDED.items():
            if values[name] == default:
                del values[name]
        return values

    def completed(self, recipe: Mapping[str, Any]) -> ConvertConfig:
        """Return the config in which a stored recipe replaces the options that have their default.

        Options with other values stay as they are, even if they differ from the recipe.
        """
        unset = [each.name for each in fields(self) if getattr(self, each.name) == each.default]
        found: dict[str, Any] = {name: recipe[name] for name in unset if name in recipe}
        for name in found.keys() & {"keep", "hashes"}:
            found[name] = tuple(found[name])
        return replace(self, **found)

    @property
    def has_text(self) -> bool:
        """Whether documents have a text."""
        return self.text_key is not None

    @property
    def own_columns(self) -> dict[str, str]:
        """The encodings of the columns that are always written, by name."""
        if self.like:
            return {}
        return {"text": "str", "id": "str"} if self.has_text else {"id": "str"}

    @property
    def document_field(self) -> str:
        """The name of the field that contains the document: its text, or the first kept field."""
        return self.kept()[0][0] if self.text_key is None else self.text_key.removesuffix(_JSON)

    @property
    def is_json_text(self) -> bool:
        """Whether the document is the JSON of a field's value."""
        return self.text_key is not None and self.text_key.endswith(_JSON)

    def kept(self) -> list[tuple[str, str | None]]:
        """Return (name, encoding) of each field to keep; the encoding is None if it is omitted."""
        parts = (item.partition(":") for item in self.keep)
        return [(name, encoding or None) for name, _, encoding in parts]

    def fields(self) -> input_records.Fields:
        """Return the record fields that the conversion reads."""
        kept = dict(self.kept())
        given = {name: encoding for name, encoding in kept.items() if encoding}
        names = dict.fromkeys([self.document_field, self.id_key, *kept])
        return input_records.Fields(names, given, self.quoting, has_text=self.has_text)

    def shard_format(self, kept: Iterable[shard_entries.Column]) -> writer.ShardFormat:
        """Return the format of the shards; `kept` are the columns of the kept fields.

        Raises `ValueError` if the compression or a hash is invalid.
        """
        columns = [*(shard_entries.Column.of(*own) for own in self.own_columns.items()), *kept]
        columns.sort(key=lambda column: column.name)
        hashes = tuple(sorted(set(self.hashes)))  # the order that Streaming's writer uses
        return writer.ShardFormat(tuple(columns), self.compression, hashes, self.shard_bytes)


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
    share = Fraction(Decimal(number)) if _NUMBER.fullmatch(number) else Fraction(0)
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
