"""The values of a sample, from the fields of a record and the names of its file's folders.

    {"body": "ab", "url": "u", "n": None} ─► text "ab", id "a.jsonl:1", url "u", n None
    {"body": ["ab"]}                      └► BadRecordError: the field 'body' is a list, not text

Without a text, the first kept field is the document, which each record must have:

    {"messages": [{"role": "user", …}]} ─► id "a.jsonl:1", messages, as JSON

The encodings of kept fields are given, or inferred from the first blocks of records. Values of
formats without types, such as CSV, are converted to the encoding that the user gave.

Hive, Spark, and DuckDB write fields as `name=value` in the names of folders:

    corpus/lang=en/year=2024/a.parquet             lang "en", year "2024"
    corpus/note=a%2Fb/a.jsonl                      note "a/b"
    corpus/lang=__HIVE_DEFAULT_PARTITION__/a.csv   lang null
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

from cloudload.config import choices
from cloudload.data import record_values, shard_entries, urls, writer
from cloudload.errors import ConvertError
from cloudload.tools.convert import input_files, input_records
from cloudload.tools.convert.config import ConvertConfig

_NULL = "__HIVE_DEFAULT_PARTITION__"

_BLOCKS_SEARCHED = 8


class NoTextError(record_values.BadRecordError):
    """A record lacks the field that contains the document. `advice` is for all such records."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.advice = advice


class Values(NamedTuple):
    """The values of a sample by column, and the record's own ID, or None if it has none.

    Values of JSON columns are encoded. `is_replaced` says whether characters of the record were
    replaced, because they are not Unicode.
    """

    by_column: dict[str, Any]
    own_id: str | None
    is_replaced: bool


def values_of(
    config: ConvertConfig, columns: Iterable[shard_entries.Column], record: input_records.Record
) -> Values:
    """Return the values of a record. Raises `BadRecordError` if it cannot be converted."""
    if record.fields is None:
        raise record_values.BadRecordError(record.problem)
    own_id = record_values.describe_id(_optional(record.fields, config.id_key))
    values, is_replaced = {"id": record.name if own_id is None else own_id}, record.is_replaced
    if config.has_text:
        values["text"], is_changed = _text(record.fields, config)
        is_replaced |= is_changed
    else:
        _check_document(record, config)
    for column in columns:
        if column.name not in values:
            value = _find_kept(record, column)
            if column.encoding == "json":
                replaces = config.errors == choices.REPLACE
                values[column.name], is_changed = record_values.encode_json(
                    value, column.name, replaces=replaces
                )
                is_replaced |= is_changed
            else:
                values[column.name] = _kept_value(value, column)
    if config.errors == choices.REPLACE:
        valid = {name: record_values.replace_surrogates(value) for name, value in values.items()}
        is_replaced, values = is_replaced or valid != values, valid
        own_id = None if own_id is None else values["id"]
    return Values(values, own_id, is_replaced)


def _check_document(record: input_records.Record, config: ConvertConfig) -> None:
    """Raise `BadRecordError` if a record without a text also lacks the first kept field."""
    source, name = record.source, config.document_field
    is_text = isinstance(source, input_files.InputFile) and source.format == "text"
    if is_text and config.format == choices.AUTO:
        raise record_values.BadRecordError(
            "the file is plain text, but text_key is None. To leave files out, pass a glob such as "
            "'corpus/*.parquet'"
        )
    fields = record.fields or {}
    if _optional(fields, name) is None and partition_fields(record).get(name) is None:
        known = record_values.describe_fields(fields)
        raise NoTextError(
            f"the record has no value for {name!r}, the first field to keep{known}",
            "Begin keep (--keep) with a field that each record has",
        )


def _find_kept(record: input_records.Record, column: shard_entries.Column) -> Any:
    """Return the value of a kept field: of the record, or if it has no such field, of its path."""
    try:
        return record_values.find_field(record.fields or {}, column.name)
    except KeyError:
        text = partition_fields(record).get(column.name)
    try:
        return None if text is None else parse_text(column.name, text, column.encoding)
    except ValueError:
        raise record_values.BadRecordError(
            f"the record has no field {column.name!r}, and the folder {column.name}={text} of its "
            f"path is not {column.encoding}. Keep it as another encoding, such as {column.name}:str"
        ) from None


def _optional(fields: Mapping[str, Any], name: str) -> Any:
    with contextlib.suppress(KeyError):
        return record_values.find_field(fields, name)
    return None


def _text(fields: Mapping[str, Any], config: ConvertConfig) -> tuple[str, bool]:
    """Return (the text of a record, whether bytes were replaced)."""
    key = config.document_field
    try:
        value = record_values.find_field(fields, key)
    except KeyError:
        raise NoTextError(
            f"the record has no field {key!r}{record_values.describe_fields(fields)}",
            input_records.advise_on_text(fields),
        ) from None
    if config.is_json_text and value is not None:
        return record_values.dump_json(value, key, ensure_ascii=False), False
    if isinstance(value, bytes):
        data, is_replaced = input_records.make_utf8(value, config.errors)
        try:
            return data.decode(), is_replaced
        except UnicodeDecodeError as error:
            raise record_values.BadRecordError(
                f"the field {key!r} is not UTF-8 (byte 0x{value[error.start]:02x} at offset "
                f"{error.start})"
            ) from None
    advice = ""
    if isinstance(value, list | dict):
        advice = f". To use its JSON as text, set text_key (--text-key) to {key}:json"
    return record_values.check_text(value, key, advice), False


def _kept_value(value: Any, column: shard_entries.Column) -> Any:
    kinds: dict[str, tuple[type, ...]] = {"str": (str,), "bytes": (bytes,)}
    numbers = (int, float) if column.encoding.startswith("float") else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds.get(column.encoding, numbers)):
        found = "missing or null" if value is None else record_values.name_kind(value)
        raise record_values.BadRecordError(
            f"the field {column.name!r} is {found}, not {column.encoding}. To allow any value, "
            f"keep {column.name}:json"
        )
    return value


def partition_fields(record: input_records.Record) -> Mapping[str, str | None]:
    """Return the fields in the path of a record's file, as text. Rows of datasets have none."""
    return _read_path(record.source.url) if isinstance(record.source, input_files.InputFile) else {}


@lru_cache(1024)
def _read_path(url: str) -> Mapping[str, str | None]:
    return {
        name: None if value == _NULL else _decode(value) for name, value in _raw_fields(url).items()
    }


def raw_path_field(url: str, name: str) -> str | None:
    """Return the value of a folder `name=value` in the path of a file, as it is in the path.

    Returns None if there is no such folder, or if the value is null.
    """
    value = _raw_fields(url).get(name)
    return None if value == _NULL else value


def _raw_fields(url: str) -> Mapping[str, str]:
    if urls.scheme_of(url) in ("http", "https"):
        url = url.partition("?")[0]
    pairs = (folder.partition("=") for folder in url.split("/")[:-1] if "=" in folder)
    return {_decode(name): value for name, _, value in pairs if name}


def _decode(text: str) -> str:
    try:
        return unquote(urls.utf8_name(text), errors="strict")
    except UnicodeDecodeError:
        return urls.utf8_name(text)


class PeekableBlocks:
    """An iterable of (unit index, block) whose next items can be peeked at."""

    def __init__(self, blocks: Iterator[tuple[int, input_records.InputBlock]]) -> None:
        self._blocks, self._peeked = blocks, deque[tuple[int, input_records.InputBlock]]()

    @property
    def is_begun(self) -> bool:
        """Whether an item was peeked at."""
        return bool(self._peeked)

    def peek(self, count: int) -> Iterator[input_records.InputBlock]:
        """Yield up to `count` of the next blocks without consuming them."""
        for index in range(count):
            if index == len(self._peeked):
                try:
                    self._peeked.append(next(self._blocks))
                except StopIteration:
                    return
            yield self._peeked[index][1]

    def __iter__(self) -> Iterator[tuple[int, input_records.InputBlock]]:
        while self._peeked:
            yield self._peeked.popleft()
        yield from self._blocks


def infer_columns(
    config: ConvertConfig, blocks: PeekableBlocks
) -> tuple[shard_entries.Column, ...]:
    """Return the columns of the kept fields.

    If the user gave no encoding for a field, and the format has encodings, the column has the same
    encoding as in the input. In other formats, it is `json`, which can hold null and values of any
    type, or `bytes` if the first value that is not null is bytes. Raises `ConvertError` if the
    first 8 blocks have no such value for a field, and the errors of readers.
    """
    encodings = dict(config.kept())
    missing = {name for name, encoding in encodings.items() if encoding is None}
    for found in _first_encodings(config, blocks, missing) if missing else ():
        encodings |= found
        missing -= found.keys()
        if not missing:
            break
    if missing:
        name = min(missing)
        raise ConvertError(
            f"cannot infer the encoding of the field {name!r}, because no record near the start of "
            "the input has a non-null value for it. Check the name in keep (--keep), or add an "
            f"encoding: {name}:json"
        )
    return tuple(
        shard_entries.Column.of(name, encoding or "json") for name, encoding in encodings.items()
    )


def _first_encodings(
    config: ConvertConfig, blocks: PeekableBlocks, missing: set[str]
) -> Iterator[dict[str, str]]:
    """Yield encodings of fields in `missing`, block by block and record by record."""
    for block in blocks.peek(_BLOCKS_SEARCHED):
        if isinstance(block, input_records.TypedBlock):
            given = block.column_encodings()
            yield {name: given[name] for name in given.keys() & missing}
        for record in block.records(config.document_field):
            if record.fields is not None:
                yield dict(_encodings_of(record, record.fields, sorted(missing)))


def _encodings_of(
    record: input_records.Record, fields: Mapping[str, Any], names: Iterable[str]
) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            value = record_values.find_field(fields, name)
        except KeyError:
            value = partition_fields(record).get(name)
        if value is not None:
            yield name, _encoding_of(value)


def _encoding_of(value: Any) -> str:
    return "bytes" if isinstance(value, bytes) else "json"


def parse_text(name: str, text: str, encoding: str | None) -> Any:
    """Return the value of a field for a column of `encoding`: a number, bytes, or the text.

    For a column of numbers, empty text is null. Raises `ValueError` if other text is not a number.
    """
    if encoding in (None, "str", "json"):
        return text
    if encoding == "bytes":
        return text.encode("utf-8", "surrogateescape")
    if not text.strip():
        return None
    try:
        return float(text) if encoding.startswith("float") else int(text)
    except ValueError:
        raise ValueError(
            f"the field {name!r} is not {encoding} (it is {writer.shorten(text)})"
        ) from None
