"""A recipe names everything that determines rows in its fields, and little else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cloudload.config.rows import RowsConfig
from cloudload.config.stream import Stream
from cloudload.order.lanes import Layout
from cloudload.run.recipe import frame_of, mixture_of
from cloudload.run.state_fields import OPTIONAL_FIELDS
from testkit.tiny_runs import tiny_recipe


def test_the_fields_of_a_mixture_list_a_value_for_each_component() -> None:
    fields = tiny_recipe([3, 2], [40], proportions=[1, 1], frames=[(1, 2), (None, None)]).fields
    assert fields["choose"] == "5,40"
    assert fields["num_canonical_nodes"] == "1,1"
    assert fields["shuffle_block_size"] == "10,160"
    assert fields["bos_eos"] == "1/2,None/None"
    assert fields["stream_shards"] == ""
    assert [fields[name].count(",") for name in ("data", "samples", "shards")] == [1, 1, 1]


def test_a_corpus_of_streams_lists_their_shards_because_its_fingerprint_does_not() -> None:
    fields = tiny_recipe([3, 2], [40]).fields
    assert fields["stream_shards"] == "2,1"
    assert fields["choose"] == "45"


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"on_error": "skip"}, "on_error", "skip"),
        ({"proportions": [1], "epochs": 2, "stopping": "first"}, "stopping", "first"),
        ({"proportions": [1], "max_epochs": [3]}, "max_epochs", "3"),
        ({"tokens_key": "ids", "tokens_dtype": "uint16"}, "tokens_key", "ids:uint16"),
        ({"tokens_key": "ids", "strip_tokens": [2, 0, 2]}, "strip_tokens", "0,2"),
        ({"max_tokens": 7}, "max_tokens", 7),
        ({"packing": "best_fit"}, "fair_start", "sqrt"),
    ],
)
def test_a_field_is_saved_only_if_it_does_not_have_its_default(
    options: dict[str, Any], name: str, value: str | int
) -> None:
    assert name in OPTIONAL_FIELDS
    assert tiny_recipe([9], **options).saved_fields[name] == value
    assert name not in tiny_recipe([9]).saved_fields


def test_a_column_name_with_separators_is_quoted() -> None:
    assert tiny_recipe([9], tokens_key="a,b:c").fields["tokens_key"] == "a%2Cb%3Ac"


def test_the_fields_of_shards_differ_with_their_sizes_and_order() -> None:
    shards = [tiny_recipe(sizes).fields["shards"] for sizes in ([3, 2], [2, 3], [5], [3, 2])]
    assert len({*shards[:3]}) == 3
    assert shards[0] == shards[3]


def test_fewer_shards_have_the_layout_of_the_smaller_data() -> None:
    recipe = tiny_recipe([40, 60, 80], num_canonical_nodes=None)
    taken = recipe.take([2])
    assert taken.components[0].num_samples == 100
    assert taken.fields["data"] == tiny_recipe([40, 60], num_canonical_nodes=None).fields["data"]
    assert taken.layout == tiny_recipe([40, 60], num_canonical_nodes=None).layout


def test_a_saved_layout_replaces_only_what_the_config_leaves_open() -> None:
    saved = Layout(4, (2,), (7,))
    free = tiny_recipe([40], num_lanes=None, num_canonical_nodes=None).settle(saved)
    assert free.layout == saved
    assert free.components[0].lanes.num_lanes == 4
    fixed = tiny_recipe([40]).settle(saved)
    assert fixed.layout == Layout(2, (1,), (7,))


def test_changed_options_settle_the_layout_again() -> None:
    recipe = tiny_recipe([40]).reconfigure(num_canonical_nodes=2, shuffle_block_size=5)
    assert recipe.layout == Layout(2, (2,), (5,))
    assert recipe.components[0].order.shuffle_block_size == 5


@pytest.mark.parametrize(
    ("options", "is_one"),
    [
        ({"packing": "one_per_row", "frames": [(None, 2)]}, True),
        ({"packing": "one_per_row", "frames": [(None, None)]}, False),
        ({"packing": "one_per_row", "frames": [(1, None)], "overflow": "rows"}, False),
        ({"packing": "one_per_row", "frames": [(1, None)], "min_tokens": 1}, True),
        ({"packing": "one_per_row", "frames": [(1, None)], "min_tokens": 2}, False),
        ({"packing": "one_per_row", "frames": [(1, None)], "max_tokens": 9}, False),
        ({"packing": "one_per_row", "frames": [(1, None)], "on_error": "skip"}, False),
        ({"packing": "concat", "frames": [(1, None)]}, False),
    ],
)
def test_each_document_is_a_row_only_if_none_can_be_left_out_or_continue(
    options: dict[str, Any], is_one: bool
) -> None:
    assert tiny_recipe([9], **options).has_row_per_document == is_one


def test_the_rows_of_one_component_are_all_its_own() -> None:
    assert tiny_recipe([9]).components_of(np.arange(5)).tolist() == [0] * 5
    mixed = tiny_recipe([9], [9], proportions=[1, 0])
    assert mixed.components_of(np.arange(5)).tolist() == [0] * 5
    assert mixed.components_of(np.arange(5)) is not None


def test_the_mixture_of_a_corpus_has_one_name() -> None:
    recipe = tiny_recipe([9], [9])
    assert recipe.mixture.names == ("a + b",)
    assert recipe.labels == ["a", "b"]
    assert mixture_of(tiny_recipe([9], [9], proportions=[3, 1]).config).schedule == (
        (0, (3.0, 1.0)),
    )


@pytest.mark.parametrize(
    ("options", "stream", "frame"),
    [
        ({}, {}, ("auto", "auto")),
        ({"bos": 1, "eos": None}, {}, (1, None)),
        ({"bos": 1}, {"bos": 7, "eos": None}, (7, None)),
        ({"tokens_key": "ids"}, {}, (None, None)),
        ({"tokens_key": "ids", "eos": 2}, {}, (None, 2)),
        ({"bos": 1, "eos": 2}, {"tokens_key": "ids"}, (None, None)),
        ({"bos": 1}, {"tokens_key": "ids", "bos": 5}, (5, None)),
        ({"tokens_key": "ids"}, {"tokens_key": None}, ("auto", "auto")),
    ],
)
def test_the_bos_and_eos_of_a_stream(
    options: dict[str, Any], stream: dict[str, Any], frame: tuple[Any, Any]
) -> None:
    own = Stream("s3://b/x", **stream)
    config = RowsConfig((own, Stream("s3://b/y", tokens_key=None)), 5, **options)
    assert frame_of(config, config.streams[0]) == frame
