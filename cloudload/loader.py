"""The loader: joins the workers' blocks into batches, keeps the cursor table, saves and resumes.

workers ─► arrive: join blocks, start the exchange ─► hand out: finish the exchange, move the position, yield the batch
                                                                                   │
                                                      state_dict(): the position as of the last batch handed out
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cloudload.backends import Retry
from cloudload.batch import Batch, join_blocks
from cloudload.blocks import inline_blocks, process_blocks
from cloudload.cache import default_cache
from cloudload.config import AUTO, DeliveryConfig, RowsConfig, Stream
from cloudload.dataset import check_text_column, open_corpus
from cloudload.errors import CacheError, RanksDisagreeError
from cloudload.exchange import DistributedExchange, Exchange, NoExchange, Window
from cloudload.lanes import Ints, Lanes, World, check_world, find_world, rank_rows, resolve, worker_of_rows
from cloudload.order import EpochOrders, OrderConfig
from cloudload.state import (
    Identity,
    Position,
    State,
    adopt_defaults,
    build_state,
    check_cursors,
    mask_lanes,
    read_state,
)
from cloudload.tokenizer import load_tokenizer
from cloudload.worker import Block, Plan
from cloudload.working_set import check_cache_limit

logger = logging.getLogger(__name__)

_HISTORY = 4


class CloudLoader:
    """Batches of packed token rows, straight from MDS shards of raw text; exact to the token across restarts and world sizes.

    Iterating goes on from where the loader stands: after the last batch handed out, or where `load_state_dict` put it. A loader
    has one live iterator; a new one ends the old. After the last batch of `epochs` there is nothing left to iterate.

    Args:
        data: URL or folder of an MDS dataset, a `Stream`, or a list of them, read as one corpus.
        tokenizer: name, folder, tokenizer.json, or `PreTrainedTokenizerFast`.
        seq_len: tokens a row.
        batch_size: rows per rank and step. The global batch is `batch_size` times the number of data-parallel ranks.
        retry: how long the object store is tried (`cloudload.Retry`).

    The other arguments are the fields of `RowsConfig` (which tokens, in which order: held fixed by a state) and of
    `DeliveryConfig` (how they arrive: free to change at every resume) in `cloudload.config`.

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
        shuffle: bool = True,
        seed: int = 17,
        shuffle_algo: str = "py1e",
        shuffle_block_size: int | None = None,
        num_canonical_nodes: int | None = None,
        num_lanes: int | None = None,
        epochs: int | None = None,
        text_key: str = "text",
        bos: str | None = AUTO,
        eos: str | None = AUTO,
        num_workers: int = 4,
        prefetch_batches: int = 4,
        predownload: int | None = None,
        download_threads: int = 4,
        cache_limit: int | str | None = None,
        retry: Retry | None = None,
        exchange_every: int = 1,
        exchange_timeout_s: float = 1800.0,
        start_method: str | None = None,
        pin_memory: bool = False,
        dp_rank: int | None = None,
        dp_world_size: int | None = None,
        device_mesh: Any = None,
    ) -> None:
        if device_mesh is not None:
            dp_rank, dp_world_size = device_mesh.get_local_rank(), device_mesh.size()
        self._asked = RowsConfig(
            streams=_as_streams(data),
            seq_len=seq_len,
            packing=packing,
            shuffle=shuffle,
            shuffle_algo=shuffle_algo,
            shuffle_block_size=shuffle_block_size,
            num_canonical_nodes=num_canonical_nodes,
            seed=seed,
            num_lanes=num_lanes,
            epochs=epochs,
            text_key=text_key,
            bos=bos,
            eos=eos,
        )
        self._delivery = DeliveryConfig(
            batch_size=batch_size,
            local=None if local is None else str(local),
            num_workers=num_workers,
            prefetch_batches=prefetch_batches,
            predownload=predownload,
            download_threads=download_threads,
            cache_limit=cache_limit,
            retry=retry or Retry(),
            # a finite run must agree on its last batch before it is handed out
            exchange_every=exchange_every if epochs is None else 1,
            exchange_timeout_s=exchange_timeout_s,
            start_method=start_method,
            pin_memory=pin_memory,
            dp_rank=dp_rank,
            dp_world_size=dp_world_size,
        )
        if num_lanes is not None:
            check_world(num_lanes, self._find_world().size)
        self._tokenizer = load_tokenizer(tokenizer, bos, eos)
        self._corpus = open_corpus(self._asked.streams, self._delivery.retry)
        check_text_column(self._corpus, text_key)
        self._cache_root = Path(self._delivery.local).expanduser() if self._delivery.local else default_cache()
        self._exchange: Exchange | None = None
        self._knows_all_lanes = True
        self._batches: _Batches | None = None
        self._settle(self._asked)
        self._history: deque[Position] = deque([Position.start(self.num_lanes)], maxlen=_HISTORY)

    def _settle(self, asked: RowsConfig) -> None:
        """Fill in what was left open, and check it against the world."""
        config = resolve(asked, self._corpus.num_samples, len(self._corpus.shard_sizes))
        assert config.num_lanes is not None
        check_world(config.num_lanes, self._find_world().size)
        self._identity = Identity(config, self._corpus.fingerprint, self._tokenizer.fingerprint)
        self._lanes = Lanes(config.num_lanes, self._corpus.num_samples, config.epochs)

    # ------------------------------------------------------------ iterating

    def __iter__(self) -> Iterator[Batch]:
        self._stop_batches()
        self._batches = _Batches(self._plan(), self._connect(), self._record, self._open_blocks)
        return self._batches

    def _plan(self) -> Plan:
        config, world = self._identity.config, self._find_world()
        assert config.num_canonical_nodes
        assert config.shuffle_block_size
        check_world(self.num_lanes, world.size)
        order = OrderConfig(
            config.shuffle, config.shuffle_algo, config.shuffle_block_size, config.num_canonical_nodes, config.seed
        )
        position = self._history[-1]
        plan = Plan(
            corpus=self._corpus,
            lanes=self._lanes,
            order=order,
            tokenizer=self._tokenizer,
            seq_len=config.seq_len,
            text_key=config.text_key,
            delivery=self._delivery,
            cache_root=self._cache_root,
            world_index=world.index,
            world_size=world.size,
            num_workers=min(max(1, self._delivery.num_workers), self.num_lanes // world.size),
            rows=position.rows,
            table_rows=position.table_rows,
            cursors=position.cursors,
        )
        if plan.num_workers < self._delivery.num_workers:
            logger.info("%d workers, not %d: one for each lane of the rank", plan.num_workers, self._delivery.num_workers)
        try:
            self._cache_root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CacheError(f"cannot make the cache folder {self._cache_root}: {error}. Choose another `local`") from error
        self._prepare_orders(plan, world)
        return plan

    def _prepare_orders(self, plan: Plan, world: World) -> None:
        """Build the order of the epochs that the lanes stand in, here rather than in every worker."""
        orders = EpochOrders(self._cache_root / "orders", self._corpus.shard_sizes, plan.order)
        own = world.lanes(self.num_lanes)
        last = (plan.lanes.epochs or 1 << 62) - 1
        epochs = {min(last, plan.lanes.place(lane, int(plan.cursors[lane, 0]))[0]) for lane in own}
        for epoch in sorted(epochs)[-2:]:
            order = orders(epoch)
        check_cache_limit(
            self._delivery.cache_limit_bytes(),
            self._corpus,
            order,
            num_nodes=plan.order.num_canonical_nodes,
            world=world,
            downloads_at_once=plan.num_workers * world.ranks_per_node * self._delivery.download_threads,
        )

    def _connect(self) -> Exchange:
        if self._exchange is None:
            self._exchange = DistributedExchange(self._delivery.exchange_timeout_s) if self._can_exchange() else NoExchange()
        position, config, world = self._history[-1], self._identity.config, self._find_world()
        self._knows_all_lanes &= world.size == 1 or not isinstance(self._exchange, NoExchange)
        self._exchange.compare(
            {
                **self._identity.fields(),
                "seq_len": config.seq_len,
                "batch_size": self._delivery.batch_size,
                "exchange_every": self._delivery.exchange_every,
                "world_size": world.size,
                "LOCAL_WORLD_SIZE (set it to 1 where nodes have different numbers of ranks)": world.ranks_per_node,
                "rows": position.rows,
                "table_rows": position.table_rows,
                "cursors": hashlib.sha256(position.cursors.tobytes()).hexdigest()[:16],
            },
            world,
        )
        return self._exchange

    def _can_exchange(self) -> bool:
        import torch.distributed as dist

        return self._find_world().size > 1 and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1

    def _open_blocks(self, plan: Plan) -> Iterator[list[Block]]:
        """The blocks of each batch, from worker processes or from this one."""
        return process_blocks(plan) if self._delivery.num_workers else inline_blocks(plan)

    def _record(self, position: Position) -> None:
        self._history.append(position)

    def _find_world(self) -> World:
        return find_world(self._delivery.dp_rank, self._delivery.dp_world_size)

    def _stop_batches(self) -> None:
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    # ------------------------------------------------------------ saving and resuming

    def state_dict(self, lag: int = 0) -> State:
        """The state after the last batch handed out, or `lag` batches earlier (for loops that run ahead).

        Global, the same on every rank, without communication. Raises `RanksDisagreeError` where the ranks cannot communicate:
        use `local_state_dict` there.
        """
        position = self._past(lag)
        if not self._knows_all_lanes and len(self._history) > 1:
            raise RanksDisagreeError(
                "the ranks cannot communicate, so no rank knows the whole state. Initialise torch.distributed before iterating, "
                "or save local_state_dict() on every rank and load merge_state_dicts([...])"
            )
        return build_state(self._identity, position)

    def local_state_dict(self, lag: int = 0) -> State:
        """This rank's part of the state, for ranks that cannot communicate; `merge_state_dicts` joins the parts of all."""
        world = self._find_world()
        position = mask_lanes(self._past(lag), world.lanes(self.num_lanes))
        return build_state(self._identity, position, f"{world.index}/{world.size}")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where the state was saved: any world size that divides its lanes, any workers, batch size, and `seq_len`.

        Raises `StreamChangedError` that lists every field that differs.
        """
        asked = adopt_defaults(self._asked, state)
        try:
            config = resolve(asked, self._corpus.num_samples, len(self._corpus.shard_sizes))
        except ValueError:
            config = self._identity.config
        position = read_state(state, replace(self._identity, config=config))
        check_world(state["num_lanes"], self._find_world().size)
        lanes = Lanes(state["num_lanes"], self._corpus.num_samples, config.epochs)
        check_cursors(position, lanes)
        self._stop_batches()
        self._settle(asked)
        self._history = deque([position], maxlen=_HISTORY)
        self._knows_all_lanes = True

    def _past(self, lag: int) -> Position:
        if not 0 <= lag < _HISTORY:
            raise ValueError(f"lag is {lag!r}; it must be from 0 to {_HISTORY - 1}")
        if lag >= len(self._history):
            raise ValueError(f"lag is {lag}, but only {len(self._history) - 1} batches were handed out")
        return self._history[-1 - lag]

    # ------------------------------------------------------------ looking and leaving

    @property
    def num_lanes(self) -> int:
        """The lanes of the run."""
        return self._lanes.num_lanes

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self._tokenizer.vocab_size

    @property
    def rows(self) -> int:
        """Rows of the run that have been handed out, on all ranks together."""
        return self._history[-1].rows

    @property
    def num_samples(self) -> int:
        """Samples of an epoch."""
        return self._corpus.num_samples

    def close(self) -> None:
        """End the workers and let go of the connections. The state stays readable; iterating starts workers anew."""
        self._stop_batches()
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    def __enter__(self) -> CloudLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        urls = ", ".join(dataset.url for dataset in self._corpus.datasets)
        return f"CloudLoader({urls}, {self.num_lanes} lanes, {self.rows} rows handed out, data {self._identity.data[:12]})"


def _as_streams(data: str | os.PathLike[str] | Stream | Sequence[str | Stream]) -> tuple[Stream, ...]:
    items: list[Any] = list(data) if isinstance(data, list | tuple) else [data]
    if wrong := [item for item in items if not isinstance(item, str | os.PathLike | Stream)]:
        raise ValueError(f"data is {wrong[0]!r}; give the URL or folder of an MDS dataset, a Stream, or a list of them")
    return tuple(item if isinstance(item, Stream) else Stream(os.fspath(item)) for item in items)


# ---------------------------------------------------------------- batches


@dataclass(frozen=True)
class _Arrived:
    """A batch that the workers have delivered and that waits to be handed out."""

    batch: Batch
    stop: int
    finish: Callable[[], tuple[Position, bool]] | None


class _Batches(Iterator[Batch]):
    """One iteration of a loader."""

    def __init__(
        self,
        plan: Plan,
        exchange: Exchange,
        record: Callable[[Position], None],
        open_blocks: Callable[[Plan], Iterator[list[Block]]],
    ) -> None:
        self._plan, self._exchange, self._record, self._open_blocks = plan, exchange, record, open_blocks
        self._blocks: Iterator[list[Block]] | None = None
        self._position = Position(plan.rows, plan.table_rows, plan.cursors)
        self._arrived: deque[_Arrived] = deque()
        self._arrived_rows = plan.rows
        self._window_start = plan.table_rows
        self._window_cursors: list[Ints] = []
        self._handed_out = 0
        self._is_over = False
        self._failure: Exception | None = None

    def __next__(self) -> Batch:
        if self._failure is not None:
            raise self._failure
        try:
            return self._take()
        except StopIteration:
            raise
        except Exception as error:
            # asked again, it must not look like the end of the data
            self._failure = error
            raise

    def _take(self) -> Batch:
        if not self._arrived:
            self.arrive()
        # one batch ahead, so that its exchange is done when it is asked for; not at first, when the trainer waits
        if self._handed_out and isinstance(self._exchange, DistributedExchange):
            self.arrive()
        return self.hand_out()

    def arrive(self) -> None:
        """Take the next batch from the workers and start its exchange."""
        if self._is_over:
            raise StopIteration
        if self._blocks is None:
            self._blocks = self._open_blocks(self._plan)
            self._take_replay()
        plan = self._plan
        start = self._arrived_rows
        stop = start + plan.delivery.batch_size * plan.world_size
        rows = rank_rows(start, stop, plan.world_index, plan.world_size)
        blocks = next(self._blocks)
        workers = worker_of_rows(rows, plan.lanes.num_lanes, plan.world_size, plan.num_workers)
        batch, cursors = join_blocks(blocks, workers, rows, pin_memory=plan.delivery.pin_memory)
        self._arrived_rows = stop
        self._window_cursors.append(cursors)
        self._arrived.append(_Arrived(batch, stop, self._start_exchange(stop, all(block.was_dry for block in blocks))))

    def hand_out(self) -> Batch:
        """Finish the oldest arrived batch's exchange, move the position past it, and return it."""
        arrived = self._arrived.popleft()
        if arrived.finish is None:
            position = replace(self._position, rows=arrived.stop)
        else:
            position, is_over = arrived.finish()
            if is_over:
                self.close()
                raise StopIteration
        self._position = position
        self._record(position)
        self._handed_out += 1
        return arrived.batch

    def close(self) -> None:
        """End the workers; whatever they had read ahead is read again by the next iteration."""
        self._is_over = True
        self._arrived.clear()
        blocks, self._blocks = self._blocks, None
        if blocks is not None:
            blocks.close()  # type: ignore[attr-defined]

    def _take_replay(self) -> None:
        plan = self._plan
        if plan.rows == plan.table_rows:
            return
        assert self._blocks is not None
        rows = rank_rows(plan.table_rows, plan.rows, plan.world_index, plan.world_size)
        workers = worker_of_rows(rows, plan.lanes.num_lanes, plan.world_size, plan.num_workers)
        cursors = np.empty((len(rows), 2), np.int64)
        for worker, block in enumerate(next(self._blocks)):
            cursors[workers == worker] = block.cursors
        self._window_cursors.append(cursors)

    def _start_exchange(self, stop: int, was_dry: bool) -> Callable[[], tuple[Position, bool]] | None:
        plan = self._plan
        if stop - self._window_start < plan.delivery.exchange_every * plan.delivery.batch_size * plan.world_size:
            return None
        window = Window(self._window_start, stop, plan.lanes.num_lanes, plan.world_size)
        message = window.message(plan.world_index, np.concatenate(self._window_cursors), was_dry=was_dry)
        self._window_start, self._window_cursors = stop, []
        finish = self._exchange.start(message)
        return lambda: window.apply(finish(), self._position.cursors)
