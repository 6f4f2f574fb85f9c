"""Parquet files that are read where they are give the same samples and rows as after a conversion,
on every world, and a file that is damaged or that changes is an error that names it."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import hashlib
import io
import json
import os
import re
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from cloudload import Rows, Stream
from cloudload.convert import convert_to_mds, index_files
from cloudload.data.cache import cache_folder, fetch
from cloudload.data.cache.shard_cache import ShardCache
from cloudload.data.mds import footers, row_groups, shard_entries, virtual_index
from cloudload.data.mds.dataset import Corpus, open_corpus
from cloudload.data.mds.encoded_rows import Transfer
from cloudload.data.mds.virtual_index import ColumnChoice
from cloudload.data.mds.virtual_shards import write_virtual_shard
from cloudload.data.storage.locations import Location
from cloudload.errors import CacheError, ConvertError, DatasetError, StoreError, StreamChangedError
from cloudload.forecast import plan_run
from cloudload.testing import Leg, check_resume, check_worlds, run_legs
from testkit.corpora import EOS_ID, byte_tokenizer, random_documents, write_mds
from testkit.counted import count
from testkit.loaders import make_loader, ranks, rows_of
from testkit.parquet_files import WRITERS, write_corpus, write_parquet
from testkit.shard_caches import flip, note_ranges, samples_of, texts_of
from testkit.whole_documents import open_epoch, read_all

DOCUMENTS = [*random_documents(5, 240), "", "é 狐 \x00", "z" * 5_000]
TEXT_ONLY = ColumnChoice("text", has_others=False)


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_index, "SHARD_BYTES", 5_000)


def open_files(location: Path | str, choice: ColumnChoice = TEXT_ONLY) -> Corpus:
    return open_corpus([Location(str(location))], choices=[choice])


# ---------------------------------------------------------------- parts of shards


def test_a_shard_is_read_as_far_as_some_samples_need_it(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS, row_group_size=5)
    corpus = open_files(tmp_path / "in")
    index = int(np.argmax(corpus.shard_sizes))
    samples, whole = np.array([1, 20, 21]), int(corpus.shard_sizes[index])
    assert whole > 30
    expected = texts_of(corpus, tmp_path / "all")[int(corpus.shard_starts[index]) :][:whole]
    cache = ShardCache(corpus, tmp_path / "cache", verify="once")
    cache.prefetch({index: samples})
    part = cache.shard(index, samples[1:])
    read = cache.traffic.take().bytes_downloaded
    assert part.read_texts(samples, part.column_index("text")) == [
        expected[sample] for sample in samples
    ]
    assert not list((tmp_path / "cache").rglob("*.mds"))
    with pytest.raises(DatasetError, match="column sizes that do not add up"):
        part.read_texts([0, 2], part.column_index("text"))
    for wanted in (np.array([2]), None):
        shard = cache.shard(index, wanted)
        assert shard.read_texts(range(whole), shard.column_index("text")) == expected
    assert 0 < read < cache.traffic.take().bytes_downloaded
    cache.close()


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_cached_shard_and_one_of_which_most_is_needed_are_not_read_in_part(
    tmp_path: Path, is_cached: bool
) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS, row_group_size=9)
    corpus = open_files(tmp_path / "in")
    if is_cached:
        texts_of(corpus, tmp_path / "cache")
    cache = ShardCache(corpus, tmp_path / "cache", verify="once")
    samples = np.array([3]) if is_cached else np.arange(0, 60, 9)
    cache.prefetch({0: samples})
    assert cache.shard(0, samples).info.samples == corpus.shard_sizes[0]
    cache.close()


def test_a_damaged_part_is_fetched_as_a_whole_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS, row_group_size=9)
    corpus = open_files(tmp_path / "in")

    def fail(*_: object) -> None:
        raise DatasetError("is damaged")

    monkeypatch.setattr(fetch, "open_samples", fail)
    cache = ShardCache(corpus, tmp_path / "cache", verify="once")
    cache.prefetch({0: np.array([3])})
    assert cache.shard(0, np.array([3])).info.samples == corpus.shard_sizes[0]
    cache.close()


# ---------------------------------------------------------------- the same samples


@pytest.mark.parametrize("kind", ["int64", "float64", "null", "binary", "bool"])
def test_ids_of_any_type_are_those_of_a_conversion(tmp_path: Path, kind: str) -> None:
    values: dict[str, list[Any]] = {
        "int64": [7, None, -1],
        "float64": [7.0, 0.5, None],
        "null": [None, None, None],
        "binary": [b"a", b"\xff", b""],
        "bool": [True, False, None],
    }
    types = {"null": pyarrow.null(), "bool": pyarrow.bool_()}
    kinds = types.get(kind) or getattr(pyarrow, kind)()
    schema = pyarrow.schema([("id", kinds), ("text", pyarrow.string())])
    rows = [{"id": value, "text": f"t{n}"} for n, value in enumerate(values[kind])]
    write_parquet(tmp_path / "in" / "a.parquet", rows, schema=schema)
    convert_to_mds(str(tmp_path / "in"), str(tmp_path / "out"), progress=False, processes=1)
    converted = samples_of(open_corpus([Location(str(tmp_path / "out"))]), tmp_path / "cache")
    assert samples_of(open_files(tmp_path / "in"), tmp_path / "cache") == converted


def test_rows_are_the_same_where_shards_are_cut_alike(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS, num_files=2)
    corpus = open_files(tmp_path / "in")
    sizes = corpus.shard_sizes.tolist()
    assert len(sizes) > 4
    assert len(set(sizes)) > 1
    write_mds(tmp_path / "out", DOCUMENTS, shard_samples=sizes)
    legs = [Leg(2, batches=5), Leg(3, workers=2, batches=5)]
    found, expected = (
        run_legs(ranks(str(folder), local=tmp_path / "cache", num_canonical_nodes=2), legs)
        for folder in (tmp_path / "in", tmp_path / "out")
    )
    assert found == expected


def test_every_world_reads_the_same_rows(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    legs = [Leg(batches=2), Leg(12, batches=2), Leg(6, batch_size=3), Leg(4, workers=2, batches=9)]
    check_worlds(ranks(f"{tmp_path}/in/*.parquet", local=tmp_path / "cache"), legs)


def test_saved_after_every_batch_the_remainder_is_the_same(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    make = ranks(str(tmp_path / "in"), local=tmp_path / "cache")
    check_resume(make, global_batch=8, num_batches=4)


def test_forked_workers_decode_after_the_parent_read_footers(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    with open_epoch(str(tmp_path / "in"), tmp_path / "a") as loader:
        expected = rows_of(loader)
    for start_method in ("fork", "spawn"):
        settings = {"num_workers": 2, "start_method": start_method}
        with open_epoch(str(tmp_path / "in"), tmp_path / start_method, **settings) as loader:
            assert rows_of(loader) == expected


# ---------------------------------------------------------------- locations


@pytest.mark.parametrize(
    "data",
    [
        "in",
        "in/",
        "in/*.parquet",
        "in/**/*.parquet",
        ["in/part-000.parquet", "in/part-00[12].parquet"],
    ],
)
def test_a_folder_a_glob_and_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str | list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(Path("in"), DOCUMENTS)
    Path("in/README.md").write_text("# the data")
    Path("in/_temporary").mkdir()
    Path("in/_temporary/a.parquet").write_bytes(b"unfinished")
    locations = [Location(each) for each in (data if isinstance(data, list) else [data])]
    corpus = open_corpus(locations, choices=[TEXT_ONLY] * len(locations))
    assert texts_of(corpus, tmp_path / "cache") == DOCUMENTS


def test_a_folder_of_splits_is_refused_and_a_split_is_read(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_corpus(tmp_path / split, [f"{split} {n}" for n in range(5)], num_files=1)
    with pytest.raises(DatasetError, match=r"several splits: test, train\. Pass Stream\("):
        make_loader(str(tmp_path))
    with make_loader(Stream(str(tmp_path), split="test"), local=tmp_path / "c") as loader:
        assert loader.num_samples == 5


def test_a_folder_that_also_has_json_lines_is_refused_and_a_glob_is_read(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in", ["a", "b", "c"], num_files=3)
    (tmp_path / "in" / "about.json").write_text("{}")
    with make_loader(str(tmp_path / "in"), local=tmp_path / "c") as loader:
        assert loader.num_samples == 3
    (tmp_path / "in" / "c.jsonl.gz").write_bytes(b"")
    with pytest.raises(DatasetError, match="has 3 Parquet files and 1 JSON Lines file"):
        make_loader(str(tmp_path / "in"), local=tmp_path / "c")
    with make_loader(f"{tmp_path}/in/*.parquet", local=tmp_path / "c") as loader:
        assert loader.num_samples == 3


def test_the_index_is_the_same_on_every_node_and_made_once_on_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    read: list[str] = []
    monkeypatch.setattr(footers, "read_footer", _noting(read, footers.read_footer))
    hashes = set()
    for node in ("a", "a", "b"):
        [dataset] = open_corpus([Location(str(tmp_path / "in"))], tmp_path / node).datasets
        hashes.add(dataset.index_hash)
        assert len(read) == (3 if node == "a" else 6)
    assert len(hashes) == 1


def _noting(read: list[str], function: Callable[..., Any]) -> Callable[..., Any]:
    def note(location: Location, *arguments: Any) -> Any:
        read.append(location.url)
        return function(location, *arguments)

    return note


def test_only_the_ranges_of_the_columns_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_groups, "_MOST_GAP_BYTES", 0)
    rows = [
        {"id": f"{n}", "junk": os.urandom(2_000), "text": text} for n, text in enumerate(DOCUMENTS)
    ]
    path = write_parquet(tmp_path / "in" / "a.parquet", rows)
    corpus = open_files(path)
    [dataset] = corpus.datasets
    read = note_ranges(monkeypatch)
    row_groups._footers.clear()
    assert texts_of(corpus, tmp_path / "cache") == DOCUMENTS
    footer = pyarrow.parquet.read_metadata(path).serialized_size + 8
    assert sum(read) == sum(info.stored.bytes for info in dataset.shards) + footer
    assert sum(read) < path.stat().st_size / 10


# ---------------------------------------------------------------- a stored index


def test_a_stored_index_gives_the_same_rows_without_footers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    report = index_files(tmp_path / "in", tmp_path / "index")
    assert (report.files, report.samples) == (3, len(DOCUMENTS))
    assert index_files(tmp_path / "in", tmp_path / "index") == report
    with open_epoch(str(tmp_path / "in"), tmp_path / "a") as loader:
        expected, fields = rows_of(loader), loader.recipe.fields["data"]
    write_parquet(tmp_path / "in" / "part-003.parquet", [{"id": "new", "text": "new"}])
    monkeypatch.setattr(footers, "read_footer", None)
    for workers in (0, 2):
        options = {"num_workers": workers}
        with open_epoch(str(tmp_path / "index"), tmp_path / f"{workers}", **options) as loader:
            assert loader.recipe.fields["data"] == fields
            assert rows_of(loader) == expected


def test_a_stored_index_may_be_beside_the_files_and_moves_with_them(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    index_files(tmp_path / "in", tmp_path / "in")
    assert "folder" not in json.loads((tmp_path / "in" / "index.json").read_text())
    (tmp_path / "in").rename(tmp_path / "moved")
    assert texts_of(open_files(tmp_path / "moved"), tmp_path / "cache") == DOCUMENTS


def test_a_folder_with_the_name_of_a_file_is_read(tmp_path: Path) -> None:
    write_corpus(tmp_path / "spark.parquet", DOCUMENTS)
    write_mds(tmp_path / "mds.parquet", DOCUMENTS)
    for name, is_virtual in (("spark.parquet", True), ("mds.parquet", False)):
        corpus = open_files(tmp_path / name)
        assert {info.is_virtual for info in corpus.datasets[0].shards} == {is_virtual}
        assert texts_of(corpus, tmp_path / "cache") == DOCUMENTS
    index_files(tmp_path / "spark.parquet", tmp_path / "spark.parquet")
    write_parquet(tmp_path / "spark.parquet" / "z.parquet", [{"text": "added later"}])
    assert texts_of(open_files(tmp_path / "spark.parquet"), tmp_path / "cache") == DOCUMENTS


def test_lengths_are_stored_beside_a_stored_index(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    index_files(tmp_path / "in", tmp_path / "index")
    count(tmp_path / "index")
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == ["index.json", "lengths"]
    with make_loader(str(tmp_path / "index"), epochs=1, lengths="require") as loader:
        assert len(loader) > 0


def test_a_conversion_of_the_files_leaves_out_their_index_and_lengths(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    options: dict[str, Any] = {"progress": False, "processes": 1}
    expected = convert_to_mds(str(tmp_path / "in"), str(tmp_path / "a"), **options)
    index_files(tmp_path / "in", tmp_path / "in")
    count(tmp_path / "in")
    found = convert_to_mds(str(tmp_path / "in"), str(tmp_path / "b"), **options)
    assert found.documents == expected.documents == len(DOCUMENTS) - 1
    names = [(tmp_path / each / "index.json").read_bytes() for each in "ab"]
    assert names[0] == names[1]


def test_another_index_is_not_replaced(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    write_mds(tmp_path / "mds", DOCUMENTS)
    before = (tmp_path / "mds" / "index.json").read_bytes()
    with pytest.raises(ConvertError, match=r"mds has another index\. Choose another folder"):
        index_files(tmp_path / "in", tmp_path / "mds")
    assert (tmp_path / "mds" / "index.json").read_bytes() == before


def test_a_file_that_changed_since_it_was_indexed_is_an_error(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    index_files(tmp_path / "in", tmp_path / "index")
    rewrite(tmp_path / "in" / "part-001.parquet")
    with pytest.raises(StoreError, match=r"part-001\.parquet changed since it was listed"):
        texts_of(open_files(tmp_path / "index"), tmp_path / "cache")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"folder": 7}, "'folder' is not the URL of a folder"),
        ({"folder": "s3:///x"}, "has no bucket name"),
        ({"format": "jsonl"}, r"its format is 'jsonl', and it has records of {'parquet'}"),
        ({"columns": []}, "a file has the columns 0, and the index lists only 0"),
        ({"version": 2}, "its version is 2, not 1"),
        ({"name": "../a.parquet"}, "could point outside the dataset's folder"),
        ({"name": "PART-001.parquet"}, "names that differ only in case"),
        ({"footer": None}, "footer is None, not text"),
        ({"footer_bytes": 1 << 40}, "is larger than the file"),
        ({"stored_bytes": [1]}, "the arrays of 'part-000.parquet' differ in length"),
    ],
)
def test_a_stored_index_is_not_trusted(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    index_files(tmp_path / "in", tmp_path / "index")
    path = tmp_path / "index" / "index.json"
    index = json.loads(path.read_text())
    place = index if change.keys() & {"version", "format", "folder"} else index["files"][0]
    (index if change == {"columns": []} else place).update(change)
    path.write_text(json.dumps(index))
    with pytest.raises(DatasetError, match=f"{message}.*Run cloudload index again"):
        open_files(tmp_path / "index")


def test_the_command_writes_an_index_and_check_refuses_it(tmp_path: Path, cli: Any) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    out = cli("index", f"{tmp_path}/in/*.parquet", tmp_path / "index", "--json").out
    assert json.loads(out)["samples"] == len(DOCUMENTS)
    assert "which cloudload check does not read" in cli("check", tmp_path / "index", status=1).err


# ---------------------------------------------------------------- columns


def ids_of(text: str) -> list[int]:
    return [*byte_tokenizer().encode(text).ids, EOS_ID]


def test_a_nested_text_and_another_column_are_read(tmp_path: Path) -> None:
    rows = [{"meta": {"text": text, "n": 1}, "body": text[::-1]} for text in DOCUMENTS]
    write_parquet(tmp_path / "a.parquet", rows)
    for key, turn in (("meta.text", 1), ("body", -1)):
        with open_epoch(str(tmp_path / "a.parquet"), tmp_path / key, text_key=key) as loader:
            found = read_all(loader)
        expected = {(0, n): ids_of(text[::turn]) for n, text in enumerate(DOCUMENTS)}
        assert found == expected


@pytest.mark.parametrize("kind", ["list of int64", "list of uint16", "fixed list", "binary"])
def test_token_ids_are_read(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(1)
    documents = [
        rng.integers(0, 250, 8 if kind == "fixed list" else n % 30).tolist() for n in range(99)
    ]
    types = {
        "list of int64": pyarrow.list_(pyarrow.int64()),
        "list of uint16": pyarrow.large_list(pyarrow.uint16()),
        "fixed list": pyarrow.list_(pyarrow.int32(), 8),
        "binary": pyarrow.binary(),
    }
    values: list[Any] = documents
    if kind == "binary":
        values = [np.array(ids, "<u2").tobytes() for ids in documents]
    rows = [{"ids": value} for value in values]
    write_parquet(tmp_path / "a.parquet", rows, schema=pyarrow.schema([("ids", types[kind])]))
    options: dict[str, Any] = {"tokens_key": "ids", "tokenizer": None, "eos": None}
    options["tokens_dtype"] = "uint16" if kind == "binary" else None
    with open_epoch(str(tmp_path / "a.parquet"), tmp_path / "cache", **options) as loader:
        found = read_all(loader)
    assert found == {(0, n): ids for n, ids in enumerate(documents) if ids}


def title_and_text(sample: dict[str, Any]) -> str:
    return f"{sample['title']}/{sample['text']}/{sample['when']}/{sample['n']}"


def test_a_transform_gets_all_columns_with_their_nulls(tmp_path: Path) -> None:
    when = datetime.datetime(2024, 2, 29, 12)
    rows = [
        {
            "title": None if n % 2 else f"t{n}",
            "text": None if n % 3 == 1 else f"x{n}",
            **{"when": when, "n": n, "raw": b"\xff"},
        }
        for n in range(9)
    ]
    write_parquet(tmp_path / "a.parquet", rows, row_group_size=4)
    options = {"transform": title_and_text}
    with open_epoch(str(tmp_path / "a.parquet"), tmp_path / "cache", **options) as loader:
        found = [ids for _, ids in sorted(read_all(loader).items())]
    time = "2024-02-29 12:00:00.000000"
    assert found == [ids_of(f"{row['title']}/{row['text']}/{time}/{row['n']}") for row in rows]


def test_other_columns_have_the_same_json_as_after_a_conversion(tmp_path: Path) -> None:
    turn = {"role": "user", "content": "hi", "tool": None}
    rows = [
        {
            "id": f"d{n}",
            "text": f"x{n}",
            "messages": [turn, {"role": "assistant", "content": "é", "tool": {"n": n}}],
            "when": datetime.date(2024, 2, 29),
            "score": None if n % 3 else n / 7,
            "price": decimal.Decimal("1.50"),
            "flag": bool(n % 2),
        }
        for n in range(20)
    ]
    write_parquet(tmp_path / "in" / "a.parquet", rows)
    keep = [f"{name}:json" for name in rows[0] if name not in ("id", "text")]
    options: dict[str, Any] = {"keep": keep, "progress": False, "processes": 1}
    convert_to_mds(str(tmp_path / "in"), str(tmp_path / "out"), **options)
    converted = open_corpus([Location(str(tmp_path / "out"))])
    virtual = open_files(tmp_path / "in", ColumnChoice("text"))
    assert virtual.datasets[0].table.column_sets() == converted.datasets[0].table.column_sets()
    root = tmp_path / "cache"
    assert samples_of(virtual, root) == samples_of(converted, root)


def test_text_that_is_not_utf_8_is_a_bad_document(tmp_path: Path) -> None:
    schema = pyarrow.schema(
        [("text", pyarrow.string()), ("other", pyarrow.list_(pyarrow.string()))]
    )
    binary = pyarrow.schema(
        [("text", pyarrow.binary()), ("other", pyarrow.list_(pyarrow.binary()))]
    )
    rows = [{"text": b"\xff" if n == 3 else b"ok", "other": [b"\xfe"]} for n in range(9)]
    table = pyarrow.Table.from_pylist(rows, binary)
    with pyarrow.parquet.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        text, other = table["text"].combine_chunks(), table["other"].combine_chunks()
        lists = pyarrow.ListArray.from_arrays(other.offsets, other.values.view(pyarrow.string()))
        writer.write_table(pyarrow.table([text.view(pyarrow.string()), lists], schema))
    skipping = open_epoch(str(tmp_path / "a.parquet"), tmp_path / "cache", on_error="skip")
    assert sorted(sample for _, sample in read_all(skipping)) == [0, 1, 2, 4, 5, 6, 7, 8]
    options: dict[str, Any] = {"transform": lambda sample: str(sample["other"])}
    with (
        pytest.raises(DatasetError, match=r"sample \d of .* does not match its columns"),
        open_epoch(str(tmp_path / "a.parquet"), tmp_path / "cache", **options) as loader,
    ):
        rows_of(loader)


def test_a_null_text_is_a_bad_document(tmp_path: Path) -> None:
    rows = [{"id": f"d{n}", "text": None if n == 3 else f"text {n}"} for n in range(9)]
    write_parquet(tmp_path / "a.parquet", rows)
    message = r"sample 3 of .*a\.parquet#0-0 \(id 'd3'\) has null in column 'text'"
    with (
        pytest.raises(DatasetError, match=message),
        open_epoch(str(tmp_path / "a.parquet"), tmp_path / "cache") as loader,
    ):
        rows_of(loader)
    skipping = open_epoch(str(tmp_path / "a.parquet"), tmp_path / "cache", on_error="skip")
    assert sorted(sample for _, sample in read_all(skipping)) == [0, 1, 2, 4, 5, 6, 7, 8]


# ---------------------------------------------------------------- faults


def write_one(folder: Path, **columns: Any) -> Path:
    table = pyarrow.table(columns or {"text": ["a", "b"]})
    folder.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, folder / "a.parquet")
    return folder / "a.parquet"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"messages": ["[]"], "n": [1]},
            r"one of its columns: messages, n\. If column 'messages' contains conversations, pass "
            r"chat=Chat\(\), or set all_columns \(--all-columns\) to index the files$",
        ),
        ({"body": ["a"]}, r"a\.parquet has no column 'text'\. Set text_key .* columns: body$"),
        ({"text": [1, 2]}, r"has the column 'text' of type int64, which is neither text nor"),
        ({"text": [{"a": "b"}]}, r"has the column 'text' of type struct<a: string>, .* text\.text"),
        ({"text": [["a"]]}, r"has the column 'text' of type list<.*string>, which is neither"),
        ({"text": [[1, 2]]}, r"has ndarray:int64, not text, in column 'text'"),
    ],
)
def test_a_column_that_is_not_text_is_named(
    tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    path = write_one(tmp_path / "in", **columns)
    with pytest.raises(DatasetError, match=message):
        make_loader(str(path), local=tmp_path / "cache")


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garble_footer(path: Path) -> None:
    data = bytearray(path.read_bytes())
    [size] = struct.unpack("<I", data[-8:-4])
    data[-8 - size : -8] = b"\xff" * size
    path.write_bytes(data)


def announce_more(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8] + struct.pack("<I", 1 << 30) + b"PAR1")


def encrypt_footer(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4] + b"PARE")


def drop_rows(path: Path) -> None:
    """Remove the row groups, and keep the footer, which then lists bytes after the file's end."""
    data = path.read_bytes()
    [size] = struct.unpack("<I", data[-8:-4])
    path.write_bytes(b"PAR1" + data[-8 - size :])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_off, "it does not end like a Parquet file, so it is cut off or damaged"),
        (empty, "it has only 0 bytes"),
        (garble_footer, r"its footer is damaged \("),
        (announce_more, "its last bytes announce a footer of 1,073,741,832 bytes"),
        (encrypt_footer, "its footer is encrypted"),
        (drop_rows, "its footer says that row group 0 has 2 rows, .* the footer begins at byte 4"),
    ],
)
def test_a_damaged_footer_is_an_error_that_names_the_file(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    path = write_one(tmp_path / "in", text=["a", "b"], other=["c" * 99] * 2)
    damage(path)
    with pytest.raises(DatasetError, match=rf"a\.parquet cannot be read as Parquet: .*{message}"):
        make_loader(str(tmp_path / "in" / "*.parquet"), local=tmp_path / "cache")


@pytest.mark.parametrize("options", [{}, {"write_page_index": True}])
@pytest.mark.parametrize("numbers", [(40, 40), (200, 20), (1, 0)])
def test_joined_files_are_refused_with_the_words_of_a_conversion(
    tmp_path: Path, numbers: tuple[int, int], options: dict[str, Any]
) -> None:
    texts = pyarrow.schema([("text", pyarrow.string())])
    parts = [
        write_parquet(tmp_path / f"{place}", rows, schema=texts, **options).read_bytes()
        for place, number in enumerate(numbers)
        for rows in [[{"text": f"{place} {row}" * 9} for row in range(number)]]
    ]
    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    path.write_bytes(b"".join(parts))
    refused = (
        r"a\.parquet cannot be read as Parquet: it consists of several Parquet files that were "
        "joined. Use each one separately"
    )
    with pytest.raises(DatasetError, match=refused):
        open_files(path)
    with pytest.raises(ConvertError, match=refused):
        convert_to_mds(str(path), tmp_path / "out", processes=1, progress=False)


def _damage_once(monkeypatch: pytest.MonkeyPatch, before: bytes, after: bytes) -> list[str]:
    """Damage the first transfer that has the bytes `before`. Returns the requests with them."""
    read, found = Location.read_range, list[str]()

    def transfer(location: Location, *arguments: Any) -> bytes:
        data = read(location, *arguments)
        if before in data:
            found.append(location.url)
            return data.replace(before, after) if len(found) == 1 else data
        return data

    monkeypatch.setattr(Location, "read_range", transfer)
    return found


def test_a_footer_that_was_damaged_in_transfer_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS, num_files=1)
    expected = texts_of(open_files(tmp_path / "in"), tmp_path / "other")
    found = _damage_once(monkeypatch, b"\x15\x04\x19", b"\xff" * 3)  # begins a footer
    corpus = open_corpus([Location(str(tmp_path / "in"))], tmp_path / "cache", choices=[TEXT_ONLY])
    assert len(found) == 2
    assert "its footer is damaged" in caplog.text
    assert texts_of(corpus, tmp_path / "cache") == expected


def test_an_index_of_a_damaged_footer_is_made_again_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS, num_files=1)
    expected = texts_of(open_files(tmp_path / "in"), tmp_path / "other")
    _damage_once(monkeypatch, b"parquet-cpp", b"parquet-CPP")
    where = [Location(str(tmp_path / "in"))], tmp_path / "cache"
    with pytest.raises(DatasetError, match=r"its footer has the hash .* the second invalid down"):
        texts_of(open_corpus(*where, choices=[TEXT_ONLY]), tmp_path / "cache")
    assert texts_of(open_corpus(*where, choices=[TEXT_ONLY]), tmp_path / "cache") == expected


def test_damaged_pages_are_an_error_that_names_the_row_groups(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS, num_files=1, compression="zstd")
    path = tmp_path / "in" / "part-000.parquet"
    data = bytearray(path.read_bytes())
    data[100:600] = bytes(500)
    path.write_bytes(data)
    message = r"part-000\.parquet#0-\d cannot be read as Parquet \(.*the second invalid download"
    with (
        pytest.raises(DatasetError, match=message),
        open_epoch(str(tmp_path / "in"), tmp_path / "cache", shuffle=False) as loader,
    ):
        rows_of(loader)


def test_files_without_rows_and_empty_row_groups_are_read(tmp_path: Path) -> None:
    schema = pyarrow.schema([("text", pyarrow.string())])
    write_parquet(tmp_path / "in" / "0.parquet", [], schema=schema)
    WRITERS["many small row groups"](
        tmp_path / "in" / "1.parquet", [{"text": t} for t in DOCUMENTS]
    )
    assert texts_of(open_files(tmp_path / "in"), tmp_path / "cache") == DOCUMENTS
    with pytest.raises(DatasetError, match="found no samples in"):
        open_files(tmp_path / "in" / "0.parquet")


def test_a_shard_that_is_too_large_names_its_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": str(n), "text": "the same text " * 50} for n in range(100)]
    write_parquet(tmp_path / "a.parquet", rows, row_group_size=100)  # a dictionary of one text
    corpus = open_files(tmp_path / "a.parquet")
    monkeypatch.setattr(shard_entries, "MOST_SHARD_BYTES", 20_000)
    with pytest.raises(DatasetError, match=r"a\.parquet#0-0 has more than 4 GiB of values"):
        texts_of(corpus, tmp_path / "cache")
    monkeypatch.setattr(shard_entries, "MOST_SHARD_BYTES", 1_000)
    with pytest.raises(DatasetError, match=r"row group 0 has [\d,]+ bytes of the columns to read"):
        open_files(tmp_path / "a.parquet")


def test_large_row_groups_are_mentioned_with_the_command_that_converts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cli: Any
) -> None:
    folder = write_corpus(tmp_path / "in", DOCUMENTS)
    options: dict[str, Any] = {"local": tmp_path / "cache", "epochs": 1}
    make_loader(str(folder), **options).close()
    assert "row group" not in cli("info", folder).out + caplog.text
    monkeypatch.setattr(virtual_index, "LARGE_BYTES", 5_000)
    warning = (
        r"in: 3 row groups with more than 0 MiB .* part-000\.parquet#1-2\. .*"
        rf"run: cloudload convert {folder} OUTPUT"
    )
    assert re.search(f"warning: .*{warning}", cli("info", folder).out)
    plan = {"tokenizer": byte_tokenizer(), "eos": EOS_ID, "seq_len": 16, "batch_size": 2}
    assert re.search(warning, " ".join(plan_run(folder, **plan, **options, measure=False).warnings))
    [text] = json.loads(cli("info", folder, "--json").out)["warnings"]
    assert re.search(warning, text)
    for read in (
        lambda: make_loader(str(folder), **options).close(),
        lambda: index_files(folder, tmp_path / "index"),
        lambda: make_loader(str(tmp_path / "index"), **options).close(),
    ):
        caplog.clear()
        read()
        assert re.search(warning, caplog.text)


@pytest.mark.parametrize("columns", [1, 3_000])
def test_footers_larger_than_the_first_request_are_read(tmp_path: Path, columns: int) -> None:
    rows = [{"text": f"t{n}", **{f"column-{c:05}": c for c in range(columns)}} for n in range(3)]
    for number in range(3):
        write_parquet(tmp_path / "in" / f"{number}.parquet", rows)
    size = pyarrow.parquet.read_metadata(tmp_path / "in" / "0.parquet").serialized_size
    assert (size > 4 * footers.TAIL_BYTES) == (columns > 1)
    assert open_files(tmp_path / "in").num_samples == 9


def test_without_pyarrow_the_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_one(tmp_path / "in")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DatasetError, match=r"pip install pyarrow"):
        make_loader(str(tmp_path / "in"), local=tmp_path / "cache")


# ---------------------------------------------------------------- files that change


def rewrite(path: Path) -> None:
    write_parquet(path, [{"id": "d0", "text": "new text"}])


def touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def append_bytes(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize("change", [rewrite, touch, append_bytes])
def test_a_file_that_changes_during_a_run_is_an_error_with_both_versions(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    corpus = open_files(tmp_path / "in")
    change(tmp_path / "in" / "part-001.parquet")
    message = r"part-001\.parquet changed since it was listed: its version was \d+-\d+, and is now"
    with pytest.raises(StoreError, match=message):
        texts_of(corpus, tmp_path / "cache")


def test_a_file_without_a_version_that_changes_is_an_error(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    [dataset] = open_files(tmp_path / "in").datasets
    info = dataset.shards[0]
    assert info.part is not None
    path = tmp_path / "in" / info.part.file
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    row_groups._footers.clear()
    info = dataclasses.replace(info, part=info.part._replace(tag=""))
    with pytest.raises(
        StoreError, match=r"part-000\.parquet changed since the run began: its footer"
    ):
        write_virtual_shard(dataset.location, info, io.BytesIO(), Transfer(lambda _: None))


def test_a_file_that_vanishes_during_a_run_is_named(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    corpus = open_files(tmp_path / "in")
    (tmp_path / "in" / "part-002.parquet").unlink()
    row_groups._footers.clear()
    with pytest.raises(StoreError, match=r"part-002\.parquet"):
        texts_of(corpus, tmp_path / "cache")


def test_a_state_is_resumed_from_a_copy_but_not_after_a_change(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    with make_loader(str(tmp_path / "in"), local=tmp_path / "cache") as loader:
        before = rows_of(loader.take(2))
        state, expected = loader.state_dict(), rows_of(loader.take(3))
    assert before != expected
    shutil.copytree(tmp_path / "in", tmp_path / "moved")  # with other versions
    with make_loader(str(tmp_path / "moved"), local=tmp_path / "cache") as loader:
        loader.load_state_dict(state)
        assert rows_of(loader.take(3)) == expected
    rewrite(tmp_path / "moved" / "part-001.parquet")
    with (
        make_loader(str(tmp_path / "moved"), local=tmp_path / "cache") as loader,
        pytest.raises(StreamChangedError, match="data"),
    ):
        loader.load_state_dict(state)


def test_a_run_continues_with_its_own_files_after_others_were_added(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    with make_loader(str(tmp_path / "in"), local=tmp_path / "cache") as loader:
        rows_of(loader.take(2))
        state, expected = loader.state_dict(), rows_of(loader.take(20))
    write_parquet(tmp_path / "in" / "part-003.parquet", [{"id": "new", "text": "new " * 500}])
    with make_loader(str(tmp_path / "in"), local=tmp_path / "cache") as loader:
        loader.load_state_dict(state)
        assert rows_of(loader.take(20)) == expected


def test_the_identity_of_files_is_the_same_in_every_release(tmp_path: Path) -> None:
    """Otherwise, a run could not be resumed with a later release."""
    path = Path(__file__).parents[1] / "data" / "conversion_38a3700" / "a.parquet"
    corpus = open_files(path)
    shards = [(info.raw.name, info.samples, info.raw.bytes) for info in corpus.datasets[0].shards]
    assert shards == [("a.parquet#0-0.mds", 70, 10_071), ("a.parquet#1-1.mds", 50, 8_000)]
    assert corpus.fingerprint(range(1)) == "7bd015d2d0332e7dcf2dc2cccac14d38"
    samples = b"".join(samples_of(corpus, tmp_path))
    assert hashlib.sha256(samples).hexdigest()[:16] == "a2bb134687bc62b0"


# ---------------------------------------------------------------- the cache


def cached_shards(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.mds"))


@pytest.mark.parametrize("verify", ["once", "always"])
def test_a_damaged_shard_in_the_cache_is_read_again(tmp_path: Path, verify: str) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    corpus = open_files(tmp_path / "in")
    texts_of(corpus, tmp_path / "cache", verify=verify)
    paths = cached_shards(tmp_path / "cache")
    assert len(paths) == len(corpus.shard_sizes) > 4
    flip(paths[0], paths[0].stat().st_size - 1)
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    assert texts_of(corpus, tmp_path / "cache", verify=verify) == DOCUMENTS


def test_a_shard_that_is_larger_than_its_estimate_is_reserved_as_it_grows(tmp_path: Path) -> None:
    rows = [{"id": f"{n}", "text": f"{n % 3} the same text " * 400} for n in range(300)]
    write_parquet(tmp_path / "in" / "a.parquet", rows, row_group_size=100)
    corpus = open_files(tmp_path / "in")
    root = tmp_path / "cache"
    estimate, limit = int(corpus.datasets[0].table.raw_bytes.sum()), 3_000_000
    cache_folder.open_cache_folder(root)
    assert len(texts_of(corpus, root, limit_bytes=limit)) == 300
    used = sum(path.stat().st_size for path in cached_shards(root))
    assert 10 * estimate < used < limit
    assert fetch._read(root).used == used
    with pytest.raises(CacheError, match=r"cache_limit 500,000 is too small"):
        texts_of(corpus, tmp_path / "small", limit_bytes=500_000)
    assert not list((tmp_path / "small").rglob("*.part"))


# ---------------------------------------------------------------- lengths


def test_lengths_are_counted_and_used(tmp_path: Path) -> None:
    write_corpus(tmp_path / "in", DOCUMENTS)
    with open_epoch(str(tmp_path / "in"), tmp_path / "cache") as loader:
        expected = rows_of(loader)
    count(tmp_path / "in")
    settings: dict[str, Any] = {"lengths": "require"}
    with open_epoch(str(tmp_path / "in"), tmp_path / "cache", **settings) as loader:
        assert len(loader) == -(-len(expected) // 2)
        assert rows_of(loader)[: len(expected)] == expected
    rows = Rows(
        str(tmp_path / "in"),
        tokenizer=byte_tokenizer(),
        eos=EOS_ID,
        seq_len=16,
        num_lanes=2,
        local=tmp_path / "rows",
    )
    chosen = [7, 3, 40]
    assert [rows[row]["input_ids"].tolist() for row in chosen] == [expected[r] for r in chosen]
    [dataset] = open_files(tmp_path / "in").datasets
    assert {info.compression for info in dataset.shards} == {shard_entries.PARQUET}


def test_conversations_are_answered_with_the_option_of_the_command(
    tmp_path: Path, cli: Any
) -> None:
    write_one(tmp_path / "in", messages=["[]"])
    tokenizer = tmp_path / "tokenizer.json"
    byte_tokenizer().save(str(tokenizer))
    said = cli("count", tmp_path / "in", "--tokenizer", tokenizer, status=1).err
    assert "If column 'messages' contains conversations, pass --chat tokenizer, or" in said
    said = cli("index", tmp_path / "in", tmp_path / "index", status=1).err
    assert "or set --all-columns to index the files" in said
    (tmp_path / "a.jsonl").write_text('{"messages": []}\n')
    said = cli("index", tmp_path / "a.jsonl", tmp_path / "index", status=1).err
    assert "If 'messages' has conversations, set --all-columns" in said
    cli("index", tmp_path / "a.jsonl", tmp_path / "index", "--all-columns")
