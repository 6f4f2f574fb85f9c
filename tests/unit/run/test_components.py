"""A corpus is one component, a mixture has one for each stream, and both know their lanes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload.order.lanes import Layout
from cloudload.run.components import build_components, specify_components
from testkit.tiny_runs import SHARD_BYTES, tiny_recipe


def test_streams_without_proportions_are_one_component() -> None:
    [component] = tiny_recipe([3, 2], [4]).components
    assert component.streams == range(2)
    assert component.shard_sizes.tolist() == [3, 2, 4]
    assert (component.first_sample, component.num_samples) == (0, 9)
    assert component.raw_bytes == 3 * SHARD_BYTES
    assert component.sampling is None


def test_each_stream_of_a_mixture_is_a_component_with_its_own_first_sample() -> None:
    first, second = tiny_recipe([3, 2], [4], proportions=[1, 1]).components
    assert (first.streams, second.streams) == (range(1), range(1, 2))
    assert (first.first_sample, second.first_sample) == (0, 5)
    assert second.shard_sizes.tolist() == [4]


def test_streams_end_after_their_own_epochs() -> None:
    recipe = tiny_recipe([3], [4], proportions=[1, 1], max_epochs=[None, 2], epochs=7)
    assert [component.lanes.epochs for component in recipe.components] == [7, 2]


def test_the_layout_determines_lanes_nodes_and_blocks() -> None:
    recipe = tiny_recipe([30], [40], proportions=[1, 1])
    specs = specify_components(recipe.config, recipe.corpus, recipe.selected)
    first, second = build_components(recipe.config, specs, Layout(6, (2, 3), (8, 9)))
    assert (first.lanes.num_lanes, first.lanes.num_positions, first.lanes.num_nodes) == (6, 30, 2)
    assert (second.order.num_canonical_nodes, second.order.shuffle_block_size) == (3, 9)
    # components can be built again from components
    again = build_components(recipe.config, (first, second), Layout(12, (1, 1), (4, 4)))
    assert [each.lanes.num_lanes for each in again] == [12, 12]
    assert again[0].shard_sizes is first.shard_sizes


@pytest.mark.parametrize(
    ("samples", "options", "most"),
    [
        (10, {}, 10),
        (10, {"shuffle": True}, 200),
        (5_000, {"shuffle": True}, 100_000),
        (6_000, {"shuffle": True}, 100_000),
        (200_000, {"shuffle": True}, 200_000),
    ],
)
def test_a_shuffled_lane_reads_up_to_20_epochs_before_it_counts_as_barren(
    samples: int, options: dict[str, Any], most: int
) -> None:
    [component] = tiny_recipe([samples], **options).components
    assert component.most_barren == most


def test_orders_are_of_the_components_own_samples() -> None:
    _, second = tiny_recipe([3, 2], [4], proportions=[1, 1]).components
    order = second.orders(Path("/dev/null"))(0)
    assert order[np.arange(4)].tolist() == [0, 1, 2, 3]
