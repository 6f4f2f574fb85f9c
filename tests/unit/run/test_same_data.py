"""Rewritten shards are the same data if their samples are known to be the same."""

from __future__ import annotations

import pytest

from cloudload.run.same_data import explain_data, has_same_samples


def fields(data: str, samples: str, shards: str = "s", choose: str = "9") -> dict[str, str]:
    return {"data": data, "samples": samples, "shards": shards, "choose": choose}


@pytest.mark.parametrize(
    ("saved", "found", "is_same"),
    [
        (("d", "x"), ("d", "x"), True),
        (("d", ""), ("d", ""), True),  # equal data needs no hashes of samples
        (("d", "x"), ("e", "x"), True),
        (("d", "x"), ("e", "y"), False),
        (("d", ""), ("e", ""), False),
        (("d", "x"), ("e", ""), False),
        (("d,e", "x,y"), ("d,f", "x,y"), True),
        (("d,e", "x,y"), ("d,f", "x,z"), False),
        (("d", "x"), ("e,f", "x,y"), True),  # the second stream was added
        (("d", "x"), ("e,f", "y,x"), False),
        (("d,e", "x,y"), ("e,d", "y,x"), False),
    ],
)
def test_streams_are_compared_in_pairs(
    saved: tuple[str, str], found: tuple[str, str], is_same: bool
) -> None:
    assert has_same_samples(fields(*saved), fields(*found)) == is_same


def test_a_state_without_hashes_of_samples_has_other_samples() -> None:
    assert not has_same_samples({"data": "d"}, fields("e", "x"))


@pytest.mark.parametrize(
    ("names", "saved", "found", "start"),
    [
        ({"seed"}, ("d", "x"), ("d", "x"), None),
        ({"data"}, ("d", "x"), ("e", "y"), "Each shard has as many samples as before, but the"),
        ({"data"}, ("d", "x"), ("e", ""), "Each shard has as many samples .* because the index"),
        ({"data"}, ("d", ""), ("e", "y"), "Each shard has as many samples .* because the state"),
        ({"data", "shards"}, ("d", "x"), ("e", "y"), "The samples are split into different"),
    ],
)
def test_the_difference_is_explained_in_one_sentence(
    names: set[str], saved: tuple[str, str], found: tuple[str, str], start: str | None
) -> None:
    explained = explain_data(names, fields(*saved), fields(*found))
    if start is None:
        assert explained == []
    else:
        [text] = explained
        assert all(part in text for part in start.split(" .* "))


@pytest.mark.parametrize(
    ("saved", "found", "difference"),
    [
        (("s", "9"), ("t", "1200"), ", with 1,200 samples instead of 9."),
        (("s,t", "9,1"), ("u,v", "5,7"), ", with 12 samples instead of 10."),
        (("s", "9"), ("t,u", "8,100"), ", with 8 samples instead of 9."),  # one was added
        (("s", "9"), ("t,u", "9,100"), "This is a different dataset."),
        (("s", "x"), ("t", "9"), "This is a different dataset."),
    ],
)
def test_another_dataset_is_named_as_such_with_its_number_of_samples(
    saved: tuple[str, str], found: tuple[str, str], difference: str
) -> None:
    [text] = explain_data(
        {"shards", "choose", "data"}, fields("d", "x", *saved), fields("e", "y", *found)
    )
    assert difference in text
    assert text.startswith("This is a different dataset")
