"""A document is always in the same split. The bytes of splits and of rejects are the same on every
engine and after any interruption."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from cloudload import Stream
from cloudload.convert import convert_to_mds
from cloudload.data.mds.own_objects import REPORT_NAME
from cloudload.data.storage.locations import Location
from cloudload.errors import ConvertError, DatasetError
from testkit.conversions import (
    QUIET,
    convert_until,
    convert_until_write,
    dataset_bytes,
    read_dataset,
    write_lines,
)
from testkit.loaders import make_loader
from testkit.segments import convert_every_way

SPLITS = "train=0.8,val=0.15,test=0.05"
NAMES = ("train", "val", "test")
OPTIONS: dict[str, Any] = {**QUIET, "shard_bytes": 2_000, "block_bytes": 900}
OPTIONS |= {"segment_bytes": 10_000, "splits": SPLITS, "skip_bad": True}
SEGMENTS = 6
BAD = range(3, 150, 25)
"""The documents in front of which a file has a bad line, except `c.jsonl`."""
BAD_FILES = {"a.jsonl": len(BAD), "b.jsonl": len(BAD)}


def write_files(folder: Path, names: str, *, with_ids: bool = True) -> Path:
    """Write files of 150 documents, each with a unique text and ID, and of bad lines."""
    for name in names:
        draw = random.Random(name)
        texts = [f"{name} {number} " * draw.randint(1, 30) for number in range(150)]
        ids = [{"id": f"{name}-{number}"} if with_ids else {} for number in range(150)]
        rows: list[dict[str, str]] = []
        for number, (text, own) in enumerate(zip(texts, ids, strict=True)):
            if number in BAD and name != "c":
                rows.append({"body": f"{name} {number}"})
            rows.append({"text": text, **own})
        write_lines(folder / f"{name}.jsonl", rows)
    return folder


def bad_records(names: str) -> list[str]:
    return [f'{{"body": "{name} {number}"}}' for name in names for number in BAD]


def split_of(out: Path, scratch: Path) -> dict[str, str]:
    """Map the text of each document to its split."""
    return {
        sample["text"]: name for name in NAMES for sample in read_dataset(f"{out}/{name}", scratch)
    }


@pytest.fixture(scope="module")
def corpus(module_folder: Path) -> Path:
    return write_files(module_folder / "corpus", "abc")


@pytest.fixture(scope="module", params=[10_000, 1 << 20], ids=["segments", "one segment"])
def whole(
    corpus: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[dict[str, Any], Any, dict[str, str], bytes]:
    """Convert in one process. Returns the options, the report, the hash of each object, and the
    rejects."""
    out, options = tmp_path_factory.mktemp("whole"), OPTIONS | {"segment_bytes": request.param}
    report = convert_to_mds(corpus, out / "out", rejects=out / "rejects", **options)
    assert report.segments == (SEGMENTS if request.param == 10_000 else 1)
    assert len(split_of(out / "out", out)) == report.documents == 450
    assert report.bad_files == BAD_FILES
    rejects = (out / "rejects").read_bytes()
    assert [json.loads(line)["record"] for line in rejects.splitlines()] == bad_records("ab")
    return options, report, objects_of(str(out / "out")), rejects


def objects_of(out: str) -> dict[str, str]:
    """Hash each object of the splits, and check that nothing else is left. Reports are skipped,
    because they contain times."""
    found = dataset_bytes(out)
    assert {name.split("/")[1] for name in found} == {*NAMES}
    assert not any(".convert" in name for name in found)
    return found


def test_splits_are_datasets_for_readers_and_their_reports(
    corpus: Path, tmp_path: Path, whole: Any, cli: Any
) -> None:
    options, report, *_ = whole
    out = tmp_path / "out"
    convert_to_mds(corpus, out, **options)
    documents = {name: len(read_dataset(f"{out}/{name}", tmp_path)) for name in NAMES}
    assert {name: split["documents"] for name, split in report.splits.items()} == documents
    assert 330 < documents["train"] < 390
    assert 5 < documents["test"] < 45
    for key in ("documents", "text_bytes", "raw_bytes", "stored_bytes", "shards"):
        assert sum(split[key] for split in report.splits.values()) == getattr(report, key)
    for name in NAMES:
        stored = json.loads((out / name / REPORT_NAME).read_text())["report"]
        assert stored["documents"] == documents[name]
        texts = [sample["text"] for sample in read_dataset(f"{out}/{name}", tmp_path)]
        assert stored["text_bytes"] == sum(map(len, texts))
        data = Stream(str(out), split=name)
        with make_loader(data, seq_len=64, epochs=1, local=tmp_path / "cache") as loader:
            assert loader.num_samples == documents[name]
            assert next(iter(loader))["input_ids"].shape == (4, 64)
        cli("check", out / name)
    with pytest.raises(DatasetError, match="3 folders have an index: test, train and val"):
        make_loader(str(out))


def test_streaming_reads_a_split(corpus: Path, tmp_path: Path, whole: Any) -> None:
    from streaming import StreamingDataset

    convert_to_mds(corpus, tmp_path / "out", **whole[0])
    dataset = StreamingDataset(
        local=str(tmp_path / "local"), remote=str(tmp_path / "out"), split="val", batch_size=1
    )
    expected = [sample["text"] for sample in read_dataset(str(tmp_path / "out/val"), tmp_path)]
    assert [dataset[number]["text"] for number in range(len(dataset))] == expected


@pytest.mark.parametrize("with_ids", [True, False], ids=["ids", "texts"])
def test_a_document_is_in_one_split_whatever_the_inputs(tmp_path: Path, with_ids: bool) -> None:
    first = write_files(tmp_path / "in", "abc", with_ids=with_ids)
    convert_to_mds(first, tmp_path / "out", **OPTIONS)
    expected = split_of(tmp_path / "out", tmp_path)
    assert len(expected) == 450
    lines = [line for path in first.iterdir() for line in path.read_text().splitlines()]
    random.Random(5).shuffle(lines)
    (tmp_path / "other").mkdir()
    for number in range(7):
        text = "\n".join(lines[number::7])
        (tmp_path / "other" / f"{number}.jsonl").write_text(text)
    for size in (3_000, 1 << 20):
        out = tmp_path / f"out-{size}"
        convert_to_mds(tmp_path / "other", out, **OPTIONS | {"segment_bytes": size})
        assert split_of(out, tmp_path) == expected
    two, one = write_files(tmp_path / "two", "cb", with_ids=with_ids), tmp_path / "one"
    one.mkdir()
    shutil.copy(first / "a.jsonl", one)
    convert_to_mds(two, tmp_path / "appended", **OPTIONS)
    convert_to_mds(one, tmp_path / "appended", append=True, **OPTIONS)
    assert split_of(tmp_path / "appended", tmp_path) == expected


def test_processes_and_executors_write_the_same_objects_and_rejects(
    corpus: Path, tmp_path: Path, whole: Any
) -> None:
    options, report, objects, rejects = whole
    options = {**options, "rejects": tmp_path / "rejects"}
    for out, found in convert_every_way(corpus, f"{tmp_path}/out", SEGMENTS, **options):
        assert objects_of(out) == objects
        assert found.splits == report.splits
        assert (tmp_path / "rejects").read_bytes() == rejects
        (tmp_path / "rejects").unlink()


def test_workers_of_an_array_write_the_same_objects_and_the_last_one_the_rejects(
    corpus: Path, store_url: str, whole: Any
) -> None:
    options, report, objects, rejects = whole
    target = f"{store_url}-rejects.jsonl"
    for worker in ("2/3", "1/3", "0/3"):
        found = convert_to_mds(corpus, store_url, rejects=target, worker=worker, **options)
    assert objects_of(store_url) == objects
    assert found.splits == report.splits
    assert Location(target).read() == rejects
    again = convert_to_mds(corpus, store_url, rejects=target, worker="1/3", **options)
    assert again.already_complete
    assert (again.documents, again.splits) == (report.documents, report.splits)
    finished = convert_to_mds(corpus, store_url, rejects=target, finish=True, **options)
    assert finished.already_complete


@pytest.mark.parametrize(
    ("first", "last"),
    [(None, None), (None, "rejects"), ("first", "rejects"), ("rejects", "rejects")],
)
def test_a_conversion_that_stopped_anywhere_resumes_and_writes_all_rejects(
    corpus: Path, tmp_path: Path, whole: Any, first: str | None, last: str | None
) -> None:
    options, report, objects, rejects = whole
    out = tmp_path / "out"
    for shards in (1, 7, 0, 9, 3):
        convert_until(shards, corpus, out, **options, rejects=first and tmp_path / first)
    found = convert_to_mds(corpus, out, **options, rejects=last and tmp_path / last)
    assert first != last or 10 < found.resumed_shards < found.shards
    assert objects_of(str(out)) == objects
    assert (found.documents, found.splits) == (report.documents, report.splits)
    assert (found.bad, found.bad_files) == (2 * len(BAD), BAD_FILES)
    if last:
        assert (tmp_path / last).read_bytes() == rejects
        assert list(found.bad_records) == [
            f"{corpus}/{line['file']}:{line['place']}: {line['error']}"
            for line in map(json.loads, rejects.splitlines())
        ]


def test_shards_that_are_stored_are_not_stored_again_for_the_rejects(
    corpus: Path, tmp_path: Path
) -> None:
    options = OPTIONS | {"segment_bytes": 1 << 20, "rejects": tmp_path / "rejects"}
    convert_until(7, corpus, tmp_path / "out", **options)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("shard.*")}
    report = convert_to_mds(corpus, tmp_path / "out", **options)
    assert report.resumed_shards == len(before) == 7
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_segments_without_rejects_are_converted_again_or_named(
    corpus: Path, tmp_path: Path
) -> None:
    out, target = tmp_path / "out", tmp_path / "rejects"
    convert_to_mds(corpus, out, worker="0/3", **OPTIONS)
    for worker in ("1/3", "2/3"):
        report = convert_to_mds(corpus, out, worker=worker, rejects=target, **OPTIONS)
        assert report.unfinished_segments
    with pytest.raises(ConvertError, match=r"segments 0, 3 of .* left out bad records without sto"):
        convert_to_mds(corpus, out, finish=True, rejects=target, **OPTIONS)
    report = convert_to_mds(corpus, out, worker="0/3", rejects=target, **OPTIONS)
    assert report.unfinished_segments == 0
    assert len(target.read_bytes().splitlines()) == 2 * len(BAD)


def test_a_conversion_that_stopped_between_its_indexes_resumes(
    corpus: Path, tmp_path: Path, whole: Any
) -> None:
    options, report, objects, _ = whole
    out = tmp_path / "out"
    for last in ("train/index.json", f"val/{REPORT_NAME}", "val/index.json", "test/index.json"):
        convert_until_write(last, corpus, out, **options)
        assert (out / ".convert").exists()
    found = convert_to_mds(corpus, out, **options)
    assert (found.documents, found.splits) == (report.documents, report.splits)
    assert objects_of(str(out)) == objects
    assert not (out / ".convert").exists()


def test_a_split_without_documents_is_an_empty_dataset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cli: Any
) -> None:
    source, out = write_lines(tmp_path / "a.jsonl", ["abc"]), tmp_path / "out"
    command = ["convert", source, out, "--split", "train=0.999999,val=0.000001"]
    assert "splits     train 1, val 0 (documents)" in cli(*command).out
    assert "the split val has no documents, so a loader cannot open" in caplog.text
    assert json.loads((tmp_path / "out/val/index.json").read_text())["shards"] == []
    with pytest.raises(DatasetError, match=r"no samples in .*/val"):
        make_loader(f"{out}/val")
    assert "was already complete" in cli(*command).out


def test_appending_to_splits_changes_no_shard_and_is_done_once(
    corpus: Path, tmp_path: Path, whole: Any
) -> None:
    options, out = whole[0], tmp_path / "out"
    convert_to_mds(corpus, out, **options)
    before = objects_of(str(out))
    more = write_files(tmp_path / "more", "de")
    target = tmp_path / "rejects"
    report = convert_to_mds(more, out, append=True, rejects=target, **options)
    after = objects_of(str(out))
    changed = {name for name, digest in before.items() if after[name] != digest}
    assert changed == {f"/{name}/index.json" for name in NAMES}
    assert report.documents == sum(split["documents"] for split in report.splits.values()) == 750
    added = {f"+{whole[1].segments}/{name}.jsonl": len(BAD) for name in "de"}
    assert report.bad_files == BAD_FILES | added
    records = [json.loads(line)["record"] for line in target.read_bytes().splitlines()]
    assert records == bad_records("de")
    again = convert_to_mds(more, out, append=True, rejects=target, **options)
    assert again.already_complete
    assert again.splits == report.splits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": "train=0.7,val=0.3"}, "splits was '.*' and is now 'train=0.7,val=0.3'"),
        ({"splits": None}, "because it has no finished conversion"),
        ({"splits": None, "split": "train"}, "splits was 'train=0.8,.*' and is now None"),
    ],
)
def test_an_append_with_other_splits_is_refused(
    corpus: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    convert_to_mds(corpus, tmp_path / "out", **OPTIONS)
    more = write_files(tmp_path / "more", "d")
    with pytest.raises(ConvertError, match=message):
        convert_to_mds(more, tmp_path / "out", append=True, **{**OPTIONS, **options})


def test_overwriting_removes_the_splits_and_nothing_else(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert_to_mds(corpus, out, **OPTIONS)
    convert_to_mds(corpus, out, split="other", **OPTIONS | {"splits": None})
    other = dataset_bytes(str(out / "other"))
    with pytest.raises(ConvertError, match=r"with different inputs or options: b.jsonl is gone"):
        convert_to_mds(corpus / "a.jsonl", out, **OPTIONS)
    (out / "val" / "index.json").unlink()
    with pytest.raises(ConvertError, match="already contains a dataset"):
        convert_to_mds(corpus, out, **OPTIONS)
    report = convert_to_mds(corpus / "a.jsonl", out, overwrite=True, **OPTIONS)
    assert len(split_of(out, tmp_path)) == report.documents == 150
    assert dataset_bytes(str(out / "other")) == other
    listed = {
        item.url.removeprefix(f"{out}/").split("/")[0] for item in Location(str(out)).list_objects()
    }
    assert listed == {*NAMES, "other"}


def test_shares_may_be_a_mapping_and_are_checked(corpus: Path, tmp_path: Path) -> None:
    shares = {"train": 0.8, "val": 0.15, "test": 0.05}
    convert_to_mds(corpus, tmp_path / "out", **{**OPTIONS, "splits": shares})
    assert convert_to_mds(corpus, tmp_path / "out", **OPTIONS).already_complete
    for splits, message in {
        "train=0.8": "add up to 0.8, not 1",
        "00001=0.5,val=0.5": "a split has the name '00001', which is reserved for",
    }.items():
        with pytest.raises(ValueError, match=message):
            convert_to_mds(corpus, tmp_path / "none", **{**OPTIONS, "splits": splits})
