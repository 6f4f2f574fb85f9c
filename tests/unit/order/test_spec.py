"""`repeat` and `choose` set how many samples of each stream an epoch reads."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from cloudload.order.epoch_order import OrderConfig, Sampling, num_positions

Weight = dict[str, Any]


def sampling_of(
    samples: list[int], repeat: list[float | None], choose: list[int | None]
) -> Sampling | None:
    """The sampling of streams with some samples, in 2, 3, … shards."""
    shards = range(2, 2 + len(samples))
    return Sampling.of(samples, shards, repeat, choose, [f"s{index}" for index in shards])


def test_streams_that_are_read_once_need_no_sampling() -> None:
    assert sampling_of([5, 9], [None, None], [None, None]) is None
    assert sampling_of([5, 9], [1, 1.1], [None, None]) is None
    assert sampling_of([5, 9], [1, None], [None, 9]) is None
    assert sampling_of([5, 0], [1.1, None], [None, None]) is None


def test_if_one_stream_is_sampled_all_streams_are() -> None:
    assert sampling_of([5, 9], [None, 2], [None, None]) == Sampling((2, 3), (5, 18))
    assert sampling_of([5, 9], [None, None], [6, None]) == Sampling((2, 3), (6, 9))
    assert sampling_of([5, 9], [0.2, None], [None, 1]) == Sampling((2, 3), (1, 1))


def test_numbers_of_numpy_are_plain_ones_in_a_sampling() -> None:
    sampling = sampling_of(list(np.array([5, 9])), [None, 2], [None, None])
    assert sampling is not None
    assert [type(number) for number in sampling.shards_per_stream + sampling.choose] == [int] * 4


def test_an_epoch_has_each_sample_or_those_that_are_chosen() -> None:
    assert num_positions(np.array([3, 0, 4], np.uint8), None) == 7
    assert num_positions(np.array([3, 0, 4]), Sampling((2, 1), (9, 2))) == 11


def test_only_our_own_shuffle_is_seekable() -> None:
    for algorithm in ("py1e", "naive", "seekable"):
        for shuffle in (True, False):
            config = OrderConfig(shuffle, algorithm, 4, 1, 7)
            assert config.is_seekable == (algorithm == "seekable")


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
