"""A partitioned conversion writes each partition as if it were converted alone, in one job."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.convert import convert_to_mds
from cloudload.errors import ConvertError, StoreError
from cloudload.tools.convert.dry_run import outline_conversion
from cloudload.tools.count.count import count_tokens
from testkit.conversions import (
    COMPRESSORS,
    QUIET,
    convert_until,
    convert_until_write,
    dataset_bytes,
    refuse,
    texts,
    write_lines,
)
from testkit.corpora import byte_tokenizer
from testkit.segments import LastFirst

OPTIONS: dict[str, Any] = {**QUIET, "shard_bytes": 2_000, "block_bytes": 900}
OPTIONS |= {"segment_bytes": 4_000}
BY_FOLDER: dict[str, Any] = OPTIONS | {"partition_by": "folder"}


def rows(name: str, number: int) -> list[dict[str, Any]]:
    draw = random.Random(name)
    return [{"text": f"{name} {row} " * draw.randint(0, 9)} for row in range(number)]


def write_file(path: Path, records: list[dict[str, Any]]) -> None:
    """Write records in the format of the path's suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        table = pyarrow.Table.from_pylist(records)
        pyarrow.parquet.write_table(table, path, row_group_size=20)
    else:
        data = "".join(json.dumps(record) + "\n" for record in records).encode()
        path.write_bytes(COMPRESSORS[path.suffix if path.suffix != ".jsonl" else ""](data))


@pytest.fixture(scope="module")
def corpus(module_folder: Path) -> Path:
    """Three partitions in several formats and nested folders, and a file about the data."""
    folder = module_folder / "corpus"
    for name in ("code/a.parquet", "code/deep/er/b.parquet", "law/a.jsonl.zst", "law/b.jsonl"):
        write_file(folder / name, rows(name, 120))
    write_file(folder / "science/only.jsonl.gz", rows("science", 12))
    (folder / "README.md").write_text("about the corpus")
    return folder


@pytest.fixture(scope="module")
def whole(corpus: Path, module_folder: Path) -> dict[str, str]:
    """The hash of each object of the partitions."""
    convert_to_mds(corpus, module_folder / "whole", **BY_FOLDER)
    return dataset_bytes(str(module_folder / "whole"))


def listed(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "partitions.json").read_text())
    return found


def convert_alone(corpus: Path, out: Path, name: str, **options: Any) -> dict[str, str]:
    """Convert the files of one partition, with the names that they have below the corpus."""
    convert_to_mds(f"{corpus}/[{name[0]}]{name[1:]}/**", out / name, **OPTIONS | options)
    return {f"/{name}{key}": value for key, value in dataset_bytes(str(out / name)).items()}


def without_list(objects: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in objects.items() if name != "/partitions.json"}


def test_each_partition_is_a_dataset_and_the_list_names_them_all(
    corpus: Path, tmp_path: Path, cli: Any
) -> None:
    out = tmp_path / "out"
    report = convert_to_mds(corpus, out, **BY_FOLDER)
    assert {path.name for path in out.iterdir()} == {"code", "law", "science", "partitions.json"}
    found = listed(out)
    assert found == {"partition_by": "folder", "partitions": report.partitions}
    for name, totals in report.partitions.items():
        assert totals["documents"] == len(texts(f"{out}/{name}", tmp_path)) > 0
        stored = json.loads((out / name / "convert-report.json").read_text())["report"]
        assert {key: stored[key] for key in totals} == totals
        cli("check", out / name)
    for key in ("documents", "text_bytes", "raw_bytes", "stored_bytes", "shards"):
        assert sum(each[key] for each in found["partitions"].values()) == getattr(report, key)
    assert (report.files, report.hidden_names) == (5, ("README.md",))
    assert any("partitions 3: " in line for line in report.describe())


def test_no_segment_crosses_a_partition_and_its_bytes_are_those_of_the_partition_alone(
    corpus: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    alone = [convert_alone(corpus, tmp_path, name) for name in ("code", "law", "science")]
    assert without_list(whole) == {name: each for one in alone for name, each in one.items()}


def test_any_engine_writes_the_same_bytes(
    corpus: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    segments = outline_conversion(
        str(corpus), partition_by="folder", segment_bytes=OPTIONS["segment_bytes"]
    ).segments
    with ThreadPoolExecutor(3) as threads:
        ways: list[dict[str, Any]] = [
            {"processes": 2},
            {"executor": LastFirst(segments)},
            {"executor": threads},
        ]
        for number, way in enumerate(ways):
            out = tmp_path / str(number)
            convert_to_mds(corpus, out, **BY_FOLDER | way)
            assert dataset_bytes(str(out)) == whole


def test_a_store_has_the_same_partitions(
    corpus: Path, store_url: str, whole: dict[str, str]
) -> None:
    convert_to_mds(corpus, store_url, **BY_FOLDER)
    assert dataset_bytes(store_url) == whole
    assert convert_to_mds(corpus, store_url, **BY_FOLDER).already_complete


@pytest.mark.parametrize("number", [2, 5])
def test_the_workers_of_an_array_share_all_partitions(
    corpus: Path, tmp_path: Path, whole: dict[str, str], number: int
) -> None:
    out = tmp_path / "out"
    order = random.Random(number).sample(range(number), number)
    reports = [
        convert_to_mds(corpus, out, worker=f"{index}/{number}", **BY_FOLDER) for index in order[1:]
    ]
    assert any(report.unfinished_segments for report in reports)
    with pytest.raises(ConvertError, match="is not finished"):
        convert_to_mds(corpus, out, finish=True, **BY_FOLDER)
    assert not (out / "partitions.json").exists()
    report = convert_to_mds(corpus, out, worker=f"{order[0]}/{number}", **BY_FOLDER)
    assert report.unfinished_segments == 0
    assert dataset_bytes(str(out)) == whole
    again = convert_to_mds(corpus, out, finish=True, partition_by="folder", **QUIET)
    assert (again.already_complete, again.documents) == (True, report.documents)


@settings(max_examples=24, deadline=None)
@given(data=st.data())
def test_a_partitioned_conversion_equals_each_partition_alone_after_any_kills(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("law")
    suffixes = st.sampled_from([".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
    file = st.tuples(st.sampled_from(["", "x/", "y/z/"]), suffixes, st.integers(1, 60))
    files_of_one = st.lists(file, min_size=1, max_size=3)
    drawn = data.draw(st.dictionaries(st.sampled_from("abcd"), files_of_one))
    splits = data.draw(st.sampled_from([None, "train=0.7,val=0.3"]))
    drawn = drawn or {"a": [("", ".jsonl", 3)]}
    for name, files in drawn.items():
        for number, (place, suffix, size) in enumerate(files):
            path = f"{name}/{place}{number}{suffix}"
            write_file(folder / "in" / path, [{"text": "first"}, *rows(path, size)])
    options = {**BY_FOLDER, "splits": splits, "segment_bytes": data.draw(st.integers(500, 20_000))}
    for _ in range(data.draw(st.integers(0, 3))):
        stop = data.draw(st.integers(0, 12))
        try:
            convert_until(stop, folder / "in", folder / "out", **options)
        except pytest.fail.Exception:
            break  # it had fewer shards left than that
    convert_to_mds(folder / "in", folder / "out", **options)
    alone: dict[str, str] = {}
    for name in drawn:
        given_alone = {key: value for key, value in options.items() if key != "partition_by"}
        alone |= convert_alone(folder / "in", folder / "alone", name, **given_alone)
    assert without_list(dataset_bytes(str(folder / "out"))) == alone
    assert list(listed(folder / "out")["partitions"]) == sorted(drawn)


@pytest.mark.parametrize("ending", ["law/index.json", "00000.done.json", "partitions.json"])
def test_a_job_that_is_killed_between_partitions_resumes(
    corpus: Path, tmp_path: Path, whole: dict[str, str], ending: str
) -> None:
    out = tmp_path / "out"
    convert_until_write(ending, corpus, out, **BY_FOLDER)
    convert_to_mds(corpus, out, **BY_FOLDER)
    assert dataset_bytes(str(out)) == whole
    assert not (out / ".convert").exists()


def test_a_rerun_finds_the_complete_partitions_and_repairs_one(
    corpus: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    out = tmp_path / "out"
    first = convert_to_mds(corpus, out, **BY_FOLDER)
    again = convert_to_mds(corpus, out, **BY_FOLDER)
    assert again.already_complete
    assert again.partitions == first.partitions
    lost = next((out / "law").rglob("shard.*"))
    lost.unlink()
    assert convert_to_mds(corpus, out, **BY_FOLDER).rebuilt_shards == 1
    shutil.rmtree(out / "code")
    assert not convert_to_mds(corpus, out, **BY_FOLDER).already_complete
    assert dataset_bytes(str(out)) == whole


def test_the_value_in_the_path_is_the_partition_and_can_be_kept(tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    for year in (2023, 2024):
        for lang in ("de", "C%2B%2B"):
            write_lines(corpus / f"year={year}" / f"lang={lang}" / "a.jsonl", [f"{year} {lang}"])
    report = convert_to_mds(corpus, out, partition_by="lang", keep=["lang", "year:int"], **QUIET)
    assert list(report.partitions) == ["C%2B%2B", "de"]
    assert texts(str(out / "C%2B%2B"), tmp_path) == ["2023 C%2B%2B", "2024 C%2B%2B"]
    assert report.columns["year"] == "int"


def test_several_inputs_share_partitions_and_document_ids_stay_unique(tmp_path: Path) -> None:
    for root, names in {"one": "ab", "two": "bc"}.items():
        for name in names:
            write_lines(tmp_path / root / name / "x.jsonl", [f"{root} {name}"])
    inputs = [str(tmp_path / "one"), str(tmp_path / "two")]
    convert_to_mds(inputs, tmp_path / "out", partition_by="folder", **QUIET)
    assert [texts(f"{tmp_path}/out/{name}", tmp_path) for name in "abc"] == [
        ["one a"],
        ["one b", "two b"],
        ["two c"],
    ]
    convert_to_mds(inputs, tmp_path / "out", partition_by="folder", **QUIET)


def test_splits_are_in_each_partition(corpus: Path, tmp_path: Path) -> None:
    report = convert_to_mds(corpus, tmp_path / "out", splits="train=0.8,val=0.2", **BY_FOLDER)
    read = {
        (name, split): len(texts(f"{tmp_path}/out/{name}/{split}", tmp_path))
        for name in ("code", "law")
        for split in ("train", "val")
    }
    assert report.splits["train"]["documents"] >= read["code", "train"] + read["law", "train"]
    assert sum(report.splits[name]["documents"] for name in report.splits) == report.documents


def test_tokens_are_counted_while_partitions_are_converted(corpus: Path, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    report = convert_to_mds(corpus, tmp_path / "out", tokenizer=tokenizer, **BY_FOLDER)
    tokens = {name: each["tokens"] for name, each in report.partitions.items()}
    assert sum(tokens.values()) == report.tokens
    for name, total in tokens.items():
        found = count_tokens(tmp_path / "out" / name, tokenizer=tokenizer, progress=False)
        assert found
        assert (found.tokens, found.counted_groups) == (total, 0)


# ---------------------------------------------------------------- append, overwrite, other inputs


def test_an_append_adds_files_and_partitions_and_leaves_the_others(tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    for name in "ab":
        write_lines(corpus / name / "1.jsonl", [f"{name} 1"])
    options: dict[str, Any] = {"partition_by": "folder", **QUIET}
    convert_to_mds(corpus, out, **options)
    write_lines(corpus / "b" / "2.jsonl", ["b 2"])
    write_lines(corpus / "c" / "1.jsonl", ["c 1"])
    untouched = (out / "a" / "index.json").stat()
    with pytest.raises(StoreError, match="killed"):
        _fail_at(out / "c" / "index.json", corpus, out, append=True, **options)
    report = convert_to_mds(corpus, out, append=True, **options)
    assert {name: each["documents"] for name, each in listed(out)["partitions"].items()} == {
        "a": 1,
        "b": 2,
        "c": 1,
    }
    assert report.documents == 4
    assert [texts(f"{out}/{name}", tmp_path) for name in "bc"] == [["b 1", "b 2"], ["c 1"]]
    assert (out / "a" / "index.json").stat() == untouched
    only_new = write_lines(tmp_path / "more" / "d" / "1.jsonl", ["d 1"]).parent.parent
    convert_to_mds(only_new, out, append=True, **options)
    assert list(listed(out)["partitions"]) == ["a", "b", "c", "d"]
    again = convert_to_mds(corpus, out, append=True, **options)
    assert (again.already_complete, again.skipped_files) == (True, 4)


def _fail_at(path: Path, *args: Any, **options: Any) -> None:
    convert_until_write(f"/{path.parent.name}/{path.name}", *args, **options)
    raise StoreError("killed")


def test_overwrite_removes_the_partitions_that_the_inputs_no_longer_have(tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    for name in "ab":
        write_lines(corpus / name / "1.jsonl", [f"{name} 1"])
    options: dict[str, Any] = {"partition_by": "folder", **QUIET}
    convert_to_mds(corpus, out, **options)
    shutil.rmtree(corpus / "a")
    write_lines(corpus / "c" / "1.jsonl", ["c 1"])
    text = refuse("a is gone, c is new", corpus, out, **options)
    assert "append (--append)" in text
    convert_to_mds(corpus, out, overwrite=True, **options)
    names = {path.relative_to(out).as_posix() for path in out.rglob("index.json")}
    assert names == {"b/index.json", "c/index.json"}
    assert list(listed(out)["partitions"]) == ["b", "c"]


def test_a_begun_job_refuses_other_partitions_and_plain_conversions(tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    for name in "ab":
        write_lines(corpus / f"k={name}" / "1.jsonl", [f"{name} 1"])
    convert_until_write("k=a/index.json", corpus, out, partition_by="folder", **QUIET)
    refuse("partition_by was 'folder' and is now 'k'", corpus, out, partition_by="k")
    write_lines(corpus / "k=c" / "1.jsonl", ["c 1"])
    refuse("k=c is new", corpus, out, partition_by="folder")
    shutil.rmtree(corpus / "k=c")
    shutil.rmtree(out / "k=a")
    refuse("belongs to a conversion with partition_by", corpus, out)
    convert_to_mds(corpus, out, partition_by="folder", **QUIET)
    refuse("belongs to a conversion with partition_by", corpus, out)


def test_a_dataset_that_would_hide_the_partitions_is_refused(tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    write_lines(corpus / "a" / "1.jsonl", ["a 1"])
    convert_to_mds(corpus, out, **QUIET)
    refuse("would hide the partitions", corpus, out, partition_by="folder")


# ---------------------------------------------------------------- refusals


def test_a_file_with_the_name_of_the_list_is_kept(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "partitions.json").write_text("[1]")
    refuse("is not a list that cloudload wrote", corpus, tmp_path / "out", **BY_FOLDER)
    assert (tmp_path / "out" / "partitions.json").read_text() == "[1]"


@pytest.mark.parametrize(
    ("path", "by", "match"),
    [
        ("a.jsonl", "folder", r"a\.jsonl is not in a folder below .*Move the file to a folder"),
        ("x/a.jsonl", "lang", r"has no folder lang=VALUE in its path.*PARTITION_BY \(lang\)"),
        ("lang=/a.jsonl", "lang", "has no folder lang=VALUE"),
        ("lang=__HIVE_DEFAULT_PARTITION__/a.jsonl", "lang", "has no folder lang=VALUE"),
        ("lang=../a.jsonl", "lang", r"has the partition '\.\.', which cannot be the name"),
        ("lang=_x/a.jsonl", "lang", "has the partition '_x', which cannot be the name"),
        ("lang=.git/a.jsonl", "lang", r"has the partition '\.git'"),
        ("lang=a\\b/a.jsonl", "lang", r"has the partition 'a\\\\b'"),
        ("00003/a.jsonl", "folder", "has the partition '00003'"),
        ("partitions.json/a.jsonl", "folder", "has the partition 'partitions.json'"),
    ],
)
def test_a_file_without_a_safe_partition_is_refused_by_name(
    tmp_path: Path, path: str, by: str, match: str
) -> None:
    write_lines(tmp_path / "in" / "lang=de" / "good.jsonl", ["good"])
    write_lines(tmp_path / "in" / path, ["bad"])
    refuse(match, tmp_path / "in", partition_by=by)
    assert not (tmp_path / "out").exists()


def test_inputs_and_options_without_partitions_are_refused(corpus: Path, tmp_path: Path) -> None:
    rows_of_text = iter([{"text": "a"}])
    options: dict[str, Any] = {"error": ValueError, "partition_by": "folder"}
    refuse("accepts only files", rows_of_text, tmp_path / "out", **options)
    refuse("is empty. Use folder", corpus, error=ValueError, partition_by="")
    refuse("cannot be combined yet", corpus, skip_bad=True, rejects=tmp_path / "r", **options)
    refuse("no folder|is not in a folder", corpus / "law" / "b.jsonl", partition_by="folder")


# ---------------------------------------------------------------- partitions without documents


@pytest.fixture
def with_empty(corpus: Path, tmp_path: Path) -> Path:
    """The corpus, and partitions whose files have no documents."""
    shutil.copytree(corpus, tmp_path / "in")
    (tmp_path / "in" / "a_none").mkdir()
    (tmp_path / "in" / "a_none" / "a.jsonl").touch()
    write_lines(tmp_path / "in" / "blank" / "a.jsonl", ["", ""])
    return tmp_path / "in"


def folders(out: Path) -> set[str]:
    return {path.name for path in out.iterdir() if path.is_dir()}


@pytest.mark.parametrize("splits", [None, "train=0.8,val=0.2"])
def test_a_partition_without_documents_is_listed_and_has_no_folder(
    with_empty: Path, tmp_path: Path, splits: str | None
) -> None:
    out, options = tmp_path / "out", BY_FOLDER | {"splits": splits}
    report = convert_to_mds(with_empty, out, **options)
    assert folders(out) == {"code", "law", "science"}
    found = listed(out)["partitions"]
    assert {name for name, each in found.items() if not each["documents"]} == {"a_none", "blank"}
    assert any("no documents, so no dataset: a_none, blank" in line for line in report.describe())
    before = dataset_bytes(str(out))
    for more in ({}, {"worker": "0/2"}, {"worker": "1/2"}, {"finish": True}):
        again = convert_to_mds(with_empty, out, **options, **more)
        assert again.already_complete
        assert (again.partitions, again.files) == (report.partitions, report.files)
    assert (dataset_bytes(str(out)), folders(out)) == (before, {"code", "law", "science"})


def test_workers_share_partitions_without_documents(with_empty: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    reports = [convert_to_mds(with_empty, out, worker=f"{i}/3", **BY_FOLDER) for i in range(3)]
    assert [bool(report.unfinished_segments) for report in reports] == [True, True, False]
    assert folders(out) == {"code", "law", "science"}
    convert_to_mds(with_empty, tmp_path / "alone", **BY_FOLDER)
    assert dataset_bytes(str(out)) == dataset_bytes(str(tmp_path / "alone"))


class Overtaken(ThreadPoolExecutor):
    """Runs units after another run, which begins after this one, has finished the same job."""

    def __init__(self, finish_job: Callable[[], Any]) -> None:
        super().__init__(1)
        self._jobs = [finish_job]

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        while self._jobs:
            self._jobs.pop()()
        return super().submit(function, *args, **kwargs)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_that_another_overtakes_finds_the_job_finished(
    with_empty: Path, tmp_path: Path, overwrite: bool
) -> None:
    out = tmp_path / "out"
    if overwrite:
        convert_to_mds(with_empty, out, **BY_FOLDER | {"shard_bytes": 3_000})
    with Overtaken(partial(convert_to_mds, with_empty, out, **BY_FOLDER)) as executor:
        report = convert_to_mds(
            with_empty, out, **BY_FOLDER, executor=executor, overwrite=overwrite
        )
    assert report.already_complete
    assert folders(out) == {"code", "law", "science"}
    convert_to_mds(with_empty, tmp_path / "alone", **BY_FOLDER)
    assert dataset_bytes(str(out)) == dataset_bytes(str(tmp_path / "alone"))


@pytest.mark.parametrize("ending", ["law/index.json", "partitions.json"])
def test_a_killed_job_with_a_partition_without_documents_resumes(
    with_empty: Path, tmp_path: Path, ending: str
) -> None:
    out = tmp_path / "out"
    convert_until_write(ending, with_empty, out, **BY_FOLDER)
    convert_to_mds(with_empty, out, **BY_FOLDER)
    assert folders(out) == {"code", "law", "science"}


def test_tokens_are_counted_beside_a_partition_without_documents(
    with_empty: Path, tmp_path: Path
) -> None:
    options = BY_FOLDER | {"tokenizer": byte_tokenizer()}
    report = convert_to_mds(with_empty, tmp_path / "out", **options)
    assert report.tokens
    assert report.partitions["blank"]["tokens"] == 0
    assert convert_to_mds(with_empty, tmp_path / "out", **options).tokens == report.tokens


@pytest.mark.parametrize("append", [False, True])
def test_a_partition_that_gets_its_first_documents_is_converted(
    with_empty: Path, tmp_path: Path, append: bool
) -> None:
    out = tmp_path / "out"
    first = convert_to_mds(with_empty, out, **BY_FOLDER)
    assert convert_to_mds(with_empty, out, append=True, **BY_FOLDER).already_complete
    write_lines(with_empty / "blank" / "b.jsonl", ["new"])
    report = convert_to_mds(with_empty, out, append=append, **BY_FOLDER)
    assert report.documents == first.documents + 1
    assert texts(f"{out}/blank", tmp_path) == ["new"]
    assert listed(out)["partitions"] == report.partitions


def test_partitions_that_are_all_without_documents_are_refused(tmp_path: Path) -> None:
    for name in "ab":
        write_lines(tmp_path / "in" / name / "x.jsonl", [""])
    match = r"found no documents in a/x\.jsonl .*empty documents: 2, bad records: 0"
    refuse(match, tmp_path / "in", tmp_path / "out", **BY_FOLDER)
    assert not (tmp_path / "out").exists()
    write_lines(tmp_path / "in" / "b" / "x.jsonl", ["now"])
    assert convert_to_mds(tmp_path / "in", tmp_path / "out", **BY_FOLDER).documents == 1


def test_partitions_whose_names_differ_only_in_case_are_refused(tmp_path: Path) -> None:
    for name in ("EN", "en"):
        write_lines(tmp_path / "in" / name / "a.jsonl", [name])
    refuse("partitions 'EN' and 'en' differ only in case", tmp_path / "in", partition_by="folder")
    convert_to_mds(f"{tmp_path}/in/e*/*", tmp_path / "out", **BY_FOLDER)
    more = f"{tmp_path}/in/E*/*"
    refuse("differ only in case", more, tmp_path / "out", append=True, **BY_FOLDER)


def test_the_plan_shows_the_partitions_and_their_segments(corpus: Path, cli: Any) -> None:
    outline = outline_conversion(str(corpus), partition_by="folder", segment_bytes=4_000)
    assert set(outline.partitions) == {"code", "law", "science"}
    assert sum(outline.partitions.values()) == outline.bytes
    assert any(line.startswith("3 partitions, the largest: ") for line in outline.describe())
    printed = cli("convert", corpus, "out", "--plan", "--partition-by", "folder").out
    assert "3 partitions" in printed
