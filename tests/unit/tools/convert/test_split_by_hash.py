"""A document always goes to the same split, and each split gets its share of the documents."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.tools.convert.config import SplitShares, hash_document, parse_shares
from testkit.examples import EXAMPLES

HASHES = 1 << 64
IDS = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=9)


def test_shares_become_exact_limits() -> None:
    assert parse_shares("train=0.999,val=0.001") == SplitShares(
        ("train", "val"), (999 * HASHES // 1000, HASHES)
    )
    assert parse_shares(" a = .5 , b=0.25, c=0.250").limits == (
        HASHES // 2,
        3 * HASHES // 4,
        HASHES,
    )
    assert parse_shares("all=1") == SplitShares(("all",), (HASHES,))
    assert parse_shares(",".join(f"s{n}=0.1" for n in range(10))).limits[6] == 7 * HASHES // 10


@settings(max_examples=EXAMPLES)
@given(weights=st.lists(st.integers(1, 10**6), min_size=1, max_size=9))
def test_a_split_has_its_share_of_the_hashes_to_within_one(weights: list[int]) -> None:
    total = 10**7
    weights = [*weights, total - sum(weights)]
    spec = ",".join(f"s{place}={weight / total:.7f}" for place, weight in enumerate(weights))
    shares = parse_shares(spec)
    for weight, low, high in zip(weights, (0, *shares.limits), shares.limits, strict=False):
        assert abs((high - low) - Fraction(weight, total) * HASHES) < 1


@settings(max_examples=EXAMPLES)
@given(
    documents=st.lists(st.tuples(IDS, st.text("ab", max_size=3)), max_size=20),
    seed=st.integers(-(10**200), 10**200),
    data=st.data(),
)
def test_a_document_is_in_the_same_split_in_any_order_and_number_of_inputs(
    documents: list[tuple[str | None, str]], seed: int, data: st.DataObject
) -> None:
    shares = parse_shares("train=0.5,val=0.3,test=0.2")
    expected = {document: shares.choose(*document, seed) for document in documents}
    for document in data.draw(st.permutations(documents)):
        assert shares.choose(*document, seed) == expected[document]
    wider = parse_shares("train=0.6,val=0.2,test=0.2")
    for document, split in expected.items():
        if split == "train":
            assert wider.choose(*document, seed) == "train"


@settings(max_examples=EXAMPLES)
@given(own_id=st.text("ab", max_size=3), texts=st.tuples(st.text("ab"), st.text("ab")))
def test_the_id_alone_decides_if_there_is_one(own_id: str, texts: tuple[str, str]) -> None:
    assert hash_document(own_id, texts[0]) == hash_document(own_id, texts[1])
    assert hash_document(None, own_id) != hash_document(own_id, own_id)


def test_hashes_never_change() -> None:
    assert hash_document("doc-7", "") == 7772595184126788166
    assert hash_document(None, "doc-7") == 5333051806143263914
    assert hash_document("doc-7", "", seed=-1) == 3090303447996480119
    assert hash_document("doc-7", "", seed=10**100) == 17654375302936615071


def test_shares_are_met_and_seeds_are_independent() -> None:
    shares = parse_shares("train=0.9,val=0.1")
    splits = [
        [shares.choose(f"doc-{number}", "", seed) for number in range(20_000)] for seed in (0, 1)
    ]
    for names in splits:  # within six standard deviations of 2,000
        assert abs(names.count("val") - 2000) < 6 * (20_000 * 0.09) ** 0.5
    both = sum(one == other == "val" for one, other in zip(*splits, strict=True))
    assert abs(both - 200) < 6 * 200**0.5


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("train", "have no share for 'train'"),
        ("train=0.9,", "have no share for ''"),
        ("", "have no share for ''"),
        ("train=0.9,val=0.2", "add up to 1.1, not 1"),
        ("train=0.999,val=0.0010000000001", r"add up to 1\.0000000000001, not 1"),
        ("train=0.5,train=0.5", "have 'train' twice"),
        ("train=1,val=0", "the share of 'val' in .* is '0'. Use a number above 0"),
        ("train=1.5,val=-0.5", "the share of 'train' in .* is '1.5'"),
        ("train=nan,val=1", "the share of 'train' in .* is 'nan'"),
        ("train=1e400,val=1", "the share of 'train'"),
        ("train=0.9 0.1,val=1", "the share of 'train'"),
        ("../train=1", "have the invalid name '../train'"),
        ("=1", "have the invalid name ''"),
        (".convert=1", "have the invalid name '.convert'"),
    ],
)
def test_a_wrong_spec_is_a_value_error_that_names_it(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        parse_shares(spec)
    assert repr(spec) in str(raised.value)
