"""The loader: what users hold. It opens data and tokenizer, settles what was left open, iterates,
saves and resumes.

arguments ─► corpus, components, mixture ─► plan ─► batches ─► position ─► state_dict()
                                             ▲                               │
                                             └───────── load_state_dict() ◄──┘
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from cloudload.arrays import NEVER, Ints
from cloudload.batch import Batch
from cloudload.cache.folder import default_cache, open_cache_folder
from cloudload.config import AUTO, EPOCH, ONCE, DeliveryConfig, RowsConfig, Stream, Transform
from cloudload.delivery.exchange import DistributedExchange, Exchange, NoExchange
from cloudload.delivery.iteration import Batches
from cloudload.delivery.passes import Pass, reason_to_refuse_caller
from cloudload.delivery.working_set import check_cache_limit
from cloudload.delivery.world import World, check_world, find_world, place_in_mesh
from cloudload.errors import RanksDisagreeError
from cloudload.packing.tables import CURSOR_ORDINAL, SPAN_ROW
from cloudload.packing.tail import next_stages
from cloudload.run.position import Position
from cloudload.run.recipe import open_recipe
from cloudload.run.resume import resume_position
from cloudload.run.state import State, build_state, mask_lanes, read_state
from cloudload.stats import COUNTS, READ, TOKENS, DeliveryMeter, Stats, StreamStats
from cloudload.storage.base import Retry
from cloudload.tokenization.backend import choose_backend
from cloudload.workers.plan import Plan
from cloudload.workers.processes import BatchParts, inline_blocks, process_blocks
from cloudload.workers.trace import TracedSpan, Tracer

logger = logging.getLogger(__name__)
_HISTORY = 4
_NO_DATASET = "A CloudLoader is no dataset: iterate over it, and do not wrap it in a DataLoader"


class CloudLoader:
    """Batches of packed token rows, straight from MDS shards of raw text; exact to the token across
    restarts and world sizes.

    Iterating goes on from where the loader stands: after the last batch handed out, or where
    `load_state_dict` put it, to the end of the run, or to where `stop_every` has a pass end. A
    loader has one live iterator: when a new one is first asked for a batch it ends the old, which
    raises if it is asked on, and one that nobody holds has ended, with its workers. After the last
    batch of `epochs` there is nothing left to iterate.

    Args:
        data: URL or folder of an MDS dataset, a `Stream`, or a list of them: read as one corpus,
            or, where they have
            proportions, mixed.
        tokenizer: name, folder, tokenizer.json, or `PreTrainedTokenizerFast`.
        seq_len: tokens a row.
        batch_size: rows per rank and step. The global batch is `batch_size` times the number of data-parallel ranks.
        retry: how long the object store is tried (`cloudload.Retry`).

    The other arguments are the fields of `RowsConfig` (which tokens, in which order: held fixed by
    a state) and of `DeliveryConfig` (how they arrive: free to change at every resume) in
    `cloudload.config`.

    Raises:
        ValueError: arguments that do not fit together; says what would.
        CloudloadError: data, tokenizer, store or state that cannot be used; see `cloudload.errors`.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | Stream | Sequence[str | Stream],
        *,
        tokenizer: Any,
        seq_len: int,
        batch_size: int,
        local: str | os.PathLike[str] | None = None,
        packing: str = "concat",
        open_rows: int = 16,
        overflow: str = "cut",
        schedule: Sequence[tuple[int, Mapping[str, float]]] | None = None,
        shuffle: bool = True,
        seed: int = 17,
        shuffle_algo: str = "py1e",
        shuffle_block_size: int | None = None,
        num_canonical_nodes: int | None = None,
        num_lanes: int | None = None,
        epochs: int | None = None,
        text_key: str = "text",
        transform: Transform | None = None,
        min_tokens: int = 0,
        bos: str | None = AUTO,
        eos: str | None = AUTO,
        tail: str = "pad",
        fields: Sequence[str] = (),
        mask_edges: bool = False,
        tokenizer_backend: str = AUTO,
        num_workers: int = 4,
        prefetch_batches: int = 4,
        predownload: int | None = None,
        download_threads: int = 4,
        cache_limit: int | str | None = None,
        verify: str = ONCE,
        retry: Retry | None = None,
        stop_every: int | str | None = None,
        exchange_every: int = 1,
        exchange_timeout_s: float = 1800.0,
        start_method: str | None = None,
        pin_memory: bool = False,
        dp_rank: int | None = None,
        dp_world_size: int | None = None,
        device_mesh: Any = None,
    ) -> None:
        if device_mesh is not None:
            if dp_rank is not None or dp_world_size is not None:
                raise ValueError(
                    "device_mesh says what dp_rank and dp_world_size say: "
                    "give the one or the others"
                )
            dp_rank, dp_world_size = place_in_mesh(device_mesh)
        self._has_mesh = device_mesh is not None
        self._asked = RowsConfig(
            streams=_as_streams(data),
            seq_len=seq_len,
            packing=packing,
            open_rows=open_rows,
            overflow=overflow,
            schedule=None if schedule is None else tuple(schedule),
            shuffle=shuffle,
            shuffle_algo=shuffle_algo,
            shuffle_block_size=shuffle_block_size,
            num_canonical_nodes=num_canonical_nodes,
            seed=seed,
            num_lanes=num_lanes,
            epochs=epochs,
            text_key=text_key,
            transform=transform,
            min_tokens=min_tokens,
            bos=bos,
            eos=eos,
        )
        self._delivery = DeliveryConfig(
            batch_size=batch_size,
            tail=tail,
            fields=(fields,) if isinstance(fields, str) else tuple(fields),
            mask_edges=mask_edges,
            local=None if local is None else str(local),
            tokenizer_backend=tokenizer_backend,
            num_workers=num_workers,
            prefetch_batches=prefetch_batches,
            predownload=predownload,
            download_threads=download_threads,
            cache_limit=cache_limit,
            verify=verify,
            retry=retry or Retry(),
            stop_every=stop_every,
            # where data ends a pass, the ranks must agree on its last batch before it is handed out
            exchange_every=exchange_every if epochs is None and stop_every != EPOCH else 1,
            exchange_timeout_s=exchange_timeout_s,
            start_method=start_method,
            pin_memory=pin_memory,
            dp_rank=dp_rank,
            dp_world_size=dp_world_size,
        )
        if stop_every == EPOCH and self._asked.is_mixed:
            raise ValueError(
                f"stop_every is {EPOCH!r}, but streams that are mixed by proportion each have "
                "epochs of their own. "
                "Give a number of batches"
            )
        if num_lanes is not None:
            check_world(num_lanes, self._find_world().size)
        self._opened = self._recipe = open_recipe(self._asked, tokenizer, self._delivery.retry)
        check_world(self.num_lanes, self._find_world().size)
        self._cache_root = (
            Path(self._delivery.local).expanduser() if self._delivery.local else default_cache()
        )
        self._backend = choose_backend(
            self._recipe.tokenizer.json, self._delivery.tokenizer_backend, self._cache_root
        )
        self._exchange: Exchange | None = None
        self._knows_all_lanes = True
        self._open_blocks: Callable[[Plan], Iterator[BatchParts]] = (
            process_blocks if num_workers else inline_blocks
        )
        # one that is dropped ends at once; only between two passes does the loader hold it
        self._iteration: Callable[[], Batches | None] = _nothing
        self._kept: Batches | None = None
        self._tracer: Tracer | None = None
        self._meter = DeliveryMeter()
        self._start_at(Position.start(self._recipe))

    def _start_at(self, position: Position) -> None:
        self._started_at, self._has_read = position, False
        self._dropped, self._uncounted = 0, np.zeros_like(position.counts)
        self._history: deque[Position] = deque([position], maxlen=_HISTORY)

    # ------------------------------------------------------------ iterating

    def __iter__(self) -> Iterator[Batch]:
        reason = reason_to_refuse_caller()
        return Pass(
            self._begin_pass if reason is None else partial(_refuse, reason),
            lambda: self._num_passes(self._history[-1]),
            self._keep,
        )

    def _begin_pass(self) -> Batches:
        kept, self._kept = self._kept, None
        return kept or self._iterate()

    def _keep(self, batches: Batches) -> None:
        """Between two passes the workers read on."""
        if not batches.is_over:
            self._kept = batches

    def _num_passes(self, position: Position) -> int:
        """The passes that are complete at a position."""
        every = self._delivery.stop_every
        if every is None:
            return 0
        if isinstance(every, int):
            # by rows: the same wherever the rows of a pass are, whatever the batches that they come
            # in
            return position.rows // (every * self._delivery.batch_size * self._find_world().size)
        [component] = self._recipe.components
        read = int(position.counts[:, READ].sum())
        # the last epoch ends with the run
        return min(read // component.lanes.num_positions, (self._asked.epochs or 1 << 62) - 1)

    @property
    def is_at_stop(self) -> bool:
        """Whether the batch last handed out was the last of a pass that `stop_every` ends."""
        return len(self._history) > 1 and self._num_passes(self._history[-1]) > self._num_passes(
            self._history[-2]
        )

    def _iterate(self) -> Batches:
        self._stop_iteration("another was begun")
        record, record_end = _weakly(self._record), _weakly(self._record_end)
        batches = Batches(
            self.plan(), self._connect(), record, record_end, self._open_blocks, meter=self._meter
        )
        self._iteration = weakref.ref(batches)
        return batches

    def take(self, number: int) -> Iterator[Batch]:
        """The next `number` batches, or fewer where the data ends; `stop_every` does not end
        them."""
        return itertools.islice(Pass(self._begin_pass, lambda: 0, self._keep), number)

    def skip(self, number: int) -> None:
        """Pass over the next `number` global batches: call it on every rank alike.

        Their rows are read, for only then is it known where they end; they are counted as
        `skipped_rows`, and recorded in the state. Fewer are passed over where the data ends.
        """
        batches = self._iteration()
        if batches is None or batches.is_over:
            batches = self._iterate()
        batches.skip(number)

    @property
    def is_endless(self) -> bool:
        """Whether a pass has no end."""
        return self._asked.epochs is None and self._delivery.stop_every is None

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(_NO_DATASET)

    def __bool__(self) -> bool:
        return True  # and not what len() says, where it says anything

    def __len__(self) -> int:
        """Batches of a pass: `stop_every`, where it is a number; else those of the whole run with
        this batch size and world.

        These are known only where every document is a row of its own; raises `TypeError` everywhere
        else, for only the tokens can tell.
        """
        if isinstance(self._delivery.stop_every, int):
            return self._delivery.stop_every
        config = self._asked
        is_known = (
            config.packing == "one_per_row"
            and config.overflow == "cut"
            and config.epochs is not None
        )
        is_known = is_known and self._delivery.stop_every is None
        is_known = is_known and config.transform is None and config.min_tokens <= 1
        if not is_known or not all(
            bos is not None or eos is not None for bos, eos in self._recipe.tokenizer.frames
        ):
            raise TypeError(
                "how many batches there are is known only with stop_every=N, or with "
                "packing='one_per_row', overflow='cut' and "
                f"epochs=N. ({_NO_DATASET})"
            )
        rows = (config.epochs or 0) * self._recipe.components[0].lanes.num_positions
        global_batch = self._delivery.batch_size * self._find_world().size
        return rows // global_batch if self._delivery.tail == "drop" else -(-rows // global_batch)

    def plan(self) -> Plan:
        """What the workers of this rank are asked for from here on."""
        world, position = self._find_world(), self._history[-1]
        check_world(self.num_lanes, world.size)
        plan = Plan(
            recipe=self._recipe,
            delivery=self._delivery,
            backend=self._backend,
            cache_root=self._cache_root,
            world_index=world.index,
            world_size=world.size,
            num_workers=min(max(1, self._delivery.num_workers), self.num_lanes // world.size),
            position=position,
            is_measured=position.tail is not None,
            tail_start=NEVER if position.tail is None else position.table_rows,
        )
        if plan.num_workers < self._delivery.num_workers:
            logger.info(
                "%d workers, not %d: one for each lane of the rank",
                plan.num_workers,
                self._delivery.num_workers,
            )
        open_cache_folder(self._cache_root, self._recipe.corpus)
        self._prepare_orders(plan, world)
        return plan

    def _prepare_orders(self, plan: Plan, world: World) -> None:
        """Build the order of the epochs that the lanes stand in, here rather than in every
        worker."""
        current = []
        for component, cursors in zip(self._recipe.components, plan.position.cursors, strict=True):
            orders, lanes = component.orders(self._cache_root), component.lanes
            last = (lanes.epochs or 1 << 62) - 1
            epochs = {
                min(last, lanes.place(lane, int(cursors[lane, CURSOR_ORDINAL]))[0])
                for lane in world.lanes(self.num_lanes)
            }
            for epoch in sorted(epochs)[-2:]:
                order = orders(epoch)
            current.append(order)
        check_cache_limit(
            self._delivery.cache_limit_bytes(),
            self._recipe.corpus,
            self._recipe.components,
            current,
            world=world,
            downloads_at_once=plan.num_workers
            * world.ranks_per_node
            * self._delivery.download_threads,
        )

    def _connect(self) -> Exchange:
        world, position = self._find_world(), self._history[-1]
        if self._exchange is None:
            self._exchange = (
                DistributedExchange(self._delivery.exchange_timeout_s)
                if self._can_exchange()
                else NoExchange()
            )
        is_alone = world.size > 1 and isinstance(self._exchange, NoExchange)
        if is_alone and (self._asked.epochs is not None or self._delivery.stop_every == EPOCH):
            end = f"epochs={self._asked.epochs}" if self._asked.epochs else "stop_every='epoch'"
            raise RanksDisagreeError(
                f"{end} on {world.size} ranks: to end on the same step they have to communicate. "
                f"Initialise torch.distributed before iterating, or leave {end.partition('=')[0]} "
                "out and use take(n)"
            )
        self._knows_all_lanes &= not is_alone
        residues = (
            b"" if position.residues is None else b"".join(position.residues.ravel().tolist())
        )
        self._exchange.compare(
            {
                **self._recipe.fields,
                "seq_len": self._asked.seq_len,
                "mixture": self._recipe.mixture.to_json(),
                "batch_size": self._delivery.batch_size,
                "tail": self._delivery.tail,
                "exchange_every": self._delivery.exchange_every,
                "stop_every": self._delivery.stop_every,
                "world_size": world.size,
                "LOCAL_WORLD_SIZE (set it to 1 where nodes have "
                "different numbers of ranks)": world.ranks_per_node,
                "rows": position.rows,
                "table_rows": position.table_rows,
                "cursors": hashlib.sha256(position.cursors.tobytes() + residues).hexdigest()[:16],
            },
            world,
        )
        return self._exchange

    def _can_exchange(self) -> bool:
        import torch.distributed as dist

        # the peers of a single rank compare their facts where a mesh tells of them; told by number,
        # it may be on its own
        has_others = self._has_mesh or self._find_world().size > 1
        return (
            has_others
            and dist.is_available()
            and dist.is_initialized()
            and dist.get_world_size() > 1
        )

    def _record(self, position: Position) -> None:
        self._has_read = True
        self._history.append(position)

    def _find_world(self) -> World:
        return find_world(self._delivery.dp_rank, self._delivery.dp_world_size)

    def _record_end(self, dropped: int, uncounted: Ints) -> None:
        self._dropped, self._uncounted = dropped, uncounted

    def _stop_iteration(self, reason: str) -> None:
        batches = self._iteration()
        if batches is not None:
            batches.close(reason)
        self._iteration, self._kept = _nothing, None

    # ------------------------------------------------------------ saving and resuming

    def state_dict(self, lag: int = 0) -> State:
        """The state after the last batch handed out, or `lag` batches earlier (for loops that run
        ahead).

        Global, the same on every rank, without communication. Raises `RanksDisagreeError` where the
        ranks cannot communicate: use `local_state_dict` there.
        """
        position = self._past(lag)
        if not self._knows_all_lanes and self._has_read:
            raise RanksDisagreeError(
                "the ranks cannot communicate, so no rank knows the whole state. Initialise "
                "torch.distributed before iterating, "
                "or save local_state_dict() on every rank and load merge_state_dicts([...])"
            )
        return build_state(self._recipe, position, self._backend.versions)

    def local_state_dict(self, lag: int = 0) -> State:
        """This rank's part of the state, for ranks that cannot communicate; `merge_state_dicts`
        joins the parts of all."""
        world = self._find_world()
        position = mask_lanes(self._past(lag), world.lanes(self.num_lanes))
        if world.index:
            # what is known to all is in the part of one rank
            known = position.counts if self._knows_all_lanes else self._started_at.counts
            position = position.with_lanes(counts=position.counts - known)
        return build_state(
            self._recipe, position, self._backend.versions, f"{world.index}/{world.size}"
        )

    def load_state_dict(
        self, state: Mapping[str, Any], *, on_change: Mapping[str, str] | None = None
    ) -> None:
        """Stand where the state was saved: any world size that divides its lanes, any workers,
        batch size, and `seq_len`.

        Shares of streams and their schedule, and streams added at the end, count from the next row
        on. Every other change is refused, unless it can be taken on purpose:
        `on_change={"min_tokens": "accept"}`. Of what changes the documents themselves (data,
        tokenizer, bos_eos, text_key, transform, overflow), lanes in the middle of documents leave
        them out.

        Raises `StreamChangedError` that lists every field that differs.
        """
        saved = read_state(state)
        check_world(saved.layout.num_lanes, self._find_world().size)
        recipe = self._opened.settle(saved.layout)
        position = resume_position(saved, recipe, on_change or {})
        names = recipe.mixture.names[: len(saved.mixture.names)]
        self._recipe = replace(
            recipe,
            mixture=recipe.mixture.resume(replace(saved.mixture, names=names), position.rows),
        )
        if state["tokenizer_backend"] != self._backend.versions:
            logger.info(
                "saved with %s, goes on with %s: the same ids",
                state["tokenizer_backend"],
                self._backend.versions,
            )
        self._stop_iteration("a state was loaded")
        self._start_at(position)
        self._knows_all_lanes = True

    def seek(self, rows: int) -> None:
        """Stand `rows` rows into the run, past where the loader stands; the rows between are read
        when iterating, and dropped.

        The statistics count them, but for a place past the end of the lanes of a finite run.
        """
        position = self._history[-1]
        if rows < position.rows:
            raise ValueError(
                f"rows is {rows:,}, but the loader stands at row {position.rows:,} already. Load "
                "an earlier state"
            )
        self._stop_iteration("the loader was moved by seek")
        tail = position.tail and next_stages(
            position.tail, self._asked.seq_len, position.table_rows, rows
        )
        self._dropped, self._uncounted = 0, np.zeros_like(position.counts)
        self._history = deque([replace(position, rows=rows, tail=tail)], maxlen=_HISTORY)

    def _past(self, lag: int) -> Position:
        if not 0 <= lag < _HISTORY:
            raise ValueError(f"lag is {lag!r}; it must be from 0 to {_HISTORY - 1}")
        if lag >= len(self._history):
            raise ValueError(
                f"lag is {lag}, but only {len(self._history) - 1} batches were handed out"
            )
        return self._history[-1 - lag]

    # ------------------------------------------------------------ looking and leaving

    @property
    def num_lanes(self) -> int:
        """The lanes of the run."""
        return self._recipe.num_lanes

    @property
    def batch_size(self) -> int:
        """Rows per rank and step."""
        return self._delivery.batch_size

    @property
    def seq_len(self) -> int:
        """Tokens a row."""
        return self._asked.seq_len

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self._recipe.tokenizer.vocab_size

    @property
    def rows(self) -> int:
        """Rows of the run that have been handed out, on all ranks together."""
        return self._history[-1].rows

    @property
    def num_samples(self) -> int:
        """Samples of an epoch."""
        return self._recipe.corpus.num_samples

    def stats(self) -> Stats:
        """What has been read up to the batch last handed out; with `exchange_every` above 1, up to
        the last exchange.

        Its `delivery` is of this rank since this loader was made, and starts from 0 with a resumed
        run.
        """
        position = self._history[-1]
        totals = position.counts + self._uncounted
        num_tokens = int(totals[:, TOKENS].sum())
        streams = {}
        for component in self._recipe.components:
            epoch = int(totals[component.streams][:, READ].sum()) / component.lanes.num_positions
            for stream in component.streams:
                each = dict(zip(COUNTS, totals[stream].tolist(), strict=True))
                del each["padding"]
                streams[self._recipe.labels[stream]] = StreamStats(
                    **each, epoch=epoch, share=each["tokens"] / max(1, num_tokens)
                )
        return Stats(
            rows=position.rows,
            **dict(zip(COUNTS, totals.sum(axis=0).tolist(), strict=True)),
            skipped_rows=sum(stop - start for start, stop in position.skipped),
            dropped=self._dropped,
            streams=streams,
            delivery=self._meter.stats(),
            tokenizer_backend=self._backend.name,
            tokenizer_backend_reason=self._backend.reason,
        )

    def trace(self, batch: Batch, row: int | None = None) -> list[TracedSpan]:
        """The documents of a batch, or of one of its rows (0 is its first): each span's id, shard
        and text, read again."""
        if row is not None and not 0 <= row < len(batch["input_ids"]):
            raise ValueError(
                f"row is {row}, but the batch has rows 0 to {len(batch['input_ids']) - 1}"
            )
        spans = batch.spans if row is None else batch.spans[batch.spans[:, SPAN_ROW] == row]
        if self._tracer is None:
            self._tracer = Tracer(self.plan())
        return self._tracer.trace(
            spans, batch.first_row + np.arange(len(batch["input_ids"])) * batch.row_step
        )

    def close(self) -> None:
        """End the workers and let go of the connections. The state stays readable; iterating starts
        workers anew."""
        self._stop_iteration("the loader was closed")
        if self._tracer is not None:
            self._tracer.close()
            self._tracer = None
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
            f"CloudLoader({streams}, {self.num_lanes} lanes, {self.rows} "
            f"rows handed out, data {data})"
        )


def _nothing() -> None:
    """In place of a reference to an iteration."""


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Calls a method of a loader that is still there: an iteration, which the loader may hold, must
    not hold the loader."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        if (found := reference()) is not None:
            found(*arguments)

    return call


def _refuse(reason: str) -> Batches:
    """In place of the beginning of a pass."""
    raise ValueError(reason)


def _as_streams(
    data: str | os.PathLike[str] | Stream | Sequence[str | Stream],
) -> tuple[Stream, ...]:
    items: list[Any] = list(data) if isinstance(data, list | tuple) else [data]
    if wrong := [item for item in items if not isinstance(item, str | os.PathLike | Stream)]:
        raise ValueError(
            f"data is {wrong[0]!r}; give the URL or folder of an MDS "
            "dataset, a Stream, or a list of them"
        )
    return tuple(item if isinstance(item, Stream) else Stream(os.fspath(item)) for item in items)


class FromStart:
    """A loader of which every pass begins where it stands now: an evaluation reads the same batches
    each time.

    Give it a loader of its own, with `epochs=1`, or with `stop_every` for a part of the data.
    """

    def __init__(self, loader: CloudLoader) -> None:
        if loader.is_endless:
            raise ValueError(
                "an evaluation with this loader would never end. Give the loader epochs=1, or "
                "stop_every=<batches>"
            )
        self._loader, self._start = loader, loader.state_dict()
        self.batch_size = loader.batch_size

    def __iter__(self) -> Iterator[Batch]:
        self._loader.load_state_dict(self._start)
        return iter(self._loader)
