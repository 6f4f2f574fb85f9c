"""In the canonical order, nodes take turns, and sampling repeats or leaves out samples."""

from __future__ import annotations

import numpy as np
import pytest

from cloudload.order.spec import OrderConfig, Sampling
from testkit.reference_order import canonical_order, interleave, sampling_of

SHARDS = [7, 30, 1, 12, 25, 9, 18]


def test_a_position_belongs_to_its_canonical_node() -> None:
    order = interleave(np.arange(11), 4)
    nodes = [range(0, 2), range(2, 5), range(5, 8), range(8, 11)]
    assert order.tolist() == [0, 2, 5, 8, 1, 3, 6, 9, 4, 7, 10]
    assert all(order[position] in nodes[position % 4] for position in range(8))


STREAMS = [[7, 30, 1, 12], [1], [25, 9, 18], [4, 4, 3]]
"""The number of samples in each shard, by stream. The streams have 50, 1, 52 and 11 samples."""


@pytest.mark.parametrize("algorithm", ["py1e", "py1br", None])
def test_a_sampling_of_each_sample_once_is_the_plain_order(algorithm: str | None) -> None:
    config = OrderConfig(algorithm is not None, algorithm or "py1e", 20, 4, 1)
    assert sampling_of(STREAMS, [{}, {"repeat": 1}, {"choose": 52}, {"repeat": 1.05}]) is None
    plain = canonical_order(np.array(SHARDS), config, 3)
    assert (
        canonical_order(np.array(SHARDS), config, 3, Sampling((3, 4), (38, 64))).tolist()
        == plain.tolist()
    )


def test_without_shuffle_an_upsampled_stream_reads_on_from_its_start() -> None:
    config = OrderConfig(False, "py1e", 20, 1, 1)
    order = canonical_order(np.array([2, 2, 3]), config, 0, Sampling((2, 1), (8, 6)))
    assert order.tolist() == [0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 6, 4, 5, 6]
