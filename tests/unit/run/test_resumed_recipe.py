"""A resumed run keeps its shards, its mixture so far, and the start of its lanes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cloudload.errors import StreamChangedError
from cloudload.run.position import Origin, Position
from cloudload.run.recipe import Recipe
from cloudload.run.resumed import resume_recipe
from cloudload.run.saved import Saved, read_state
from cloudload.run.state import build_state
from testkit.tiny_runs import tiny_recipe


def save(recipe: Recipe, rows: int = 4, origin: Origin | None = None) -> Saved:
    position = Position.start(recipe, origin or Origin())
    position = replace(position, rows=rows, table_rows=rows, batches=1, global_batch=rows)
    return read_state(build_state(recipe, position, "tokenizers 1.0"))


def shards_of(recipe: Recipe) -> list[int]:
    """The number of shards of each stream."""
    return [len(dataset.shards) for dataset in recipe.corpus.datasets]


# ------------------------------------------------------------------------- streams


def test_a_missing_stream_is_refused_with_what_to_do() -> None:
    two = tiny_recipe([9], [5], proportions=[1, 1])
    with pytest.raises(StreamChangedError, match=r"has 2 separately ordered streams.* has 1.*to 0"):
        resume_recipe(save(two), tiny_recipe([9], proportions=[1]))


def test_new_shares_apply_from_the_saved_row_on() -> None:
    before = tiny_recipe([9], [5], proportions=[1, 1])
    now = tiny_recipe([9], [5], proportions=[3, 1])
    mixture = resume_recipe(save(before), now).mixture
    assert mixture.schedule == ((0, (1.0, 1.0)), (4, (3.0, 1.0)))


def test_renamed_streams_are_matched_by_their_index() -> None:
    before = tiny_recipe([9], [5], proportions=[1, 1])
    now = tiny_recipe([9], [5], names="xy", proportions=[1, 1])
    assert resume_recipe(save(before), now).mixture.names == ("x", "y")
    more = tiny_recipe([9], [5], [7], names="xyz", proportions=[1, 1, 2])
    mixture = resume_recipe(save(before), more).mixture
    assert mixture.names == ("x", "y", "z")
    assert mixture.schedule == ((0, (1.0, 1.0, 0.0)), (4, (1.0, 1.0, 2.0)))


def test_saved_streams_at_other_indices_are_refused() -> None:
    before = tiny_recipe([9], [5], proportions=[1, 1])
    now = tiny_recipe([9], [5], names="ba", proportions=[1, 1])
    refused = r"mixture: the state has streams \['a', 'b'\].*List the saved streams first"
    with pytest.raises(StreamChangedError, match=refused):
        resume_recipe(save(before), now)


# ------------------------------------------------------------------------- layout and packing


def test_the_saved_layout_replaces_values_that_the_config_does_not_set() -> None:
    before = tiny_recipe([9] * 4, num_lanes=4, num_canonical_nodes=2)
    free = tiny_recipe([9] * 4, num_lanes=None, num_canonical_nodes=None)
    assert free.layout != before.layout
    assert resume_recipe(save(before), free).layout == before.layout
    asked = tiny_recipe([9] * 4, num_lanes=8, num_canonical_nodes=2)
    assert resume_recipe(save(before), asked).num_lanes == 8  # `accept_changes` refuses it


def test_the_rule_of_fair_starts_continues_only_if_the_run_began_with_it() -> None:
    recipe = tiny_recipe([9], packing="best_fit")
    begun = save(recipe, origin=Origin(1, 3))
    assert begun.is_fair
    # an epoch has 10 positions, so lane 0 begins at ordinal 5 + 2, and lane 1 at 5 + 1
    assert resume_recipe(begun, recipe).fair_from == 6
    assert resume_recipe(replace(begun, is_fair=False), recipe).fair_from is None


# ------------------------------------------------------------------------- bos and eos


@pytest.mark.parametrize(
    ("now", "kept"),
    [
        ([(3, None)], [(1, 2)]),
        ([(3, None), (3, None)], [(1, 2), (3, None)]),  # the second stream was added
        ([(None, None)], [(1, 2)]),
    ],
)
def test_automatic_bos_and_eos_stay_those_of_the_run(
    now: list[tuple[int | None, int | None]],
    kept: list[tuple[int | None, int | None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    shards = [[9]] * len(now)
    saved = save(tiny_recipe([9], frames=[(1, 2)], proportions=[1]))
    found = tiny_recipe(*shards, frames=now, proportions=[1] * len(now))
    assert resume_recipe(saved, found).tokenizer.frames == tuple(kept)
    assert "continues with '1/2' from the state" in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"bos": 3},
        {"tokenizer": "other"},
        {"tokens_key": "ids"},
    ],
)
def test_other_bos_and_eos_are_left_for_the_comparison(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    saved = save(tiny_recipe([9], frames=[(1, 2)]))
    recipe = tiny_recipe([9], frames=[(3, None)], **options)
    assert resume_recipe(saved, recipe).tokenizer.frames == ((3, None),)
    assert caplog.text == ""


@pytest.mark.parametrize(
    "damage",
    [
        {"bos_eos": "65536/None"},  # the first ID that is not in the vocabulary
        {"bos_eos": "None/70000"},
        {"bos_eos": "1"},
        {"bos_eos": "1/2,1/2"},
        {"sources": "{"},
    ],
)
def test_damaged_bos_and_eos_are_left_for_the_comparison(
    damage: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    recipe = tiny_recipe([9], frames=[(3, None)])
    saved = save(tiny_recipe([9], frames=[(1, 2)]))
    saved = replace(
        saved,
        sources=damage.get("sources", saved.sources),
        fields={**saved.fields, "bos_eos": damage.get("bos_eos", "1/2")},
    )
    assert resume_recipe(saved, recipe).tokenizer.frames == ((3, None),)
    assert caplog.text == ""


# ------------------------------------------------------------------------- appended shards


def test_a_run_continues_with_the_shards_that_it_began_with() -> None:
    before, now = tiny_recipe([4, 5]), tiny_recipe([4, 5, 6])
    kept = resume_recipe(save(before), now)
    assert kept.fields == before.fields
    assert kept.components[0].num_samples == 9
    assert kept.corpus.datasets[0].num_left_out == 1


def test_appended_shards_are_found_without_hashes_of_samples() -> None:
    before, now = tiny_recipe([4, 5], hashed=False), tiny_recipe([4, 5, 6], hashed=False)
    assert shards_of(resume_recipe(save(before), now)) == [2]


def test_without_appended_shards_the_corpus_stays_as_it_is() -> None:
    recipe = tiny_recipe([4, 5])
    assert resume_recipe(save(recipe), recipe).corpus is recipe.corpus


def test_data_that_begins_differently_is_left_for_the_comparison() -> None:
    recipe = tiny_recipe([4, 6, 6])
    assert resume_recipe(save(tiny_recipe([4, 5])), recipe).corpus is recipe.corpus


@pytest.mark.parametrize("hashed", [True, False])
def test_the_stream_that_grew_is_found_among_those_of_a_mixture(hashed: bool) -> None:
    before, now = (
        tiny_recipe([4], [4, *more], proportions=[1, 1], hashed=hashed) for more in ([5], [5, 6])
    )
    assert shards_of(resume_recipe(save(before), now)) == [1, 2]


@pytest.mark.parametrize("hashed", [True, False])
def test_the_shards_of_each_stream_of_a_corpus_are_those_that_the_state_lists(hashed: bool) -> None:
    before = tiny_recipe([4], [4, 5], hashed=hashed)
    now = tiny_recipe([4, 3], [4, 5, 6], hashed=hashed)
    saved = save(before)
    assert saved.stream_shards == (1, 2)
    assert shards_of(resume_recipe(saved, now)) == [1, 2]


@pytest.mark.parametrize("listed", [(1,), (1, 2, 1), (1, 9), (2, 2)])
def test_a_wrong_list_of_shards_is_left_for_the_comparison(listed: tuple[int, ...]) -> None:
    now = tiny_recipe([4, 3], [4, 5])
    saved = replace(save(tiny_recipe([4], [4, 5])), stream_shards=listed)
    assert resume_recipe(saved, now).corpus is now.corpus


@pytest.mark.parametrize(
    ("began", "now"),
    [
        (([4], [4, 5]), ([4], [4, 5, 6, 7])),
        (([4], [4, 5]), ([4, 7], [4, 5])),
        # shards without samples, of which only the hash tells whether the run began with them
        (([4], [4, 5, 0]), ([4], [4, 5, 0, 0, 6])),
        (([4], [4, 5]), ([4], [4, 5, 0, 6])),
        (([4], [4, 5, 0, 0]), ([4], [4, 5, 0, 0, 6])),
        (([4], [0]), ([4], [0, 3])),
    ],
)
def test_an_older_state_without_this_list_finds_the_one_stream_that_grew(
    began: tuple[list[int], ...], now: tuple[list[int], ...]
) -> None:
    saved = replace(save(tiny_recipe(*began)), stream_shards=())
    kept = resume_recipe(saved, tiny_recipe(*now))
    assert shards_of(kept) == [*map(len, began)]


@pytest.mark.parametrize("choose", ["9", "x", "4,9", "9" * 5_000, 13])
def test_without_this_list_other_data_is_left_for_the_comparison(choose: str | int) -> None:
    both_grew, saved = tiny_recipe([4, 3], [4, 5, 6]), save(tiny_recipe([4], [4, 5]))
    saved = replace(saved, stream_shards=(), fields={**saved.fields, "choose": choose})
    assert resume_recipe(saved, both_grew).corpus is both_grew.corpus
