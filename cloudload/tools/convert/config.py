"""The options of a conversion that a resumed run may not change."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from cloudload.config.checks import as_choice, as_integer, settle
from cloudload.config.choices import CSV_QUOTING, QUOTINGS, STRICT, TEXT_ERRORS
from cloudload.data.mds.index import Column
from cloudload.data.mds.writer import DEFAULT_SHARD_BYTES, ShardFormat
from cloudload.tools.convert.records import DEFAULT_BLOCK_BYTES, Fields
from cloudload.tools.convert.split_by_hash import SplitShares, parse_shares

_WRITABLE = re.compile(r"str|bytes|json|u?int(8|16|32|64)|int|float(32|64)")

_JSON_SUFFIX = ":json"
_ADDED = {"splits": None, "quoting": CSV_QUOTING, "errors": STRICT}

_SEGMENT_FOLDER = re.compile(r"\d{5,}")


@dataclass(frozen=True)
class ConvertConfig:
    """The options of a conversion that a resumed run may not change.

    The journal stores them and compares them on resume. All but `block_bytes` determine the bytes
    of the output. Raises `ValueError` if an option other than `format` is invalid. `list_inputs`
    checks `format`.
    """

    text_key: str = "text"
    """The field that contains the document. With `:json` after the name, the document is the JSON
    of the field's value."""
    id_key: str = "id"
    """The field that becomes `id` if it is an integer or a nonempty string. Otherwise `id` is
    `NAME:NUMBER`: the name of the file or dataset, and the number of the line or row. For a file
    that is one document (format `text`), it is the file name alone."""
    keep: tuple[str, ...] = ()
    """Other fields to keep, each as `name` or `name:encoding`. A field that a record does not have
    may be a folder `name=value` in the path of its file."""
    format: str = "auto"
    """`auto` (by file name), `jsonl`, `json` (an array of objects, or JSON Lines), `csv`, `tsv`,
    `parquet`, `arrow`, `webdataset`, `wet`, `mds`, `text` (one document per file) or `lines` (one
    document per line)."""
    compression: str | None = "zstd"
    """`zstd`, `gz`, `bz2` or `br`, optionally with `:LEVEL`; or None."""
    hashes: tuple[str, ...] = ("xxh64",)
    """Names of hash algorithms. The index contains one hash per shard and algorithm."""
    shard_bytes: int = DEFAULT_SHARD_BYTES
    """The maximum raw size, in bytes, of a shard with more than one document."""
    block_bytes: int = DEFAULT_BLOCK_BYTES
    """Approximate bytes of input per block. A block is the unit of work."""
    splits: str | None = None
    """The splits and their shares, such as `train=0.999,val=0.001`, or None without splits."""
    quoting: str = CSV_QUOTING
    """How quotes in CSV and TSV files are read: as `csv`, or as plain text with `none`."""
    errors: str = STRICT
    """Bytes that are not UTF-8, and unpaired surrogates, make a record bad (`strict`), or are
    replaced with U+FFFD (`replace`)."""

    def __post_init__(self) -> None:
        names = [name for name, _ in self.kept()]
        if clash := {name for name in names if names.count(name) > 1 or name in ("text", "id")}:
            raise ValueError(
                f"cannot keep {sorted(clash)}, because `text` and `id` are always written, and "
                "each field can be kept only once. Remove the extra names from keep"
            )
        for name, encoding in self.kept():
            if not name or (encoding and not _WRITABLE.fullmatch(encoding)):
                raise ValueError(
                    f"cannot keep {name!r} as {encoding!r}. Use NAME or NAME:ENCODING, with an "
                    "encoding such as str, bytes, json, int, int32, or float64"
                )
        settle(self, ("quoting",), as_choice, QUOTINGS)
        settle(self, ("errors",), as_choice, TEXT_ERRORS)
        settle(self, ("block_bytes",), as_integer, 1)
        settle(self, ("shard_bytes",), as_integer, 1024, (1 << 32) - 1)
        self.shard_format([])
        if folders := [name for name in self.split_names if _SEGMENT_FOLDER.fullmatch(name)]:
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
        values = asdict(self)
        # recipes that earlier versions stored do not have these keys
        for name, default in _ADDED.items():
            if values[name] == default:
                del values[name]
        return values

    @property
    def text_field(self) -> str:
        """The name of the field that contains the document."""
        return self.text_key.removesuffix(_JSON_SUFFIX)

    @property
    def is_json_text(self) -> bool:
        """Whether the document is the JSON of a field's value."""
        return self.text_key.endswith(_JSON_SUFFIX)

    def kept(self) -> list[tuple[str, str | None]]:
        """Return (name, encoding) of each field to keep; the encoding is None if it is omitted."""
        parts = (item.partition(":") for item in self.keep)
        return [(name, encoding or None) for name, _, encoding in parts]

    def fields(self) -> Fields:
        """Return the record fields that the conversion reads."""
        kept = dict(self.kept())
        given = {name: encoding for name, encoding in kept.items() if encoding}
        return Fields([self.text_field, self.id_key, *kept], given, self.quoting)

    def shard_format(self, kept: Iterable[Column]) -> ShardFormat:
        """Return the format of the shards; `kept` are the columns of the kept fields.

        Raises `ValueError` if the compression or a hash is invalid.
        """
        columns = [Column.of("text", "str"), Column.of("id", "str"), *kept]
        columns.sort(key=lambda column: column.name)
        return ShardFormat(tuple(columns), self.compression, self.hashes, self.shard_bytes)
