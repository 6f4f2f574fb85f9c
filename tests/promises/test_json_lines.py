"""JSON Lines files that are read where they are give the same samples and rows as after a
conversion, on every world, and a file that is damaged or that changes is an error that names it."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudload import Rows
from cloudload.convert import convert_to_mds
from cloudload.data import file_content
from cloudload.data.cache import cache_folder
from cloudload.data.cache.shard_cache import ShardCache
from cloudload.data.mds import json_lines, shard_entries
from cloudload.data.mds.dataset import Corpus, open_corpus
from cloudload.data.mds.shard import NULL_TEXT
from cloudload.data.storage.locations import Location
from cloudload.errors import CacheError, DatasetError, StoreError, StreamChangedError
from cloudload.testing import Leg, check_resume, check_worlds, run_legs
from cloudload.tools.convert import input_records, line_index, line_journal
from testkit.conversions import COMPRESSORS
from testkit.corpora import EOS_ID, byte_tokenizer, random_documents, write_mds
from testkit.counted import count
from testkit.line_files import encode_lines, index, write_line_corpus, write_lines
from testkit.loaders import make_loader, ranks, rows_of
from testkit.parquet_files import write_parquet
from testkit.shard_caches import note_ranges, texts_of
from testkit.whole_documents import open_epoch, read_all

DOCUMENTS = [*random_documents(5, 240), "é 狐 \x00", "z" * 9_000, "a\u2028b\u2029\x85\r\nc"]
SMALL = 5_000


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_index, "SHARD_BYTES", SMALL)


def open_folder(location: Path | str) -> Corpus:
    return open_corpus([Location(str(location))])


def samples_of(corpus: Corpus, root: Path) -> list[tuple[bytes, ...]]:
    """The bytes of each column of each sample."""
    cache = ShardCache(corpus, root, threads=3, verify="always")
    try:
        shards = [cache.shard(number) for number in range(len(corpus.shard_sizes))]
        return [
            tuple(shard.read_bytes(sample, column) for column in range(len(shard.info.columns)))
            for shard in shards
            for sample in range(shard.info.samples)
        ]
    finally:
        cache.close()


def convert(data: Path, out: Path, **options: Any) -> Corpus:
    convert_to_mds(str(data), str(out), progress=False, processes=1, **options)
    return open_folder(out)


# ---------------------------------------------------------------- the same samples


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("has_ids", [True, False])
def test_samples_are_the_same_bytes_as_after_a_conversion(
    tmp_path: Path, suffix: str, has_ids: bool
) -> None:
    for number in range(2):
        rows: list[Any] = [{"id": f"d{n}", "text": text} for n, text in enumerate(DOCUMENTS)]
        rows = rows if has_ids else [{"text": row["text"], "n": 1.5} for row in rows]
        write_lines(tmp_path / "in" / f"{number}.jsonl{suffix}", rows[number::2])
    virtual = open_folder(index(tmp_path / "in", tmp_path / "index"))
    assert (len(virtual.shard_sizes) > 4) == (suffix == "")
    converted = convert(tmp_path / "in", tmp_path / "out")
    assert samples_of(virtual, tmp_path / "cache") == samples_of(converted, tmp_path / "cache")


LINES = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *(b"", b" ", b"\t\r", b"\x0b", b"\xef\xbb\xbf", b"\x1e"),
                *(b"null", b"[1]", b'"x"', b"{", b"\xff", b'{"text": "\xff"}', b'{"a": 1}'),
                *(b'{"text": null}', b'{"text": 7}', b'{"text": "\\ud800"}', b'{"text": ""}'),
                *(b'{"text": "a", "id": 7.0}', b'{"text": "a", "id": "\\ud800"}'),
                *(b'{"text": "a"},', b'{"text": "a"}{"text": "b"}', b'{"text": "a", "n": NaN}'),
                *(b'{"text": "a", "n": 123456789012345678901}', b'{"text": "a", "id": ""}'),
                b'{"text": "' + b"long " * 40 + b'"}',
            ]
        ),
        st.binary(max_size=9).map(lambda data: data.replace(b"\n", b"")),
        st.dictionaries(st.sampled_from(["text", "id"]), st.text(max_size=9)).map(
            lambda row: json.dumps(row, ensure_ascii=False).encode("utf-8", "replace")
        ),
    ),
    max_size=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    lines=LINES,
    ending=st.sampled_from([b"\n", b"\r\n"]),
    is_ended=st.booleans(),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    shard_bytes=st.integers(1, 80),
    suffix=st.sampled_from(["", ".gz"]),
)
def test_any_lines_in_any_cuts_are_the_records_of_a_conversion_each_once(
    *,
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    ending: bytes,
    is_ended: bool,
    mark: bytes,
    shard_bytes: int,
    suffix: str,
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    data = mark + ending.join(lines) + (ending if is_ended else b"")
    (folder / "in").mkdir()
    (folder / "in" / f"a.jsonl{suffix}").write_bytes(COMPRESSORS[suffix](data))
    # the other file has a document, and an ID that no line of the first one has
    write_lines(folder / "in" / "b.jsonl", [{"id": "the other file", "text": "good"}])
    rejects = folder / "rejects.jsonl"
    converted = convert(folder / "in", folder / "out", skip_bad=True, rejects=str(rejects))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_index, "SHARD_BYTES", shard_bytes)
        patch.setattr(line_index, "_check_first_records", lambda *_: None)
        virtual = open_folder(index(folder / "in", folder / "index"))
    found = samples_of(virtual, folder / "cache")
    good = [sample for sample in found if not sample[1].startswith(b"\xff") and sample[1]]
    assert good == samples_of(converted, folder / "cache")
    bad = [sample for sample in found if sample[1].startswith(b"\xff")]
    rejected = [json.loads(line) for line in rejects.read_bytes().splitlines()]
    assert len(bad) == len(rejected)
    null = b"\xffbad: the field 'text' is null, not text"
    problems = [null if text == NULL_TEXT else text for _, text in bad]
    assert problems == [b"\xffbad: " + reject["error"].encode() for reject in rejected]


SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    lines=LINES,
    ending=st.sampled_from([b"\n", b"\r\n"]),
    is_ended=st.booleans(),
    cuts=st.lists(st.integers(0, 300), max_size=9),
    suffix=st.sampled_from([".gz", ".zst", ".bz2"]),
    between=st.sampled_from(["", "skippable", "empty"]),
    shard_bytes=st.integers(1, 80),
    block_bytes=st.sampled_from([1, 30, 1 << 20]),
)
def test_any_split_into_members_has_the_records_of_the_whole_file_each_once(
    *,
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    ending: bytes,
    is_ended: bool,
    cuts: list[int],
    suffix: str,
    between: str,
    shard_bytes: int,
    block_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("members")
    data = ending.join(lines) + (ending if is_ended else b"")
    ends = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [COMPRESSORS[suffix](data[a:b]) for a, b in itertools.pairwise(ends)]
    gap = COMPRESSORS[suffix](b"") if between == "empty" else b""
    gap = SKIPPABLE if between == "skippable" and suffix == ".zst" else gap
    for name, stored in (("in", gap.join([b"", *pieces, b""])), ("one", COMPRESSORS[suffix](data))):
        (folder / name).mkdir()
        (folder / name / f"a.jsonl{suffix}").write_bytes(stored)
        write_lines(folder / name / "b.jsonl", [{"id": "the other file", "text": "good"}])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_index, "_check_first_records", lambda *_: None)
        whole = open_folder(index(folder / "one", folder / "whole"))
        patch.setattr(line_index, "SHARD_BYTES", shard_bytes)
        patch.setattr(input_records, "DEFAULT_BLOCK_BYTES", block_bytes)
        cut = open_folder(index(folder / "in", folder / "index"))
    assert samples_of(cut, folder / "cache") == samples_of(whole, folder / "cache")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_file_of_members_is_read_in_requests_of_some_members(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encode_lines([{"text": text} for text in DOCUMENTS])
    members = [COMPRESSORS[suffix](data[at : at + 1_500]) for at in range(0, len(data), 1_500)]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(b"".join(members))
    corpus = open_folder(index(path, tmp_path / "index"))
    [dataset] = corpus.datasets
    assert len(dataset.table) > 2
    read = note_ranges(monkeypatch)
    assert texts_of(corpus, tmp_path / "cache", threads=1) == DOCUMENTS
    assert read == [info.stored.bytes for info in dataset.shards]
    # at most one member is read twice at each cut
    assert sum(read) <= path.stat().st_size + (len(read) - 1) * max(map(len, members))
    stored = json.loads((tmp_path / "index" / "index.json").read_text())
    stored["files"][0].pop("tag")
    (tmp_path / "index" / "index.json").write_text(json.dumps(stored))
    changed = data.replace(b"a", b"o")
    path.write_bytes(
        b"".join(COMPRESSORS[suffix](changed[at : at + 1_500]) for at in range(0, len(data), 1_500))
    )
    with pytest.raises((DatasetError, StoreError), match=r"a\.jsonl"):
        texts_of(open_folder(tmp_path / "index"), tmp_path / "other")


def test_other_columns_have_the_same_json_as_after_a_conversion(tmp_path: Path) -> None:
    rows: list[Any] = [
        {
            "id": f"d{n}",
            "text": f"x{n}",
            "messages": [{"role": "user", "content": "é", "n": n}],
            **({"score": n / 7, "tags": []} if n % 3 else {}),
            **({"only": None} if n == 150 else {}),
        }
        for n in range(200)
    ]
    write_lines(tmp_path / "in" / "a.jsonl", rows)
    keep = ["messages:json", "score:json", "tags:json", "only:json"]
    converted = convert(tmp_path / "in", tmp_path / "out", keep=keep)
    virtual = open_folder(index(tmp_path / "in", tmp_path / "index", all_columns=True))
    assert len(virtual.shard_sizes) > 2
    assert virtual.datasets[0].table.column_sets() == converted.datasets[0].table.column_sets()
    root = tmp_path / "cache"
    assert samples_of(virtual, root) == samples_of(converted, root)


def test_rows_are_the_same_where_shards_are_cut_alike(tmp_path: Path) -> None:
    write_line_corpus(tmp_path / "in", DOCUMENTS, num_files=2)
    virtual = index(tmp_path / "in", tmp_path / "index")
    sizes = open_folder(virtual).shard_sizes.tolist()
    assert len(sizes) > 4
    assert len(set(sizes)) > 1
    write_mds(tmp_path / "out", DOCUMENTS, shard_samples=sizes)
    legs = [Leg(2, batches=5), Leg(3, workers=2, batches=5)]
    found, expected = (
        run_legs(ranks(str(folder), local=tmp_path / "cache", num_canonical_nodes=2), legs)
        for folder in (virtual, tmp_path / "out")
    )
    assert found == expected


def test_every_world_reads_the_same_rows(tmp_path: Path) -> None:
    write_line_corpus(tmp_path / "in", DOCUMENTS, suffix=".jsonl.gz", num_files=7)
    virtual = index(tmp_path / "in", tmp_path / "index")
    legs = [Leg(batches=2), Leg(12, batches=2), Leg(6, batch_size=3), Leg(4, workers=2, batches=9)]
    check_worlds(ranks(virtual, local=tmp_path / "cache"), legs)


def test_saved_after_every_batch_the_remainder_is_the_same(tmp_path: Path) -> None:
    virtual = index(write_line_corpus(tmp_path / "in", DOCUMENTS), tmp_path / "index")
    check_resume(ranks(virtual, local=tmp_path / "cache"), global_batch=8, num_batches=4)


# ---------------------------------------------------------------- the index


def test_every_engine_makes_the_same_index(tmp_path: Path) -> None:
    write_line_corpus(tmp_path / "in", DOCUMENTS)
    write_line_corpus(tmp_path / "in" / "more", DOCUMENTS, suffix=".jsonl.zst")
    index(tmp_path / "in", tmp_path / "a")
    index(tmp_path / "in", tmp_path / "b", processes=2)
    with ProcessPoolExecutor(2) as executor:
        index(tmp_path / "in", tmp_path / "c", executor=executor)
    found = {(tmp_path / name / "index.json").read_bytes() for name in "abc"}
    assert len(found) == 1


def test_a_shard_is_read_in_one_request_of_its_own_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = open_folder(index(write_line_corpus(tmp_path / "in", DOCUMENTS), tmp_path / "index"))
    read = note_ranges(monkeypatch)
    assert texts_of(corpus, tmp_path / "cache", threads=1) == DOCUMENTS
    [dataset] = corpus.datasets
    assert read == [info.stored.bytes for info in dataset.shards]
    assert sum(read) == sum(path.stat().st_size for path in (tmp_path / "in").iterdir())


def test_an_index_may_be_beside_the_files_and_a_conversion_leaves_it_out(tmp_path: Path) -> None:
    write_line_corpus(tmp_path / "in", DOCUMENTS, suffix=".json.gz")
    expected = convert(tmp_path / "in", tmp_path / "a")
    index(tmp_path / "in", tmp_path / "in")
    count(tmp_path / "in")
    assert "folder" not in json.loads((tmp_path / "in" / "index.json").read_text())
    assert index(tmp_path / "in", tmp_path / "in")  # again, beside the index and the lengths
    assert convert(tmp_path / "in", tmp_path / "b").datasets[0].index_hash == (
        expected.datasets[0].index_hash
    )
    (tmp_path / "in").rename(tmp_path / "moved")
    assert texts_of(open_folder(tmp_path / "moved"), tmp_path / "cache") == DOCUMENTS
    with pytest.raises(DatasetError, match=r"has an index, so pass the folder: .*moved"):
        make_loader(str(tmp_path / "moved" / "*.json.gz"))


def test_what_is_stored_beside_files_in_a_folder_below_is_no_input(tmp_path: Path) -> None:
    expected = convert(write_line_corpus(tmp_path / "in" / "sub", DOCUMENTS), tmp_path / "a")
    index(tmp_path / "in" / "sub", tmp_path / "in" / "sub")
    count(tmp_path / "in" / "sub")
    write_lines(tmp_path / "in" / "sub" / "selections" / "good" / "selection.json", [{"rule": {}}])
    index(tmp_path / "in", tmp_path / "in" / "of-all")
    index(tmp_path / "in", tmp_path / "index")  # again
    assert texts_of(open_folder(tmp_path / "index"), tmp_path / "cache") == DOCUMENTS
    found = convert(tmp_path / "in", tmp_path / "b")
    assert (
        texts_of(found, tmp_path / "cache") == texts_of(expected, tmp_path / "cache") == DOCUMENTS
    )


# ---------------------------------------------------------------- a command that was stopped


def stop_after(parts: int, patch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Make counting fail after so many parts. Returns the parts that are counted."""
    counting, counted = line_index._count_part, list[tuple[str, Any]]()

    def count_part(part: Any, *arguments: Any, **options: Any) -> Any:
        if len(counted) == parts:
            raise StoreError("stopped")
        counted.append((part.file.name, part.range))
        return counting(part, *arguments, **options)

    patch.setattr(line_index, "_count_part", count_part)
    return counted


@pytest.mark.parametrize("options", [{}, {"all_columns": True}])
@pytest.mark.parametrize("parts", [1, 7, 25])
def test_an_index_that_was_stopped_resumes_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], parts: int
) -> None:
    monkeypatch.setattr(line_index, "SHARD_BYTES", 1_000)
    monkeypatch.setattr(line_journal, "GROUP_BYTES", 4_000)
    data = write_line_corpus(tmp_path / "in", DOCUMENTS)
    write_lines(data / "z.jsonl.gz", [{"text": "z", "source": "web"}])
    index(data, tmp_path / "whole", **options)
    with monkeypatch.context() as patch:
        first = stop_after(parts, patch)
        with pytest.raises(StoreError, match="stopped"):
            index(data, tmp_path / "index", **options)
    assert not (tmp_path / "index" / "index.json").exists()
    stored = len(list(tmp_path.glob("index/.index/*.json")))
    assert (stored > 0) == (parts > 1)
    with monkeypatch.context() as patch:
        rest = stop_after(100, patch)
        index(data, tmp_path / "index", **options)
    every = len({*first, *rest})
    assert len(rest) < every if stored else len(rest) == every
    assert len(first) + len(rest) - every <= 5
    whole, resumed = ((tmp_path / each / "index.json").read_bytes() for each in ("whole", "index"))
    assert resumed == whole
    assert not list(tmp_path.glob("*/.index"))


def test_what_was_counted_of_other_files_or_columns_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_index, "SHARD_BYTES", 1_000)
    monkeypatch.setattr(line_journal, "GROUP_BYTES", 4_000)
    data = write_line_corpus(tmp_path / "in", DOCUMENTS)
    with monkeypatch.context() as patch:
        stop_after(9, patch)
        with pytest.raises(StoreError, match="stopped"):
            index(data, tmp_path / "index")
    assert list(tmp_path.glob("index/.index/*.json"))
    write_lines(data / "part-000.jsonl", [{"id": "new", "text": "new"}])
    index(data, tmp_path / "index", all_columns=True)
    index(data, tmp_path / "whole", all_columns=True)
    whole, resumed = ((tmp_path / each / "index.json").read_bytes() for each in ("whole", "index"))
    assert resumed == whole


@pytest.mark.parametrize("data", ["in", "in/*.jsonl", "in/part-000.jsonl"])
def test_without_an_index_the_command_that_writes_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any, data: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_line_corpus(Path("in"), DOCUMENTS)
    with pytest.raises(DatasetError) as caught:
        make_loader(data)
    command = re.search(r"(cloudload index .*) \(with --text-key", str(caught.value))
    named = re.search(r"pass '([^']*)' to the loader: cloudload index", str(caught.value))
    assert command
    assert named
    words = command[1].replace("'", "").split()
    cli(*words[1:])
    with make_loader(named[1], local=tmp_path / "cache") as loader:
        assert loader.num_samples > 80


def test_files_of_two_formats_are_not_one_index(tmp_path: Path) -> None:
    write_line_corpus(tmp_path / "in", DOCUMENTS)
    write_parquet(tmp_path / "in" / "a.parquet", [{"text": "a"}])
    with pytest.raises(DatasetError, match=r"has 1 Parquet file and 3 JSON Lines files\. Pass a"):
        index(tmp_path / "in", tmp_path / "index")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"found no Parquet or JSON Lines files in .*empty"):
        index(tmp_path / "empty", tmp_path / "index")


def test_a_field_that_no_record_has_is_named_before_the_run(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"body": "a", "meta": {"url": "u"}}])
    message = r"first records have no field 'text'. Its fields are: body, meta\.url\. Set text_key"
    with pytest.raises(DatasetError, match=message):
        index(tmp_path / "a.jsonl", tmp_path / "index")
    with pytest.raises(DatasetError, match="the first records have no field ''"):
        index(tmp_path / "a.jsonl", tmp_path / "index", text_key="")
    virtual = index(tmp_path / "a.jsonl", tmp_path / "index", text_key="meta.url")
    with pytest.raises(DatasetError, match=r"has no column 'text'\. .* columns: meta\.url"):
        make_loader(virtual, local=tmp_path / "cache")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "../a.jsonl"}, "could point outside the dataset's folder"),
        ({"line": ["1"]}, "line is .'1'., not integers of at least 0"),
        ({"lines": []}, "the arrays of 'part-000.jsonl' differ in length"),
        ({"stop": [0]}, "the shards of 'part-000.jsonl' are not parts of it, in order"),
        ({"tag": 7}, "tag is 7, not text"),
    ],
)
def test_a_stored_index_is_not_trusted(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    index(write_line_corpus(tmp_path / "in", DOCUMENTS), tmp_path / "index")
    path = tmp_path / "index" / "index.json"
    stored = json.loads(path.read_text())
    stored["files"][0].update(change)
    path.write_text(json.dumps(stored))
    with pytest.raises(DatasetError, match=message):
        open_folder(tmp_path / "index")


def test_a_column_that_lines_cannot_have_is_an_error(tmp_path: Path) -> None:
    index(write_line_corpus(tmp_path / "in", DOCUMENTS), tmp_path / "index")
    path = tmp_path / "index" / "index.json"
    path.write_text(path.read_text().replace('["id", "str"]', '["id", "int"]'))
    with pytest.raises(DatasetError, match="has the column 'id' of int in its index, which lines"):
        texts_of(open_folder(tmp_path / "index"), tmp_path / "cache")


# ---------------------------------------------------------------- columns


def ids_of(text: str) -> list[int]:
    return [*byte_tokenizer().encode(text).ids, EOS_ID]


def test_a_nested_text_is_read(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"z": {"text": text}} for text in DOCUMENTS])
    virtual = index(tmp_path / "a.jsonl", tmp_path / "index", text_key="z.text")
    with open_epoch(virtual, tmp_path / "cache", text_key="z.text") as loader:
        assert read_all(loader) == {(0, n): ids_of(text) for n, text in enumerate(DOCUMENTS)}


def test_token_ids_are_read(tmp_path: Path) -> None:
    documents = [[n % 250] * (n % 30) for n in range(99)]
    write_lines(tmp_path / "a.jsonl", [{"ids": ids} for ids in documents])
    virtual = index(tmp_path / "a.jsonl", tmp_path / "index", tokens_key="ids")
    options: dict[str, Any] = {"tokens_key": "ids", "tokenizer": None, "eos": None}
    with open_epoch(virtual, tmp_path / "cache", **options) as loader:
        assert read_all(loader) == {(0, n): ids for n, ids in enumerate(documents) if ids}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"ids": [1', "the record is invalid JSON"),
        (b'{"ids": [1], "author": "\xe9"}', "the record is not UTF-8"),
        (b"[1, 2]", "the record is not an object, but a list"),
        (b'{"ids": [1, null]}', "the value is not a list of integers"),
        (b'{"x": 1}', "the value is not a list of integers"),
    ],
)
def test_a_line_without_token_ids_is_an_error_with_its_problem(
    tmp_path: Path, line: bytes, problem: str
) -> None:
    (tmp_path / "a.jsonl").write_bytes(encode_lines([{"ids": [1, 2]}]) + line)
    virtual = index(tmp_path / "a.jsonl", tmp_path / "index", tokens_key="ids")
    options: dict[str, Any] = {"tokens_key": "ids", "tokenizer": None, "eos": None}
    message = rf"sample 1 of .* has no list of token IDs in the JSON column 'ids' \({problem}"
    with (
        pytest.raises(DatasetError, match=message),
        open_epoch(virtual, tmp_path / "cache", **options) as loader,
    ):
        rows_of(loader)


def title_and_text(sample: dict[str, Any]) -> str:
    return f"{sample['title']}/{sample['text']}/{sample['n']}"


def test_a_transform_gets_all_fields_and_none_for_those_that_a_record_lacks(
    tmp_path: Path,
) -> None:
    rows = [{"text": f"x{n}", "n": n, **({"title": "t"} if n % 2 else {})} for n in range(9)]
    write_lines(tmp_path / "a.jsonl", rows)
    virtual = index(tmp_path / "a.jsonl", tmp_path / "index", all_columns=True)
    with open_epoch(virtual, tmp_path / "cache", transform=title_and_text) as loader:
        found = [ids for _, ids in sorted(read_all(loader).items())]
    assert found == [ids_of(f"{'t' if n % 2 else None}/x{n}/{n}") for n in range(9)]


def test_conversations_need_no_text(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"messages": [{"role": "user", "content": "a" * n}, {"role": "assistant", "content": "b"}]}
        for n in range(1, 9)
    ]
    write_lines(tmp_path / "a.jsonl", [*rows, {"text": "x", "messages": rows[0]["messages"]}])
    virtual = index(tmp_path / "a.jsonl", tmp_path / "index", all_columns=True)
    with open_epoch(virtual, tmp_path / "cache", transform=describe_messages) as loader:
        found = [ids for _, ids in sorted(read_all(loader).items())]
    assert found == [ids_of(f"None {n}") for n in range(1, 9)] + [ids_of("x 1")]
    write_lines(tmp_path / "b.jsonl", rows)
    virtual = index(tmp_path / "b.jsonl", tmp_path / "without-text", all_columns=True)
    columns = open_folder(virtual).datasets[0].table.column_sets()
    assert [[column.name for column in each] for each in columns] == [["id", "messages"]]
    with pytest.raises(
        DatasetError, match=r"no column 'text'\. If column 'messages' contains conv"
    ):
        make_loader(virtual, local=tmp_path / "cache")


def describe_messages(sample: dict[str, Any]) -> str:
    return f"{sample['text']} {len(sample['messages'][0]['content'])}"


@pytest.mark.parametrize("name", ["meta.text", "text"])
def test_the_field_of_the_documents_is_a_column_also_with_all_columns(
    tmp_path: Path, name: str
) -> None:
    rows = [{"meta": {"text": text}, "text": "no", "n": 1} for text in DOCUMENTS]
    write_lines(tmp_path / "a.jsonl", rows)
    virtual = index(tmp_path / "a.jsonl", tmp_path / "index", text_key=name, all_columns=True)
    with open_epoch(virtual, tmp_path / "cache", text_key=name) as loader:
        found = [ids for _, ids in sorted(read_all(loader).items())]
    assert found == [ids_of(text if name == "meta.text" else "no") for text in DOCUMENTS]


def test_records_with_thousands_of_fields_are_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{f"user-{n}": 1} for n in range(1_001)])
    with pytest.raises(DatasetError, match=r"have 1,002 different fields.* at most 1,000 columns"):
        index(tmp_path / "a.jsonl", tmp_path / "index", all_columns=True)


# ---------------------------------------------------------------- bad records


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "d3", "text": null}', r"\(id 'd3'\) has null in column 'text'"),
        (b'{"text": 7}', r"\(id 'a\.jsonl:4'\) is a bad record: the field 'text' is an integer"),
        (b'{"text": ', r"is a bad record: the record is invalid JSON \(Expecting value at column"),
        (b'{"text": "\xff"}', r"is a bad record: the record is not UTF-8 \(byte 0xff at offset 10"),
        (b"[1]", r"is a bad record: the record is not an object, but a list"),
        (b'{"text": "\\ud800"}', r"is a bad record: the field 'text' has an unpaired surrogate"),
    ],
)
@pytest.mark.parametrize("all_columns", [False, True])
def test_a_bad_record_keeps_its_sample_and_on_error_decides(
    tmp_path: Path, line: bytes, message: str, all_columns: bool
) -> None:
    lines = encode_lines([{"text": f"text {n}"} for n in range(9)]).split(b"\n")
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*lines[:3], line, *lines[4:]]))
    virtual = index(tmp_path / "a.jsonl", tmp_path / "index", all_columns=all_columns)
    with (
        pytest.raises(DatasetError, match=rf"sample 3 of .*a\.jsonl#0-\d+ .*{message}"),
        open_epoch(virtual, tmp_path / "cache") as loader,
    ):
        rows_of(loader)
    skipping = open_epoch(virtual, tmp_path / "cache", on_error="skip")
    assert sorted(sample for _, sample in read_all(skipping)) == [0, 1, 2, 4, 5, 6, 7, 8]
    skipping = open_epoch(
        virtual, tmp_path / "cache", on_error="skip", transform=lambda sample: sample["text"]
    )
    assert len(read_all(skipping)) == 8


def test_a_record_without_the_only_field_that_is_read_is_bad_and_its_fields_are_named(
    tmp_path: Path,
) -> None:
    write_lines(tmp_path / "a.jsonl", [{"text": "a"}, {"body": "x"}])
    message = r"bad record: the record has no field 'text'\. Its fields are: body"
    virtual = index(tmp_path / "a.jsonl", tmp_path / "index")
    with (
        pytest.raises(DatasetError, match=message),
        open_epoch(virtual, tmp_path / "cache") as loader,
    ):
        rows_of(loader)
    virtual = index(tmp_path / "a.jsonl", tmp_path / "all", all_columns=True)
    with (
        pytest.raises(DatasetError, match="has null in column 'text'"),
        open_epoch(virtual, tmp_path / "cache") as loader,
    ):
        rows_of(loader)


# ---------------------------------------------------------------- damaged files


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_a_compressed_file_that_was_cut_off_is_named(tmp_path: Path, suffix: str) -> None:
    write_line_corpus(tmp_path / "in", DOCUMENTS, suffix=f".jsonl{suffix}")
    path = tmp_path / "in" / f"part-001.jsonl{suffix}"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DatasetError, match=rf"part-001\.jsonl{suffix} cannot be read as JSON Lin"):
        index(tmp_path / "in", tmp_path / "index")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl.gz", b'{"text": "a"}\n', "the file is not gz data"),
        ("a.jsonl", '{"text": "a"}\n'.encode("utf-16-le"), "UTF-16"),
        ("a.jsonl", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("a.json", b'\xef\xbb\xbf [{"text": "a"}]', "is a JSON array, not JSON Lines"),
        ("a.jsonl", b'[{"text": "a"},\n{"text": "b"},\n', "is a JSON array, not JSON Lines"),
        ("a.jsonl", "caf\xe9\n".encode("cp1252"), "records are bad: the record is not UTF-8"),
        ("a.jsonl", '{"text": "a"}\n'.encode("utf-16"), "records are bad: .* starts like UTF-16"),
        (
            "a.jsonl",
            gzip.compress(b"{}", mtime=0),
            r"records are bad: .* Rename the file to end in \.gz",
        ),
        ("a.jsonl", b"\n \n", "found no records in the 1 file"),
    ],
)
@pytest.mark.parametrize("all_columns", [False, True])
def test_a_file_that_is_not_json_lines_is_named(
    tmp_path: Path, name: str, data: bytes, message: str, all_columns: bool
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DatasetError, match=message) as caught:
        index(tmp_path / name, tmp_path / "index", all_columns=all_columns)
    assert str(tmp_path / name) in str(caught.value)
    assert not (tmp_path / "index").exists()


def test_a_line_above_the_limit_of_a_record_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_content, "MOST_RECORD_BYTES", 1 << 17)
    write_line_corpus(tmp_path / "in", [*DOCUMENTS, "a" * (1 << 18)])
    with pytest.raises(DatasetError, match=r"part-002\.jsonl .*the line is larger than 1 GiB"):
        index(tmp_path / "in", tmp_path / "index")


def test_a_compressed_file_with_more_than_a_shard_may_have_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_line_corpus(tmp_path / "in", DOCUMENTS, suffix=".jsonl.gz")
    monkeypatch.setattr(shard_entries, "MOST_SHARD_BYTES", 9_000)
    with pytest.raises(DatasetError, match=r"part-000\.jsonl\.gz has [\d,]+ bytes of lines that"):
        index(tmp_path / "in", tmp_path / "index")


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("has_tag", [True, False])
def test_bytes_that_changed_are_never_read(tmp_path: Path, suffix: str, has_tag: bool) -> None:
    write_line_corpus(tmp_path / "in", DOCUMENTS, suffix=suffix)
    index(tmp_path / "in", tmp_path / "index")
    path = tmp_path / "in" / f"part-001{suffix}"
    texts = [text[::-1] for text in DOCUMENTS]
    before = path.stat()
    write_line_corpus(tmp_path / "in", texts, suffix=suffix)
    if has_tag:
        message = r"part-00\d.* changed since it was listed: its version was .*, and is now"
        with pytest.raises(StoreError, match=message):
            texts_of(open_folder(tmp_path / "index"), tmp_path / "cache")
        return
    stored = json.loads((tmp_path / "index" / "index.json").read_text())
    for file in stored["files"]:
        del file["tag"]
    (tmp_path / "index" / "index.json").write_text(json.dumps(stored))
    assert suffix != ".jsonl" or path.stat().st_size == before.st_size
    with pytest.raises((DatasetError, StoreError), match=r"part-00\d"):
        texts_of(open_folder(tmp_path / "index"), tmp_path / "cache")


def touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"text": "more"}\n')


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize("change", [touch, append, cut_off])
def test_a_file_that_changes_during_a_run_is_an_error_with_both_versions(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    corpus = open_folder(index(write_line_corpus(tmp_path / "in", DOCUMENTS), tmp_path / "index"))
    change(tmp_path / "in" / "part-001.jsonl")
    message = r"part-001\.jsonl changed since it was listed: its version was \d+-\d+, and is now"
    with pytest.raises(StoreError, match=message):
        texts_of(corpus, tmp_path / "cache")


def test_a_file_that_vanishes_during_a_run_is_named(tmp_path: Path) -> None:
    corpus = open_folder(index(write_line_corpus(tmp_path / "in", DOCUMENTS), tmp_path / "index"))
    (tmp_path / "in" / "part-002.jsonl").unlink()
    with pytest.raises(StoreError, match=r"part-002\.jsonl"):
        texts_of(corpus, tmp_path / "cache")


# ---------------------------------------------------------------- states, the cache, lengths


def test_a_state_is_resumed_from_a_copy_but_not_after_a_change(tmp_path: Path) -> None:
    first = index(write_line_corpus(tmp_path / "in", DOCUMENTS), tmp_path / "a")
    with make_loader(first, local=tmp_path / "cache") as loader:
        before = rows_of(loader.take(2))
        state, expected = loader.state_dict(), rows_of(loader.take(3))
    assert before != expected
    shutil.copytree(tmp_path / "in", tmp_path / "moved")  # with other versions
    moved = index(tmp_path / "moved", tmp_path / "b")
    with make_loader(moved, local=tmp_path / "cache") as loader:
        loader.load_state_dict(state)
        assert rows_of(loader.take(3)) == expected
    write_lines(tmp_path / "moved" / "part-001.jsonl", [{"text": "new"}])
    changed = index(tmp_path / "moved", tmp_path / "c")
    with (
        make_loader(changed, local=tmp_path / "cache") as loader,
        pytest.raises(StreamChangedError, match="data"),
    ):
        loader.load_state_dict(state)


def test_a_run_continues_on_copies_of_its_shards_with_the_bad_records(tmp_path: Path) -> None:
    write_line_corpus(tmp_path / "in", DOCUMENTS)
    with (tmp_path / "in" / "part-001.jsonl").open("ab") as file:
        file.write(b'{"text": null}\n{"text": \n' * 9)
    virtual, copies = index(tmp_path / "in", tmp_path / "index"), str(tmp_path / "copies")
    convert_to_mds([], copies, like=virtual, progress=False, processes=1)
    root = tmp_path / "cache"
    assert samples_of(open_folder(copies), root) == samples_of(open_folder(virtual), root)
    for first, second in ((virtual, copies), (copies, virtual)):
        with open_epoch(first, root, on_error="skip") as loader:
            rows_of(loader.take(2))
            state, expected = loader.state_dict(), rows_of(loader)
        with open_epoch(second, root, on_error="skip") as loader:
            loader.load_state_dict(state)
            assert rows_of(loader) == expected


def test_the_identity_of_files_is_the_same_in_every_release(tmp_path: Path) -> None:
    """Otherwise, a run could not be resumed with a later release."""
    rows = [{"id": f"d{n}", "text": f"text {n} " * (n % 7)} for n in range(200)]
    write_lines(tmp_path / "a.jsonl", rows)
    corpus = open_folder(index(tmp_path / "a.jsonl", tmp_path / "index"))
    shards = [(info.raw.name, info.samples, info.raw.bytes) for info in corpus.datasets[0].shards]
    assert shards == [
        ("a.jsonl#0-5025.mds", 102, 10_525),
        ("a.jsonl#5025-10002.mds", 92, 9_957),
        ("a.jsonl#10002-10317.mds", 6, 823),
    ]
    assert corpus.fingerprint(range(1)) == "bc99126a396d5743d0e3ff7ef8e500ac"


def test_a_shard_that_is_larger_than_its_estimate_is_reserved_as_it_grows(tmp_path: Path) -> None:
    # JSON of kept fields escapes characters that the file has in UTF-8
    rows = [{"text": "a", "other": "狐" * 400} for n in range(300)]
    write_lines(tmp_path / "a.jsonl.gz", rows)
    corpus = open_folder(index(tmp_path / "a.jsonl.gz", tmp_path / "index", all_columns=True))
    estimate, root = int(corpus.datasets[0].table.raw_bytes.sum()), tmp_path / "cache"
    cache_folder.open_cache_folder(root)
    assert len(texts_of(corpus, root, limit_bytes=2_000_000)) == 300
    assert estimate * 1.5 < sum(path.stat().st_size for path in root.glob("*/*.mds")) < 2_000_000
    with pytest.raises(CacheError, match=r"cache_limit 500,000 is too small"):
        texts_of(corpus, tmp_path / "small", limit_bytes=500_000)


def test_lengths_are_counted_and_used(tmp_path: Path) -> None:
    virtual = index(write_line_corpus(tmp_path / "in", DOCUMENTS), tmp_path / "index")
    with open_epoch(virtual, tmp_path / "cache") as loader:
        expected = rows_of(loader)
    count(virtual)
    with open_epoch(virtual, tmp_path / "cache", lengths="require") as loader:
        assert len(loader) == -(-len(expected) // 2)
        assert rows_of(loader)[: len(expected)] == expected
    rows = Rows(
        virtual,
        tokenizer=byte_tokenizer(),
        eos=EOS_ID,
        seq_len=16,
        num_lanes=2,
        local=tmp_path / "rows",
    )
    chosen = [7, 3, 40]
    assert [rows[row]["input_ids"].tolist() for row in chosen] == [expected[r] for r in chosen]


def test_a_count_of_a_folder_of_lines_writes_their_index(
    tmp_path: Path, cli: Any, tokenizer_folder: Path
) -> None:
    folder = write_line_corpus(tmp_path / "in", DOCUMENTS)
    flags = ["--tokenizer", tokenizer_folder, "--processes", 1, "--quiet"]
    for _ in range(2):
        report = json.loads(cli("count", folder, *flags, "--json").out)
        assert report["samples"] == len(DOCUMENTS)
    assert texts_of(open_folder(folder), tmp_path / "cache") == DOCUMENTS
    error = cli("count", f"{folder}/*.jsonl", *flags, status=1).err
    assert f"Its folder has an index, so pass the folder: {folder}" in error
    (folder / "index.json").unlink()
    error = cli("count", f"{folder}/*.jsonl", *flags, status=1).err
    assert f"cloudload index '{folder}/*.jsonl' {folder}-index" in error
    write_parquet(folder / "a.parquet", [{"text": "a"}])
    cli("count", folder, *flags, status=1)
    assert not (folder / "index.json").exists()


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.zst"])
def test_commands_read_an_index_of_json_lines(
    tmp_path: Path,
    tokenizer_folder: Path,
    cli: Any,
    suffix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_lines, "_FIRST_BYTES", 64)
    write_line_corpus(tmp_path / "in", DOCUMENTS, suffix=suffix)
    out = cli("index", f"{tmp_path}/in/*{suffix}", tmp_path / "index", "--json").out
    assert json.loads(out)["samples"] == len(DOCUMENTS)
    lines = cli("head", tmp_path / "index", "--json", "-n", "9").out.splitlines()
    found = [json.loads(line)["values"] for line in lines]
    assert [each["text"] for each in found] == DOCUMENTS[:9]
    assert json.loads(cli("info", tmp_path / "index", "--json").out)["samples"] == len(DOCUMENTS)
    assert "which cloudload check does not read" in cli("check", tmp_path / "index", status=1).err
    flags = ["--tokenizer", tokenizer_folder, "--quiet"]
    cli("count", tmp_path / "index", *flags, "--processes", 1)
    flags += ["--data", tmp_path / "index", "--seq-len", 16, "--json"]
    plan = json.loads(cli("plan", *flags, "--batch-size", 4, "--epochs", 1, "--no-measure").out)
    assert plan["basis"] == "token lengths"
    found = json.loads(cli("fetch", *flags, "--local", tmp_path / "cache").out)
    shards = list((tmp_path / "cache").glob("*/*.mds"))
    assert found["shards"] == len(shards) == len(open_folder(tmp_path / "index").shard_sizes)
