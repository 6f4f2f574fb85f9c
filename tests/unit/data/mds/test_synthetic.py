"""A synthetic dataset is a pure function of its location."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from cloudload import Stream
from cloudload.data.mds.synthetic import SyntheticData, parse_synthetic
from cloudload.data.storage.locations import Location
from cloudload.errors import StoreError
from cloudload.inspect import read_info, read_samples

SMALL = "synthetic:?vocab_size=100&documents=300&mean_tokens=50&seed=3"


def read_documents(location: str) -> list[list[int]]:
    return [each.values["tokens"] for each in read_samples(location, limit=1_000)]


def test_a_location_may_name_every_value() -> None:
    assert parse_synthetic("synthetic:") == SyntheticData()
    assert parse_synthetic(SMALL) == SyntheticData(100, 300, 50, 3)
    assert parse_synthetic("synthetic:?documents=5_000") == SyntheticData(documents=5_000)


USE = "Use synthetic: alone, or with any of "
USE += r"\?vocab_size=N&documents=N&mean_tokens=N&seed=N"


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("synthetic:documents=5", f"does not describe synthetic data. {USE}"),
        ("synthetic://", f"does not describe synthetic data. {USE}"),
        ("synthetic:?docs=5", f"has the unknown name 'docs'. {USE}"),
        ("synthetic:?seed=1&seed=2", "has seed twice. Keep one of them"),
        ("synthetic:?seed=-1", "has seed='-1'. Use an integer from 0 to 4,294,967,295"),
        ("synthetic:?vocab_size=", "has vocab_size=''. Use an integer from 1 to 2,147,483,647"),
        ("synthetic:?documents=1e3", "has documents='1e3'. Use an integer from 1 to 262,144"),
        ("synthetic:?mean_tokens=" + "9" * 5_000, "Use an integer from 1 to 1,048,576"),
        ("synthetic:?documents=200000", "has 160,000,000 tokens, and .* may have 67,108,864"),
    ],
)
def test_a_wrong_location_says_what_to_use(location: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Stream(location)


def test_documents_have_the_vocabulary_and_the_lengths_of_the_location() -> None:
    documents = read_documents(SMALL)
    lengths = np.array([len(each) for each in documents])
    assert len(documents) == 300
    assert {token for each in documents for token in each} == set(range(100))
    assert 40 < lengths.mean() < 60
    # half of the documents of a log-normal distribution are shorter than exp(-1/2) of the mean
    assert 24 < np.median(lengths) < 37
    assert lengths.min() >= 1


def test_ids_are_stored_in_the_smallest_dtype_that_holds_them() -> None:
    for size, dtype in ((65_536, "uint16"), (65_537, "int32")):
        location = f"synthetic:?vocab_size={size}&documents=200"
        assert [each.encoding for each in read_info(location).columns] == [f"ndarray:{dtype}"]
        assert max(map(max, read_documents(location))) > 65_000


def test_a_seed_changes_every_document() -> None:
    others = read_documents(SMALL.replace("seed=3", "seed=4"))
    assert not any(
        one == other
        for one, other in zip(read_documents(SMALL), others, strict=True)
        if len(one) > 5
    )


def test_shards_differ() -> None:
    location = "synthetic:?documents=4&mean_tokens=1000000&vocab_size=9"
    names = [each.url.rpartition("/")[2] for each in Location(location).list_objects()]
    assert names == ["index.json", *(f"shard.0000{index}.mds" for index in range(4))]
    shards = {Location(location).join(name).read()[-1_000:] for name in names}
    assert len(shards) == 5


def test_every_release_makes_the_same_bytes() -> None:
    """Otherwise, a resumed run would find other data."""
    index = Location(SMALL).join("index.json").read()
    assert hashlib.sha256(index).hexdigest()[:16] == "a944288a058a7623"


def test_nothing_can_be_stored() -> None:
    location = Location(SMALL).join("note.txt")
    with pytest.raises(StoreError, match=r"nobody stores synthetic data\. Choose a folder"):
        location.write(b"text")
    with pytest.raises(StoreError, match="nobody stores synthetic data"):
        location.create(b"text")
    location.delete()
    assert location.read_if_exists() is None
    assert Location(SMALL).peek() == ["index.json", "shard.00000.mds"]
