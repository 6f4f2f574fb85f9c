"""Resume a saved run: the recipe and the position with which it continues.

    recipe                                    position
    only the shards that the run began with   streams added: their lanes begin at their first
    the saved lanes, nodes, and shuffle       documents
    blocks, unless the config sets them       other texts or tokens: each lane drops the rest of
    the saved bos and eos, if automatic       the document that it is reading
    the rule by which the lanes began         another seq_len: cursors count tokens, so they stay;
    the saved mixture, for rows delivered     open rows are packed again
                                              another select: see `removal`

The order of documents depends on all of a run's data, so a run reads the same shards until it ends.
Only a new run reads appended shards:

    index now        shard 0 … shard 119 │ shard 120 … shard 159
    state            data: fingerprint of shards 0 to 119
    the run reads    shard 0 … shard 119
"""

from __future__ import annotations

import itertools
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cloudload.data import Corpus
from cloudload.errors import StreamChangedError
from cloudload.order import Lanes, Mixture
from cloudload.rows import residue_spans, tables, unpack_residue
from cloudload.run import state_fields
from cloudload.run.changes import CONTENT_FIELDS, Changes, accept_changes
from cloudload.run.components import Component
from cloudload.run.position import LaneArrays, LaneLog, Position
from cloudload.run.recipe import Recipe
from cloudload.run.removal import drop_deselected
from cloudload.run.saved import Saved
from cloudload.run.sources import read_sources
from cloudload.run.state_fields import damaged, show
from cloudload.system import Ints

logger = logging.getLogger("cloudload.resume")


def resume_run(
    saved: Saved, opened: Recipe, on_change: Mapping[str, str], cache_root: Path
) -> tuple[Recipe, Position]:
    """Return the recipe and the position with which a saved run continues.

    `opened` is the recipe of a loader's options. If the selection changed, orders in the cache
    folder `cache_root` tell which documents lanes have open. Raises the errors of `accept_changes`,
    `StreamChangedError` for a saved value that does not suit the recipe, and `CacheError` if an
    order cannot be built.
    """
    recipe = resume_recipe(saved, opened)
    changes = accept_changes(saved, recipe, on_change)
    position = resume_position(saved, recipe, changes)
    if state_fields.SELECT_FIELD in changes:
        arrays = drop_deselected(recipe, position.lanes.arrays, cache_root)
        position = replace(position, lanes=LaneLog(arrays))
    return recipe, position


# ---------------------------------------------------------------- recipe


def resume_recipe(saved: Saved, opened: Recipe) -> Recipe:
    """Return the recipe with which a saved run continues in a loader that opened another one.

    Raises `StreamChangedError` if streams of the saved run are missing or in another order, or if
    none of its documents is selected.
    """
    recipe = _keep_chats(saved, _keep_framing(saved, _keep_beginning(saved, opened)))
    _check_components(saved, recipe)
    recipe = _keep_shares(saved, recipe)
    recipe = replace(recipe, mixture=_resume_mixture(saved, recipe)).settle(saved.layout)
    first = saved.position.origin.first_ordinal(recipe.components[0].lanes)
    return replace(recipe, fair_from=first if saved.is_fair else None)


def _check_components(saved: Saved, recipe: Recipe) -> None:
    known, found = len(saved.position.cursors), len(recipe.components)
    if known > found:
        raise StreamChangedError(
            f"mixture: the state has {known} separately ordered streams, but the loader has "
            f"{found}. Keep every saved stream, and keep the proportions or the schedule. To end a "
            "stream, set its proportion, or its weight in the schedule, to 0"
        )
    for component in recipe.components:
        if not component.num_selected:
            labels = ", ".join(recipe.labels[stream] for stream in component.streams)
            raise StreamChangedError(
                f"select: of the {component.num_samples:,} documents of {labels} with which the "
                "run began, none is selected. The selected documents are in shards that were "
                "appended later, which the run does not read. Select some of its documents, or "
                "start a new run without this state"
            )


def _keep_shares(saved: Saved, recipe: Recipe) -> Recipe:
    """Return a copy in which the datasets of a glob have the shares of the saved run.

    Their tokens may have changed, because of another selection or of appended shards. If the
    proportion of the glob is the same, its datasets still divide it as when the run began.
    """
    mixture, kept = saved.mixture, dict[int, float]()
    entries = mixture.were_set.config if mixture.were_set else mixture.schedule
    begun = [weights for first, weights in entries if first <= saved.position.rows]
    for group in recipe.shared:
        asked = sum(recipe.config.streams[each].proportion or 0.0 for each in group)
        for weights in reversed(begun):
            own = weights[group.start : group.stop]
            # at the end of a stream, its weight becomes 0
            if len(own) == len(group) and math.isclose(sum(own), asked):
                kept |= dict(zip(group, own, strict=True))
                break
    return recipe.weigh(kept) if kept else recipe


def _resume_mixture(saved: Saved, recipe: Recipe) -> Mixture:
    """Combine the saved mixture, for the rows delivered, with the recipe's, for later rows.

    Streams whose names have changed, as default names may, are matched by their index in the list.
    Raises `StreamChangedError` if the saved names have other indices, or if streams are missing.
    """
    before, now = saved.mixture, recipe.mixture
    if not {*before.names} <= {*now.names}:
        before = replace(before, names=now.names[: len(before.names)])
    return now.resume(before, saved.position.rows)


def _keep_beginning(saved: Saved, recipe: Recipe) -> Recipe:
    """Return a copy of a recipe that reads only the shards of a saved run.

    Returns the recipe itself if no shards were appended, or if its data does not begin with the
    saved data. In the second case, `accept_changes` refuses the data.
    """
    shards = [len(dataset.shards) for dataset in recipe.corpus.datasets]
    for component, wanted in zip(recipe.components, _list_fingerprints(saved.fields), strict=False):
        streams, num_samples = component.streams, str(saved.fields["choose"])
        found = find_saved_shards(recipe.corpus, streams, wanted, saved.stream_shards, num_samples)
        if found is None:
            return recipe
        shards[streams.start : streams.stop] = found
    is_whole = shards == [len(dataset.shards) for dataset in recipe.corpus.datasets]
    return recipe if is_whole else recipe.take(shards)


def _list_fingerprints(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The (data, samples) fingerprints of each component; "" for a missing fingerprint."""
    data, samples = (
        str(fields.get(name, "")).split(",") for name in ("data", state_fields.SAMPLES_FIELD)
    )
    return list(itertools.zip_longest(data, samples, fillvalue=""))


def _is_of(corpus: Corpus, streams: range, wanted: tuple[str, str]) -> bool:
    """Whether streams have one of the (data, samples) fingerprints `wanted`."""
    data, samples = wanted
    is_same = data == corpus.fingerprint(streams)
    return is_same or (samples != "" and samples == corpus.fingerprint_samples(streams))


def find_saved_shards(
    corpus: Corpus,
    streams: range,
    wanted: tuple[str, str],
    stream_shards: Sequence[int],
    num_samples: str,
) -> list[int] | None:
    """The number of shards of each of some streams that a saved order has.

    `wanted` are the (data, samples) fingerprints of the order. `stream_shards` and `num_samples`
    are its numbers of shards and of samples as the state has them; () for a state without the
    first. Returns None if the streams do not begin with the saved data.
    """
    shards = [len(dataset.shards) for dataset in corpus.datasets]
    if _is_of(corpus, streams, wanted):
        return shards[streams.start : streams.stop]
    if len(streams) == 1:
        found = corpus.find_beginning(streams.start, *wanted)
        return None if found is None else [found]
    for counts in _list_candidates(corpus, shards, stream_shards, num_samples):
        is_possible = len(counts) == len(shards) and all(map(int.__le__, counts, shards))
        if is_possible and _is_of(corpus.take(counts), streams, wanted):
            return list(counts)
    return None


def _list_candidates(
    corpus: Corpus, shards: Sequence[int], stream_shards: Sequence[int], num_samples: str
) -> Iterator[Sequence[int]]:
    """Yield the possible numbers of shards of the streams when the run began.

    A state records these numbers. An older state records only the number of samples, so it is
    assumed that only one stream has grown.
    """
    if stream_shards:
        yield stream_shards
        return
    for stream, dataset in enumerate(corpus.datasets):
        ends = np.cumsum(dataset.table.samples)
        totals = corpus.num_samples - ends[-1:] + ends
        for index in np.flatnonzero(totals.astype(str) == num_samples).tolist():
            yield [*shards[:stream], index + 1, *shards[stream + 1 :]]


def _keep_framing(saved: Saved, recipe: Recipe) -> Recipe:
    """Return a recipe with the saved bos and eos if the run and the loader both use "auto".

    Without this, the state would be refused if the tokenizer's config file changed, or if a new
    version of cloudload changed the rules for "auto".
    """
    # streams may have been added, so the state may have fewer than the recipe
    # (a state may be damaged)
    tokenizer, texts = recipe.tokenizer, str(saved.fields["bos_eos"]).split(",")
    pairs = [re.fullmatch(r"(None|\d{1,9})/(None|\d{1,9})", text) for text in texts]
    frames = tuple((_read_id(pair[1]), _read_id(pair[2])) for pair in pairs if pair)
    if frames == tokenizer.frames[: len(texts)] or not len(pairs) == len(frames) <= len(
        tokenizer.frames
    ):
        return recipe
    # the saved IDs are right only if the same tokenizer reads the same columns
    columns = str(saved.fields[state_fields.TOKENS_FIELD]).split(",")
    is_same = (
        saved.fields["tokenizer"] == recipe.fields["tokenizer"]
        and columns == recipe.fields[state_fields.TOKENS_FIELD].split(",")[: len(columns)]
        and all(
            _list_given(saved.fields[name]) == _list_given(recipe.fields[name])[: len(columns)]
            for name in (state_fields.CHAT_FIELD, state_fields.ENCODE_FIELD)
        )
    )
    if not is_same or not _is_automatic(saved.sources) or not _is_automatic(recipe.sources):
        return recipe
    if any(token_id >= tokenizer.vocab_size for pair in frames for token_id in pair if token_id):
        return recipe
    logger.warning(
        "bos_eos: the tokenizer's files now specify %s, but the run continues with %s from the "
        "state. To change the IDs, pass bos and eos, and on_change={'bos_eos': 'accept'}",
        show(recipe.fields["bos_eos"]),
        show(saved.fields["bos_eos"]),
    )
    frames += tokenizer.frames[len(frames) :]
    return replace(recipe, tokenizer=replace(tokenizer, frames=frames))


def _list_given(field: str) -> list[bool]:
    """Whether each stream has a value in a field with an item per stream."""
    return [item != "" for item in str(field).split(",")]


def _keep_chats(saved: Saved, recipe: Recipe) -> Recipe:
    """Return a recipe with the saved most tokens of conversations for which the loader sets none.

    A run without `Chat.max_tokens` begins with its `seq_len`, and keeps it if `seq_len` changes.
    """
    names = str(saved.fields[state_fields.CHAT_FIELD]).split(",")
    kept = []
    for chat, name in itertools.zip_longest(recipe.chats, names[: len(recipe.chats)]):
        found = re.fullmatch(r"(.*)/(\d{1,9})", name or "")
        if chat and found and chat.max_tokens and chat.template.chat.max_tokens is None:
            before = replace(chat, max_tokens=int(found[2]))
            kept.append(before if before.name == name else chat)
        else:
            kept.append(chat)
    return replace(recipe, chats=tuple(kept))


def _is_automatic(sources: str) -> bool:
    try:
        return read_sources(sources).has_automatic_framing
    except StreamChangedError:
        return False


def _read_id(text: str) -> int | None:
    return None if text == "None" else int(text)


# ---------------------------------------------------------------- position


def resume_position(saved: Saved, recipe: Recipe, changes: Changes) -> Position:
    """Return the position at which a run continues with the recipe of `resume_recipe`.

    `changes` are accepted. Raises `StreamChangedError` if a value in the state is out of range.
    """
    position = saved.position
    _check_counts(saved, recipe)
    check_tails(position, recipe)
    check_cursors(position, recipe.components)
    arrays = _add_components(position.lanes.arrays, recipe)
    if changes.keys() & set(CONTENT_FIELDS):
        arrays = _skip_open_documents(arrays, changes)
    if saved.seq_len != recipe.config.seq_len:
        arrays = _close_rows(arrays)
    return replace(position, lanes=LaneLog(arrays))


def _check_counts(saved: Saved, recipe: Recipe) -> None:
    if len(saved.position.counts) > len(recipe.labels):
        what = f"the state has {len(saved.position.counts)} streams, but the loader has"
        raise damaged("counts", f"{what} {len(recipe.labels)}")


def check_cursors(position: Position, components: Sequence[Component]) -> None:
    """Raise `StreamChangedError` for an impossible cursor or residue."""
    for component, cursors in zip(components, position.cursors, strict=False):
        _check_lanes(component.lanes, cursors)
    if position.residues is not None:
        for index, lane in np.ndindex(position.residues.shape):
            ordinal = int(position.cursors[index, lane, tables.CURSOR_ORDINAL])
            try:
                residue_spans(position.residue(index, lane), ordinal)
            except ValueError as error:
                raise damaged("residues", f"lane {lane} has {error}") from error


def _check_lanes(lanes: Lanes, cursors: Ints) -> None:
    ordinals, offsets, sizes = cursors.T
    if len(beyond := np.flatnonzero((sizes > 0) & (sizes <= offsets))):
        lane = int(beyond[0])
        raise damaged(
            "document_sizes",
            f"lane {lane} is at token {offsets[lane]} of document {ordinals[lane]}, which has "
            f"{sizes[lane]} tokens",
        )
    ends = lanes.ends
    if len(past := np.flatnonzero((ordinals > ends) | ((ordinals == ends) & (offsets > 0)))):
        lane = int(past[0])
        raise StreamChangedError(
            f"cursors: lane {lane} is at document {ordinals[lane]}, but ends at document "
            f"{ends[lane]} with epochs={lanes.epochs}. The state is damaged, or was saved with "
            "more epochs or with epochs=None. Load an earlier one, or use more epochs"
        )
    _, positions = lanes.epoch_positions(np.arange(lanes.num_lanes), ordinals)
    if len(within := np.flatnonzero((positions >= lanes.num_positions) & (offsets > 0))):
        what = f"lane {within[0]} is within document {ordinals[within[0]]}, which does not exist"
        raise damaged("cursors", what)


def check_tails(position: Position, recipe: Recipe) -> None:
    """Raise `StreamChangedError` if a component has an impossible tail."""
    if recipe.config.is_mixed and recipe.has_tails and position.rows != position.table_rows:
        raise damaged(
            "table_rows",
            f"a mixture whose streams end is at row {position.rows:,}, but its cursors are from "
            f"row {position.table_rows:,}",
        )
    for component, stages in zip(recipe.components, position.lanes.arrays.tails, strict=False):
        is_possible = all(seq_len >= 1 for seq_len, _ in stages)
        if stages and (component.lanes.epochs is None or not is_possible):
            name, of = "stream_tails", "a stream"
            if len(recipe.components) == 1:
                name, of = "tail", "a run"
            what = f"{stages} (seq_len, rows) is not a tail of {of}"
            raise damaged(name, f"{what} with epochs={component.lanes.epochs}")


def _add_components(arrays: LaneArrays, recipe: Recipe) -> LaneArrays:
    """Add cursors and counts, all 0, for the streams that the recipe adds."""
    components = len(recipe.components) - len(arrays.cursors)
    streams = len(recipe.labels) - len(arrays.counts)
    residues = arrays.residues
    if residues is not None:
        residues = np.concatenate([residues, np.full((components, residues.shape[1]), b"", object)])
    return LaneArrays(
        np.pad(arrays.cursors, ((0, components), (0, 0), (0, 0))),
        residues,
        np.pad(arrays.counts, ((0, streams), (0, 0))),
        (*arrays.tails, *[()] * components) if arrays.tails else (),
    )


def _skip_open_documents(arrays: LaneArrays, changes: Changes) -> LaneArrays:
    """Move each lane to the end of the document that it is reading, and drop its residue."""
    logger.warning(
        "%s changed, so each lane drops the rest of the documents that it was reading",
        ", ".join(changes),
    )
    arrays = arrays.copy()
    arrays.cursors[..., tables.CURSOR_ORDINAL] += arrays.cursors[..., tables.CURSOR_OFFSET] > 0
    arrays.cursors[..., tables.CURSOR_OFFSET :] = 0
    if arrays.residues is not None:
        arrays.residues[:] = b""
    return arrays


def _close_rows(arrays: LaneArrays) -> LaneArrays:
    """Turn the open rows in residues, which fit only the saved `seq_len`, into waiting spans.

    Components in their tails do not change, because resuming packs their tails again.
    """
    if arrays.residues is None:
        return arrays
    residues = arrays.residues.copy()
    for component, lane in np.ndindex(residues.shape):
        if not (arrays.tails and arrays.tails[component]):
            ordinal = int(arrays.cursors[component, lane, tables.CURSOR_ORDINAL])
            residues[component, lane] = unpack_residue(residues[component, lane], ordinal)
    return replace(arrays, residues=residues)
