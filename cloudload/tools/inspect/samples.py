"""Read samples of an MDS dataset: the first samples, or those that match an ID or a pattern.

the first samples    the first bytes of the first shards      hashes are not checked
an ID, a pattern     whole shards, in order, until found      hashes of downloads are checked

With `mask`, a sample also has the document that a run makes of it, and which parts are trained.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from cloudload.config import TEXT_KEY, Chat, Encode, Stream, TokenDtype, Transform, checks
from cloudload.data import (
    ID_KEY,
    Dataset,
    Retry,
    Shard,
    document_columns,
    download_shard,
    is_in_place,
    open_corpus,
    open_shard_start,
    open_temporary,
    shard_entries,
)
from cloudload.errors import DatasetError
from cloudload.rows import conversation
from cloudload.system import counted, escape, temp_files, terminal
from cloudload.tools.inspect import turns
from cloudload.tools.inspect.masked_text import MaskedText, mask_text
from cloudload.tools.inspect.token_texts import TokenTexts

_OF_CHATS = ("json", "str")
_READABLE = ("str", "bytes", "json", *shard_entries.FIXED_FORMATS)
_DEFAULT_LIMIT = 5
_SHOWN_CHARACTERS, _BEFORE_MATCH = 800, 200
_SHOWN_VALUE, _SHOWN_IDS = 200, 16
_INDENT = "    "


@dataclass(frozen=True)
class Unread:
    """A value that cloudload does not decode, such as an image or a pickle."""

    encoding: str
    """The MDS encoding."""
    bytes: int
    """The size of the value in bytes."""


@dataclass(frozen=True)
class Sample:
    """A sample of a dataset."""

    sample: int
    """The index of the sample in the dataset, from 0."""
    shard: str
    """The file name of the sample's uncompressed shard within the dataset."""
    values: Mapping[str, Any]
    """The decoded value of each column: `str`, `bytes`, a number, or a JSON value. Token IDs are a
    list. A value that cannot be decoded safely is `Unread`."""
    match: tuple[int, int] | None = None
    """The first match of the pattern in the text, as characters [start, stop)."""
    document: MaskedText | None = None
    """With `mask`, the document that a run makes of the sample."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, as JSON types.

        A `bytes` value becomes text if it is UTF-8, and otherwise `{"base64": …}`. An `Unread`
        value becomes its encoding and size. There is no `document` without `mask`.
        """
        values = {name: _to_json(value) for name, value in self.values.items()}
        found = {"sample": self.sample, "shard": self.shard, "values": values, "match": self.match}
        return found if self.document is None else {**found, "document": self.document.as_dict()}

    def describe_place(self, *, is_full: bool) -> list[str]:
        """List what identifies the sample, and the size of its document with `mask`."""
        place = [f"sample {self.sample:,}", self.shard]
        if self.values.get(ID_KEY) is not None:
            place.append(f"id {_describe_value(self.values[ID_KEY], is_full)}")
        if self.document is not None:
            place.append(counted(self.document.tokens, "token"))
            place.append(f"{self.document.trained:,} trained")
        return place

    def describe(self, text_key: str, columns: int, *, is_full: bool) -> Iterator[str]:
        """Yield the lines that show the sample on a terminal that is `columns` cells wide."""
        values = dict(self.values)
        text = values.pop(text_key, None)
        if isinstance(text, bytes):
            text = text.decode("utf-8", "backslashreplace")
        head = self.describe_place(is_full=is_full)
        if values.get(ID_KEY) is not None:
            del values[ID_KEY]
        if isinstance(text, str):
            head.append(counted(len(text), "character"))
        yield "  ".join(head)
        if text is not None and not isinstance(text, str):
            values[text_key] = text
        listed = {name: found for name in values if (found := turns.find_messages(values[name]))}
        for name in [each for each in values if each not in listed]:
            shown = escape(f"{name}: {_describe_value(values[name], is_full)}")
            yield from terminal.wrap(f"  {shown}", columns)
        for name, messages in listed.items():
            yield f"  {escape(name)}: {counted(len(messages), 'message')}"
            yield from turns.describe_messages(messages, columns, _INDENT, is_full=is_full)
        if isinstance(text, str):
            yield from self._describe_text(text, columns, is_full)

    def _describe_text(self, text: str, columns: int, is_full: bool) -> Iterator[str]:
        """Yield the lines of a text, or of its part around the match if it is not shown in full."""
        start = 0 if self.match is None else max(0, self.match[0] - _BEFORE_MATCH)
        stop = start + _SHOWN_CHARACTERS
        if is_full:
            start, stop = 0, len(text)
        if start:
            yield f"  … {counted(start, 'character')} before"
        for line in terminal.escape_lines(text[start:stop]):
            yield from (f"{_INDENT}{part}" for part in terminal.wrap(line, columns - len(_INDENT)))
        if stop < len(text):
            yield f"  … {counted(len(text) - stop, 'more character')}"


def _describe_value(value: Any, is_full: bool) -> str:
    if isinstance(value, Unread):
        return f"{counted(value.bytes, 'byte')} of {value.encoding}, not decoded"
    if isinstance(value, list) and value and all(isinstance(each, int) for each in value):
        shown = value if is_full else value[:_SHOWN_IDS]
        more = "" if len(shown) == len(value) else " …"
        return f"{counted(len(value), 'integer')}: {' '.join(map(str, shown))}{more}"
    if isinstance(value, bytes):
        text = value.decode("utf-8", "backslashreplace")
        kind = f"{counted(len(value), 'byte')}: "
    else:
        text, kind = value if isinstance(value, str) else json.dumps(value), ""
    if is_full or len(text) <= _SHOWN_VALUE:
        return f"{kind}{text}"
    return f"{kind}{text[:_SHOWN_VALUE]} … {counted(len(text) - _SHOWN_VALUE, 'more character')}"


def _to_json(value: Any) -> Any:
    if isinstance(value, Unread):
        return asdict(value)
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def read_samples(
    dataset: str | os.PathLike[str],
    *,
    split: str | None = None,
    limit: int | None = None,
    id: str | None = None,
    pattern: str | None = None,
    text_key: str | None = None,
    mask: bool = False,
    tokenizer: Any = None,
    chat: Chat | None = None,
    transform: Transform | None = None,
    encode: Encode | None = None,
    seed: int | None = None,
    tokens_key: str | None = None,
    tokens_dtype: TokenDtype | None = None,
    labels_key: str | None = None,
    retry: Retry | None = None,
) -> Iterator[Sample]:
    """Yield samples of an MDS dataset, in the order in which they are stored.

    Args:
        dataset: the folder or URL that contains `index.json`, or that contains the folder `split`.
        split: the subfolder to read, such as `train`.
        limit: maximum number of samples; by default 5, or 1 with `id`.
        id: yield only samples whose column `id` is this text.
        pattern: yield only samples whose text contains this regular expression. Of a column of
            JSON, each text in it is searched.
        text_key: the column that holds the document, by default `text`, or the columns of
            conversations if there is no such column. If given, the column must exist. Only
            `pattern` and `mask` use it.
        mask: whether to tokenize documents as a run does, to see which parts are trained, and what
            is left out. This requires `tokenizer`, `tokens_key`, or `encode`.
        tokenizer: as for `CloudLoader`.
        chat: as for `CloudLoader`. There is no limit unless its `max_tokens` is set.
        transform: as for `CloudLoader`.
        encode: as for `CloudLoader`.
        seed: as for `CloudLoader`. It matters only with `encode`.
        tokens_key: as for `CloudLoader`.
        tokens_dtype: as for `CloudLoader`.
        labels_key: as for `CloudLoader`.
        retry: how long to retry a request to the store.

    Raises:
        ValueError: an argument is invalid.
        DatasetError: the index or a shard is damaged, a needed column is missing, or the dataset
            has no samples.
        StoreError: the index or a shard cannot be read.
        TokenizerError: the tokenizer cannot be loaded, or cannot encode a document.
    """
    limit = (1 if id is not None else _DEFAULT_LIMIT) if limit is None else limit
    limit = checks.as_integer("limit", limit, 1)
    stream = Stream(os.fspath(dataset), split=split)
    expression = _compile(pattern)
    [found] = open_corpus([stream.locate(retry or Retry())]).datasets
    chosen = _Filter(id, expression, text_key or TEXT_KEY, _find_json(found, text_key))
    if not chosen.json_columns and (text_key is not None or pattern is not None):
        document_columns.check_text_column(found, chosen.text_key)
    chosen.check(found)
    is_searched = id is not None or expression is not None
    columns = {"tokens_key": tokens_key, "tokens_dtype": tokens_dtype, "labels_key": labels_key}
    options = {"tokenizer": tokenizer, "chat": chat, "transform": transform, "encode": encode}
    options |= {"seed": seed, **columns, "text_key": text_key}
    given = {name: value for name, value in options.items() if value is not None}
    masks = _open_masks(stream, found, given) if mask else None
    if not mask and (unused := [name for name in given if name != "text_key"]):
        raise ValueError(f"{unused[0]} is set, but only mask uses it. Set mask=True, or omit it")
    open_shard = _open_whole if is_searched else open_shard_start
    return _read(found, open_shard, limit, chosen, masks)


_Masks = Callable[[Shard, int], Callable[[int], MaskedText]]


def _open_masks(stream: Stream, dataset: Dataset, given: Mapping[str, Any]) -> _Masks:
    """Return a function that opens a shard, given the index of its first sample in the dataset. Its
    result reads a sample of the shard as a run does.

    `given` has options of `CloudLoader`. Raises `ValueError` if the options cannot be used, and
    `DatasetError` if a column is missing.
    """
    from cloudload.tools.inspect import trained_documents

    documents = dict(given)
    tokenizer = documents.pop("tokenizer", None)
    recipe = trained_documents.open_recipe_of(stream, tokenizer, **documents)
    [source] = recipe.config.sources
    source.check_columns(dataset)
    reader = trained_documents.TrainedReader(recipe)
    texts = TokenTexts(recipe.tokenizer.json)

    def open_shard(shard: Shard, first: int) -> Callable[[int], MaskedText]:
        documents = reader.open(shard, first)

        def read(sample: int) -> MaskedText:
            [document] = documents.read([sample])
            return mask_text(document, texts)

        return read

    return open_shard


def _compile(pattern: str | None) -> re.Pattern[str] | None:
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"{pattern!r} is not a regular expression: {error}. Escape special characters with \\"
        ) from None


@dataclass(frozen=True)
class _Filter:
    """Chooses samples by ID and by a pattern in the text."""

    id: str | None
    pattern: re.Pattern[str] | None
    text_key: str
    json_columns: tuple[str, ...]
    """The columns that the pattern is searched in instead of the text."""

    def find(self, shard: Shard, sample: int) -> tuple[bool, tuple[int, int] | None]:
        """Return whether a sample is chosen, and the range of the pattern's first match."""
        if self.id is not None and not shard.has_id(sample, self.id):
            return False, None
        if self.pattern is None:
            return True, None
        if self.json_columns:
            values = shard.read_columns(sample, self.json_columns)
            return any(map(self.pattern.search, conversation.list_texts(values))), None
        [text] = shard.read_texts([sample], shard.column_index(self.text_key))
        match = self.pattern.search(text)
        return match is not None, match and match.span()

    def check(self, dataset: Dataset) -> None:
        """Raise `DatasetError` if an ID is given, but not all shards have a column of IDs."""
        sets = dataset.table.column_sets()
        names = [{column.name for column in columns} for columns in sets]
        if self.id is not None and any(ID_KEY not in each for each in names):
            raise DatasetError(
                f"{dataset.location} has shards without a column {ID_KEY!r}, so documents "
                "cannot be found by ID. Search by text instead (pattern, --grep)"
            )


def _find_json(dataset: Dataset, text_key: str | None) -> tuple[str, ...]:
    """Return the columns of JSON in which to search, or none if the text is searched."""
    sets = [{each.name: each.encoding for each in some} for some in dataset.table.column_sets()]
    if text_key is not None:
        is_json = all(encodings.get(text_key) == "json" for encodings in sets)
        return (text_key,) if is_json else ()
    names = [name for name in sets[0] if all(each.get(name) in _OF_CHATS for each in sets)]
    has_text = any(TEXT_KEY in encodings for encodings in sets)
    return () if has_text else conversation.find_columns(names, Chat())


_OpenShard = Callable[
    [Dataset, shard_entries.ShardInfo, int], contextlib.AbstractContextManager[Shard]
]


@contextlib.contextmanager
def _open_whole(dataset: Dataset, info: shard_entries.ShardInfo, _: int) -> Iterator[Shard]:
    """Open a whole shard: in place, or downloaded to a temporary file, with its hash checked."""
    if is_in_place(dataset, info):
        with open_shard_start(dataset, info, info.samples) as shard:
            yield shard
        return
    location = dataset.locate(info)
    with (
        temp_files.explained_full_disk(),
        tempfile.NamedTemporaryFile(prefix="cloudload-head-") as file,
    ):
        target = cast("BinaryIO", file)
        fault = download_shard(
            location, info, target, checks_hash=True, count_bytes=lambda _: None
        ).fault
        if fault is not None:
            raise DatasetError(f"{location} {fault}. Convert or copy the shard again")
        file.flush()
        yield open_temporary(Path(file.name), info, location)


def _read(
    dataset: Dataset,
    open_shard: _OpenShard,
    limit: int,
    chosen: _Filter,
    masks: _Masks | None,
) -> Iterator[Sample]:
    first = 0
    for info in dataset.shards:
        # a shard without samples may have no file
        if info.samples:
            with open_shard(dataset, info, limit) as shard:
                read_document = masks(shard, first) if masks else lambda _: None
                for sample in range(info.samples):
                    is_chosen, match = chosen.find(shard, sample)
                    if is_chosen:
                        values = _read_values(shard, sample)
                        document = read_document(sample)
                        yield Sample(first + sample, info.raw.name, values, match, document)
                        limit -= 1
                        if not limit:
                            return
        first += info.samples


def _read_values(shard: Shard, sample: int) -> dict[str, Any]:
    return {
        column.name: _read_value(shard, sample, index, column.encoding)
        for index, column in enumerate(shard.info.columns)
    }


def _read_value(shard: Shard, sample: int, column: int, encoding: str) -> Any:
    name = shard.info.columns[column].name
    if encoding in _READABLE:
        return shard.read_columns(sample, [name])[name]
    if document_columns.is_token_array(encoding):
        [ids] = document_columns.open_token_column(shard, name, None).read(
            shard, np.array([sample])
        )
        return np.frombuffer(ids.values[0], ids.dtype).tolist()
    return Unread(encoding, len(shard.read_bytes(sample, column)))
