"""`read_samples` yields the stored values, but never unpickles one."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import cramjam
import numpy as np
import pytest

from cloudload.errors import DatasetError
from cloudload.inspect import Unread, read_samples
from testkit.corpora import random_documents, write_mds

TEXTS = random_documents(5, 60)
IDS = [f"doc/{number}" for number in range(60)]


def write(folder: Path, **options: Any) -> Path:
    """Write a dataset of three shards with 20 documents each, and IDs `doc/0` to `doc/59`."""
    write_mds(folder, TEXTS, shard_samples=[20] * 3, extra={"id": ("str", IDS)}, **options)
    return folder


def texts_of(folder: Path, **options: Any) -> list[str]:
    return [document.values["text"] for document in read_samples(folder, **options)]


@pytest.mark.parametrize("compression", [None, "zstd", "gz", "bz2"])
@pytest.mark.parametrize("number", [1, 19, 20, 21, 60, 99])
def test_the_first_documents_are_read_in_order(
    tmp_path: Path, compression: str | None, number: int
) -> None:
    write(tmp_path, compression=compression)
    documents = [*read_samples(tmp_path, limit=number)]
    assert [document.values["text"] for document in documents] == TEXTS[:number]
    assert [document.sample for document in documents] == [*range(min(number, 60))]
    assert documents[-1].shard == f"shard.{(len(documents) - 1) // 20:05}.mds"


def test_the_start_of_a_snappy_shard_is_read(tmp_path: Path) -> None:
    texts = ["the quick brown fox " * 20] * 200
    write_mds(tmp_path, texts, compression="gz", hashes=())
    index = json.loads((tmp_path / "index.json").read_text())
    [entry] = index["shards"]
    packed = tmp_path / "shard.00000.mds.snappy"
    raw = gzip.decompress((tmp_path / entry["zip_data"]["basename"]).read_bytes())
    packed.write_bytes(bytes(cramjam.snappy.compress_raw(raw)))
    entry["compression"] = "snappy"
    entry["zip_data"] |= {"basename": packed.name, "bytes": packed.stat().st_size}
    (tmp_path / "index.json").write_text(json.dumps(index))
    assert texts_of(tmp_path, limit=2) == texts[:2]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_document_is_found_by_its_id(tmp_path: Path, compression: str | None) -> None:
    write(tmp_path, compression=compression)
    [document] = read_samples(tmp_path, id="doc/47")
    assert (document.sample, document.shard) == (47, "shard.00002.mds")
    assert document.values == {"id": "doc/47", "text": TEXTS[47]}
    assert [*read_samples(tmp_path, id="doc/99")] == []


def test_an_id_that_is_a_number_is_found_as_text(tmp_path: Path) -> None:
    write_mds(tmp_path, ["a", "b", "c"], extra={"id": ("int32", [7, 8, 7])})
    assert texts_of(tmp_path, id="7", limit=5) == ["a", "c"]


def test_data_without_ids_cannot_be_searched_by_id(tmp_path: Path) -> None:
    write_mds(tmp_path, TEXTS)
    with pytest.raises(DatasetError, match="without a column 'id', so documents cannot be found"):
        read_samples(tmp_path, id="None")


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_pattern_finds_documents_and_where_it_matches(
    tmp_path: Path, compression: str | None
) -> None:
    write(tmp_path, compression=compression)
    expected = [text for text in TEXTS if "Füchse" in text]
    assert texts_of(tmp_path, pattern="F[uü]chse", limit=99) == expected
    [first] = read_samples(tmp_path, pattern="F[uü]chse", limit=1)
    assert first.match is not None
    assert first.values["text"][slice(*first.match)] == "Füchse"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": "("}, "'\\(' is not a regular expression"),
        ({"limit": 0}, "limit is 0. Use an integer of at least 1"),
        ({"limit": -3}, "limit is -3. Use an integer of at least 1"),
    ],
)
def test_a_wrong_argument_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write(tmp_path)
    with pytest.raises(ValueError, match=message):
        read_samples(tmp_path, **options)


def test_a_pattern_needs_a_text_column(tmp_path: Path) -> None:
    write_mds(tmp_path, TEXTS, column="content")
    with pytest.raises(DatasetError, match="Set text_key to one of its text columns: content"):
        read_samples(tmp_path, pattern="a")
    assert len([*read_samples(tmp_path, pattern="the", text_key="content")]) == 5


def test_a_given_text_column_is_checked_without_a_pattern(tmp_path: Path) -> None:
    write_mds(tmp_path, TEXTS, column="content")
    with pytest.raises(DatasetError, match="has no column 'body'"):
        read_samples(tmp_path, text_key="body")
    assert len([*read_samples(tmp_path)]) == 5


def test_token_ids_are_lists(tmp_path: Path) -> None:
    rows = [np.arange(4, dtype=np.uint16), np.array([65_535, 0, 1], np.uint16)]
    write_mds(tmp_path, rows, column="tokens", encoding="ndarray:uint16")
    values = [document.values["tokens"] for document in read_samples(tmp_path)]
    assert values == [[0, 1, 2, 3], [65_535, 0, 1]]


def change_encoding(folder: Path, encoding: str) -> None:
    """Change the encoding of the only column from `bytes`, in the index and the shard headers."""
    path = folder / "index.json"
    index = json.loads(path.read_text())
    for shard in index["shards"]:
        shard["column_encodings"] = [encoding]
    path.write_text(json.dumps(index))
    for file in folder.glob("*.mds"):
        file.write_bytes(file.read_bytes().replace(b'["bytes"]', f'["{encoding}"]'.encode()))


class Bomb:
    """A value that fails the test if it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return pytest.fail, ("it was unpickled",)


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    write_mds(tmp_path, [pickle.dumps(Bomb())], encoding="bytes", hashes=())
    size = (tmp_path / "shard.00000.mds").stat().st_size
    change_encoding(tmp_path, "pkl")
    index = json.loads((tmp_path / "index.json").read_text())
    index["shards"][0]["raw_data"]["bytes"] = size - 2  # "pkl" is 2 letters shorter than "bytes"
    (tmp_path / "index.json").write_text(json.dumps(index))
    data = bytearray((tmp_path / "shard.00000.mds").read_bytes())
    for at in (4, 8):
        data[at : at + 4] = (int.from_bytes(data[at : at + 4], "little") - 2).to_bytes(4, "little")
    (tmp_path / "shard.00000.mds").write_bytes(data)
    [document] = read_samples(tmp_path)
    assert document.values["text"] == Unread("pkl", len(pickle.dumps(Bomb())))


def test_values_become_plain_json(tmp_path: Path) -> None:
    extra: dict[str, tuple[str, list[Any]]] = {
        "blob": ("bytes", [b"\xff\x00"]),
        "meta": ("json", [{"a": [1, None]}]),
        "n": ("int64", [-5]),
    }
    write_mds(tmp_path, [b"Gr\xc3\xbc\xc3\x9fe"], encoding="bytes", extra=extra)
    [document] = read_samples(tmp_path)
    assert document.as_dict() == {
        "sample": 0,
        "shard": "shard.00000.mds",
        "values": {
            "blob": {"base64": "/wA="},
            "meta": {"a": [1, None]},
            "n": -5,
            "text": "Grüße",
        },
        "match": None,
    }


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_damaged_shard_is_an_error_that_names_it(tmp_path: Path, compression: str | None) -> None:
    write(tmp_path, compression=compression)
    path = tmp_path / ("shard.00000.mds.zstd" if compression else "shard.00000.mds")
    data = bytearray(path.read_bytes())
    data[:8] = b"\xff" * 8
    path.write_bytes(data)
    for pattern in (None, "the"):
        with pytest.raises(DatasetError, match=r"shard\.00000\.mds"):
            next(read_samples(tmp_path, pattern=pattern))


def test_a_shard_without_samples_is_passed_over(tmp_path: Path) -> None:
    write_mds(tmp_path, TEXTS, shard_samples=[0, 20, 0, 40])
    for path in (tmp_path / "shard.00000.mds", tmp_path / "shard.00002.mds"):
        path.unlink()
    assert texts_of(tmp_path, limit=60) == TEXTS
