"""The loader: opens the data and the tokenizer, iterates over batches, saves and resumes.

options ─► recipe ─► plan ─► iteration ─► log of positions ─► state_dict()
             ▲                                                    │
             └──────────────── load_state_dict() ◄────────────────┘
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from cloudload.arrays import Ints
from cloudload.batch import Batch
from cloudload.cache.folder import check_cache_folder, default_cache, open_cache_folder
from cloudload.config.checks import check_positive
from cloudload.config.choices import (
    AUTO,
    LEARN,
    OnError,
    Overflow,
    PackingName,
    ShuffleAlgorithm,
    StartMethod,
    Stopping,
    TailMode,
    TokenDtype,
    TokenizerBackend,
    Verification,
)
from cloudload.config.delivery import DeliveryConfig
from cloudload.config.options import read_options
from cloudload.config.rows import TEXT_KEY, RowsConfig
from cloudload.config.stream import Stream
from cloudload.config.transform import Transform
from cloudload.delivery.agreement import check_can_end, list_facts
from cloudload.delivery.description import Description, describe
from cloudload.delivery.environment import current_environment
from cloudload.delivery.exchange import Exchange
from cloudload.delivery.iteration import Iteration
from cloudload.delivery.known_lanes import KnownLanes
from cloudload.delivery.passes import (
    WORKING,
    Pass,
    count_passes,
    count_rows_per_pass,
    reason_to_refuse_caller,
)
from cloudload.delivery.run_log import RunLog
from cloudload.delivery.start_log import StartLog
from cloudload.delivery.working_set import (
    check_cache_limit,
    explain_later_working_set,
    open_current_orders,
)
from cloudload.delivery.world import (
    World,
    check_world,
    count_cores,
    default_num_workers,
    explain_few_cores,
    place_in_mesh,
)
from cloudload.errors import RanksDisagreeError
from cloudload.lengths.files import CorpusLengths
from cloudload.lengths.open import find_lengths, find_lengths_of_beginning, open_lengths
from cloudload.lengths.run_lengths import RunLengths
from cloudload.option_docs import explained_by
from cloudload.option_names import suggests_names
from cloudload.packing.tables import SPAN_ROW
from cloudload.packing.tail import next_stages
from cloudload.run.appended import describe_left_out, keep_beginning
from cloudload.run.position import Position, join_ranges
from cloudload.run.recipe import Recipe, open_recipe
from cloudload.run.resume import keep_framing, resume_mixture, resume_position
from cloudload.run.state import State, build_state, mask_lanes, read_state
from cloudload.run.streaming_state import start_from_streaming
from cloudload.stats import Stats
from cloudload.storage.base import Retry
from cloudload.streaming_arguments.objects import adopt_streaming
from cloudload.system.activity import Wait
from cloudload.tokenization.backend import choose_backend
from cloudload.workers.plan import Foreseen, Measuring, Mixed, Phase, Plan, Steady
from cloudload.workers.trace import TracedSpan, Tracer

if TYPE_CHECKING:
    from cloudload.count.learn import LengthsLearner

logger = logging.getLogger(__name__)

_NO_DATASET = "A CloudLoader is not a dataset: iterate over it, and do not wrap it in a DataLoader"


@explained_by(RowsConfig, DeliveryConfig)
class CloudLoader:
    """Batches of packed token rows, straight from MDS shards of raw text or of token IDs.

    Restarts and the world size do not affect the rows. Iterating starts at the loader's position:
    the start of the run, the end of the last batch handed out or skipped, or where
    `load_state_dict` or `seek` put it. It continues to the end of the run, or until `stop_every`
    ends the pass. A loader has one live iterator: the first batch of a new one ends the old one,
    which then raises `WorkerError`. Dropping an iterator before its end also ends its workers. Once
    a finite run has ended, iterating yields nothing.

    Args:
        data: URL or folder of an MDS dataset, a `Stream`, or a list of them, which is read as one
            corpus, or mixed if its streams have proportions or there is a `schedule`. Also a
            `StreamingDataset`, whose settings become options of the loader, or a list of
            `streaming.Stream`, whose proportions set how many samples an epoch reads.
        tokenizer: name on the Hugging Face Hub, folder, path of a tokenizer.json,
            `PreTrainedTokenizerFast`, or `tokenizers.Tokenizer`. It may be omitted if all data is
            pre-tokenized (`tokens_key`). If you pass one, token IDs are checked against its
            vocabulary.
        device_mesh: a `DeviceMesh` whose dimensions are all data-parallel, instead of `dp_rank` and
            `dp_world_size`.
        {options}

    The other arguments are fields of `cloudload.config.RowsConfig` or `DeliveryConfig`.
    `RowsConfig` determines which tokens are read and in which order, so a state must match it, with
    the exceptions that `load_state_dict` lists. `DeliveryConfig` determines how rows are delivered,
    and may change on every resume.

    Raises:
        ValueError: if an argument is invalid or contradicts another. The message says what to use.
        CloudloadError: if the data, the tokenizer, or a store cannot be used; see
            `cloudload.errors`.
    """

    @suggests_names
    def __init__(
        self,
        data: str | os.PathLike[str] | Stream | Sequence[str | Stream],
        *,
        tokenizer: Any = None,
        seq_len: int,
        batch_size: int,
        local: str | os.PathLike[str] | None = None,
        packing: PackingName = "concat",
        open_rows: int = 16,
        overflow: Overflow = "cut",
        schedule: Sequence[tuple[int, Mapping[str, float]]] | None = None,
        stopping: Stopping = "all",
        shuffle: bool = True,
        seed: int = 17,
        shuffle_algo: ShuffleAlgorithm = "py1e",
        shuffle_block_size: int | None = None,
        num_canonical_nodes: int | None = None,
        num_lanes: int | None = None,
        epochs: int | None = None,
        text_key: str = TEXT_KEY,
        tokens_key: str | None = None,
        tokens_dtype: TokenDtype | None = None,
        transform: Transform | None = None,
        transform_id: str | None = None,
        min_tokens: int = 0,
        on_error: OnError = "raise",
        bos: str | int | None = AUTO,
        eos: str | int | None = AUTO,
        tail: TailMode = "pad",
        fields: Sequence[str] = (),
        mask_edges: bool = False,
        tokenizer_backend: TokenizerBackend = "auto",
        num_workers: int | None = None,
        prefetch_batches: int = 4,
        predownload: int | None = None,
        download_threads: int = 4,
        cache_limit: int | str | None = None,
        lengths: str | os.PathLike[str] = "auto",
        verify: Verification = "once",
        retry: Retry | None = None,
        stop_every: int | Literal["epoch"] | None = None,
        exchange_every: int = 1,
        exchange_timeout_s: float = 1800.0,
        start_method: StartMethod | None = None,
        pin_memory: bool = False,
        dp_rank: int | None = None,
        dp_world_size: int | None = None,
        device_mesh: Any = None,
    ) -> None:
        options, created_at = dict(locals()), time.monotonic()
        if device_mesh is not None:
            if dp_rank is not None or dp_world_size is not None:
                raise ValueError(
                    "device_mesh sets dp_rank and dp_world_size, but dp_rank is "
                    f"{dp_rank} and dp_world_size is {dp_world_size}. Pass either the mesh or "
                    "these two"
                )
            options["dp_rank"], options["dp_world_size"] = place_in_mesh(device_mesh)
        options = adopt_streaming(options, _find_defaults(), retry or Retry())
        self._asked, self._delivery = read_options({**options, "has_mesh": device_mesh is not None})
        self._environment = current_environment()
        self._is_first = self._environment.is_first_process(self._delivery)
        self._start_log = StartLog(created_at, is_shown=self._is_first)
        local = self._delivery.local
        self._cache_root = Path(local).expanduser() if local else default_cache()
        check_cache_folder(self._cache_root, [stream.url for stream in self._asked.streams])
        self._opened = self._recipe = open_recipe(
            self._asked, tokenizer, self._delivery.retry, self._cache_root
        )
        asked_backend = self._delivery.tokenizer_backend
        text = self._recipe.tokenizer.json if self._recipe.has_text else ""
        self._backend = choose_backend(text, asked_backend, self._cache_root)
        self._start_log.log_opened(self._recipe, self._backend)
        self._exchange: Exchange | None = None
        self._knows_all_lanes, self._is_resumed = True, False
        self._has_counted_cores = self._has_measured = False
        self._ranks_per_node: int | None = None
        # a weak reference, so that an abandoned iteration ends its workers; `_kept` keeps an
        # iteration alive between passes
        self._iteration: Callable[[], Iteration | None] = _no_iteration
        self._kept: Iteration | None = None
        self._tracer: Tracer | None = None
        self._run_lengths: RunLengths | None = None
        self._learner: LengthsLearner | None = None
        self._has_jumped = False
        self._log = RunLog(Position.start(self._recipe))
        self._opened_lengths = self._found_lengths = find_lengths(
            self._recipe, os.fspath(self._delivery.lengths), self._delivery.retry
        )
        self._check_world(self.num_lanes)

    # ------------------------------------------------------------ iterating

    def __iter__(self) -> Iterator[Batch]:
        return Pass(self, reason=reason_to_refuse_caller())

    def take(self, number: int) -> Iterator[Batch]:
        """Iterate over the next `number` batches, or fewer if the data ends first.

        Ignores `stop_every`.
        """
        return itertools.islice(Pass(self, has_stop=False), number)

    def skip(self, number: int) -> None:
        """Skip the next `number` global batches, or fewer if the data ends first.

        Call it on every rank with the same `number`. Without token lengths, skipped rows are still
        read, because later rows begin where they end. They count as `skipped_rows`, and the state
        records them.
        """
        with Wait(self._report_wait, WORKING):
            iteration = self._iteration()
            if iteration is None or iteration.is_over:
                if number > 0 and (found := self._advance_batches(number)) is not None:
                    self._log.record(found)
                    return
                iteration = self._iterate()
            iteration.skip(number)

    def _report_wait(self, waited_s: float, what: str) -> None:
        """Log that a batch has not arrived after `waited_s`, because of `what`."""
        world = self._find_world()
        rank = f"rank {world.rank} " if world.size > 1 else ""
        logger.warning("%swaited %.0f s for a batch: %s", rank, waited_s, what)

    def _advance_batches(self, number: int) -> Position | None:
        """The position after `number` skipped batches; None if lengths do not determine it."""
        before, size = self._log.position, self._delivery.batch_size * self._find_world().size
        stop = before.rows + number * size
        found = self._advance(before, stop)
        if found is None:
            return None
        return replace(
            found,
            skipped=join_ranges(before.skipped, (before.rows, stop)),
            batches=before.batches + number,
            global_batch=size,
        )

    def _start_iteration(self) -> Iteration:
        """Return the previous pass's iteration if it can continue, otherwise a new one."""
        kept, self._kept = self._kept, None
        return kept or self._iterate()

    def _keep_iteration(self, iteration: Iteration) -> None:
        """Keep an iteration for the next pass unless it is over. Its workers keep reading ahead."""
        self._kept = None if iteration.is_over else iteration

    def _count_passes(self, position: Position | None = None) -> int:
        """Count the passes completed at a position; by default, at the current one."""
        if self._delivery.stop_every is None:
            return 0  # called for each batch, and finding the world takes tens of microseconds
        position = position or self._log.position
        return count_passes(position, self._recipe, self._delivery, self._find_world())

    def _count_rows_per_pass(self) -> int:
        """Return the number of rows in a pass; 0 if `stop_every` is not a number of batches."""
        return count_rows_per_pass(self._delivery, self._find_world())

    @property
    def is_at_stop(self) -> bool:
        """Whether the last batch handed out or skipped completed a pass of `stop_every`."""
        before, after = self._log.last_step
        return self._count_passes(after) > self._count_passes(before)

    @property
    def is_endless(self) -> bool:
        """Whether a pass never ends, because the run is endless, and there is no `stop_every`."""
        if self._delivery.stop_every is None and self._recipe.has_stream_ends:
            return self._count_all_rows() is None
        return self._asked.epochs is None and self._delivery.stop_every is None

    def __len__(self) -> int:
        """Number of batches in a full pass, or in the whole run without `stop_every`.

        With stop_every=N it is N. Without `stop_every`, it is known for a finite run that has token
        lengths (see `lengths`), or in which every document becomes exactly one row. Raises
        `TypeError` if it is unknown, as with stop_every="epoch".
        """
        if isinstance(self._delivery.stop_every, int):
            return self._delivery.stop_every
        rows = None if self._delivery.stop_every is not None else self._count_all_rows()
        if rows is None:
            raise TypeError(
                f"{_NO_DATASET}. Its number of batches is known only with stop_every=N (see "
                "count_batches for an epoch); or with epochs=N and token lengths, which cloudload "
                "count makes; or if every document is "
                "one row: packing='one_per_row', overflow='cut', epochs=N, a bos or eos, and no "
                "transform, stop_every, or min_tokens above 1"
            )
        global_batch = self._delivery.batch_size * self._find_world().size
        return rows // global_batch if self._delivery.tail == "drop" else -(-rows // global_batch)

    def count_batches(self, epochs: int = 1) -> int:
        """Return the number of global batches in `epochs` epochs of the data.

        Pass it as `stop_every`, or as a number of steps, to make an epoch of the data an epoch of a
        training framework. The last batch may not be full. Needs token lengths (see `lengths`),
        unless every document becomes exactly one row. For a mixture, this is the number of batches
        with `epochs=N`, the streams' `max_epochs`, and `stopping`. Raises `ValueError` if the
        number is unknown, as for a mixture with `best_fit`, and if `epochs` is below 1.
        """
        if epochs < 1:
            raise ValueError(f"epochs is {epochs}. It must be at least 1")
        lengths = self._open_run_lengths()
        rows = None if lengths is None else lengths.count_rows_of_epochs(epochs)
        if self._recipe.has_row_per_document:
            rows = epochs * self._recipe.components[0].lanes.num_positions
        if rows is None:
            raise ValueError(
                "the number of batches in an epoch is unknown, because there are no token lengths, "
                "or because best_fit packs a mixture. Run cloudload count, or choose a number of "
                "batches"
            )
        return -(-rows // (self._delivery.batch_size * self._find_world().size))

    def _count_all_rows(self) -> int | None:
        """The number of rows of a finite run, at its current `seq_len`; None if it is unknown."""
        if self._asked.epochs is None and not self._recipe.has_stream_ends:
            return None
        origin = self._log.position.origin
        if self._asked.epochs is not None and self._recipe.has_row_per_document:
            lanes = self._recipe.components[0].lanes
            return self._asked.epochs * lanes.num_positions - origin.count_documents(lanes)
        lengths = self._open_run_lengths()
        return None if lengths is None else lengths.count_rows(Position.start(self._recipe, origin))

    def __bool__(self) -> bool:
        return True  # otherwise Python would call len(), which may raise

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(_NO_DATASET)

    def plan(self) -> Plan:
        """Create the plan for this rank's workers, starting at the current position.

        Also creates the cache folder and builds the orders of the current epochs. Raises
        `CacheError` if the cache folder cannot be used, if an order cannot be written, or if
        `cache_limit` is below the working set. Raises `ValueError` if the world size does not
        divide `num_lanes`, unless token lengths allow any world size.
        """
        plan, world = self._plan(), self._find_world()
        asked = self._delivery.num_workers
        if asked and self._is_first:
            self._explain_num_workers(asked, plan.num_workers, world)
        open_cache_folder(self._cache_root)
        began = time.monotonic()
        orders = open_current_orders(plan, world)
        self._start_log.log_order(plan, time.monotonic() - began)
        check_cache_limit(plan, world, orders)
        return plan

    def _explain_num_workers(self, asked: int, used: int, world: World) -> None:
        if used < asked:
            message = "using %d workers instead of %d, because the rank has no more lanes"
            logger.info(message, used, asked)
        if not self._has_counted_cores:
            self._has_counted_cores = True
            warning = explain_few_cores(used, world.ranks_per_node, *count_cores())
            if warning is not None:
                logger.warning("%s", warning)

    def _plan(self) -> Plan:
        world, position = self._find_world(), self._log.position
        if position.table_rows < position.rows:
            position = self._advance(position, position.rows) or position
        self._check_world(self.num_lanes)
        phase: Phase = Steady() if position.tail is None else Measuring(position.table_rows)
        lengths = self._open_run_lengths()
        if self._recipe.has_stream_ends:
            assert lengths is not None, "without lengths, the ends of the streams would be lost"
            phase = Mixed(lengths.find_tails(position).ending)
        lanes_of_rank = max(1, self.num_lanes // world.size)
        num_workers = self._delivery.num_workers
        if num_workers is None:
            num_workers = default_num_workers(world.ranks_per_node, *count_cores())
        return Plan(
            recipe=self._recipe,
            delivery=self._delivery,
            backend=self._backend,
            cache_root=self._cache_root,
            world_index=world.index,
            world_size=world.size,
            hosts=world.hosts,
            num_workers=min(max(1, num_workers), lanes_of_rank),
            position=position,
            phase=phase,
            lengths=self._lengths,
            has_jumped=self._has_jumped and self._is_first,
        )

    @functools.cached_property
    def _lengths(self) -> CorpusLengths | None:
        """The lengths of the samples, or None. Reads them into the cache folder if needed."""
        if self._found_lengths is None:
            return None
        open_cache_folder(self._cache_root)
        return open_lengths(
            self._found_lengths, self._recipe.corpus, self._cache_root, self._delivery.retry
        )

    def _advance(self, position: Position, row: int, *, pads: bool = False) -> Position | None:
        """The position at a later row; None if lengths do not determine it.

        `pads` is as for `RunLengths.advance`.
        """
        lengths = self._open_run_lengths()
        found = None if lengths is None else lengths.advance(position, row, pads=pads)
        self._has_jumped |= found is not None and row > position.table_rows
        return found

    def _open_run_lengths(self) -> RunLengths | None:
        """The lengths of the current recipe's run, or None if there are none."""
        if self._lengths is None:
            return None
        if self._run_lengths is None or self._run_lengths.recipe is not self._recipe:
            self._run_lengths = RunLengths(self._recipe, self._cache_root, self._lengths)
            self._recipe = self._run_lengths.settle(self._log.position)
        return self._run_lengths

    def _settle(self) -> None:
        """Find the ends of a mixture's streams, after which they have weight 0."""
        if self._recipe.has_stream_ends:
            self._open_run_lengths()

    def _iterate(self) -> Iteration:
        self._stop_iteration("another was started")
        self._start_log.begin_iteration()
        open_blocks = self._environment.open_blocks
        plan, exchange = self._connect()
        plan = self._foresee(plan, exchange)
        known = self._find_known(plan, exchange)
        self._warn_of_drift(plan)
        self._check_alone(exchange, known)
        on_end = None
        if (learner := self._open_learner()) is not None:
            plan, on_end = replace(plan, learned=learner.learned), learner.publish_soon
        iteration = Iteration(
            *(plan, exchange, self._log, self._start_log, open_blocks), known=known, on_end=on_end
        )
        self._iteration = weakref.ref(iteration)
        self._has_jumped = False
        return iteration

    def _open_learner(self) -> LengthsLearner | None:
        """The lengths that the run learns; None if it has lengths, or `lengths` is not "learn"."""
        if self._delivery.lengths != LEARN:
            return None
        from cloudload.count.learn import forget_learned, open_learner

        world = self._find_world()
        if self._found_lengths is not None:
            forget_learned(self._recipe, self._cache_root)
        elif self._learner is None:
            self._learner = open_learner(
                self._recipe,
                self._cache_root,
                self._delivery.retry,
                has_other_nodes=len(set(world.hosts)) > 1,
                is_publisher=world.rank % world.ranks_per_node == 0,
            )
            if self._learner is not None:
                self._learner.start()
        return self._learner

    def _close_learner(self) -> None:
        if self._learner is not None:
            self._learner.close()
            self._learner = None

    def _connect(self) -> tuple[Plan, Exchange]:
        """Create the plan, and compare it with those of the other ranks."""
        plan, world = self.plan(), self._find_world()
        if self._exchange is None:
            self._exchange = self._environment.open_exchange(self._delivery)
        facts = list_facts(self._recipe, self._delivery, world, self._log.position, self._lengths)
        if self._exchange.compare(facts, world):
            return plan, self._exchange
        logger.info("some ranks found no token lengths, so the run uses none until it is resumed")
        self._found_lengths, self._run_lengths = None, None
        vars(self).pop("_lengths", None)
        return self._connect()

    def _warn_of_drift(self, plan: Plan) -> None:
        """Warn once if, according to the lengths, `cache_limit` is too small for later rows."""
        lengths = self._open_run_lengths()
        if lengths is None or not self._is_first or self._has_measured:
            return
        self._has_measured = True
        if (warning := explain_later_working_set(plan, lengths, self._find_world())) is not None:
            logger.warning("%s", warning)

    def _foresee(self, plan: Plan, exchange: Exchange) -> Plan:
        """Add the end of a finite run to its plan, if the lengths determine it."""
        lengths = self._open_run_lengths()
        if lengths is None or self._asked.epochs is None or isinstance(plan.phase, Mixed):
            return plan
        is_needed = (exchange.is_alone and plan.world_size > 1) or not plan.is_even
        if not lengths.can_foresee(plan.position, is_needed=is_needed):
            return plan
        return replace(plan, phase=Foreseen(lengths.find_ending(plan.position)))

    def _find_known(self, plan: Plan, exchange: Exchange) -> KnownLanes | None:
        """The lanes of all ranks, if there are several ranks and lengths determine the lanes."""
        lengths = self._open_run_lengths()
        if lengths is not None and isinstance(plan.phase, Mixed):
            return KnownLanes(lengths, plan.position)
        if plan.world_size == 1 or lengths is None:
            return None
        # computing all best_fit lanes takes time, and workers know their own lanes anyway
        is_exchanged = plan.recipe.packing.has_residue and plan.is_even and not exchange.is_alone
        is_known = isinstance(plan.phase, Foreseen) or self._asked.epochs is None
        return KnownLanes(lengths, plan.position) if is_known and not is_exchanged else None

    def _check_alone(self, exchange: Exchange, known: KnownLanes | None) -> None:
        """Warn ranks that cannot communicate, and refuse a run that they could not end together."""
        world = self._find_world()
        if world.size == 1 or not exchange.is_alone:
            return
        if known is None:
            check_can_end(self._recipe, self._delivery, world)
            if self._knows_all_lanes and self._delivery.dp_rank is None:
                logger.warning(
                    "torch.distributed is not initialized, so the %d ranks of WORLD_SIZE cannot "
                    "exchange cursors, and state_dict() will raise an error. Call "
                    "init_process_group before iterating, or save local_state_dict() on every rank",
                    world.size,
                )
        self._knows_all_lanes = known is not None

    def _check_world(self, num_lanes: int, size: int | None = None) -> None:
        """Raise `ValueError` if the ranks, or `size` ranks, cannot share `num_lanes` lanes."""
        has_lengths = self._found_lengths is not None
        check_world(num_lanes, size or self._find_world().size, has_lengths=has_lengths)

    def _find_world(self) -> World:
        world = self._environment.find_world(self._delivery)
        if self._ranks_per_node is None:
            return world
        return replace(world, ranks_per_node=min(self._ranks_per_node, world.size))

    def _stop_iteration(self, reason: str) -> None:
        iteration = self._iteration()
        if iteration is not None:
            iteration.close(reason)
        self._iteration, self._kept = _no_iteration, None

    # ------------------------------------------------------------ saving and resuming

    def state_dict(self, lag: int = 0) -> State:
        """Return the state after the last batch handed out, or `lag` batches (0 to 3) earlier.

        It is the same on every rank after the same batch, and requires no communication. `lag` is
        for loops that fetch batches ahead. Raises `RanksDisagreeError` if ranks that cannot
        communicate have read batches without token lengths. Then use `local_state_dict`. Raises
        `ValueError` for a `lag` that is out of range, or exceeds the number of batches since the
        loader was created, loaded a state, or was moved by `seek`.
        """
        position = self._log.past(lag)
        self._check_knows_all_lanes()
        self._settle()
        return build_state(self._recipe, position, self._backend.versions)

    def _check_knows_all_lanes(self) -> None:
        """Raise `RanksDisagreeError` if this rank does not know the cursors of other ranks."""
        if not self._knows_all_lanes and self._log.has_read:
            raise RanksDisagreeError(
                "the ranks cannot communicate, so no rank knows the whole state. Initialize "
                "torch.distributed before iterating, or save local_state_dict() on every rank and "
                "load merge_state_dicts([...])"
            )

    def local_state_dict(self, lag: int = 0) -> State:
        """Return this rank's part of the state, for ranks that cannot communicate.

        `merge_state_dicts` merges the parts of all ranks. With token lengths, you do not need this,
        because `state_dict` returns the whole state on such ranks, too. Raises `ValueError` for an
        invalid `lag`, as `state_dict` does.
        """
        self._settle()
        world = self._find_world()
        position = mask_lanes(self._log.past(lag), world.lanes(self.num_lanes))
        if world.index:
            # only rank 0's part has the statistics that all ranks know, so that the sum counts
            # them once
            known = position.counts if self._knows_all_lanes else self._log.started_at.counts
            position = position.with_lanes(counts=position.counts - known)
        part = f"{world.index}/{world.size}"
        return build_state(self._recipe, position, self._backend.versions, part)

    def load_state_dict(
        self, state: Mapping[str, Any], *, on_change: Mapping[str, str] | None = None
    ) -> None:
        """Continue from the position of a saved state.

        With token lengths, any world size works. Without them, it must divide the state's lanes.
        These may change, too:

        - All options of `DeliveryConfig`; and `seq_len`, if the state was saved at an exchange.
        - For mixed streams, proportions, the schedule, and `stopping`. You may also add streams at
          the end. These changes take effect with the next row.
        - `on_error`, if no document has failed so far, for example after a bad document ended the
          run.
        - The stored form of the data, such as its compression, if each shard has the same samples.
          The index of a converted dataset has hashes that show this. For other data,
          `on_change={"data": "same"}` says that the samples are the same.
        - Shards appended to the data. The run continues to read only its original shards.

        Any other change that could affect the rows is refused. If the state was saved at an
        exchange and before the tail of a finite run, you can accept changes of some fields:
        `on_change={"min_tokens": "accept"}`, and similarly `open_rows`, `epochs`, `max_epochs`,
        `on_error`, `data`, `tokenizer`, `token_ids`, `bos_eos`, `text_key`, `tokens_key`,
        `transform` and `overflow`. If one of the last eight changes, each lane drops the rest of
        the documents that it was reading. Once a stream of a mixture is in its tail, no change can
        be accepted.

        Raises `StreamChangedError` if the state is damaged or does not match. The message names the
        damaged field, or the fields that differ. Raises `ValueError` for an invalid `on_change` or
        a world size that cannot share the lanes.
        """
        saved = read_state(state)
        self._check_world(saved.layout.num_lanes)
        opened = keep_beginning(saved, self._opened)
        recipe = keep_framing(saved, opened.settle(saved.layout))
        position = resume_position(saved, recipe, on_change or {})
        self._use_recipe(replace(recipe, mixture=resume_mixture(saved, recipe)))
        for line in describe_left_out(recipe) if self._is_first else ():
            logger.info("%s", line)
        if state["tokenizer_backend"] != self._backend.versions and self._is_first:
            logger.info(
                "the state was saved with %s, and the run continues with %s, %s",
                state["tokenizer_backend"],
                self._backend.versions,
                "which gives the same IDs for fixed texts"
                if "token_ids" in state
                else "whose IDs cannot be compared, because the state has no token_ids",
            )
        self._stop_iteration("a state was loaded")
        self._log.start_at(position)
        self._knows_all_lanes = self._is_resumed = True

    def _use_recipe(self, recipe: Recipe) -> None:
        """Use a recipe, which may read fewer shards than the one before, and its lengths."""
        if recipe.corpus is not self._recipe.corpus:
            self._close_learner()
            self._found_lengths = (
                self._opened_lengths
                if recipe.corpus is self._opened.corpus
                else find_lengths_of_beginning(
                    recipe,
                    os.fspath(self._delivery.lengths),
                    self._delivery.retry,
                    self._opened_lengths,
                )
            )
            vars(self).pop("_lengths", None)
            if self._tracer is not None:
                self._tracer.close()
                self._tracer = None
        self._recipe = recipe

    def load_streaming_state(self, state: Mapping[str, Any]) -> None:
        """Start after exactly the samples that a StreamingDataset has read.

        `state` is its `state_dict()`, or a Composer checkpoint as `torch.load` returns it. The
        loader reads the remainder of that epoch in StreamingDataset's order, and then the next
        epochs. It needs the same data, shuffle, shuffle_algo, and seed (Streaming's shuffle_seed);
        the canonical nodes come from the state. Rows and statistics count from 0.

        Raises `StreamChangedError` if the state is damaged or cannot be continued, and `ValueError`
        if the ranks cannot share the lanes.
        """
        recipe, position = start_from_streaming(self._opened, state)
        self._check_world(recipe.num_lanes)
        self._use_recipe(recipe)
        self._opened = recipe
        self._stop_iteration("a state was loaded")
        self._log.start_at(position)
        self._knows_all_lanes = self._is_resumed = True

    def seek(self, rows: int) -> None:
        """Move to row `rows` of the run, which is then the first row of the next batch.

        With token lengths (see `lengths`), this reads nothing. Without them, the next iteration
        reads the rows in between and drops them. The statistics count them, unless row `rows` is in
        the tail of a finite run. Raises `ValueError` for a row before the loader's position.
        """
        position = self._find_position(rows)
        self._stop_iteration("the loader was moved by seek")
        self._log.move_to(position)

    def _find_position(self, rows: int) -> Position:
        """The position at a row. Raises `ValueError` if the row is before the loader's position."""
        position = self._log.position
        if rows < position.rows:
            raise ValueError(
                f"rows is {rows:,}, but the loader is already at row {position.rows:,}. Load an "
                "earlier state"
            )
        pads = self._recipe.has_stream_ends
        if (found := self._advance(position, rows, pads=pads)) is not None:
            return found
        tail = position.tail
        tail = tail and next_stages(tail, self._asked.seq_len, position.table_rows, rows)
        return replace(position, rows=rows, tail=tail)

    def set_world(
        self,
        rank: int,
        size: int,
        *,
        rows: int | None = None,
        batch_size: int | None = None,
        ranks_per_node: int | None = None,
    ) -> None:
        """Change the data-parallel world between two batches, without a restart of the process.

        Call it on all ranks of the new world, with the same arguments except for `rank`. A rank
        that joins must first call `load_state_dict` with the state of another rank. If
        torch.distributed is initialized, first form a new process group of exactly these ranks.
        The new world applies from the next batch, even during a pass. Batches read ahead are
        dropped and read again, so no row is lost or repeated.

        Args:
            rank: the data-parallel rank of this process in the new world.
            size: the number of data-parallel ranks. Without token lengths (see `lengths`), it must
                divide `num_lanes`.
            rows: the first row of the next batch, which is the value of `rows` after the last step
                that all ranks agree on. It may be up to 3 batches back, or ahead, as for `seek`. By
                default, the row after the last batch handed out.
            batch_size: a new number of rows per rank and step.
            ranks_per_node: the number of ranks per node, which affects only which node downloads
                which shards. By default, as for a new loader in this process.

        Raises `ValueError` for a world that cannot share the lanes, and for `rows` further back;
        `RanksDisagreeError` if no rank knows the whole state; and `CacheError` if `cache_limit` is
        below the working set in the new world. The world is then unchanged.
        """
        kept = self._delivery
        if batch_size is None:
            batch_size = kept.batch_size
        delivery = replace(kept, dp_rank=rank, dp_world_size=size, batch_size=batch_size)
        if ranks_per_node is not None:
            check_positive("ranks_per_node", ranks_per_node)
        World(rank, size, 1)
        self._check_world(self.num_lanes, size)
        self._check_knows_all_lanes()
        position = self._log.position if rows is None else self._log.find(rows)
        position = position or self._find_position(rows or 0)
        self._check_cache_limit(delivery, ranks_per_node)
        if (iteration := self._iteration()) is not None:
            iteration.replace()
        self._iteration, self._kept = _no_iteration, None
        self._close_exchange()
        self._close_learner()  # another rank may publish in the new world
        self._delivery, self._ranks_per_node = delivery, ranks_per_node
        self._is_first = self._environment.is_first_process(delivery)
        self._log.move_to(position)
        if self._is_first:
            logger.info("from row %s on, there are %d ranks", f"{position.rows:,}", size)

    def _check_cache_limit(self, delivery: DeliveryConfig, ranks_per_node: int | None) -> None:
        """Raise `CacheError` if `cache_limit` is below the working set in a changed world."""
        if delivery.cache_limit_bytes() is None:
            return
        before = self._delivery, self._ranks_per_node, self._has_jumped
        self._delivery, self._ranks_per_node = delivery, ranks_per_node
        try:
            plan, world = self._plan(), self._find_world()
            open_cache_folder(self._cache_root)
            check_cache_limit(plan, world, open_current_orders(plan, world))
        finally:
            self._delivery, self._ranks_per_node, self._has_jumped = before

    # ------------------------------------------------------------ inspecting and closing

    @property
    def recipe(self) -> Recipe:
        """The definition of the run: its data, tokenizer, layout and mixture."""
        return self._recipe

    @property
    def num_lanes(self) -> int:
        """Number of lanes of the run."""
        return self._recipe.num_lanes

    @property
    def stream_names(self) -> tuple[str, ...]:
        """The names of the streams. A stream's index is its ID in `fields=["stream_ids"]`."""
        return tuple(self._recipe.labels)

    def steps_of(self, rows: Ints) -> Ints:
        """The steps (from 1) that trained on rows, given by their indices in the run."""
        return self._log.position.steps_of(rows)

    @property
    def batch_size(self) -> int:
        """Number of rows per rank and step."""
        return self._delivery.batch_size

    @property
    def world_size(self) -> int:
        """Number of data-parallel ranks."""
        return self._find_world().size

    @property
    def seq_len(self) -> int:
        """Number of tokens per row."""
        return self._asked.seq_len

    @property
    def vocab_size(self) -> int:
        """The tokenizer's largest token ID, plus 1. Raises `ValueError` without a tokenizer."""
        if not self._recipe.tokenizer.json:
            raise ValueError(
                "the loader has no tokenizer, so the vocabulary is not known. Pass the tokenizer "
                "that made the token IDs"
            )
        return self._recipe.tokenizer.vocab_size

    @property
    def rows(self) -> int:
        """Number of rows that all ranks together have handed out, skipped, or passed by `seek`."""
        return self._log.position.rows

    @property
    def num_samples(self) -> int:
        """Number of samples in the data. `repeat` and `choose` do not change it."""
        return self._recipe.corpus.num_samples

    def stats(self) -> Stats:
        """Return the statistics of the run up to the last batch handed out or skipped.

        With `exchange_every` above 1, the counts of tokens and documents cover the run only up to
        the last exchange. Ranks that cannot communicate add only their own rows to these counts,
        unless they have token lengths. `delivery` covers this rank since this loader was created.
        """
        return self._log.stats(self._recipe, self._backend)

    def describe(self) -> Description:
        """Return the values that the loader resolved, and the source of each. Prints as a table.

        Builds the orders of the lanes' current epochs, as iterating does.
        """
        return describe(repr(self), self._plan(), self._find_world(), is_resumed=self._is_resumed)

    def trace(self, batch: Batch, row: int | None = None) -> list[TracedSpan]:
        """Find the documents of a batch, or of one of its rows (0 is the first), in the data.

        Returns one `TracedSpan` for each span, in the order of `batch.spans`. Raises `ValueError`
        for a row that the batch does not have, and for a copy of a batch's tensors. Raises
        `CloudloadError` if a document cannot be read.
        """
        rows = batch.rows
        if row is not None and not 0 <= row < len(rows):
            raise ValueError(f"row is {row}. Use 0 to {len(rows) - 1}, the rows of the batch")
        spans = batch.spans if row is None else batch.spans[batch.spans[:, SPAN_ROW] == row]
        return self.open_tracer().trace(spans, rows)

    def open_tracer(self) -> Tracer:
        """Return the reader of the documents of batches. It is created once, and `close` ends it.

        Raises the errors of `plan`.
        """
        if self._tracer is None:
            self._tracer = Tracer(self.plan())
        return self._tracer

    def close(self) -> None:
        """End the workers and close the connections.

        You can still save the state. Iterating starts the workers again.
        """
        self._stop_iteration("the loader was closed")
        self._close_learner()
        if self._tracer is not None:
            self._tracer.close()
            self._tracer = None
        self._close_exchange()

    def _close_exchange(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    def __enter__(self) -> CloudLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        streams, data = ", ".join(self._recipe.labels), self._recipe.fields["data"][:12]
        return (
            f"CloudLoader({streams}, {self.num_lanes} lanes, {self.rows} rows handed out, "
            f"data {data})"
        )


@functools.cache
def _find_defaults() -> Mapping[str, Any]:
    """The default of each argument of `CloudLoader`."""
    parameters = inspect.signature(CloudLoader).parameters
    return {name: parameter.default for name, parameter in parameters.items()}


def _no_iteration() -> None:
    """Return None, as a dead weak reference to an iteration does."""
