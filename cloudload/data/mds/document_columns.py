"""Check the columns that hold documents before a run, and read token IDs of many samples at once.

text          str, bytes
token IDs     bytes, ndarray, ndarray:uint16, ndarray:uint16:2048, json

encoding              value of a sample               dtype of the IDs
bytes                 IDs                             not stored, so the user passes it
ndarray:uint16:2048   IDs                             in the encoding
ndarray:uint16        shape, IDs                      in the encoding
ndarray               dtype, shape, IDs               in each sample
json                  a list of integers              int64

shape   a byte with the number of axes and the width of a length, then the length of each axis
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from cloudload.data.mds import shard_entries
from cloudload.data.mds.array_values import INTEGERS_BY_CODE
from cloudload.data.mds.dataset import Dataset
from cloudload.data.mds.shard import ID_KEY, Shard, find_problem
from cloudload.data.mds.virtual_index import find_chat
from cloudload.errors import DatasetError
from cloudload.system import Ints

TokenDtype = Literal["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
TOKEN_DTYPES = get_args(TokenDtype)
_TEXT_ENCODINGS = ("str", "bytes")
_ARRAY = "ndarray"
_MOST_AXES = 63
_ABSENT = {
    "tokens_key": "Set tokens_key to the column of token IDs, or omit it to read text",
    "labels_key": "Set labels_key to the column of labels or of a mask, or omit it",
}
"""What to do about a column that does not exist, by the option that names it."""
FIND_DTYPE = (
    "Use the dtype of the arrays that were written. llm-foundry's ConcatTokensDataset writes "
    "int64. Other writers often use uint16 for vocabularies of up to 65,536 tokens, and "
    "int32 otherwise"
)

Dtype = np.dtype[Any]


def check_text_column(dataset: Dataset, text_key: str) -> None:
    """Raise `DatasetError` unless `text_key` is a str or bytes column of every shard."""
    for columns in dataset.table.column_sets():
        encodings = {column.name: column.encoding for column in columns}
        encoding = encodings.get(text_key)
        if encoding in _TEXT_ENCODINGS:
            continue
        found = f"{encoding}, not text, in column" if encoding else "no column"
        raise DatasetError(
            f"{dataset.location} has {found} {text_key!r}. {_advise_on_text(encodings)}"
        )


def check_token_columns(
    dataset: Dataset, key: str, dtype: str | None, labels_key: str | None = None
) -> None:
    """Raise `DatasetError` unless every shard has a column `key` of token IDs, and a column
    `labels_key`, if any, that says which of them are trained.

    `dtype` is the dtype of the values of a column of bytes. If neither column is, it must be None
    or the dtype that the encoding of the token IDs states.
    """
    names = {"tokens_key": key, "labels_key": labels_key}
    url = dataset.location
    for columns in dataset.table.column_sets():
        encodings = {column.name: column for column in columns}
        found = {}
        for option, name in names.items():
            if name in encodings:
                found[option] = encodings[name]
            elif name is not None:
                possible = ", ".join(each.name for each in columns if holds_tokens(each.encoding))
                raise DatasetError(
                    f"{url} has no column {name!r}. {_ABSENT[option]}. Possible columns: "
                    f"{possible or 'none'}"
                )
        for option, column in found.items():
            _check_encoding(f"column {column.name!r} of {url}", column, option, dtype)
        encoding = found["tokens_key"].encoding
        has_bytes = any(column.encoding == "bytes" for column in found.values())
        if dtype is not None and not has_bytes and dtype != _split_encoding(encoding)[0]:
            raise DatasetError(
                f"column {key!r} of {url} has the encoding {encoding}, but tokens_dtype is "
                f"{dtype!r}. Omit tokens_dtype, which applies only to columns of bytes"
            )


def holds_tokens(encoding: str) -> bool:
    """Whether a column of this encoding can hold the token IDs of a sample."""
    kind, colon, rest = encoding.partition(":")
    if kind != _ARRAY or not colon:
        return encoding in ("bytes", "json", _ARRAY)
    dtype, colon, shape = rest.partition(":")
    lengths = shape.split(",") if colon else []
    is_shape = all(each.isdecimal() and len(each) < 10 and int(each) for each in lengths)
    return dtype in TOKEN_DTYPES and is_shape and len(lengths) <= _MOST_AXES


def is_token_array(encoding: str) -> bool:
    """Whether a column of this encoding holds arrays that can only be token IDs, not text."""
    return encoding.startswith(_ARRAY) and holds_tokens(encoding)


def _advise_on_text(encodings: Mapping[str, str]) -> str:
    texts = ", ".join(name for name in encodings if encodings[name] == "str" and name != ID_KEY)
    tokens = [name for name in encodings if encodings[name] != "json"]
    tokens = [name for name in tokens if holds_tokens(encodings[name])]
    advice = [f"Set text_key to one of its text columns: {texts}"] if texts else []
    if chat := find_chat(name for name in encodings if encodings[name] in ("json", "str")):
        advice.append(f"If column {chat!r} contains conversations, pass chat=Chat()")
    if tokens:
        dtype = " and tokens_dtype" if encodings[tokens[0]] == "bytes" else ""
        advice.append(
            f"If column {tokens[0]!r} contains token IDs, pass tokens_key={tokens[0]!r}{dtype}"
        )
    if "bytes" in encodings.values():
        advice.append("If a bytes column contains UTF-8 text, set text_key to that column")
    if advice:
        return ". ".join(advice)
    return (
        "It has no text columns. Convert the corpus again with a text column, or pass a transform"
    )


def _check_encoding(
    where: str, column: shard_entries.Column, option: str, dtype: str | None
) -> None:
    encoding = column.encoding
    if not holds_tokens(encoding):
        raise DatasetError(
            f"{where} has the encoding {encoding}, which cannot contain integers. Set {option} to "
            "a column of bytes, ndarray, or json, or omit it"
        )
    if encoding == "bytes":
        if dtype is None:
            raise DatasetError(
                f"{where} has the encoding bytes, and the index does not record the dtype of its "
                f"integers. Set tokens_dtype to one of {', '.join(TOKEN_DTYPES)}. {FIND_DTYPE}"
            )
        return
    own, shape = _split_encoding(encoding)
    shape_bytes = math.prod(map(int, shape.split(","))) * np.dtype(own).itemsize if shape else None
    if column.bytes != shape_bytes:
        raise DatasetError(
            f"{where} has the encoding {encoding}, but its index lists {column.bytes} bytes per "
            f"sample, not {shape_bytes}. Write the dataset again"
        )


def _split_encoding(encoding: str) -> tuple[str, str]:
    """Split an encoding such as `ndarray:uint16:8` into its dtype and shape, or "" if unstated."""
    own, _, shape = encoding.partition(":")[2].partition(":")
    return own, shape


class RawIds(NamedTuple):
    """The token IDs of those samples of a shard that have the same dtype."""

    indices: Ints
    """The samples' indices in the list of requested samples: int64 [samples]."""
    values: list[memoryview]
    """The bytes of each sample's IDs. Unless they come from JSON, they are views of the shard."""
    dtype: Dtype


@dataclass(frozen=True)
class TokenColumn:
    """The column of token IDs of a shard."""

    index: int
    name: str
    dtype: Dtype | None
    """The dtype of the IDs; None for JSON, and if each sample states its own dtype."""
    has_shape: bool
    """Whether each value begins with its shape."""
    is_json: bool = False
    has_labels: bool = False
    """Whether the values are labels or a mask, which may be true and false, not IDs."""

    def read(self, shard: Shard, samples: Ints) -> Iterator[RawIds]:
        """Find the IDs of `samples`, which are indices in the shard: int64 [samples].

        Yields one item for each dtype. Raises `DatasetError` if a sample is damaged or does not
        match its encoding.
        """
        data = shard.data
        starts, stops = shard.find_values(samples, self.index)
        indices = np.arange(len(samples))
        if self.is_json:
            values = [
                _parse_list(shard, sample, self, data[start:stop])
                for sample, start, stop in zip(
                    samples.tolist(), starts.tolist(), stops.tolist(), strict=True
                )
            ]
            yield RawIds(indices, values, np.dtype("<i8"))
            return
        for dtype, chosen in self._group_by_dtype(shard, samples, starts, stops):
            # if each value states its own dtype, it begins with a byte for the dtype
            firsts = starts[chosen] + (self.dtype is None)
            if self.has_shape:
                firsts = _skip_shapes(shard, samples[chosen], firsts, stops[chosen], dtype)
            sizes = stops[chosen] - firsts
            if (odd := np.flatnonzero(sizes % dtype.itemsize)).size:
                self._refuse_size(shard, int(samples[chosen][odd[0]]), int(sizes[odd[0]]), dtype)
            pairs = zip(firsts.tolist(), stops[chosen].tolist(), strict=True)
            yield RawIds(indices[chosen], [data[start:stop] for start, stop in pairs], dtype)

    def _group_by_dtype(
        self, shard: Shard, samples: Ints, starts: Ints, stops: Ints
    ) -> Iterator[tuple[Dtype, slice | Ints]]:
        if self.dtype is not None:
            yield self.dtype, slice(None)
            return
        if (empty := np.flatnonzero(starts == stops)).size:
            raise _no_array(shard, int(samples[empty[0]]), "the value is empty")
        codes = np.frombuffer(shard.data, np.uint8)[starts]
        for code in np.unique(codes).tolist():
            own = np.flatnonzero(codes == code)
            if code not in INTEGERS_BY_CODE:
                reason = f"its dtype has the code {code}, which is not the code of an integer type"
                raise _no_array(shard, int(samples[own[0]]), reason)
            yield _little(INTEGERS_BY_CODE[code]), own

    def _refuse_size(self, shard: Shard, sample: int, size: int, dtype: Dtype) -> None:
        raise DatasetError(
            f"{shard.where(sample)} has {size:,} bytes of token IDs in column {self.name!r}, which "
            f"is not a multiple of {dtype.itemsize}, the size of {dtype.name}. Correct "
            f"tokens_dtype. {FIND_DTYPE}"
        )


def open_token_column(
    shard: Shard, name: str, dtype: str | None, *, has_labels: bool = False
) -> TokenColumn:
    """Find the column `name` of a shard; `dtype` is the dtype of a `bytes` column.

    The column must have passed `check_token_columns`.
    """
    index = shard.column_index(name)
    encoding = shard.info.columns[index].encoding
    if encoding == "json":
        return TokenColumn(index, name, None, has_shape=False, is_json=True, has_labels=has_labels)
    if encoding == "bytes":
        assert dtype is not None
        return TokenColumn(index, name, _little(dtype), has_shape=False)
    own, shape = _split_encoding(encoding)
    return TokenColumn(index, name, _little(own) if own else None, has_shape=not shape)


def _little(dtype: str) -> Dtype:
    return np.dtype(dtype).newbyteorder("<")


def _skip_shapes(shard: Shard, samples: Ints, starts: Ints, stops: Ints, dtype: Dtype) -> Ints:
    """The start of each value's IDs, after its shape: int64 [samples]."""
    if (empty := np.flatnonzero(starts >= stops)).size:
        raise _no_array(shard, int(samples[empty[0]]), "the value has no shape")
    data = np.frombuffer(shard.data, np.uint8)
    # the low 2 bits of the first byte are the width of a length, as a power of 2, and the others
    # the number of axes. Few values of this byte occur, so read shapes with the same one together
    heads = data[starts]
    firsts = np.empty_like(starts)
    for head in np.unique(heads).tolist():
        own = np.flatnonzero(heads == head)
        num_axes, width = head >> 2, 1 << (head & 3)
        firsts[own] = starts[own] + 1 + num_axes * width
        # an array has as many values as the product of its lengths, which may overflow an integer
        counts = np.ones(len(own), np.float64)
        fits = firsts[own] <= stops[own]
        if num_axes and fits.all():
            at = starts[own][:, None] + 1 + np.arange(num_axes * width)
            lengths = data[at].view(f"<u{width}").astype(np.float64)
            counts = lengths.prod(axis=1)
        fits &= counts * dtype.itemsize == stops[own] - firsts[own]
        if not fits.all():
            index = own[np.flatnonzero(~fits)[0]]
            raise _no_array(
                shard,
                int(samples[index]),
                f"its shape does not match its number of {dtype.name} values",
            )
    return firsts


def _parse_list(shard: Shard, sample: int, column: TokenColumn, data: memoryview) -> memoryview:
    kinds = "ib" if column.has_labels else "i"
    try:
        found = json.loads(bytes(data))
        ids = np.array(found, None if found else np.int64) if isinstance(found, list) else None
        if ids is None or ids.ndim != 1 or ids.dtype.kind not in kinds:
            raise ValueError("the value is not a list of integers")
    except (ValueError, RecursionError) as error:
        what = "labels" if column.has_labels else "token IDs"
        problem = find_problem(error) or str(error)
        raise DatasetError(
            f"{shard.where(sample)} has no list of {what} in the JSON column {column.name!r} "
            f"({problem[:200]}). Write the dataset again"
        ) from error
    return ids.astype("<i8").data.cast("B")


def _no_array(shard: Shard, sample: int, reason: str) -> DatasetError:
    return DatasetError(
        f"{shard.where(sample)} does not contain a valid array of integers, because {reason}. "
        "Write the dataset again"
    )
