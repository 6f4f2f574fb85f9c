"""A StreamingDataset's state becomes the position after the samples that the dataset has read."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.errors import StreamChangedError
from cloudload.run.streaming_state import count_read, read_streaming_state, start_from_streaming
from testkit.tiny_runs import tiny_recipe

STATE = {"epoch": 0, "sample_in_epoch": 6, "num_canonical_nodes": 2, "shuffle_seed": 17}


def streaming_order(num_samples: int, num_nodes: int) -> list[int]:
    """The samples of an epoch as StreamingDataset reads them: the nodes in turn, column by column.

    A node that is a sample short repeats its first one at its end.
    """
    bounds = [node * num_samples // num_nodes for node in range(num_nodes + 1)]
    width = -(-num_samples // num_nodes)
    nodes = []
    for start, stop in itertools.pairwise(bounds):
        own = list(range(start, stop))
        nodes.append(own if len(own) == width else [*own, own[0]])
    return [node[column] for column in range(width) for node in nodes]


def test_the_example_of_the_module() -> None:
    assert streaming_order(11, 4) == [0, 2, 5, 8, 1, 3, 6, 9, 0, 4, 7, 10]
    assert count_read(10, 11, 4) == 9


@given(num_samples=st.integers(2, 60), num_nodes=st.integers(1, 8), data=st.data())
def test_the_positions_read_are_the_different_samples_read(
    num_samples: int, num_nodes: int, data: st.DataObject
) -> None:
    if num_samples <= num_nodes:
        return
    order = streaming_order(num_samples, num_nodes)
    read = data.draw(st.integers(0, len(order)))
    assert count_read(read, num_samples, num_nodes) == len({*order[:read]})


def test_the_run_starts_after_the_samples_that_were_read_in_the_datasets_own_nodes() -> None:
    recipe = tiny_recipe([20], num_lanes=4, shuffle_algo="py1e", num_canonical_nodes=None)
    found, position = start_from_streaming(recipe, {**STATE, "epoch": 2, "sample_in_epoch": 7})
    assert found.layout.canonical_nodes == (2,)
    assert position.origin == (2, 7)
    # with 2 nodes and 4 lanes, lanes 0 to 3 begin at positions 0 to 3; an epoch has 5 ordinals
    assert position.cursors[0, :, 0].tolist() == [12, 12, 12, 11]
    assert found.fair_from == 11
    assert (position.rows, position.batches) == (0, 0)


@pytest.mark.parametrize(
    ("options", "state", "message"),
    [
        ({"seed": 3}, {}, "shuffle_seed: the state has 17, but the loader has seed=3"),
        ({"num_canonical_nodes": 4}, {}, "the state has 2, but the loader has num_canonical_node"),
        ({"proportions": [1]}, {}, "the streams have proportions or a schedule"),
        ({"shuffle_algo": "seekable"}, {}, "StreamingDataset has no 'seekable'"),
        ({"num_lanes": 60}, {"num_canonical_nodes": 20}, "the state has 20 for 20 samples"),
        ({"epochs": 1}, {"sample_in_epoch": 20}, "nothing is left to read"),
        ({"epochs": 2}, {"epoch": 2}, "has read 2 epochs and 6 of 20 .* epochs=2"),
    ],
)
def test_a_loader_that_cannot_continue_says_why(
    options: dict[str, Any], state: dict[str, Any], message: str
) -> None:
    usual = {"num_lanes": 4, "shuffle_algo": "py1e", "num_canonical_nodes": None}
    recipe = tiny_recipe([20], **{**usual, **options})
    with pytest.raises(StreamChangedError, match=message):
        start_from_streaming(recipe, {**STATE, **state})


def test_the_last_sample_of_the_last_epoch_is_left_to_read() -> None:
    recipe = tiny_recipe([20], num_lanes=4, shuffle_algo="py1e", num_canonical_nodes=None, epochs=1)
    _, position = start_from_streaming(recipe, {**STATE, "sample_in_epoch": 19})
    assert position.origin == (0, 19)


def test_a_composer_checkpoint_has_the_time_in_its_timestamp() -> None:
    stamp = {"Timestamp": {"epoch": 3, "sample_in_epoch": 5, "batch": 7}}
    checkpoint = {"state": {"dataset_state": {"train": {**STATE, "epoch": 2}}, "timestamp": stamp}}
    for value in (checkpoint, checkpoint["state"]):
        found = read_streaming_state(value)
        assert (found.epoch, found.sample_in_epoch) == (3, 5)
        assert (found.num_canonical_nodes, found.shuffle_seed) == (2, 17)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"state": {"dataset_state": {"train": None}}}, "has no state of a training dataset"),
        ({"dataset_state": None}, "has no state of a training dataset"),
        ({"epoch": 1, "shuffle_seed": 2}, "it has no sample_in_epoch, num_canonical_nodes"),
        ({**STATE, "epoch": -1}, "never iterated over"),
        ({**STATE, "sample_in_epoch": -2}, "sample_in_epoch: the state has -2.* at least 0"),
        ({**STATE, "num_canonical_nodes": 0}, "num_canonical_nodes: the state has 0.* least 1"),
        ({**STATE, "epoch": True}, "epoch: the state has True"),
        ({**STATE, "shuffle_seed": "17"}, "shuffle_seed: the state has '17'"),
        ({"version": 3, "cursors": "", "table_rows": 0}, "this is a CloudLoader's state"),
        ({"loader": {"version": 3, "cursors": "", "table_rows": 0}}, r"contains, at \['loader'\]"),
        ("state", "this is not a StreamingDataset's state"),
    ],
)
def test_other_values_are_not_a_streaming_state(state: Any, message: str) -> None:
    with pytest.raises(StreamChangedError, match=message):
        read_streaming_state(state)
