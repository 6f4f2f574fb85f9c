"""Compute the position at which a loader continues a saved run, and refuse unsafe changes.

    no effect on rows        world, workers, batch_size, …       they are not part of the recipe
                             shards written again                if their samples are the same; see
                                                                 `same_data`
                             shards appended                     left out, see below
    from the next row on     shares of streams, streams added    the mixture keeps earlier rows
                             stopping
    different rows           seq_len                             cursors count tokens; residues are
                                                                 packed again
    after a bad document     on_error="skip" after "raise"       no document has failed so far
    refused                  other fields of the recipe, listed with both values; the user may
                             accept a change of some of them with `on_change`

The order of documents depends on all of a run's data, so a run reads the same shards until it ends.
Only a new run reads appended shards:

    index now        shard 0 … shard 119 │ shard 120 … shard 159
    state            data: fingerprint of shards 0 to 119
    the run reads    shard 0 … shard 119
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cloudload.data import Corpus
from cloudload.errors import StreamChangedError
from cloudload.order import Lanes, Mixture
from cloudload.rows import residue_spans, tables, unpack_residue
from cloudload.run import state_fields
from cloudload.run.changes import (
    CONTENT_FIELDS,
    SAME,
    Changes,
    check_moment,
    check_on_change,
    explain_replay,
    find_changes,
    refuse_changes,
)
from cloudload.run.components import Component
from cloudload.run.position import LaneArrays, LaneLog, Position
from cloudload.run.recipe import Recipe
from cloudload.run.same_data import CHOOSE_FIELD, DATA_FIELD
from cloudload.run.state import Saved
from cloudload.system import Ints

logger = logging.getLogger("cloudload.resume")


def resume_mixture(saved: Saved, recipe: Recipe) -> Mixture:
    """Combine the saved mixture, for the rows delivered, with the recipe's, for later rows.

    Streams whose names have changed, as default names may, are matched by their index in the list.
    Raises `StreamChangedError` if the saved names have other indices, or if streams are missing.
    """
    before, now = saved.mixture, recipe.mixture
    if not {*before.names} <= {*now.names}:
        before = replace(before, names=now.names[: len(before.names)])
    return now.resume(before, saved.position.rows)


def resume_packing(saved: Saved, recipe: Recipe) -> Recipe:
    """Return a recipe whose lanes begin with as many waiting documents as those of the saved run.

    The recipe must be settled with the saved layout (`Recipe.settle`).
    """
    lanes = recipe.components[0].lanes
    first = saved.position.origin.first_ordinal(lanes) if saved.is_fair else None
    return replace(recipe, fair_from=first)


def resume_position(saved: Saved, recipe: Recipe, on_change: Mapping[str, str]) -> Position:
    """Compute the position at which a run with this recipe continues.

    The recipe must be settled with the saved layout (`Recipe.settle`). Raises `StreamChangedError`
    if changes are not accepted (the error lists all of them) or not possible at the saved position,
    if saved streams are missing, or if a value in the state is out of range. Raises `ValueError`
    for an invalid `on_change`.
    """
    check_on_change(on_change)
    _check_components(saved, recipe)
    resume_mixture(saved, recipe)  # raises a clearer error than the comparison of the data would
    changes = find_changes(saved, recipe)
    if on_change.get("data") == SAME and "data" in changes:
        logger.warning(
            "data: the shards differ. The run continues without comparing their samples, because "
            "of on_change={'data': 'same'}"
        )
        del changes["data"]
    refuse_changes(changes, on_change, saved, recipe)
    check_moment(saved, changes)
    _check_counts(saved, recipe)

    position = _add_components(saved.position, recipe)
    if changes.keys() & set(CONTENT_FIELDS):
        position = _skip_open_documents(position, changes)
    check_cursors(position, recipe.components)
    check_stream_tails(position, recipe)
    if saved.seq_len != recipe.config.seq_len:
        position = _change_seq_len(saved, position, recipe.config.seq_len)
    return position


def _check_components(saved: Saved, recipe: Recipe) -> None:
    known, found = len(saved.position.cursors), len(recipe.components)
    if known > found:
        raise StreamChangedError(
            f"mixture: the state has {known} separately ordered streams, but the loader has "
            f"{found}. Keep every saved stream, and keep the proportions or the schedule. To end a "
            "stream, set its proportion, or its weight in the schedule, to 0"
        )


def _check_counts(saved: Saved, recipe: Recipe) -> None:
    if len(saved.position.counts) > len(recipe.labels):
        raise StreamChangedError(
            f"counts: the state has {len(saved.position.counts)} streams, but the loader has "
            f"{len(recipe.labels)}. The state is damaged. Load an earlier one"
        )


def _add_components(position: Position, recipe: Recipe) -> Position:
    """Add cursors and counts, all 0, for the streams that the recipe adds."""
    saved = position.lanes.arrays
    arrays = LaneArrays.blank(
        (len(recipe.components), recipe.num_lanes),
        len(recipe.labels),
        has_residues=saved.residues is not None,
    )
    arrays.set_lanes(np.s_[: len(saved.cursors)], saved)
    arrays.counts[: len(saved.counts)] = saved.counts
    added = len(recipe.components) - len(saved.cursors)
    tails = (*saved.tails, *[()] * added) if saved.tails else ()
    return replace(position, lanes=LaneLog(replace(arrays, tails=tails)))


def _skip_open_documents(position: Position, changes: Changes) -> Position:
    """Move each lane to the end of the document that it is reading, and drop its residue."""
    logger.warning(
        "%s changed, so each lane drops the rest of the documents that it was reading",
        ", ".join(changes),
    )
    arrays = position.lanes.arrays.copy()
    arrays.cursors[..., tables.CURSOR_ORDINAL] += arrays.cursors[..., tables.CURSOR_OFFSET] > 0
    arrays.cursors[..., tables.CURSOR_OFFSET :] = 0
    if arrays.residues is not None:
        arrays.residues[:] = b""
    return replace(position, lanes=LaneLog(arrays))


def _change_seq_len(saved: Saved, position: Position, seq_len: int) -> Position:
    """Turn the open rows in residues, which fit only the saved `seq_len`, into waiting spans.

    Components in their tails do not change, because resuming packs their tails again.
    """
    if position.rows != position.table_rows:
        raise StreamChangedError(
            f"seq_len: saved {saved.seq_len!r}, found {seq_len!r}, but seq_len cannot change on a "
            f"resume from this state. {explain_replay(saved)}"
        )
    if position.residues is None:
        return position
    residues = position.residues.copy()
    for index in np.ndindex(residues.shape):
        if position.stages_of(index[0]):
            continue
        ordinal = int(position.cursors[index][tables.CURSOR_ORDINAL])
        residues[index] = unpack_residue(residues[index], ordinal)
    return position.with_lanes(residues=residues)


def check_cursors(position: Position, components: Sequence[Component]) -> None:
    """Raise `StreamChangedError` for an impossible cursor or residue."""
    for component, cursors in zip(components, position.cursors, strict=True):
        _check_lanes(component.lanes, cursors)
    if position.residues is not None:
        for index, lane in np.ndindex(position.residues.shape):
            ordinal = int(position.cursors[index, lane, tables.CURSOR_ORDINAL])
            try:
                residue_spans(position.residue(index, lane), ordinal)
            except ValueError as error:
                raise StreamChangedError(
                    f"residues: lane {lane} has {error}. The state is damaged. Load an earlier one"
                ) from error


def _check_lanes(lanes: Lanes, cursors: Ints) -> None:
    for lane, (ordinal, offset, size) in enumerate(cursors.tolist()):
        end = lanes.end(lane)
        if 0 < size <= offset:
            raise StreamChangedError(
                f"document_sizes: lane {lane} is at token {offset} of document {ordinal}, which "
                f"has {size} tokens. The state is damaged. Load an earlier one"
            )
        if end is not None and (ordinal > end or (ordinal == end and offset)):
            raise StreamChangedError(
                f"cursors: lane {lane} is at document {ordinal}, but ends at document {end} with "
                f"epochs={lanes.epochs}. The state is damaged, or was saved with more epochs or "
                "with epochs=None. Load an earlier one, or use more epochs"
            )
    ordinals, offsets, _ = cursors.T
    _, positions = lanes.epoch_positions(np.arange(lanes.num_lanes), ordinals)
    if len(within := np.flatnonzero((positions >= lanes.num_positions) & (offsets > 0))):
        raise StreamChangedError(
            f"cursors: lane {within[0]} is within document {ordinals[within[0]]}, which does not "
            "exist. The state is damaged. Load an earlier one"
        )


def check_stream_tails(position: Position, recipe: Recipe) -> None:
    """Raise `StreamChangedError` if a component has an impossible tail."""
    if recipe.has_stream_ends and position.rows != position.table_rows:
        raise StreamChangedError(
            f"table_rows: a mixture whose streams end is at row {position.rows:,}, but its cursors "
            f"are from row {position.table_rows:,}. The state is damaged. Load an earlier one"
        )
    for component, stages in zip(recipe.components, position.lanes.arrays.tails, strict=False):
        is_possible = all(seq_len >= 1 for seq_len, _ in stages)
        if stages and (component.lanes.epochs is None or not is_possible):
            name, of = "stream_tails", "a stream"
            if len(recipe.components) == 1:
                name, of = "tail", "a run"
            raise StreamChangedError(
                f"{name}: {stages} (seq_len, rows) is not a tail of {of} with "
                f"epochs={component.lanes.epochs}. The state is damaged. Load an earlier one"
            )


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
    data, samples = (
        str(fields.get(name, "")).split(",") for name in (DATA_FIELD, state_fields.SAMPLES_FIELD)
    )
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
        for index in np.flatnonzero(ends == ends[-1:] - appended).tolist():
            yield [*shards[:stream], index + 1, *shards[stream + 1 :]]
