"""The error for a location that is not an MDS dataset says what is there, and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cloudload.config.stream import Stream
from cloudload.data.mds.dataset import open_corpus
from cloudload.data.storage.base import Retry
from cloudload.data.storage.locations import Location
from cloudload.errors import DatasetError, StoreError
from testkit.corpora import write_mds


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("{}\n")


def answer(remote: str, split: str | None = None) -> str:
    with pytest.raises(DatasetError) as caught:
        open_corpus([Stream(remote, split=split).locate(Retry())])
    return str(caught.value)


def command(remote: str, split: str | None = None) -> str:
    return answer(remote, split).partition("Run: ")[2]


@pytest.mark.parametrize(
    ("names", "found", "inputs"),
    [
        ([f"{n}.jsonl.gz" for n in range(5)], "Found 5 .jsonl.gz.", "corpus"),
        (["a.arrow", "b.arrow"], "Found 2 .arrow.", "corpus"),
        (["deep/er/a.TXT"], "Found 1 .txt.", "corpus"),
        (["a.jsonl", "b.json.zst", ".hidden", "_SUCCESS"], "1 .jsonl and 1 .json.zst.", "corpus"),
        (["a.jsonl", "README.md", "LICENSE"], "1 .md and 1 .jsonl.", "'corpus/*.jsonl'"),
        (["x/a.jsonl.gz", "b.txt"], "1 .txt and 1 .jsonl.gz.", "'corpus/**/*.jsonl.gz'"),
        (["a.txt", "b.txt", "c", "d.png"], "1 .png.", "'corpus/*.txt' corpus/c"),
        ([f"{n}.arrow" for n in range(1_000)], "Found at least 1,000 .arrow.", "corpus"),
        ([f"{n}/a.jsonl" for n in range(30)], "Found at least 19 .jsonl.", "corpus"),
    ],
)
def test_raw_files_are_counted_and_answered_with_a_command(
    names: Iterable[str], found: str, inputs: str
) -> None:
    touch(*(f"corpus/{name}" for name in names))
    assert answer("corpus").startswith("corpus is not an MDS dataset, because it has no index.json")
    assert found in answer("corpus")
    assert answer("corpus").endswith(
        "onvert the raw data, and pass 'corpus-mds' to the loader. Run: cloudload convert "
        f"{inputs} corpus-mds"
    )


@pytest.mark.parametrize(
    ("remote", "split", "expected"),
    [
        ("in/a.jsonl.gz", None, "in/a.jsonl.gz in/a-mds"),
        ("in/*.gz", None, "'in/*.gz' in-mds"),
        ("in", "train", "in in-mds --split train"),
        ("in/", None, "in in-mds"),
        ("./in", None, "./in in-mds"),
        ("my data", None, "'my data' 'my data-mds'"),
        ("splits", "train", "splits/train splits-mds --split train"),
        (
            "splits",
            None,
            "splits/train splits-mds --split train && cloudload convert splits/val splits-mds "
            "--split val",
        ),
        ("hf://owner/name", None, "hf://owner/name name-mds"),
        ("hf://owner/na.me?config=en", "test", "'hf://owner/na.me?config=en' na-mds --split test"),
        ("https://huggingface.co/datasets/owner/name", None, "hf://owner/name name-mds"),
        ("hf://squad", None, "hf://squad squad-mds"),
    ],
)
def test_the_command_reads_what_was_given(remote: str, split: str | None, expected: str) -> None:
    touch("in/a.jsonl.gz", "my data/a.txt", "splits/train/a.jsonl", "splits/val/a.jsonl")
    assert command(remote, split) == f"cloudload convert {expected}"


def test_the_output_is_never_inside_the_input(here: Path) -> None:
    touch("in/a.txt")
    assert command(f"{here}/in/") == f"cloudload convert {here}/in {here}/in-mds"
    assert command(".") == f"cloudload convert . {here}-mds"
    assert command(f"file://{here}/in") == f"cloudload convert file://{here}/in {here}/in-mds"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            ["a.xlsx", "b.xlsx", "README"],
            "Found 2 .xlsx and 1 without a suffix. a.xlsx is a table.",
        ),
        (["a.zip"], "Found 1 .zip. a.zip is an archive. Unpack it"),
        (["a.mds", "b.mds.zstd"], "Found 1 .mds and 1 .mds.zstd. A writer stores index.json last"),
        ([".convert/config.json", "shard.00000.mds"], "conversion to corpus has not finished"),
        (["a/.convert/config.json"], "conversion to corpus/a has not finished"),
        (["state.json", "dataset_info.json", "data.arrow"], "datasets.save_to_disk wrote"),
        (["dataset_dict.json", "train/state.json"], "datasets.save_to_disk wrote"),
    ],
)
def test_what_cannot_be_converted_as_files_is_called_by_its_name(
    names: Iterable[str], expected: str
) -> None:
    touch(*(f"corpus/{name}" for name in names))
    assert expected in answer("corpus")
    assert "cloudload convert corpus" not in answer("corpus")


@pytest.mark.parametrize(
    ("remote", "split", "expected"),
    [
        ("c", None, "c has no index.json, but 2 folders have an index: val and en/train. Pass "),
        ("c", None, "Pass Stream('c', split='val') as data, or 'c/val'"),
        ("c", "en", "Pass Stream('c', split='en/train') as data, or 'c/en/train'"),
        ("c", "*", "c has no split '*', which is a glob, but 2 folders have an index: val and en/"),
        ("c", "*", "Pass Stream('c', split='val') as data, or 'c/val'"),
        ("c", "en/*", "Pass Stream('c', split='en/train') as data, or 'c/en/train'"),
        ("c", "valid", "c has no split 'valid', but 2 folders have an index: val and en/train."),
        (
            "c/val",
            "val",
            "c/val has no split 'val', because it is itself a dataset with an index.json. Omit "
            "split",
        ),
        ("c/*", None, "c/* is a glob of folders: c/en and c/val. Pass one of them"),
        ("c/**", None, "c/** is a glob of folders: c/val and c/en/train. Pass one of them"),
        ("c/*.txt", None, "The glob matches neither a file nor a folder. Check the location"),
        ("c/val/index.json", None, "is the index of a dataset. Pass its folder: c/val"),
        ("c/val/index.json", "val", "is the index of a dataset. Pass its folder: c/val"),
        ("c/val/shard.00000.mds", None, "is a shard of a dataset. Pass its folder: c/val"),
    ],
)
def test_datasets_nearby_are_named(remote: str, split: str | None, expected: str) -> None:
    for name in ("c/en/train", "c/val"):
        write_mds(name, ["aaa"])
    assert expected in answer(remote, split)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ({"chunks": [], "config": {}, "updated_at": "0"}, "it is an index of LitData"),
        ({"shardlist": []}, "it is an index of WebDataset"),
        ([{"text": "a"}], "it is a JSON list, not an object with shards"),
        ({"version": 1, "shards": []}, "its version is 1, not 2"),
        (
            {"version": 2, "shards": [{"format": "json", "raw_data": {}}]},
            "a shard has format",
        ),
    ],
)
def test_an_index_of_another_library_is_recognized(index: Any, expected: str) -> None:
    touch("index.json")
    Path("index.json").write_text(json.dumps(index))
    assert f"index.json is not an MDS index: {expected}" in answer(".")
    assert "Convert the raw corpus with cloudload convert" in answer(".")


@pytest.mark.parametrize(
    ("remote", "split", "expected"),
    [
        ("empty", None, "the folder empty is empty. Check the location, or convert"),
        ("empty", None, r"convert a corpus to it: cloudload convert INPUT empty$"),
        ("hidden", None, "the folder hidden has only hidden files"),
        (
            "nothing",
            None,
            r"no folder nothing. The nearest existing folder, /.*, has corpora/, empty/ and",
        ),
        ("empty", "x", "no folder empty/x. The nearest existing folder, /.*/empty, is empty"),
        ("corpora/wiki_mds", None, r"no folder corpora/wiki_mds. Did you mean corpora/wiki-mds\?$"),
        ("corpra/wiki-mds", None, r"no folder corpra/wiki-mds. Did you mean corpora/wiki-mds\?$"),
        ("corpora/Wiki-MDS", "train", r"Did you mean corpora/wiki-mds/train\?$"),
        ("corpora/wiki-mds/train/index.json/x", None, "x, because /.*/index.json is a file"),
    ],
)
def test_where_nothing_is_the_error_says_what_is_near(
    remote: str, split: str | None, expected: str
) -> None:
    Path("empty").mkdir()
    touch("hidden/.x", "corpora/wiki-mds/train/index.json")
    with pytest.raises(StoreError, match=f"cannot read the dataset in .*{expected}") as caught:
        open_corpus([Stream(remote, split=split).locate(Retry())])
    assert caught.value.is_missing
    assert "attempt" not in str(caught.value)


def test_an_absolute_location_is_answered_with_an_absolute_one(here: Path) -> None:
    touch("corpora/index.json")
    with pytest.raises(StoreError, match=rf"Did you mean {here}/corpora\?$"):
        open_corpus([Location(str(here / "corpra"), Retry())])
