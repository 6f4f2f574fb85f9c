"""A run uses lengths if all of its streams have them, or says which command counts them."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from cloudload.errors import DatasetError, StoreError
from cloudload.run.lengths.length_files import encode_group
from cloudload.run.lengths.lengths_index import (
    Group,
    LengthsIndex,
    cut_groups,
    index_name,
    make_key,
)
from cloudload.run.lengths.open import find_lengths, find_resumed_lengths, open_lengths
from cloudload.run.recipe import Recipe
from testkit.tiny_runs import tiny_recipe


def count(recipe: Recipe, stream: int, place: Path, length: int = 3) -> None:
    """Write lengths of a stream to `place`: `length` tokens for each sample."""
    dataset, key = recipe.corpus.datasets[stream], make_key(recipe, stream)
    folder, groups = place / key.digest, []
    folder.mkdir(parents=True, exist_ok=True)
    for part in cut_groups(dataset.table, key):
        content = encode_group({"samples": part.samples}, np.full(part.samples, length))
        (folder / part.name).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        groups.append(Group(part.name, digest, len(content), part.samples, 0, 0, 0, 0, 0))
    data = recipe.corpus.fingerprint(range(stream, stream + 1))
    index = LengthsIndex(asdict(key), data, tuple(groups))
    (folder / index_name(data)).write_bytes(index.encode())


def test_the_lengths_of_all_streams_are_those_of_the_corpus(tmp_path: Path) -> None:
    recipe = tiny_recipe([4], [2, 3])
    for stream, length in enumerate((3, 7)):
        count(recipe, stream, tmp_path, length)
    found = find_lengths(recipe, str(tmp_path))
    assert found is not None
    lengths = open_lengths(found, recipe, tmp_path / "cache")
    assert lengths.of(np.array([0, 3, 4, 8])).tolist() == [3, 3, 7, 7]
    assert lengths.locations == (str(tmp_path),)
    assert len(lengths.digest) == 16


def test_lengths_that_are_off_are_not_looked_for() -> None:
    assert find_lengths(tiny_recipe([4]), "off") is None


def test_a_place_without_lengths_of_a_stream_is_refused_with_the_command(tmp_path: Path) -> None:
    recipe = tiny_recipe([4], [2])
    count(recipe, 0, tmp_path)
    with pytest.raises(
        DatasetError, match=r"1 of 2 streams has none .*cloudload count s3://tiny/b"
    ):
        find_lengths(recipe, str(tmp_path))
    with pytest.raises(DatasetError, match="lengths are required, but the dataset has none"):
        find_lengths(tiny_recipe([5]), str(tmp_path))


def test_lengths_of_another_tokenizer_are_not_used(tmp_path: Path) -> None:
    count(tiny_recipe([4]), 0, tmp_path)
    with pytest.raises(DatasetError, match="has none for this tokenizer"):
        find_lengths(tiny_recipe([4], tokenizer="other"), str(tmp_path))


def test_a_mixture_whose_streams_end_needs_lengths(tmp_path: Path) -> None:
    recipe = tiny_recipe([4], [2], proportions=[1, 1], epochs=1)
    with pytest.raises(ValueError, match="lengths is 'off', but a mixture with epochs"):
        find_lengths(recipe, "off")
    with pytest.raises(DatasetError, match=r"a mixture with epochs .* 2 of 2 streams have none"):
        find_lengths(recipe, str(tmp_path))


def test_a_place_that_cannot_be_read_is_an_error_if_it_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((StoreError, DatasetError)):
        find_lengths(tiny_recipe([4]), str(tmp_path / "file"))


def test_a_run_of_the_first_shards_uses_its_own_lengths_or_those_of_all_shards(
    tmp_path: Path,
) -> None:
    whole, beginning = tiny_recipe([4, 5]), tiny_recipe([4])
    count(whole, 0, tmp_path / "whole")
    of_whole = find_lengths(whole, str(tmp_path / "whole"))
    assert of_whole is not None
    found = find_resumed_lengths(beginning, str(tmp_path / "none"), of_whole)
    assert found == of_whole
    assert find_resumed_lengths(beginning, str(tmp_path / "none"), None) is None
    assert find_resumed_lengths(beginning, "off", of_whole) == of_whole
    other = tiny_recipe([4], tokenizer="other")
    assert find_resumed_lengths(other, str(tmp_path / "none"), of_whole) is None
    count(beginning, 0, tmp_path / "whole", length=8)
    [own] = find_resumed_lengths(beginning, str(tmp_path / "whole"), of_whole) or []
    assert own.index.total("samples") == 4
    lengths = open_lengths(of_whole, beginning, tmp_path / "cache")
    assert lengths.of(np.array([0, 3])).tolist() == [3, 3]
