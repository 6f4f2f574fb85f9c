"""`repeat` and `choose` set how many samples an epoch reads from each shard, as in Streaming."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.order.epoch_order import reads_per_shard
from cloudload.order.spec import Sampling

Weight = dict[str, Any]


@given(
    shards=st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any),
    choose=st.integers(1, 400),
    seed=st.integers(0, 99),
)
def test_a_draw_is_divided_among_the_shards_as_streaming_does(
    shards: list[int], choose: int, seed: int
) -> None:
    from streaming.base.sampling import get_sampling

    theirs = get_sampling(np.array(shards), choose, 1, seed, 0, False)
    assert reads_per_shard(np.array(shards), choose, seed).tolist() == theirs.tolist()


def test_a_repeat_is_cut_to_whole_samples_as_floats_have_it() -> None:
    sampling = Sampling.of(
        [100, 100, 10], [1, 1, 1], [1.15, 0.29, None], [None, None, 7], ["a", "b", "c"]
    )
    assert sampling == Sampling((1, 1, 1), (114, 28, 7))
    assert sampling.num_positions == 149


@pytest.mark.parametrize(
    ("samples", "weight", "message"),
    [
        (
            10,
            {"repeat": 2, "choose": 5},
            "stream 'code' has repeat 2 and choose 5. Use only one of them",
        ),
        (10, {"repeat": "two"}, "stream 'code' has repeat 'two'. Use a finite number above 0"),
        (10, {"repeat": 0}, "stream 'code' has repeat 0. Use a finite number above 0"),
        (10, {"repeat": -1.5}, "stream 'code' has repeat -1.5. Use a finite number above 0"),
        (10, {"repeat": float("nan")}, "stream 'code' has repeat nan. Use a finite number above 0"),
        (10, {"repeat": float("inf")}, "stream 'code' has repeat inf. Use a finite number above 0"),
        (
            10,
            {"repeat": 0.09},
            "stream 'code' has repeat 0.09, which selects none of its 10 samples. Increase repeat, "
            "or remove the stream",
        ),
        (
            0,
            {"choose": 3},
            "stream 'code' has no samples. Remove its repeat or choose, or remove the stream",
        ),
        (
            0,
            {"repeat": 2},
            "stream 'code' has no samples. Remove its repeat or choose, or remove the stream",
        ),
    ],
)
def test_a_weight_that_gives_nothing_is_refused(samples: int, weight: Weight, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Sampling.of(
            [4, samples],
            [1, 1],
            [None, weight.get("repeat")],
            [None, weight.get("choose")],
            ["web", "code"],
        )
