"""Rows of Arrow tables become the samples that `mds.writer` makes of the same values."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.data.mds.arrow_samples import BadColumnError, encode_rows, encoding_of
from cloudload.data.mds.shard import NULL_TEXT
from cloudload.data.mds.shard_entries import Column
from cloudload.data.mds.writer import encode_sample

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
IDS = st.none() | TEXTS
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": IDS,
            "text": TEXTS,
            "raw": st.binary(max_size=9),
            "ids": st.lists(st.integers(-5, 70_000), max_size=300),
            "extra": st.none() | st.integers(-9, 9) | st.integers(10, 99),
        }
    ),
    max_size=6,
)
COLUMNS = [
    Column.of("extra", "json"),
    Column.of("id", "str"),
    Column.of("ids", "ndarray:int32"),
    Column.of("raw", "bytes"),
    Column.of("text", "str"),
]
TYPES = {
    "id": [
        pyarrow.string(),
        pyarrow.large_string(),
        pyarrow.dictionary(pyarrow.int8(), pyarrow.string()),
    ],
    "text": [pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()],
    "raw": [pyarrow.binary(), pyarrow.large_binary()],
    "ids": [pyarrow.list_(pyarrow.int32()), pyarrow.large_list(pyarrow.int32())],
    "extra": [pyarrow.int64(), pyarrow.float32()],
}


@given(rows=ROWS, first=st.integers(1, 1_000), start=st.integers(0, 6), data=st.data())
def test_rows_are_encoded_as_the_writer_encodes_their_values(
    rows: list[dict[str, Any]], first: int, start: int, data: st.DataObject
) -> None:
    types = {name: data.draw(st.sampled_from(kinds)) for name, kinds in TYPES.items()}
    table = pyarrow.Table.from_pylist(rows, pyarrow.schema(list(types.items())))
    batch = table.combine_chunks().to_batches()[0] if rows else table.slice(0).to_batches()
    if not rows:
        batch = pyarrow.RecordBatch.from_pylist([], table.schema)
    start = min(start, len(rows))
    found = encode_rows(batch.slice(start), COLUMNS, "a/b.parquet", first)
    expected = [
        encode_sample(
            COLUMNS,
            {
                **row,
                "id": row["id"] or f"a/b.parquet:{first + number}",
                "ids": np.array(row["ids"], "int32"),
                "extra": batch.column("extra")[start + number].as_py(),
            },
        )
        for number, row in enumerate(rows[start:])
    ]
    assert bytes(found.data) == b"".join(expected)
    assert found.sizes.tolist() == list(map(len, expected))


def test_a_null_text_is_encoded_as_no_text_can_be() -> None:
    batch = pyarrow.RecordBatch.from_pylist([{"id": "a", "text": None}, {"id": "b", "text": "x"}])
    columns = [Column.of("id", "str"), Column.of("text", "str")]
    found = bytes(encode_rows(batch, columns, "f", 1).data)
    assert found == b"\1\0\0\0\5\0\0\0a" + NULL_TEXT + b"\1\0\0\0\1\0\0\0bx"
    with pytest.raises(UnicodeDecodeError):
        NULL_TEXT.decode()


@pytest.mark.parametrize("values", [[[1], None], [[1, None]]])
def test_a_null_among_token_ids_is_an_error(values: list[Any]) -> None:
    batch = pyarrow.RecordBatch.from_pydict({"ids": values})
    with pytest.raises(BadColumnError, match="the column 'ids' has a null, or a list with a null"):
        encode_rows(batch, [Column.of("ids", "ndarray:int64")], "f", 1)


def test_a_value_that_json_cannot_express_is_bad_alone() -> None:
    far = pyarrow.array([10_000_000_000_000, 0], pyarrow.timestamp("s"))
    batch = pyarrow.RecordBatch.from_pydict({"when": far})
    found = encode_rows(batch, [Column.of("when", "json")], "f", 1)
    good = json.dumps("1970-01-01 00:00:00").encode()
    assert bytes(found.data) == b"\1\0\0\0\xff" + len(good).to_bytes(4, "little") + good


@pytest.mark.parametrize(
    ("kind", "encoding"),
    [
        (pyarrow.string(), "str"),
        (pyarrow.dictionary(pyarrow.int32(), pyarrow.large_string()), "str"),
        (pyarrow.json_(), "str"),
        (pyarrow.binary(4), "bytes"),
        (pyarrow.uuid(), "bytes"),
        (pyarrow.list_(pyarrow.uint16(), 3), "ndarray:uint16"),
        (pyarrow.list_(pyarrow.string()), "json"),
        (pyarrow.bool_(), "json"),
        (pyarrow.timestamp("ns", "UTC"), "json"),
        (pyarrow.struct([("a", pyarrow.list_(pyarrow.binary()))]), None),
        (pyarrow.map_(pyarrow.string(), pyarrow.binary()), None),
    ],
)
def test_each_type_has_an_encoding(kind: Any, encoding: str | None) -> None:
    assert encoding_of(kind) == encoding


def test_no_column_imports_pandas() -> None:
    """It would cost each worker time and memory."""
    code = """
import io, sys
import numpy as np
import pyarrow.parquet
from cloudload.data.mds.arrow_samples import encode_rows
from cloudload.data.mds.shard_entries import Column

kinds = {"text": "str", "ids": "ndarray:int32", "raw": "bytes", "extra": "json", "id": "str"}
batch = next(pyarrow.parquet.ParquetFile(sys.argv[1]).iter_batches())
encode_rows(batch, [Column.of(*each) for each in kinds.items()], "a.parquet", 1)
print("pandas" in sys.modules)
"""
    rows = {"text": ["a", None], "ids": [[1], [2, 3]], "raw": [b"", None], "extra": [1, None]}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/a.parquet"
        ids = pyarrow.array(rows["ids"], pyarrow.list_(pyarrow.int32()))
        pyarrow.parquet.write_table(pyarrow.table(rows | {"ids": ids}), path)
        words = [sys.executable, "-c", code, path]
        found = subprocess.run(words, capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
