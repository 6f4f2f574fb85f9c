"""An index of files gives the shards from which it was made, wherever the table is."""

from __future__ import annotations

import json
import pickle
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.data.mds import file_records
from cloudload.data.mds.fingerprints import DATA, SAMPLES, find_beginning, fingerprint
from cloudload.data.mds.shard_entries import Column, LineRange, RowGroups, ShardInfo, StoredForm
from cloudload.data.mds.shard_table import ShardTable, map_table, parse_index
from cloudload.errors import DatasetError

TEXT = (Column.of("id", "str"), Column.of("text", "str"))
MORE = (*TEXT, Column.of("é", "int"))


def parse(shards: list[ShardInfo], compression: str = "parquet", folder: str = "") -> ShardTable:
    return parse_index(file_records.encode_index_of_files(shards, compression, folder), "s3://b/d")


def row_groups(
    file: str, digest: str, span: tuple[int, int], sizes: tuple[int, int, int]
) -> ShardInfo:
    part = RowGroups(file, *span, (900, 1000), digest, "t1")
    return ShardInfo.of_part(part, TEXT, *sizes)


def lines(span: tuple[int, int], line: int, digest: str, samples: int, raw: int) -> ShardInfo:
    part = LineRange("a.jsonl", *span, line, digest)
    return ShardInfo.of_part(part, TEXT, samples, raw, span[1] - span[0])


GROUPS = [
    row_groups("a.parquet", "5f3c", (0, 2), (10, 4196, 700)),
    row_groups("a.parquet", "5f3c", (2, 5), (20, 8196, 900)),
    row_groups("é/b.parquet", "77ab", (1, 2), (3, 1195, 55)),
]
LINES = [lines((0, 500), 1, "aa", 10, 896), lines((600, 900), 14, "bb", 5, 696)]


def test_the_fingerprints_of_states_stay_the_same() -> None:
    groups, of_lines = parse(GROUPS, folder="s3://b/raw"), parse(LINES, "jsonl")
    assert fingerprint([groups], DATA) == "7f73ccf4f83e7d4db43857a9e0ccfe69"
    assert fingerprint([of_lines], DATA) == "a9ec605c3a4e97712a6270bf964827d0"
    assert fingerprint([groups], SAMPLES) == fingerprint([groups, of_lines], SAMPLES) == ""
    assert groups[2].identity == "1195 [('parquet', '0c20995813e5c4b3a274b6a89ecc6952')]"
    assert find_beginning(groups, fingerprint([groups[:2]], DATA), DATA) == 2


def test_an_index_is_json_with_a_line_per_file() -> None:
    data = file_records.encode_index_of_files(GROUPS, "parquet", "s3://b/é")
    assert json.loads(data) == {
        "version": 1,
        "format": "parquet",
        "folder": "s3://b/é",
        "columns": [[["id", "str"], ["text", "str"]]],
        "files": [
            {
                **{"name": "a.parquet", "tag": "t1", "columns": 0},
                **{"bytes": 1000, "footer_bytes": 100, "footer": "5f3c"},
                **{"first": [0, 2], "stop": [2, 5], "samples": [10, 20]},
                **{"raw_bytes": [4196, 8196], "stored_bytes": [700, 900]},
            },
            {
                **{"name": "é/b.parquet", "tag": "t1", "columns": 0},
                **{"bytes": 1000, "footer_bytes": 100, "footer": "77ab"},
                **{"first": [1], "stop": [2], "samples": [3]},
                **{"raw_bytes": [1195], "stored_bytes": [55]},
            },
        ],
    }
    assert [line[:20] for line in data.splitlines()[1:]] == [
        b'{"name": "a.parquet"',
        b'{"name": "\\u00e9/b.p',
    ]


@st.composite
def files(draw: st.DrawFn) -> tuple[str, list[ShardInfo]]:
    """A compression, and the shards of up to four files."""
    compression, shards = draw(st.sampled_from(["parquet", "jsonl"])), []
    for number in range(draw(st.integers(0, 4))):
        name, tag = f"{draw(st.sampled_from(['', 'ü b/c/', '#/']))}{number}", draw(st.text())
        columns, footer = draw(st.sampled_from([TEXT, MORE])), draw(st.integers(0, 99))
        has_text = draw(st.booleans())
        edges = sorted(draw(st.sets(st.integers(0, 1 << 32 - 1), min_size=2, max_size=9)))
        for first, stop in zip(edges[::2], edges[1::2], strict=False):
            part: StoredForm = RowGroups(name, first, stop, (footer, 99), "5f", tag)
            if compression == "jsonl":
                digest = draw(st.text())
                line, start = draw(st.integers(0, 1 << 62)), draw(st.integers(0, 1 << 40))
                text = (start, start + draw(st.integers(1, 99))) if has_text else None
                part = LineRange(name, first, stop, line, digest, tag, text)
            samples = draw(st.integers(0, 9))
            raw = draw(st.integers(4 * (samples + 2), (1 << 32) - 1))
            stored = stop - first if compression == "jsonl" else draw(st.integers(0, 1 << 31))
            shards.append(ShardInfo.of_part(part, columns, samples, raw, stored))
    return compression, shards


@given(files(), st.data())
def test_a_parsed_a_mapped_and_a_sent_index_have_the_shards(
    made: tuple[str, list[ShardInfo]], data: st.DataObject
) -> None:
    compression, shards = made
    parsed, built = parse(shards, compression, "s3://b/raw"), ShardTable.of(shards)
    start = data.draw(st.integers(0, len(shards)))
    stop = data.draw(st.integers(start, len(shards)))
    with tempfile.TemporaryDirectory() as folder:
        parsed.write(Path(folder, "whole"), "key")
        parsed[start:stop].write(Path(folder, "part"), "key")
        mapped, part = (map_table(Path(folder, name), "key") for name in ("whole", "part"))
        assert mapped is not None
        assert part is not None
        sent = pickle.loads(pickle.dumps(mapped[start:stop]))
    assert mapped.folder == part.folder == "s3://b/raw"
    for table in (parsed, built, mapped, pickle.loads(pickle.dumps(parsed))):
        assert list(table) == shards
        assert [table[place] for place in range(len(shards))] == shards
        assert [identity for _, _, identity, _ in table.identities()] == [
            shard.identity for shard in shards
        ]
        assert fingerprint([table], DATA) == fingerprint([built], DATA)
    for table in (parsed[start:stop], part, sent, pickle.loads(pickle.dumps(parsed[start:stop]))):
        assert list(table) == shards[start:stop]
        assert fingerprint([table], DATA) == fingerprint([built[start:stop]], DATA)


def test_a_table_may_have_virtual_and_other_shards() -> None:
    copy = replace(GROUPS[1], zipped=None, compression=None, part=None)
    assert list(ShardTable.of([GROUPS[0], copy, LINES[0]])) == [GROUPS[0], copy, LINES[0]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 7),
        ("name", "a/../b"),
        ("name", "é/b.parquet"),
        ("name", "x" * 230),
        ("tag", None),
        ("columns", 1),
        ("columns", -1),
        ("columns", "0"),
        ("bytes", 99),
        ("footer_bytes", 1.0),
        ("footer", 5),
        ("first", []),
        ("first", None),
        ("first", [0, 1]),
        ("first", [2, 0]),
        ("stop", [2, 2]),
        ("stop", [2, 1 << 63]),
        ("samples", [10]),
        ("samples", [10, True]),
        ("samples", [10, 10**400]),
        ("samples", [10, -1]),
        ("samples", [10, 5000]),
        ("raw_bytes", [4196, 1 << 32]),
        ("stored_bytes", [700, 1 << 32]),
        ("stored_bytes", ["700", 900]),
        ("raw_data", {"raw_data": {}}),
    ],
)
def test_a_wrong_field_is_an_error(field: str, value: Any) -> None:
    index = json.loads(file_records.encode_index_of_files(GROUPS, "parquet"))
    index["files"][0][field] = value
    with pytest.raises(DatasetError, match=r"s3://b/d/index\.json .*"):
        parse_index(json.dumps(index).encode(), "s3://b/d")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "its version is 2, not 1"),
        ({"columns": [7]}, "a field has the wrong type"),
        ({"more": [{"first": [0]}]}, "the field 'name' is missing"),
        ({"columns": [[]]}, "not enough values"),
        ({"columns": [[["id", "str"], ["id", "str"]]]}, "two columns with the same name"),
        ({"format": None}, "its format is None, and it has records of {'parquet'}"),
        ({"folder": ["s3://b"]}, "'folder' is not the URL of a folder"),
    ],
)
def test_a_wrong_index_is_an_error(change: dict[str, Any], message: str) -> None:
    index = json.loads(file_records.encode_index_of_files(GROUPS, "parquet")) | change
    with pytest.raises(DatasetError, match=f"is not an index of files: .*{message}"):
        parse_index(json.dumps(index).encode(), "s3://b/d")


@pytest.mark.parametrize("files", [None, {}, [7], [[]]])
def test_files_without_records_are_an_error(files: Any) -> None:
    data = json.dumps({"version": 1, "format": "parquet", "columns": [], "files": files}).encode()
    with pytest.raises(DatasetError, match="'files' is not a list of records of files"):
        parse_index(data, "s3://b/d")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("line", [1]), ("line", [1, "14"]), ("lines", ["aa", None]), ("lines", ["aa"])),
        *(("lines", 7), ("stop", [500, 600 + (1 << 32)]), ("samples", [10, 5, 1])),
    ],
)
def test_a_wrong_field_of_lines_is_an_error(field: str, value: Any) -> None:
    index = json.loads(file_records.encode_index_of_files(LINES, "jsonl"))
    index["files"][0][field] = value
    with pytest.raises(DatasetError, match=r"s3://b/d/index\.json is not an index of files"):
        parse_index(json.dumps(index).encode(), "s3://b/d")


MEMBERS = {"first": [0, 400], "text_first": [0, 7], "text_stop": [900, 800]}


def test_lines_of_two_shards_may_be_in_one_member() -> None:
    index = json.loads(file_records.encode_index_of_files(LINES, "jsonl"))
    index["files"][0] |= MEMBERS
    parts = [shard.part for shard in parse_index(json.dumps(index).encode(), "s3://b/d")]
    assert parts == [
        LineRange("a.jsonl", 0, 500, 1, "aa", text=(0, 900)),
        LineRange("a.jsonl", 400, 900, 14, "bb", text=(7, 800)),
    ]


@pytest.mark.parametrize(
    "change",
    [
        *({"text_first": [0]}, {"text_first": [0, 800]}, {"text_stop": [900, None]}),
        *({"text_stop": [900]}, {"first": [400, 400]}, {"text_first": [0], "text_stop": [9]}),
    ],
)
def test_a_wrong_field_of_members_is_an_error(change: dict[str, Any]) -> None:
    index = json.loads(file_records.encode_index_of_files(LINES, "jsonl"))
    index["files"][0] |= MEMBERS | change
    with pytest.raises(DatasetError, match=r"s3://b/d/index\.json is not an index of files"):
        parse_index(json.dumps(index).encode(), "s3://b/d")


def test_a_record_elsewhere_is_an_error() -> None:
    index = json.loads(file_records.encode_index_of_files(GROUPS, "parquet"))
    for other in (index | {"more": index["files"][1]}, {"version": 2, "shards": index["files"]}):
        with pytest.raises(DatasetError, match="is not an index of files"):
            parse_index(json.dumps(other).encode(), "s3://b/d")


@pytest.mark.parametrize("compression", ["parquet", "jsonl"])
def test_an_index_in_the_old_form_says_what_to_do(compression: str) -> None:
    entry = {"format": "mds", "raw_data": {}, "zip_data": {}, "compression": compression}
    index = {"version": 2, "folder": "s3://b/raw", "shards": [entry]}
    with pytest.raises(DatasetError, match=r"old form\. Delete it, and run cloudload index again"):
        parse_index(json.dumps(index).encode(), "s3://b/d")
