"""Counted lengths are found, verified, joined in one file per node, and read by sample."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from cloudload.data.mds.dataset import Dataset
from cloudload.data.storage.locations import Location
from cloudload.errors import CacheError, DatasetError
from cloudload.rows.packing.tables import Size
from cloudload.run.lengths.length_files import (
    CorpusLengths,
    CountedDataset,
    DatasetLengths,
    encode_group,
    find_index,
    lengths_location,
    open_dataset_lengths,
    read_lengths,
)
from cloudload.run.lengths.lengths_index import (
    Group,
    LengthsIndex,
    LengthsKey,
    cut_groups,
    index_name,
)
from testkit.tiny_runs import tiny_dataset

KEY = LengthsKey("tokenizer", "ids", "documents")
MANY = 1 << 20  # samples of a shard that fills a whole group


def counted(folder: Path, *lengths: list[int]) -> CountedDataset:
    """A dataset with these lengths of its shards' samples, written as groups to `folder`."""
    dataset = tiny_dataset("a", list(map(len, lengths)))
    flat = np.array([length for shard in lengths for length in shard], np.int64)
    groups, start = [], 0
    (folder / KEY.digest).mkdir(parents=True, exist_ok=True)
    for part in cut_groups(dataset.table, KEY):
        own = flat[start : start + part.samples]
        content = encode_group({"samples": part.samples}, own)
        (folder / KEY.digest / part.name).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        groups.append(
            Group(part.name, digest, len(content), part.samples, int(own.sum()), 0, 0, 0, 0)
        )
        start += part.samples
    index = LengthsIndex(asdict(KEY), "data", tuple(groups))
    (folder / KEY.digest / index_name("data")).write_bytes(index.encode())
    return CountedDataset(dataset, KEY, Location(str(folder)), index)


def first_group(folder: Path) -> Path:
    return min((folder / KEY.digest).glob("00000-*.lengths"))


def test_lengths_are_those_of_the_samples_in_order(tmp_path: Path) -> None:
    found = open_dataset_lengths(
        counted(tmp_path / "at", [3, 70_000], [0, Size.FILTERED, Size.FAILED]),
        tmp_path / "cache",
    )
    samples = np.array([[4, 0], [1, 3]])
    assert found.of(samples).tolist() == [[Size.FAILED, 3], [70_000, Size.FILTERED]]


def test_samples_of_later_groups_come_after_those_of_earlier_ones(tmp_path: Path) -> None:
    at = counted(tmp_path / "at", [7] * (MANY - 1) + [70_001], [3, 90_002])
    assert len(at.index.groups) == 2
    found = open_dataset_lengths(at, tmp_path / "cache")
    assert found.of(np.array([0, MANY - 1, MANY, MANY + 1])).tolist() == [7, 70_001, 3, 90_002]


def test_the_file_of_a_node_is_written_once_and_needs_no_store_afterwards(tmp_path: Path) -> None:
    at = counted(tmp_path / "at", [3, 4])
    open_dataset_lengths(at, tmp_path / "cache")
    first_group(tmp_path / "at").unlink()
    again = open_dataset_lengths(at, tmp_path / "cache")
    assert again.of(np.array([1])).tolist() == [4]
    assert pickle.loads(pickle.dumps(again)).of(np.array([0])).tolist() == [3]


def test_lengths_in_memory_travel_with_their_values() -> None:
    held = DatasetLengths(np.array([1, 65_535], "<u2"), np.array([1]), np.array([99_999]))
    assert pickle.loads(pickle.dumps(held)).of(np.array([0, 1])).tolist() == [1, 99_999]


def test_lengths_counted_again_have_another_file(tmp_path: Path) -> None:
    for length in (3, 9):
        at = counted(tmp_path / "at", [length, 4])
        found = open_dataset_lengths(at, tmp_path / "cache")
        assert found.of(np.array([0])).tolist() == [length]


def test_a_damaged_group_is_named_and_leaves_no_file(tmp_path: Path) -> None:
    at = counted(tmp_path / "at", [3, 4])
    path = first_group(tmp_path / "at")
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    for _ in range(2):
        with pytest.raises(DatasetError, match=f"{path}.*the size or hash of the file differs"):
            open_dataset_lengths(at, tmp_path / "cache")
    with pytest.raises(DatasetError, match="the size or hash"):
        list(read_lengths(at))


def test_groups_that_do_not_match_the_shards_are_refused(tmp_path: Path) -> None:
    at = counted(tmp_path / "at", [3, 4])
    list(read_lengths(at))
    other = replace(at, dataset=tiny_dataset("b", [2]))
    with pytest.raises(DatasetError, match="the file does not list 00000-"):
        list(read_lengths(other))
    extra = replace(at.index, groups=(*at.index.groups, at.index.groups[0]))
    with pytest.raises(DatasetError, match="the groups in the file do not match the data"):
        list(read_lengths(replace(at, index=extra)))
    wrong = replace(at.index, groups=(replace(at.index.groups[0], samples=3),))
    with pytest.raises(DatasetError, match="has 3 samples, but its shards have 2"):
        list(read_lengths(replace(at, index=wrong)))


def test_an_index_is_found_by_key_and_data(tmp_path: Path) -> None:
    at = counted(tmp_path / "at", [3, 4])
    assert find_index(at.location, KEY, "data") == at.index
    assert find_index(at.location, KEY, "other") is None
    assert find_index(at.location, replace(KEY, tokenizer="other"), "data") is None
    path = tmp_path / "at" / KEY.digest / index_name("data")
    path.write_bytes(replace(at.index, data="date").encode())
    with pytest.raises(DatasetError, match="belongs to different data or a different tokenizer"):
        find_index(at.location, KEY, "data")
    path.write_bytes(b"{")
    with pytest.raises(DatasetError, match=r"index-data\.json: .*run cloudload count again"):
        find_index(at.location, KEY, "data")


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(CacheError, match=f"cannot write token lengths to {tmp_path}/cache"):
        open_dataset_lengths(counted(tmp_path / "at", [3]), tmp_path / "cache")


def test_lengths_are_beside_the_dataset_unless_another_place_is_given() -> None:
    dataset: Dataset = tiny_dataset("a", [3])
    assert lengths_location(dataset, None) == Location("s3://tiny/a/lengths")
    assert lengths_location(dataset, "/other") == Location("/other")


def test_samples_of_a_corpus_belong_to_its_datasets_in_order() -> None:
    datasets = tuple(
        DatasetLengths(np.array(each, "<u2"), np.empty(0, np.int64), np.empty(0, np.int64))
        for each in ([1, 2, 3], [], [7])
    )
    corpus = CorpusLengths(datasets, np.array([0, 3, 3, 4]), "digest", ())
    samples = np.array([[3, 0], [2, 3]])
    assert corpus.streams_of(samples).tolist() == [[2, 0], [0, 2]]
    assert corpus.of(samples).tolist() == [[7, 1], [3, 7]]
    alone = CorpusLengths(datasets[:1], np.array([0, 3]), "digest", ())
    assert alone.of(np.array([2, 0])).tolist() == [3, 1]
