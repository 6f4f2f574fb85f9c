"""Check the columns that hold documents, as text or as token IDs, before a run starts.

text          str, bytes
token IDs     bytes, ndarray, ndarray:uint16, ndarray:uint16:2048, json
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import numpy as np

from cloudload.data.mds.dataset import Dataset
from cloudload.data.mds.index import Column
from cloudload.data.storage.redaction import redact
from cloudload.errors import DatasetError

TokenDtype = Literal["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
TOKEN_DTYPES = get_args(TokenDtype)
_TEXT_ENCODINGS = ("str", "bytes")
_ARRAY = "ndarray"
_MOST_AXES = 63
FIND_DTYPE = (
    "Use the dtype of the arrays that were written. llm-foundry's ConcatTokensDataset writes "
    "int64. Other writers often use uint16 for vocabularies of up to 65,536 tokens, and "
    "int32 otherwise"
)


def check_text_column(datasets: Iterable[Dataset], text_key: str) -> None:
    """Raise `DatasetError` unless `text_key` is a str or bytes column of every shard."""
    for url, columns in _list_columns(datasets):
        encodings = {column.name: column.encoding for column in columns}
        encoding = encodings.get(text_key)
        if encoding in _TEXT_ENCODINGS:
            continue
        found = f"{encoding}, not text, in column" if encoding else "no column"
        raise DatasetError(f"{url} has {found} {text_key!r}. {_advise_on_text(encodings)}")


def check_token_column(datasets: Iterable[Dataset], name: str, dtype: str | None) -> None:
    """Raise `DatasetError` unless every shard has a column `name` of token IDs.

    `dtype` is the dtype of the IDs if the column is bytes. For other encodings, it must be None or
    the dtype that the encoding states.
    """
    for url, columns in _list_columns(datasets):
        for column in columns:
            if column.name == name:
                _check_encoding(f"column {name!r} of {url}", column, dtype)
                break
        else:
            names = ", ".join(each.name for each in columns if holds_tokens(each.encoding))
            advice = "It has no columns of token IDs. To read text, omit tokens_key"
            if names:
                advice = f"Set tokens_key to the column of token IDs. Possible columns: {names}"
            raise DatasetError(f"{url} has no column {name!r}. {advice}")


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


def _list_columns(datasets: Iterable[Dataset]) -> Iterable[tuple[str, tuple[Column, ...]]]:
    """Yield each dataset's redacted URL with each distinct set of columns of its shards."""
    for dataset in datasets:
        for columns in dataset.table.column_sets():
            yield redact(dataset.url), columns


def _advise_on_text(encodings: Mapping[str, str]) -> str:
    texts = ", ".join(name for name in encodings if encodings[name] == "str")
    tokens = [name for name in encodings if encodings[name] != "json"]
    tokens = [name for name in tokens if holds_tokens(encodings[name])]
    advice = [f"Set text_key to one of its text columns: {texts}"] if texts else []
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


def _check_encoding(where: str, column: Column, dtype: str | None) -> None:
    encoding = column.encoding
    if not holds_tokens(encoding):
        raise DatasetError(
            f"{where} has the encoding {encoding}, which cannot contain token IDs. Set tokens_key "
            "to a column of bytes, ndarray, or json. To read text, omit tokens_key and set text_key"
        )
    if encoding == "bytes":
        if dtype is None:
            raise DatasetError(
                f"{where} has the encoding bytes, and the index does not record the dtype of the "
                f"IDs. Set tokens_dtype to one of {', '.join(TOKEN_DTYPES)}. {FIND_DTYPE}"
            )
        return
    own, _, shape = encoding.partition(":")[2].partition(":")
    if dtype is not None and dtype != own:
        raise DatasetError(
            f"{where} has the encoding {encoding}, but tokens_dtype is {dtype!r}. Omit "
            "tokens_dtype, which applies only to columns of bytes"
        )
    shape_bytes = math.prod(map(int, shape.split(","))) * np.dtype(own).itemsize if shape else None
    if column.bytes != shape_bytes:
        raise DatasetError(
            f"{where} has the encoding {encoding}, but its index lists {column.bytes} bytes per "
            f"sample, not {shape_bytes}. Write the dataset again"
        )
