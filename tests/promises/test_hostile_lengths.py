"""Stale, truncated, hostile and wrong lengths raise an error that names them, or change nothing."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import CloudLoader
from cloudload.errors import DatasetError
from cloudload.loading.workers import worker
from cloudload.loading.workers.worker import choose_samples
from cloudload.run.lengths.length_files import (
    CountedDataset,
    decode_group,
    find_index,
    lengths_location,
    open_dataset_lengths,
)
from cloudload.run.lengths.lengths_index import make_key
from cloudload.testing import Leg, run_leg
from testkit.corpora import random_documents, write_mds
from testkit.counted import count, write_counted
from testkit.examples import EXAMPLES
from testkit.loaders import make_loader

NUM_DOCUMENTS = 300


@pytest.fixture(scope="module")
def folder(module_folder: Path) -> Path:
    """A dataset of `NUM_DOCUMENTS` documents with token lengths."""
    write_counted(module_folder, random_documents(0, NUM_DOCUMENTS), shard_bytes=4_000)
    return module_folder


def read_lengths(folder: Path, cache: Path) -> list[int]:
    """Read the lengths of all samples of a dataset from its length files."""
    recipe = make_loader(str(folder), lengths="off").recipe
    [dataset], key = recipe.corpus.datasets, make_key(recipe, 0)
    place = lengths_location(dataset, None)
    index = find_index(place, key, recipe.corpus.fingerprint(range(1)))
    assert index is not None
    counted = CountedDataset(dataset, key, place, index)
    lengths = open_dataset_lengths(counted, cache)
    numbers: list[int] = lengths.of(np.arange(recipe.corpus.num_samples)).tolist()
    return numbers


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.sampled_from(["", "../../etc/passwd", "0.lengths", "x" * 300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(
    place=st.sampled_from(
        ["version", "key", "data", "groups", "name", "hash", "bytes", "samples", "tokens", "more"]
    ),
    value=JSON_VALUES,
)
@settings(max_examples=4 * EXAMPLES)
def test_a_hostile_index_is_refused_by_name_or_changes_nothing(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, place: str, value: Any
) -> None:
    cache = tmp_path_factory.mktemp("cache")
    [index] = folder.glob("lengths/*/index-*.json")
    content = index.read_text()
    values = json.loads(content)
    target = values if place in ("version", "key", "data", "groups") else values["groups"][0]
    target[place] = value
    try:
        index.write_text(json.dumps(values))
        found = read_lengths(folder, cache / "hostile")
    except DatasetError as error:
        refusal, found = str(error), []
    else:
        refusal = ""
    finally:
        index.write_text(content)
    if refusal:
        assert refusal.startswith(f"cannot use the token lengths in {index.parent.parent}")
    else:
        assert found == read_lengths(folder, cache / "whole")


@given(place=st.floats(0, 1), change=st.integers(1, 255), cut=st.sampled_from([0, 0, 1, 9]))
@settings(max_examples=4 * EXAMPLES)
def test_a_damaged_group_is_refused_by_name(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, place: float, change: int, cut: int
) -> None:
    cache = tmp_path_factory.mktemp("cache")
    [group] = folder.glob("lengths/*/*.lengths")
    content = group.read_bytes()
    changed = bytearray(content)
    changed[int(place * (len(content) - 1))] ^= change
    changed = changed[: len(changed) - cut]
    with contextlib.suppress(ValueError):
        decode_group(bytes(changed))
    try:
        group.write_bytes(changed)
        refused = f"{group.name}: the size or hash of the file differs"
        with pytest.raises(DatasetError, match=refused):
            read_lengths(folder, cache)
    finally:
        group.write_bytes(content)


@given(st.binary(max_size=200))
@settings(max_examples=4 * EXAMPLES)
def test_bytes_of_any_kind_are_not_a_group(content: bytes) -> None:
    for data in (content, b"CLLENGTH\1\0\0\0" + content):
        with pytest.raises(ValueError, match=r"^the file"):
            decode_group(data)


def test_the_lengths_of_another_version_of_the_data_are_not_taken(
    folder: Path, tmp_path: Path
) -> None:
    write_mds(tmp_path, [*random_documents(0, NUM_DOCUMENTS), "more"], shard_bytes=4_000)
    shutil.copytree(folder / "lengths", tmp_path / "lengths")
    assert make_loader(str(tmp_path)).describe()["lengths"] is None
    with pytest.raises(DatasetError, match="lengths are required, but the dataset has none"):
        make_loader(str(tmp_path), lengths="require")
    [index] = tmp_path.glob("lengths/*/index-*.json")
    count(tmp_path)
    [other] = [each for each in tmp_path.glob("lengths/*/index-*.json") if each != index]
    other.write_bytes(index.read_bytes())
    with pytest.raises(DatasetError, match=f"{other.name}: the file belongs to different data"):
        make_loader(str(tmp_path))


class Changed:
    """A transform that makes one document longer than its length says."""

    def __init__(self, folder: Path, lengths: str) -> None:
        corpus = make_loader(str(folder), lengths="off").recipe.corpus
        [(_, samples)] = list(choose_samples(corpus))
        self._wrong = f"{samples[2]}:"
        mine: dict[str, Any] = {"transform_id": "mine"}
        count(folder, transform=lambda sample: str(sample["text"]), out=lengths, **mine)
        self.settings: dict[str, Any] = {"transform": self, "lengths": lengths, **mine}

    def __call__(self, sample: Any) -> str:
        text = str(sample["text"])
        return text + "!" if text.startswith(self._wrong) else text


WRONG = r"sample \d+ .* but now has .* tokens"


def test_a_wrong_length_that_a_seek_jumps_over_is_found_before_a_row_is_handed_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Changed(folder, str(tmp_path / "lengths")).settings
    for rows in (2_000, 100_000):
        loader = make_loader(str(folder), **settings)
        loader.seek(rows)
        with pytest.raises(DatasetError, match=WRONG):
            next(iter(loader))
    monkeypatch.setattr(worker, "check_some_lengths", lambda *_: None)
    number = 0
    for rows in range(2_000, 2_200, 20):
        loader = make_loader(str(folder), **settings)
        loader.seek(rows)
        with contextlib.suppress(DatasetError):
            next(iter(loader))
            number += 1
    assert number, "without the check, some wrong lengths must go unnoticed"


def test_a_wrong_length_that_a_seek_into_the_tail_jumps_over_is_found_on_two_nodes(
    folder: Path, tmp_path: Path
) -> None:
    settings = {**Changed(folder, str(tmp_path / "lengths")).settings, "epochs": 1}
    end = len(make_loader(str(folder), **settings, batch_size=1))

    def seek(**rank: Any) -> CloudLoader:
        loader = make_loader(str(folder), **{**settings, **rank})
        loader.seek(end - 1)
        return loader

    with pytest.raises(DatasetError, match=WRONG):
        run_leg(seek, Leg(2, batches=None, ranks_per_node=1))


def test_the_choice_of_samples_depends_on_the_data_alone(folder: Path) -> None:
    corpus = make_loader(str(folder), lengths="off").recipe.corpus
    chosen = [(number, samples.tolist()) for number, samples in choose_samples(corpus)]
    again = choose_samples(copy.copy(corpus))
    assert chosen == [(number, samples.tolist()) for number, samples in again]
    [(number, samples)] = chosen
    assert samples[0] == corpus.shard_starts[number]
    assert 0 < len(samples) <= 4
