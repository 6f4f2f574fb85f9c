"""A document is always in the same split, and the bytes are the same on every engine."""

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
OPTIONS |= {"segment_bytes": 10_000, "splits": SPLITS}
SEGMENTS = 6


def write_files(folder: Path, names: str, *, with_ids: bool = True) -> Path:
    """Write files of 150 documents, each with a unique text and ID."""
    for name in names:
        draw = random.Random(name)
        texts = [f"{name} {number} " * draw.randint(1, 30) for number in range(150)]
        ids = [{"id": f"{name}-{number}"} if with_ids else {} for number in range(150)]
        rows = [{"text": text, **own} for text, own in zip(texts, ids, strict=True)]
        write_lines(folder / f"{name}.jsonl", rows)
    return folder


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
) -> tuple[dict[str, Any], Any, dict[str, str]]:
    """Convert in one process. Returns the options, the report, and the hash of each object."""
    out, options = tmp_path_factory.mktemp("whole"), OPTIONS | {"segment_bytes": request.param}
    report = convert_to_mds(corpus, out / "out", **options)
    assert report.segments == (SEGMENTS if request.param == 10_000 else 1)
    assert len(split_of(out / "out", out)) == report.documents == 450
    return options, report, objects_of(str(out / "out"))


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
    options, report, _ = whole
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


def test_processes_and_executors_write_the_same_objects(
    corpus: Path, tmp_path: Path, whole: Any
) -> None:
    options, report, objects = whole
    for out, found in convert_every_way(corpus, str(tmp_path), SEGMENTS, **options):
        assert objects_of(out) == objects
        assert found.splits == report.splits


def test_workers_of_an_array_write_the_same_objects(
    corpus: Path, store_url: str, whole: Any
) -> None:
    options, report, objects = whole
    for worker in ("2/3", "1/3", "0/3"):
        found = convert_to_mds(corpus, store_url, worker=worker, **options)
    assert objects_of(store_url) == objects
    assert found.splits == report.splits
    again = convert_to_mds(corpus, store_url, worker="1/3", **options)
    assert again.already_complete
    assert (again.documents, again.splits) == (report.documents, report.splits)
    assert convert_to_mds(corpus, store_url, finish=True, **options).already_complete


@pytest.mark.parametrize("rejects", [False, True])
def test_a_conversion_that_stopped_anywhere_resumes(
    corpus: Path, tmp_path: Path, whole: Any, rejects: bool
) -> None:
    options, report, objects = whole
    if rejects:
        options = {**options, "skip_bad": True, "rejects": tmp_path / "rejects"}
    for shards in (1, 7, 0, 9, 3):
        convert_until(shards, corpus, tmp_path / "out", **options)
    found = convert_to_mds(corpus, tmp_path / "out", **options)
    assert 10 < found.resumed_shards < found.shards
    assert objects_of(str(tmp_path / "out")) == objects
    assert (found.documents, found.splits) == (report.documents, report.splits)


def test_a_conversion_that_stopped_between_its_indexes_resumes(
    corpus: Path, tmp_path: Path, whole: Any
) -> None:
    options, report, objects = whole
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
    report = convert_to_mds(more, out, append=True, **options)
    after = objects_of(str(out))
    changed = {name for name, digest in before.items() if after[name] != digest}
    assert changed == {f"/{name}/index.json" for name in NAMES}
    assert report.documents == sum(split["documents"] for split in report.splits.values()) == 750
    again = convert_to_mds(more, out, append=True, **options)
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
