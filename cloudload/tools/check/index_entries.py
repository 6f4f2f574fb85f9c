"""Check `index.json` against the index format of MosaicML Streaming 0.13.

Each entry is checked as it is parsed, then all shards together. Entries become small objects while
the JSON is parsed, so that a million entries fit in memory. Tests compare each constant of the
format with Streaming itself. Streaming's readers take exactly the fields of an entry as arguments,
so an extra or missing field raises `TypeError` or `KeyError`.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, cast

import xxhash

from cloudload.config import TEXT_KEY, Chat, choices
from cloudload.data import document_columns, hashes, shard_entries
from cloudload.rows import conversation
from cloudload.tools.check.findings import Finding, Findings, find
from cloudload.tools.check.rules import BOTH, CLOUDLOAD
from cloudload.tools.check.shard_contents import check_codecs

_FILES = ("raw_data", "zip_data")
_MOST_NODES_BY_DEFAULT = 64
_REFUSED = object()

_FIELD_NAMES = """
version format samples size_limit compression hashes raw_data zip_data
column_names column_encodings column_sizes
"""
_ENCODING_NAMES = """
str bytes json str_int str_float str_decimal ndarray pkl
int int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64
pil jpeg png list[pil] list[jpeg] list[png] jpeg_array jpegarray
"""

ENTRY_FIELDS = frozenset(_FIELD_NAMES.split())
"""The fields of a shard's entry."""

FILE_FIELDS = frozenset({"basename", "bytes", "hashes"})
"""The fields of `raw_data` and `zip_data`."""

OTHER_FORMATS = ("csv", "json", "tsv", "xsv")
"""Shard formats that Streaming reads besides MDS."""

ENCODINGS = frozenset(_ENCODING_NAMES.split())
"""The encodings of MDS columns. `ndarray` may have a type and shape: `ndarray:int16:2,3`."""

UNSAFE_ENCODINGS = frozenset({"pkl"})
"""Encodings that Streaming reads only with `allow_unsafe_types=True`."""

_LEVELS = {"br": range(12), "bz2": range(1, 10), "gz": range(10), "zstd": range(1, 23)}
STREAMING_COMPRESSIONS = frozenset(
    ["br", "bz2", "gz", "snappy", "zstd"]
    + [f"{name}:{level}" for name, levels in _LEVELS.items() for level in levels]
)
"""The values of `compression` that Streaming accepts besides None."""


class DocumentKeys(NamedTuple):
    """Where a run finds its documents. If all are None, they may be anywhere."""

    text: str | None = None
    """The column of texts. A dataset without it may have arrays of token IDs."""
    tokens: str | None = None
    """The column of token IDs."""
    chat: Chat | str | None = None
    """How conversations are read. With `auto`, a dataset without the default column of texts may
    have conversations."""

    @property
    def read_chat(self) -> Chat | None:
        """How documents that may be conversations are read."""
        if self.tokens is not None:
            return None
        return Chat() if self.chat == choices.AUTO else cast("Chat | None", self.chat)


def check_index(
    data: bytes, keys: DocumentKeys, findings: Findings
) -> tuple[list[shard_entries.ShardInfo], bool]:
    """Check the bytes of an index, and add the problems to `findings`.

    Returns the shards that cloudload accepts, in order, and whether it accepts all shards.
    """
    num_entries = 0

    def parse(entry: dict[str, Any]) -> Any:
        nonlocal num_entries
        if "raw_data" not in entry:
            return entry
        num_entries += 1
        found, info = _check_entry(entry, _name_of(entry, num_entries - 1))
        findings.add(found)
        return info or _REFUSED

    try:
        shard_entries.check_extent(data)
        index = json.loads(data, object_hook=parse)
        shard_entries.check_version(index)
        entries = index["shards"]
        shards = [entry for entry in entries if isinstance(entry, shard_entries.ShardInfo)]
        num_refused = sum(entry is _REFUSED for entry in entries)
        if not isinstance(entries, list) or len(shards) + num_refused < len(entries):
            raise ValueError("'shards' is not a list of entries with raw_data")
    except shard_entries.FAULTS as error:
        findings.add([find("index-invalid", "index.json", shard_entries.explain_fault(error))])
        return [], False
    if not num_refused:
        findings.add(_check_samples(shards))
    for check in (_check_shard_names, _check_hashes):
        findings.add(check(shards))
    findings.add(check_codecs(shard.compression for shard in shards))
    findings.add(_check_columns(shards, keys))
    return shards, not num_refused


def _name_of(entry: Mapping[str, Any], number: int) -> str:
    raw = entry["raw_data"]
    name = raw.get("basename") if isinstance(raw, dict) else None
    return name[:200] if isinstance(name, str) and name else f"entry {number}"


# ---------------------------------------------------------------- an entry


def _check_entry(
    entry: dict[str, Any], where: str
) -> tuple[list[Finding], shard_entries.ShardInfo | None]:
    if entry.get("format") in OTHER_FORMATS:
        what = f"has the format {entry['format']!r}, but cloudload reads MDS"
        return [find("format", where, what)], None
    found = [*_check_fields(entry, where), *_check_compression(entry, where)]
    refusals = [*_check_files(entry, where)]
    found += refusals
    if any(finding.kind == "compression-unknown" for finding in found) or refusals:
        return found, None
    try:
        return found, shard_entries.parse_shard(entry)
    except shard_entries.FAULTS as error:
        files = [entry[field] for field in _FILES if isinstance(entry.get(field), dict)]
        sizes = [entry.get("samples"), *(file.get("bytes") for file in files)]
        is_known = entry.get("format") == "mds" and all(isinstance(size, int) for size in sizes)
        readers = (CLOUDLOAD,) if is_known else BOTH
        return [
            *found,
            find("entry-invalid", where, shard_entries.explain_fault(error), readers=readers),
        ], None


def _check_fields(entry: dict[str, Any], where: str) -> Iterator[Finding]:
    """Report fields that Streaming's shard reader does not accept, and missing fields."""
    faults = [_compare_fields(entry, ENTRY_FIELDS, "")]
    for name in _FILES:
        if isinstance(entry.get(name), dict):
            faults.append(_compare_fields(entry[name], FILE_FIELDS, f"{name}."))
    if entry.get("version", 2) != 2:
        faults.append(f"version is {entry['version']!r:.50}, not 2")
    if any(faults):
        yield find("entry-fields", where, "; ".join(filter(None, faults)))


def _compare_fields(found: dict[str, Any], expected: frozenset[str], prefix: str) -> str:
    lacking, extra = sorted(expected - found.keys()), sorted(found.keys() - expected)
    parts = [f"lacks the field {prefix}{name}" for name in lacking]
    parts += [f"has the unknown field {prefix}{name[:100]}" for name in extra]
    return "; ".join(parts)


def _check_compression(entry: dict[str, Any], where: str) -> Iterator[Finding]:
    value, is_compressed = entry.get("compression"), bool(entry.get("zip_data"))
    family = value.partition(":")[0] if isinstance(value, str) else None
    if is_compressed and family not in shard_entries.COMPRESSIONS:
        names = ", ".join(shard_entries.COMPRESSIONS)
        what = f"has compressed data, but its compression is {value!r:.100}. Known names: {names}"
        yield find("compression-unknown", where, what)
    elif is_compressed and value not in STREAMING_COMPRESSIONS:
        yield find("compression-level", where, f"compression is {value!r:.100}")
    elif value and not is_compressed:
        what = (
            f"compression is {value!r:.100}, but there is no compressed file. StreamingDataset "
            "deletes the raw file of such a shard if you pass local= without remote="
        )
        yield find("compression-unused", where, what)


def _check_files(entry: dict[str, Any], where: str) -> Iterator[Finding]:
    """Report file names and sizes that cloudload refuses."""
    for file in (entry[field] for field in _FILES if isinstance(entry.get(field), dict)):
        name, size = file.get("basename"), file.get("bytes")
        if isinstance(name, str) and (fault := shard_entries.fault_of_name(name)):
            normal = posixpath.normpath(name)
            if normal.startswith("/") or normal.split("/")[0] == "..":
                what = f"the file name {name[:100]!r} points outside the dataset's folder"
                yield find("name-escapes", where, f"{what}. Streaming would write to that path")
            else:
                yield find("name-refused", where, f"the file name {name[:100]!r} {fault}")
        if isinstance(size, int) and size > shard_entries.MOST_SHARD_BYTES:
            what = f"has {size:,} bytes. The offsets in a shard have 32 bits, so 4 GiB is the limit"
            yield find("too-large", where, what)


# ---------------------------------------------------------------- all shards


def _check_samples(shards: list[shard_entries.ShardInfo]) -> Iterator[Finding]:
    samples = sum(shard.samples for shard in shards)
    if not samples:
        yield find("empty", "", f"the dataset has {len(shards):,} shards, but no samples")
    elif samples <= _MOST_NODES_BY_DEFAULT:
        what = (
            f"the dataset has {samples} samples. StreamingDataset repeats samples if it has that "
            "many canonical nodes or more. With py1s and py2s, it has 64 per node by default"
        )
        yield find("few-samples", "", what)


def _check_shard_names(shards: list[shard_entries.ShardInfo]) -> Iterator[Finding]:
    names = Counter(file.name for shard in shards for file in (shard.raw, shard.zipped) if file)
    repeated = [name for name, count in names.items() if count > 1]
    for name in repeated:
        yield find("name-repeated", name, f"{names[name]:,} files of the index have this name")
    if not repeated:
        try:
            shard_entries.check_names(list(names))
        except ValueError as error:
            yield find("name-clash", "", str(error))


def _check_hashes(shards: list[shard_entries.ShardInfo]) -> Iterator[Finding]:
    counts: Counter[str] = Counter()
    for shard in shards:
        counts.update(shard.stored.hashes.keys())
        if hashes.fastest_hash(shard.stored.hashes) is None:
            what = (
                "has no hash that can be checked. cloudload checks only sizes and offsets. "
                "Streaming's validate_hash fails for this shard"
            )
            yield find("hash-absent", shard.raw.name, what)
    for name, count in counts.items():
        if not knows_hash(name):
            yield find("hash-unknown", "", f"Streaming cannot compute the hash {name[:100]!r}")
        elif count < len(shards):
            what = f"{count:,} of {len(shards):,} shards have the hash {name!r}"
            yield find("hash-partial", "", f"{what}. Streaming's validate_hash fails on the others")


def _check_columns(shards: list[shard_entries.ShardInfo], keys: DocumentKeys) -> Iterator[Finding]:
    first: dict[tuple[shard_entries.Column, ...], str] = {}
    for shard in shards:
        first.setdefault(shard.columns, shard.raw.name)
    seen: set[tuple[str, str]] = set()
    expected = None
    for columns, where in first.items():
        found = {column.name: column.encoding for column in columns}
        expected = expected or (found.keys(), where)
        if found.keys() != expected[0]:
            what = f"has the columns {_list(found)}, but {expected[1]} has {_list(expected[0])}"
            yield find("columns-differ", where, f"{what}. PyTorch cannot collate such samples")
        if keys.tokens is not None:
            yield from _check_tokens(found, keys.tokens, where)
        elif keys.text is not None:
            may_be_chat = keys.text == TEXT_KEY and keys.read_chat is not None
            yield from _check_text(found, keys.text, where, may_be_chat=may_be_chat)
        elif isinstance(keys.chat, Chat) and not conversation.find_columns(found, keys.chat):
            what = f"has no column of conversations. Its columns: {_list(found)}"
            yield find("text-column", where, what, advice="Pass messages_key of Chat")
        for name, encoding in found.items() - seen:
            yield from _check_encoding(name, encoding, where)
        seen |= found.items()


def _check_text(
    found: Mapping[str, str], text_key: str, where: str, *, may_be_chat: bool
) -> Iterator[Finding]:
    has_other = text_key not in found and (
        any(map(document_columns.is_token_array, found.values()))
        or (may_be_chat and conversation.find_columns(found, Chat()))
    )
    if found.get(text_key) not in ("str", "bytes") and not has_other:
        has = f"{found[text_key]}, not text, in" if text_key in found else "no"
        texts = _list(name for name in found if found[name] in ("str", "bytes")) or "none"
        yield find(
            "text-column", where, f"has {has} column {text_key!r}. Its text columns: {texts}"
        )


def _check_tokens(found: Mapping[str, str], tokens_key: str, where: str) -> Iterator[Finding]:
    if tokens_key not in found or not document_columns.holds_tokens(found[tokens_key]):
        has = f"{found[tokens_key][:100]}, not token IDs, in" if tokens_key in found else "no"
        could = (
            _list(name for name in found if document_columns.holds_tokens(found[name])) or "none"
        )
        what = f"has {has} column {tokens_key!r}. Columns that could contain token IDs: {could}"
        yield find("text-column", where, what, advice="Pass the name of the column: tokens_key=")


def _list(names: Any) -> str:
    return ", ".join(sorted(names))[:300]


def _is_decoded(encoding: str) -> bool:
    return encoding in ("str", "bytes", "json", *shard_entries.FIXED_FORMATS)


def _check_encoding(name: str, encoding: str, where: str) -> Iterator[Finding]:
    column = f"column {name[:100]!r} has the encoding {encoding[:100]!r}"
    if encoding in UNSAFE_ENCODINGS:
        yield find("pickle", where, f"{column}. Reading its pickled values may run code")
    elif not knows_encoding(encoding):
        what = f"{column}, which Streaming does not support. Streaming decodes all columns"
        yield find("encoding-unknown", where, what)
    elif not (document_columns.holds_tokens(encoding) or _is_decoded(encoding)):
        yield find("encoding-unread", where, f"{column}, which cloudload does not decode")


def knows_encoding(encoding: str) -> bool:
    """Whether Streaming decodes columns of this encoding."""
    return encoding in ENCODINGS or encoding.startswith("ndarray:")


@cache
def knows_hash(name: str) -> bool:
    """Whether Streaming can compute this hash with this version of Python."""
    is_hashlib = name in hashlib.algorithms_available and hasattr(hashlib, name)
    return name in xxhash.algorithms_available or (is_hashlib and not name.startswith("shake_"))
