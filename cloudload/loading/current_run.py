"""The current run of a loader: its recipe, and the progress that it has made.

RowsConfig ─────► recipe: data, tokenizer, layout ─► token lengths
DeliveryConfig ─► cache folder, tokenizer backend    └──► OpenedRun ─► CurrentRun

CurrentRun ─► load, resumed, moved, without_lengths: another CurrentRun
     └── with lengths: the position at any later row, the number of rows
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cloudload.config import DeliveryConfig, RowsConfig, checks, choices
from cloudload.data import Corpus, cache_folder, urls
from cloudload.errors import RanksDisagreeError
from cloudload.loading.delivery.run_log import KEPT_POSITIONS, RunLog
from cloudload.loading.delivery.start_log import StartLog
from cloudload.loading.delivery.world import Membership, check_world
from cloudload.rows import Choice, choose_backend, next_stages, start_loading
from cloudload.run import (
    MOST_ROWS,
    Ending,
    Position,
    Recipe,
    RunInputs,
    RunLengths,
    Saved,
    State,
    build_state,
    find_lengths,
    find_resumed_lengths,
    join_ranges,
    length_files,
    open_lengths,
    open_recipe,
    open_tokenizer,
    read_state,
    resume_run,
    start_from_streaming,
)
from cloudload.system import NEVER, activity, paused_collection

logger = logging.getLogger("cloudload.loader")


@dataclass(frozen=True)
class OpenedRun:
    """A run as its options define it, before a state is loaded."""

    recipe: Recipe
    backend: Choice
    """The tokenizer backend."""
    cache_root: Path
    asked_lengths: str
    """The option `lengths`."""
    lengths: Sequence[length_files.CountedDataset] | None
    """The token lengths found for the data, or None if there are none."""


def open_current_run(
    asked: RowsConfig,
    delivery: DeliveryConfig,
    tokenizer: Any,
    start_log: StartLog,
    shared: tuple[range, ...],
) -> OpenedRun:
    """Open the data, the tokenizer, its backend, and the token lengths.

    `shared` is as in `Recipe`. Raises `CloudloadError` if one of them, or a store, cannot be used,
    and `ValueError` if the options do not suit the data.
    """
    local, retry, lengths = delivery.local, delivery.retry, os.fspath(delivery.lengths)
    cache_root = urls.expand_home(local) if local else cache_folder.default_cache()
    cache_folder.check_cache_folder(cache_root, [stream.url for stream in asked.streams])
    with activity.Wait(None, "opening the data", start_log.notice):
        with paused_collection():
            with activity.doing("loading the tokenizer"):
                opened = open_tokenizer(asked, tokenizer, cache_root)
            spec = opened.spec
            text = spec.json if asked.may_tokenize else ""
            with activity.doing("checking the tokenizer backend"):
                backend = choose_backend(text, delivery.tokenizer_backend, cache_root)
            if backend.name == choices.FASTOKENS and delivery.shares_tokenizer:
                start_loading(text)  # in a thread, while the index is read and the model created
            with activity.doing("reading the index"):
                recipe = open_recipe(asked, tokenizer, retry, opened, cache_root, shared=shared)
        spec.check_id("pad_id", delivery.pad_id)
        start_log.log_opened(recipe, backend)
        with activity.doing("looking for token lengths"):
            found = find_lengths(recipe, lengths, balances=delivery.balance is not None)
    if recipe.shared and found is not None:
        tokens = [counted.index.total("tokens") for counted in found]
        if recipe.selection is not None:
            tokens = open_lengths(found, recipe, cache_root).count_tokens()
        recipe = recipe.divide_proportions(tokens)
    return OpenedRun(recipe, backend, cache_root, lengths, found)


class _Lengths:
    """The token lengths of a run, which are read into the cache folder on first use.

    `start` is a position of the run.
    """

    def __init__(
        self,
        found: Sequence[length_files.CountedDataset],
        recipe: Recipe,
        cache_root: Path,
        start: Position,
    ) -> None:
        self._found, self._recipe = found, recipe
        self._cache_root, self._start = cache_root, start

    @cached_property
    def of_samples(self) -> length_files.CorpusLengths:
        """The lengths of the samples."""
        cache_folder.open_cache_folder(self._cache_root)
        return open_lengths(self._found, self._recipe, self._cache_root)

    @cached_property
    def of_run(self) -> RunLengths:
        """The lengths of the run, whose recipe includes the ends of a mixture's streams."""
        lengths = RunLengths(self._recipe, self._cache_root, self.of_samples)
        return lengths.settle(self._start) if self._has_ends else lengths

    @property
    def _has_ends(self) -> bool:
        return self._recipe.config.is_mixed and self._recipe.has_tails

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run, with the ends of a mixture's streams."""
        return self.of_run.recipe if self._has_ends else self._recipe

    @property
    def ending(self) -> Ending | None:
        """The ends of a mixture's streams, or None if there are none."""
        return self.of_run.ending if self._has_ends else None

    def of(self, recipe: Recipe, start: Position) -> _Lengths:
        """Return the lengths of another run of the same corpus."""
        other = _Lengths(self._found, recipe, self._cache_root, start)
        if "of_samples" in vars(self):
            other.of_samples = self.of_samples
        return other


@dataclass(frozen=True)
class CurrentRun:
    """A run and its progress. Computes later positions from token lengths.

    A loader replaces it with another run when it loads a state or changes the world. Other threads
    and signal handlers may read it at any time, because a question changes nothing but caches.
    """

    opened: OpenedRun
    """The run as its options define it."""
    recipe: Recipe
    """The recipe without the ends of a mixture's streams, which `settled_recipe` has."""
    log: RunLog
    _lengths: _Lengths | None
    is_resumed: bool = False
    """Whether the run continues a state."""

    @staticmethod
    def start(opened: OpenedRun) -> CurrentRun:
        """Return the run at its start."""
        recipe, start = opened.recipe, Position.start(opened.recipe)
        return CurrentRun(opened, recipe, RunLog(start), _find_lengths(opened, recipe, start))

    @property
    def position(self) -> Position:
        """The position after the last batch that was delivered or skipped, or that was sought."""
        return self.log.position

    @property
    def backend(self) -> Choice:
        """The tokenizer backend."""
        return self.opened.backend

    @property
    def settled_recipe(self) -> Recipe:
        """The recipe with the ends of a mixture's streams, after which they have weight 0."""
        return self.recipe if self._lengths is None else self._lengths.recipe

    @property
    def ending(self) -> Ending | None:
        """The ends of a mixture's streams, or None if there are none."""
        return None if self._lengths is None else self._lengths.ending

    @property
    def inputs(self) -> RunInputs:
        """What the run is read with. Reads token lengths into the cache folder if needed."""
        lengths, opened = self._lengths, self.opened
        of_samples = None if lengths is None else lengths.of_samples
        return RunInputs(self.settled_recipe, opened.cache_root, self.backend, of_samples)

    @property
    def lengths(self) -> RunLengths | None:
        """The token lengths of the run, or None. Reads them into the cache folder if needed."""
        return None if self._lengths is None else self._lengths.of_run

    def check_world(self, member: Membership) -> None:
        """Raise `ValueError` if the ranks of a member's world cannot share the run's lanes, or the
        rows of a step."""
        size, has_lengths = member.shape.world_size, self._lengths is not None
        if member.delivery.balance is not None and not has_lengths:
            raise ValueError(
                "balance needs token lengths, but this run has none, because its documents are not "
                "those of the loader's lengths. Run cloudload count for the data as it is, or omit "
                "balance"
            )
        check_world(self.recipe.num_lanes, size, has_lengths=has_lengths)

    def check_knows_all_lanes(self) -> None:
        """Raise `RanksDisagreeError` if this rank does not know the cursors of other ranks."""
        if not self.log.knows_all_lanes and self.log.has_read:
            raise RanksDisagreeError(
                "the ranks cannot communicate and have no token lengths, so no rank knows the "
                "whole state. Run cloudload count once to count token lengths, or initialize "
                "torch.distributed before iterating"
            )

    # ------------------------------------------------------------ states

    def save(self, lag: int) -> State:
        """Return the state `lag` batches ago. Raises the errors of `CloudLoader.state_dict`."""
        position = self.log.past(lag)
        self.check_knows_all_lanes()
        return build_state(self.settled_recipe, position, self.backend.versions)

    def load(
        self, state: Mapping[str, Any], on_change: Mapping[str, str], member: Membership
    ) -> CurrentRun:
        """Return the run that continues from a state.

        Raises the errors of `CloudLoader.load_state_dict`.
        """
        saved = read_state(state)
        opened = self.opened
        resumed = self.resumed(*resume_run(saved, opened.recipe, on_change, opened.cache_root))
        resumed.check_world(member)
        if member.is_first:
            _log_resumed(resumed, saved)
        return resumed

    def load_streaming(self, state: Mapping[str, Any], member: Membership) -> CurrentRun:
        """Return the run that starts where a StreamingDataset stopped.

        Raises the errors of `CloudLoader.load_streaming_state`.
        """
        recipe, position = start_from_streaming(self.opened.recipe, state)
        run = replace(self, opened=replace(self.opened, recipe=recipe)).resumed(recipe, position)
        run.check_world(member)
        return run

    # ------------------------------------------------------------ other runs

    def resumed(self, recipe: Recipe, position: Position) -> CurrentRun:
        """Return the run that continues from the position of a state.

        `recipe` may read fewer shards than the current one, and may have other limits of
        conversations. Raises the errors of `find_resumed_lengths`.
        """
        if not _has_documents_of(recipe, self.recipe):
            lengths = _find_lengths(self.opened, recipe, position)
        else:
            lengths = self._lengths and self._lengths.of(recipe, position)
        return CurrentRun(self.opened, recipe, RunLog(position, self.log), lengths, is_resumed=True)

    def reweighed(self, weights: Mapping[str, float], at_row: int) -> CurrentRun:
        """Return the run with other weights of its streams from a row on.

        Raises the errors of `CloudLoader.set_weights`.
        """
        position, recipe = self.position, self.recipe
        if not recipe.config.is_mixed:
            raise ValueError(
                "the run has no mixture, so its streams have no weights. Give each stream a "
                "proportion"
            )
        asked = recipe.config_mixture
        mixture = recipe.mixture.set_weights(asked, weights, position.rows, at_row)
        recipe = replace(recipe, mixture=mixture)
        lengths = self._lengths and self._lengths.of(recipe, position)
        return replace(self, recipe=recipe, _lengths=lengths)

    def moved(self, position: Position) -> CurrentRun:
        """Return the same run at another position."""
        return replace(self, log=self.log.moved(position))

    def without_lengths(self) -> CurrentRun:
        """Return the same run, which uses no lengths because other ranks found none."""
        return replace(self, _lengths=None)

    # ------------------------------------------------------------ positions

    def advance(self, position: Position, row: int, *, pads: bool = False) -> Position | None:
        """Return the position at a later row, or None if lengths do not determine it.

        `pads` is as for `RunLengths.advance`.
        """
        lengths = self.lengths
        return None if lengths is None else lengths.advance(position, row, pads=pads)

    def skip_batches(self, count: int, global_batch: int) -> bool:
        """Skip batches without reading them. Returns False if lengths do not determine the rows.

        Records the positions of the last batches one by one, as reading them would.
        """
        position, found = self.position, list[Position]()
        single = min(count, KEPT_POSITIONS - 1)
        for jump in (*[count - single] * (count > single), *[1] * single):
            stop = position.rows + jump * global_batch
            after = self.advance(position, stop)
            if after is None:
                return False
            skipped = join_ranges(position.skipped, (position.rows, stop))
            batches = position.batches + jump
            position = replace(after, skipped=skipped, batches=batches, global_batch=global_batch)
            found.append(position)
        if found:
            self.log.record_all(found, has_jumped=True)
        return True

    def find_position(self, rows: int, global_batch: int) -> Position:
        """Return the position at a row of the run, whose batches have `global_batch` rows.

        Raises `ValueError` if the row is before the current position, or after the end of the last
        batch.
        """
        position = self.position
        rows = checks.as_integer("rows", rows, 0, MOST_ROWS)
        if rows < position.rows:
            raise ValueError(
                f"rows is {rows:,}, but the loader is already at row {position.rows:,}. Load an "
                "earlier state"
            )
        if (found := self.advance(position, rows)) is not None:
            return found
        end = self._find_end()
        if end is not None and rows >= max(end, position.rows) + global_batch:
            raise ValueError(f"rows is {rows:,}, but the run has {end:,} rows. Use at most {end:,}")
        if (found := self.advance(position, rows, pads=True)) is not None:
            return found
        if not position.is_in_tail:
            return replace(position, rows=rows)
        stages, seq_len = position.stages_of(0), self.recipe.packing.seq_len
        stages = next_stages(stages, seq_len, position.lanes_row, rows)
        return replace(position.with_lanes(tails=(stages,)), rows=rows, table_rows=rows)

    def _find_end(self) -> int | None:
        """Return the row at which the run ends, or None if it is endless or the row is unknown."""
        if not self.recipe.has_tails:
            return None
        lengths = self.lengths
        if lengths is None:
            return self.count_rows()
        end = lengths.find_tails(self.position).ending.end
        return None if end == NEVER else end

    # ------------------------------------------------------------ numbers of rows

    def count_rows(self) -> int | None:
        """Return the number of rows of a finite run at its current `seq_len`. None if unknown."""
        epochs, recipe = self.recipe.config.epochs, self.recipe
        if not recipe.has_tails:
            return None
        origin = self.position.origin
        if epochs is not None and recipe.has_row_per_document:
            lanes = recipe.components[0].lanes
            return epochs * lanes.num_positions - origin.count_documents(lanes)
        lengths = self.lengths
        return None if lengths is None else lengths.count_rows(Position.start(self.recipe, origin))

    def count_rows_of_epochs(self, epochs: int) -> int | None:
        """Return the number of rows of `epochs` epochs, or None if it is unknown."""
        if self.recipe.has_row_per_document:
            return epochs * self.recipe.components[0].lanes.num_positions
        lengths = self.lengths
        return None if lengths is None else lengths.count_rows_of_epochs(epochs)


def _find_lengths(opened: OpenedRun, recipe: Recipe, start: Position) -> _Lengths | None:
    """Find the token lengths of a run's recipe, which may have other documents than `opened`."""
    found = opened.lengths
    if not _has_documents_of(recipe, opened.recipe):
        found = find_resumed_lengths(recipe, opened.asked_lengths, found)
    return None if found is None else _Lengths(found, recipe, opened.cache_root, start)


def _has_documents_of(recipe: Recipe, other: Recipe) -> bool:
    """Whether two recipes of one loader have the same documents, so the same lengths hold."""
    is_same_data = recipe.corpus is other.corpus and recipe.selected == other.selected
    return is_same_data and recipe.chats == other.chats


def _log_resumed(run: CurrentRun, saved: Saved) -> None:
    """Log the data that the resumed run leaves out, and a change of the tokenizer backend."""
    log_left_out([stream.label for stream in run.recipe.config.streams], run.recipe.corpus)
    if saved.tokenizer_backend != run.backend.versions:
        logger.info(
            "the state was saved with %s. The run continues with %s, %s",
            saved.tokenizer_backend,
            run.backend.versions,
            "which produces the same IDs for a fixed set of texts"
            if "token_ids" in saved.fields
            else "whose IDs cannot be compared, because the state has no token_ids",
        )


def log_left_out(labels: Sequence[str], corpus: Corpus) -> None:
    """Log the shards of each stream that a resumed run leaves out."""
    for label, dataset in zip(labels, corpus.datasets, strict=True):
        if dataset.num_left_out:
            count = len(dataset.shards)
            logger.info(
                f"{label}: this run reads only the first {count:,} of "
                f"{count + dataset.num_left_out:,} shards, because the others were added after it "
                "began. A new run reads all shards"
            )
