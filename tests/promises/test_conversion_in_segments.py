"""Segments may run anywhere, in any order, and repeatedly. The output has the same bytes."""

from __future__ import annotations

import json
import random
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cloudload.convert import convert_to_mds
from cloudload.errors import ConvertError, StoreError
from cloudload.tools.convert.conversion_plan import PLAN_NAME
from cloudload.tools.convert.conversion_report import ConvertReport
from testkit.conversions import (
    QUIET,
    convert_lines,
    convert_until,
    convert_until_write,
    dataset_bytes,
    read_dataset,
    texts,
    write_lines,
)
from testkit.corpora import byte_tokenizer
from testkit.segments import SETTINGS, convert_every_way, mixed_corpus

WORKERS = 7


Whole = tuple[ConvertReport, dict[str, str]]
"""The report of a conversion in one process, and the hash of every object."""


def convert_whole(corpus: Path) -> Whole:
    report = convert_to_mds(corpus, corpus.parent / "whole", **SETTINGS)
    return report, dataset_bytes(str(corpus.parent / "whole"))


@pytest.fixture(scope="module")
def corpus(module_folder: Path) -> Path:
    """A corpus of about 60 segments in four formats."""
    return mixed_corpus(module_folder / "all" / "corpus")


@pytest.fixture(scope="module")
def whole(corpus: Path) -> Whole:
    return convert_whole(corpus)


@pytest.fixture(scope="module")
def part(module_folder: Path) -> Path:
    """A smaller corpus for tests on stores: about 20 segments in four formats."""
    return mixed_corpus(module_folder / "part" / "corpus", part=4)


@pytest.fixture(scope="module")
def whole_part(part: Path) -> Whole:
    return convert_whole(part)


def test_segments_have_folders_and_leave_nothing_but_shards_and_the_index(
    corpus: Path, whole: Whole
) -> None:
    report, objects = whole
    assert report.segments >= 50
    assert report.documents + report.empty == 1200 + 300 + 300 + 1500 + 40 * 30
    assert report.input_bytes == sum(path.stat().st_size for path in corpus.iterdir())
    names = [name.lstrip("/") for name in objects]
    assert all(re.fullmatch(r"\d{5}/shard\.\d{5}\.mds\.zstd|index\.json", name) for name in names)
    folders = {name.partition("/")[0] for name in names} - {"index.json"}
    # a byte range of a Parquet file may contain no row group
    assert 50 <= len(folders) <= report.segments
    assert max(folders) == f"{report.segments - 1:05}"


def test_several_segments_hold_the_documents_of_one_in_the_same_order(
    corpus: Path, tmp_path: Path
) -> None:
    for name, size in {"one": 1 << 30, "many": 12_000}.items():
        convert_to_mds(corpus, tmp_path / name, **{**SETTINGS, "segment_bytes": size})
    one, many = (read_dataset(str(tmp_path / name), tmp_path) for name in ("one", "many"))
    assert (tmp_path / "one" / "shard.00000.mds.zstd").exists()
    assert [(s["text"], s["n"]) for s in one] == [(s["text"], s["n"]) for s in many]
    changed = {a["id"].split(":")[0] for a, b in zip(one, many, strict=True) if a["id"] != b["id"]}
    # a segment that starts in the middle of a file cannot number its lines
    assert changed == {"a-large.jsonl"}


def test_segments_in_reverse_order_or_that_run_twice_at_once_give_the_same_objects(
    part: Path, store_url: str, whole_part: Whole
) -> None:
    report, objects = whole_part
    for out, found in convert_every_way(part, store_url, report.segments, **SETTINGS):
        assert dataset_bytes(out) == objects
        assert found.documents == report.documents


def test_workers_of_an_array_in_any_order_give_the_same_objects(
    part: Path, local_url: str, whole_part: Whole
) -> None:
    order = random.Random(5).sample(range(WORKERS), WORKERS)
    workers = [f"{number}/{WORKERS}" for number in order]
    reports = [convert_to_mds(part, local_url, worker=each, **SETTINGS) for each in workers]
    assert [bool(report.unfinished_segments) for report in reports] == [True] * 6 + [False]
    assert reports[-1].documents == whole_part[0].documents
    assert dataset_bytes(local_url) == whole_part[1]
    again = convert_to_mds(part, local_url, worker=f"0/{WORKERS}", **SETTINGS)
    assert again.already_complete


def test_workers_of_an_array_that_run_at_once_give_the_same_objects(
    part: Path, store_url: str, whole_part: Whole
) -> None:
    def convert(number: int) -> ConvertReport:
        return convert_to_mds(part, store_url, worker=f"{number}/{WORKERS}", **SETTINGS)

    with ThreadPoolExecutor(WORKERS) as threads:
        reports = list(threads.map(convert, range(WORKERS)))
    assert any(report.unfinished_segments == 0 for report in reports)
    assert dataset_bytes(store_url) == whole_part[1]


def test_finishing_takes_every_option_from_the_stored_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, out = mixed_corpus(tmp_path / "corpus", part=4), tmp_path / "out"
    options: dict[str, Any] = {**SETTINGS, "compression": "gz", "hashes": ["xxh64", "sha1"]}
    convert_to_mds(corpus, tmp_path / "whole", **options, tokenizer=byte_tokenizer())
    with monkeypatch.context() as patch:
        patch.setattr("cloudload.tools.convert.run.finish_dataset", fail_to_write)
        with pytest.raises(StoreError):
            convert_to_mds(corpus, out, worker="0/1", **options, tokenizer=byte_tokenizer())
    assert not (out / "index.json").exists()
    with pytest.raises(ConvertError, match=r"text_key was 'text' and is now 'body'\. Run with"):
        convert_to_mds(corpus, out, finish=True, text_key="body", **QUIET)
    with pytest.raises(ConvertError, match=r"segment_bytes was 12000 and is now 5\. Run with"):
        convert_to_mds(corpus, out, finish=True, segment_bytes=5, **QUIET)
    assert convert_to_mds(corpus, out, finish=True, **QUIET).tokens
    assert dataset_bytes(str(out)) == dataset_bytes(str(tmp_path / "whole"))
    assert convert_to_mds(corpus, out, finish=True, **QUIET).already_complete


def fail_to_write(*_: Any) -> None:
    raise StoreError("cannot write the index")


def test_finishing_lists_the_segments_that_are_missing_and_joins_the_rest(
    corpus: Path, tmp_path: Path, whole: Whole
) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConvertError, match="are missing"):
        convert_to_mds(corpus, out, finish=True, **SETTINGS)
    convert_to_mds(corpus, out, worker="1/2", **SETTINGS)
    with pytest.raises(ConvertError, match=r"segments are missing \(0, 2, 4, 6, .* and \d+ more\)"):
        convert_to_mds(corpus, out, finish=True, **SETTINGS)
    assert not (out / "index.json").exists()
    convert_to_mds(corpus, out, worker="0/2", **SETTINGS)
    assert convert_to_mds(corpus, out, finish=True, **SETTINGS).already_complete
    assert dataset_bytes(str(out)) == whole[1]


# ---------------------------------------------------------------- interruptions


def test_a_conversion_that_fails_anywhere_resumes_to_the_same_objects(
    part: Path, store_url: str, whole_part: Whole
) -> None:
    for shards in (0, 1, 5, 12, 2):
        convert_until(shards, part, store_url, **SETTINGS)
    report = convert_to_mds(part, store_url, **SETTINGS)
    assert 15 < report.resumed_shards < report.shards
    assert dataset_bytes(store_url) == whole_part[1]


def test_overwriting_removes_the_folders_of_segments(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert_to_mds(corpus, out, worker="1/2", **SETTINGS)
    convert_lines(tmp_path, ['{"text": "a"}'], overwrite=True)
    names = sorted(path.name for path in out.iterdir())
    assert names == ["convert-report.json", "index.json", "shard.00000.mds.zstd"]


# ---------------------------------------------------------------- refusals


@pytest.fixture
def begun(tmp_path: Path) -> tuple[Path, Path]:
    """Three input files, and an output in which one of the three segments is finished."""
    source = tmp_path / "in"
    for name in "abc":
        write_lines(source / f"{name}.jsonl", 50 * [f"of {name}"])
    convert_to_mds(source, tmp_path / "out", worker="1/3", **OPTIONS)
    return source, tmp_path / "out"


OPTIONS: dict[str, Any] = {**QUIET, "segment_bytes": 1000}


def test_an_input_that_changed_after_the_plan_is_refused_by_name(begun: tuple[Path, Path]) -> None:
    source, out = begun
    text = (source / "c.jsonl").read_text()
    (source / "c.jsonl").write_text(text.replace("of c", "by c"))
    for options in ({}, {"worker": "2/3"}, {"worker": "2/3", "processes": 2}):
        with pytest.raises((ConvertError, StoreError), match=r"c\.jsonl changed"):
            convert_to_mds(source, out, **{**OPTIONS, **options})
    assert convert_to_mds(source, out, worker="0/3", **OPTIONS).unfinished_segments == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"segment_bytes": 1001}, "segment_bytes was 1000 and is now 1001"),
        ({"text_key": "body"}, "text_key was 'text' and is now 'body'"),
        ({"shard_bytes": 5000}, "shard_bytes was 67108864 and is now 5000"),
    ],
)
@pytest.mark.parametrize("worker", [None, "0/3"])
def test_other_options_than_those_of_the_plan_are_refused(
    begun: tuple[Path, Path], options: dict[str, Any], message: str, worker: str | None
) -> None:
    with pytest.raises(ConvertError, match=message):
        convert_to_mds(*begun, **{**OPTIONS, **options}, worker=worker)


def test_files_that_came_and_went_after_the_plan_are_named(begun: tuple[Path, Path]) -> None:
    source, out = begun
    (source / "d.jsonl").write_text('{"text": "d"}')
    (source / "a.jsonl").unlink()
    with pytest.raises(ConvertError, match=r"a\.jsonl is gone, d\.jsonl is new"):
        convert_to_mds(source, out, **OPTIONS)


def test_a_worker_with_other_versions_is_refused_by_name(
    begun: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zstandard.ZSTD_VERSION", (9, 9, 9))
    for worker in (None, "0/3"):
        with pytest.raises(ConvertError, match=r"this worker has zstd 9\.9\.9, but .* zstd 1\."):
            convert_to_mds(*begun, **OPTIONS, worker=worker)


def test_two_planners_with_different_inputs_do_not_mix(begun: tuple[Path, Path]) -> None:
    source, out = begun
    # as if, on a store without conditional writes, another planner had replaced the plan
    plan = json.loads((out / PLAN_NAME).read_text())
    plan["inputs"][0]["tags"] = ["", "", ""]
    (out / PLAN_NAME).write_text(json.dumps(plan))
    with pytest.raises(ConvertError, match=r"another conversion, .*, wrote segment 1"):
        convert_to_mds(source, out, **OPTIONS)


@pytest.mark.parametrize("worker", ["3/3", "x", "1", "-1/2"])
def test_a_wrong_worker_is_a_value_error(tmp_path: Path, worker: str) -> None:
    with pytest.raises(ValueError, match="worker is"):
        convert_lines(tmp_path, ['{"text": "a"}'], worker=worker)


def test_a_kept_field_may_have_a_different_type_in_each_segment(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", 20 * [{"text": "a", "n": 1}])
    write_lines(tmp_path / "in" / "b.jsonl", 15 * [{"text": "a", "n": "one"}])
    options = {**QUIET, "segment_bytes": 500, "keep": ["n"]}
    report = convert_to_mds(tmp_path / "in", tmp_path / "out", **options)
    assert (report.segments, report.documents, report.columns["n"]) == (2, 35, "json")
    samples = read_dataset(str(tmp_path / "out"), tmp_path)
    assert [sample["n"] for sample in samples] == 20 * [1] + 15 * ["one"]


@pytest.mark.parametrize("form", ["mds", "arrow"])
def test_datasets_in_folders_are_converted_by_workers_of_an_array(
    tmp_path: Path, form: str
) -> None:
    rows = [{"text": f"document {number} " * 9, "n": number} for number in range(300)]
    if form == "mds":
        write_lines(tmp_path / "a.jsonl", rows)
        options = {**QUIET, "keep": ["n:int16"], "shard_bytes": 2000}
        convert_to_mds(tmp_path / "a.jsonl", tmp_path / "in", **options)
    else:
        import datasets

        datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "in"), num_shards=9)
    options = {**OPTIONS, "keep": ["n"]}
    convert_to_mds(tmp_path / "in", tmp_path / "whole", **options)
    for worker in ("1/2", "0/2"):
        report = convert_to_mds(tmp_path / "in", tmp_path / "out", worker=worker, **options)
    assert report.segments > 3
    assert dataset_bytes(str(tmp_path / "out")) == dataset_bytes(str(tmp_path / "whole"))
    samples = read_dataset(str(tmp_path / "out"), tmp_path)
    assert [(sample["text"], sample["n"]) for sample in samples] == [
        (row["text"], row["n"]) for row in rows
    ]


def test_one_segment_in_an_array_is_the_work_of_worker_0(tmp_path: Path) -> None:
    lines = ['{"text": "a"}']
    assert convert_lines(tmp_path, lines, worker="2/3").unfinished_segments == 1
    assert convert_lines(tmp_path, lines, worker="0/3").documents == 1
    assert convert_lines(tmp_path, lines, worker="2/3").already_complete
    assert texts(str(tmp_path / "out"), tmp_path) == ["a"]


# ---------------------------------------------------------------- append


@pytest.fixture(params=[1000, 1 << 20], ids=["segments", "one segment"])
def finished(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A finished dataset of 150 documents, converted in several segments or in one."""
    write_files(tmp_path / "in", "abc")
    options = {**OPTIONS, "segment_bytes": request.param, "shard_bytes": 1200}
    convert_to_mds(tmp_path / "in", tmp_path / "out", **options)
    return tmp_path / "out"


def write_files(folder: Path, names: str) -> Path:
    for name in names:
        write_lines(folder / f"{name}.jsonl", 50 * [f"of {name} in {folder.name}"])
    return folder


APPENDED: dict[str, Any] = {**OPTIONS, "append": True, "shard_bytes": 1200}


def test_appending_adds_documents_and_never_touches_what_is_there(
    finished: Path, tmp_path: Path
) -> None:
    before = dataset_bytes(str(finished))
    expected = texts(str(finished), tmp_path)
    for folder in ("more", "most"):
        report = convert_to_mds(write_files(tmp_path / folder, "ab"), finished, **APPENDED)
        expected += [f"of {name} in {folder}" for name in "ab" for _ in range(50)]
        documents = read_dataset(str(finished), tmp_path)
        assert [sample["text"] for sample in documents] == expected
        assert report.documents == len(documents)
        assert len({sample["id"] for sample in documents}) == len(documents)
        assert all(re.match(r"\+\d+/[ab]\.jsonl:@", sample["id"]) for sample in documents[150:])
        after = dataset_bytes(str(finished))
        assert before.items() - after.items() <= {("/index.json", before["/index.json"])}
    assert not (finished / ".convert").exists()


def test_what_is_appended_again_is_complete_and_the_rest_is_named(
    finished: Path, tmp_path: Path
) -> None:
    more = write_files(tmp_path / "more", "ab")
    first = convert_to_mds(more, finished, **APPENDED)
    again = convert_to_mds(more, finished, **APPENDED)
    assert again.already_complete
    assert (again.documents, again.shards) == (first.documents, first.shards)
    base = convert_to_mds(tmp_path / "in", finished, **APPENDED)
    assert (base.already_complete, base.documents, base.skipped_files) == (True, 250, 3)
    other = r"belongs to a conversion with different .*: shard_bytes"
    with pytest.raises(ConvertError, match=other):
        convert_to_mds(more, finished, **{**APPENDED, "shard_bytes": 5000})
    missing = r"cannot append to .*, because it has no finished conversion"
    with pytest.raises(ConvertError, match=missing):
        convert_to_mds(more, tmp_path / "nothing", **APPENDED)


def test_appending_resumes_wherever_it_was_cut_short(finished: Path, tmp_path: Path) -> None:
    more = write_files(tmp_path / "more", "abcd")
    shutil.copytree(finished, tmp_path / "whole")
    convert_to_mds(more, tmp_path / "whole", **APPENDED)
    before = (finished / "index.json").read_bytes()
    convert_until(3, more, finished, **APPENDED)
    assert (finished / "index.json").read_bytes() == before
    with pytest.raises(ConvertError, match=r"an append to .* is not finished"):
        convert_to_mds(tmp_path / "in", finished, **{**APPENDED, "append": False})
    for last in ("convert-report.json", "index.json"):
        convert_until_write(last, more, finished, **APPENDED)
    report = convert_to_mds(more, finished, **APPENDED)
    assert report.documents == 350
    assert dataset_bytes(str(finished)) == dataset_bytes(str(tmp_path / "whole"))
    assert convert_to_mds(more, finished, **APPENDED).already_complete
