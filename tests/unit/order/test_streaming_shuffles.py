"""Our shuffles return the same permutations as StreamingDataset's."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.order.streaming_shuffles import shuffle_nodes
from testkit.examples import EXAMPLES


@settings(max_examples=5 * EXAMPLES)
@given(
    algorithm=st.sampled_from(["py1e", "py1br", "py1s", "py2s", "naive"]),
    shards=st.lists(st.integers(0, 60), min_size=1, max_size=30).filter(any),
    num_nodes=st.integers(1, 20),
    block_size=st.integers(2, 90),
    epoch=st.integers(0, 5),
)
def test_our_shuffles_are_streamings(
    algorithm: str, shards: list[int], num_nodes: int, block_size: int, epoch: int
) -> None:
    check_shuffle(algorithm, shards, min(num_nodes, sum(shards)), block_size, epoch)


@pytest.mark.parametrize("algorithm", ["py1e", "py1br", "py1s", "py2s", "naive"])
def test_our_shuffles_are_streamings_where_they_go_by_parts(algorithm: str) -> None:
    for block_size in (2_000, 60_000):
        check_shuffle(algorithm, [1_000, 3_000, 500] * 100, 3, block_size, 1)


def check_shuffle(
    algorithm: str, shards: list[int], num_nodes: int, block_size: int, epoch: int
) -> None:
    from streaming.base.shuffle import get_shuffle

    sizes = np.array(shards)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = get_shuffle(algorithm, sizes, num_nodes, 23, epoch, block_size)
    nodes = list(
        shuffle_nodes(
            algorithm, sizes, num_nodes=num_nodes, seed=23, epoch=epoch, block_size=block_size
        )
    )
    assert np.concatenate(nodes).tolist() == theirs.tolist()
    bounds = np.arange(num_nodes + 1) * len(theirs) // num_nodes
    assert list(map(len, nodes)) == np.diff(bounds).tolist()


def test_of_samples_that_land_on_one_place_the_earlier_is_first() -> None:
    from cloudload.order import streaming_shuffles as shuffles

    places = np.array([3.0, 1.0, 2.0, 1.0, 3.0, 1.0, 2.0 + 1e-12, 2.0])
    assert shuffles._order_of(places).tolist() == np.argsort(places, kind="stable").tolist()
    crowded = np.random.default_rng(0).uniform(0, 1e-6, 500).round(8) + np.repeat([0.0, 1e9], 250)
    assert shuffles._order_of(crowded).tolist() == np.argsort(crowded, kind="stable").tolist()
