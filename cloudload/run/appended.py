"""Find a run's original data if shards were appended to its datasets after the run began.

index now        shard 0 … shard 119 │ shard 120 … shard 159
state            data: fingerprint of shards 0 to 119
the run reads    shard 0 … shard 119

The order of documents depends on all of a run's data, so a run reads the same shards until it ends.
Only a new run reads the appended shards.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cloudload.data.mds.dataset import Corpus
from cloudload.run.components import Component
from cloudload.run.recipe import SAMPLES_FIELD, Recipe
from cloudload.run.same_data import CHOOSE_FIELD, DATA_FIELD
from cloudload.run.state import Saved


def keep_beginning(saved: Saved, recipe: Recipe) -> Recipe:
    """Return a copy of a recipe that reads only the shards of a saved run.

    Returns the recipe itself if no shards were appended, or if its data does not begin with the
    saved data. In the second case, `resume_position` refuses the data.
    """
    shards = [len(dataset.shards) for dataset in recipe.corpus.datasets]
    pairs = zip(_list_fingerprints(saved.fields), _list_fingerprints(recipe.fields), strict=False)
    for component, (wanted, now) in zip(recipe.components, pairs, strict=False):
        if _are_same(wanted, now):
            continue
        streams = component.streams
        found = _find_shards(saved, recipe.corpus, component, wanted)
        if found is None:
            return recipe
        shards[streams.start : streams.stop] = found
    is_whole = shards == [len(dataset.shards) for dataset in recipe.corpus.datasets]
    return recipe if is_whole else recipe.take(shards)


def describe_left_out(recipe: Recipe) -> Iterator[str]:
    """Describe each dataset whose later shards a run does not read."""
    for stream, dataset in zip(recipe.config.streams, recipe.corpus.datasets, strict=True):
        if dataset.num_left_out:
            number = len(dataset.shards)
            yield (
                f"{stream.label}: this run reads only the first {number:,} of "
                f"{number + dataset.num_left_out:,} shards, because the others were added after it "
                "began. A new run reads all shards"
            )


def _list_fingerprints(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The (data, samples) fingerprints of each component; "" for a missing fingerprint."""
    data, samples = (str(fields.get(name, "")).split(",") for name in (DATA_FIELD, SAMPLES_FIELD))
    return list(itertools.zip_longest(data, samples[: len(data)], fillvalue=""))


def _are_same(one: tuple[str, str], other: tuple[str, str]) -> bool:
    return any(each and each == now for each, now in zip(one, other, strict=True))


def _find_shards(
    saved: Saved, corpus: Corpus, component: Component, wanted: tuple[str, str]
) -> list[int] | None:
    """The number of shards that a saved run reads of each stream of a component.

    None if the component's data does not begin with the saved data, whose fingerprints are
    `wanted`.
    """
    streams = component.streams
    if len(streams) == 1:
        found = corpus.find_beginning(streams.start, *wanted)
        return None if found is None else [found]
    shards = [len(dataset.shards) for dataset in corpus.datasets]
    for numbers in _list_candidates(saved, corpus, component, shards):
        is_possible = len(numbers) == len(shards) and all(map(int.__le__, numbers, shards))
        if not is_possible:
            continue
        part = corpus.take(numbers)
        if _are_same(wanted, (part.fingerprint(streams), part.fingerprint_samples(streams))):
            return list(numbers)
    return None


def _list_candidates(
    saved: Saved, corpus: Corpus, component: Component, shards: Sequence[int]
) -> Iterator[Sequence[int]]:
    """Yield the possible numbers of shards of the streams when the run began.

    A state records these numbers. An older state does not, so it is assumed that only one stream
    has grown.
    """
    if saved.stream_shards:
        yield saved.stream_shards
        return
    choose = str(saved.fields[CHOOSE_FIELD])
    if component.sampling is not None or not choose.isdecimal():
        return
    appended = corpus.num_samples - int(choose)
    for stream, dataset in enumerate(corpus.datasets):
        ends = np.cumsum(dataset.table.samples)
        for place in np.flatnonzero(ends == ends[-1:] - appended).tolist():
            yield [*shards[:stream], place + 1, *shards[stream + 1 :]]
