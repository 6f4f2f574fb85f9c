"""The loader: opens the data and the tokenizer, iterates over batches, saves and resumes.

options ─► recipe ─► plan ─► iteration ─► log of positions ─► state_dict()
             ▲                                                    │
             └──────────────── load_state_dict() ◄────────────────┘
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, NoReturn

import numpy as np

from cloudload.config import (
    Chat,
    DeliveryConfig,
    Encode,
    Fim,
    OnError,
    Overflow,
    PackingName,
    RowHook,
    RowsConfig,
    ShuffleAlgorithm,
    StartMethod,
    Stopping,
    Stream,
    TailMode,
    TokenDtype,
    TokenizerBackend,
    Transform,
    Verification,
    as_streams,
    checks,
    settle_together,
)
from cloudload.data import Retry
from cloudload.loading.batch import Batch
from cloudload.loading.current_run import CurrentRun, open_current_run
from cloudload.loading.delivery.description import Description, describe_loader
from cloudload.loading.delivery.start_log import StartLog
from cloudload.loading.delivery.world import Membership, current_environment, ranks_of
from cloudload.loading.passes import Pass, reason_to_refuse_caller
from cloudload.loading.preparation import make_worker_plan
from cloudload.loading.reader import NO_DATASET, Reader
from cloudload.loading.workers.trace import TracedSpan, Tracer
from cloudload.loading.workers.worker_plan import WorkerPlan
from cloudload.rows import tables
from cloudload.run import Recipe, State, adopt_streaming, find_streams
from cloudload.stats import Stats
from cloudload.system import Ints, option_help


@option_help.explained_by(RowsConfig, DeliveryConfig)
class CloudLoader:
    """Batches of packed token rows, read directly from MDS shards of raw text or token IDs.

    Restarts and the world size do not affect the rows. Iterating starts at the loader's position:
    the start of the run, the end of the last batch delivered or skipped, or where
    `load_state_dict` or `seek` put it. Iterating continues to the end of the run, or until
    `stop_every` ends the pass. A loader has one live iterator. When a new iterator reads its first
    batch, the old one ends, and raises `WorkerError` if it is used again. Dropping an iterator
    before its end also stops its workers. Once a finite run has ended, iterating yields nothing.

    Any thread may read a loader at any time: its statistics, states, length, description, and
    traces. A signal handler may do so too, except for traces. All other calls but `close` raise
    `WorkerError` while another one is running.

    Args:
        data: URL or folder of an MDS dataset, or of Parquet files; a glob of several; a `Stream`;
            or a list of these. A list is read as one corpus, or as a mixture if its streams have
            proportions or `schedule` is set. `data` can
            also be a `StreamingDataset`, whose settings become options of the loader, or a list of
            `streaming.Stream`, whose proportions set how many samples an epoch reads.
        tokenizer: name on the Hugging Face Hub, folder, path of a tokenizer.json,
            `PreTrainedTokenizerFast`, or `tokenizers.Tokenizer`. It can also be `tiktoken:NAME`,
            the path of a `.tiktoken` file or of a SentencePiece `.model`, or an object of these
            libraries. It may be omitted if all data is pre-tokenized (`tokens_key`), or if
            `encode` makes all tokens. If you pass one, token IDs are checked against its
            vocabulary.
        device_mesh: a `DeviceMesh` whose dimensions are all data-parallel, instead of `dp_rank` and
            `dp_world_size`.
        {options}

    The other arguments are fields of `cloudload.config.RowsConfig` or `DeliveryConfig`.
    `RowsConfig` determines which tokens are read and in which order, so a state must match it,
    except for changes that `load_state_dict` allows. `DeliveryConfig` determines how rows are
    delivered, and may change on every resume.

    Raises:
        ValueError: if an argument is invalid or contradicts another. The message says what to use.
        CloudloadError: if the data, the tokenizer, or a store cannot be used; see
            `cloudload.errors`.
    """

    @option_help.suggests_names
    def __init__(
        self,
        data: str | os.PathLike[str] | Stream | Sequence[str | Stream],
        *,
        tokenizer: Any = None,
        seq_len: int,
        batch_size: int | None = DeliveryConfig.batch_size,
        global_batch_size: int | None = DeliveryConfig.global_batch_size,
        micro_batch_size: int | None = DeliveryConfig.micro_batch_size,
        local: str | os.PathLike[str] | None = DeliveryConfig.local,
        packing: PackingName = RowsConfig.packing,
        open_rows: int = RowsConfig.open_rows,
        overflow: Overflow = RowsConfig.overflow,
        schedule: Sequence[tuple[int, Mapping[str, float]]] | None = RowsConfig.schedule,
        stopping: Stopping = RowsConfig.stopping,
        shuffle: bool = RowsConfig.shuffle,
        seed: int = RowsConfig.seed,
        shuffle_algo: ShuffleAlgorithm = RowsConfig.shuffle_algo,
        shuffle_block_size: int | None = RowsConfig.shuffle_block_size,
        num_canonical_nodes: int | None = RowsConfig.num_canonical_nodes,
        num_lanes: int | None = RowsConfig.num_lanes,
        epochs: int | None = RowsConfig.epochs,
        text_key: str = RowsConfig.text_key,
        tokens_key: str | None = RowsConfig.tokens_key,
        tokens_dtype: TokenDtype | None = RowsConfig.tokens_dtype,
        labels_key: str | None = RowsConfig.labels_key,
        strip_tokens: Sequence[int] = RowsConfig.strip_tokens,
        transform: Transform | None = RowsConfig.transform,
        transform_id: str | None = RowsConfig.transform_id,
        chat: Chat | None = RowsConfig.chat,
        encode: Encode | None = RowsConfig.encode,
        encode_id: str | None = RowsConfig.encode_id,
        fim: Fim | None = RowsConfig.fim,
        min_tokens: int = RowsConfig.min_tokens,
        max_tokens: int | None = RowsConfig.max_tokens,
        on_error: OnError = RowsConfig.on_error,
        bos: str | int | None = RowsConfig.bos,
        eos: str | int | None = RowsConfig.eos,
        pad_documents_to: int = RowsConfig.pad_documents_to,
        row_hook: RowHook | None = RowsConfig.row_hook,
        row_hook_id: str | None = RowsConfig.row_hook_id,
        row_bos: str | int | None = RowsConfig.row_bos,
        balance: Literal["attention"] | None = DeliveryConfig.balance,
        tail: TailMode = DeliveryConfig.tail,
        fields: Sequence[str] = DeliveryConfig.fields,
        pad_id: int = DeliveryConfig.pad_id,
        mask_edges: bool = DeliveryConfig.mask_edges,
        tokenizer_backend: TokenizerBackend = DeliveryConfig.tokenizer_backend,
        num_workers: int | None = DeliveryConfig.num_workers,
        prefetch_batches: int = DeliveryConfig.prefetch_batches,
        predownload: int | None = DeliveryConfig.predownload,
        download_threads: int = DeliveryConfig.download_threads,
        cache_limit: int | str | None = DeliveryConfig.cache_limit,
        lengths: str | os.PathLike[str] = DeliveryConfig.lengths,
        verify: Verification = DeliveryConfig.verify,
        retry: Retry | None = None,
        stop_every: int | Literal["epoch"] | None = DeliveryConfig.stop_every,
        exchange_every: int = DeliveryConfig.exchange_every,
        exchange_timeout_s: float = DeliveryConfig.exchange_timeout_s,
        start_method: StartMethod | None = DeliveryConfig.start_method,
        pin_memory: bool = DeliveryConfig.pin_memory,
        dp_rank: int | None = DeliveryConfig.dp_rank,
        dp_world_size: int | None = DeliveryConfig.dp_world_size,
        device_mesh: Any = None,
    ) -> None:
        given, created_at = dict(locals()), time.monotonic()
        source = adopt_streaming(data, seed=seed, retry=retry)
        rank, size = ranks_of(device_mesh, dp_rank, dp_world_size)
        found = find_streams(as_streams(source.data), source.retry)
        rows = RowsConfig(streams=found.streams, **_take_fields(RowsConfig, given))
        given |= {"retry": source.retry, "dp_rank": rank, "dp_world_size": size}
        given["has_mesh"] = device_mesh is not None
        delivery = DeliveryConfig(**_take_fields(DeliveryConfig, given))
        asked = source.apply_to(rows)
        delivery = settle_together(asked, source.apply_to(delivery))
        member = Membership(current_environment(), delivery)
        start_log = StartLog(created_at, is_shown=member.is_first)
        run = CurrentRun.start(
            open_current_run(asked, delivery, tokenizer, start_log, found.shared)
        )
        self._reader = Reader(run, member, start_log)
        self._tracer: Tracer | None = None
        run.check_world(member)

    @property
    def _run(self) -> CurrentRun:
        return self._reader.run

    @property
    def _member(self) -> Membership:
        return self._reader.member

    # ------------------------------------------------------------ iterating

    def __iter__(self) -> Iterator[Batch]:
        return Pass(self._reader, reason=reason_to_refuse_caller())

    def take(self, number: int) -> Iterator[Batch]:
        """Iterate over the next `number` batches, or fewer if the data ends first.

        Ignores `stop_every`.
        """
        number = checks.as_integer("number", number, 0)
        return itertools.islice(Pass(self._reader, has_stop=False), number)

    def skip(self, number: int) -> None:
        """Skip the next `number` global batches, or fewer if the data ends first.

        Call it on every rank with the same `number`. Without token lengths, skipped rows are still
        read, because each row begins where the previous row of its lane ends. Skipped rows count as
        `skipped_rows`, and the state records them.
        """
        with self._reader.begin_call("skip"):
            self._reader.skip(number)

    @property
    def is_at_stop(self) -> bool:
        """Whether the last batch delivered or skipped completed a pass of `stop_every`."""
        before, after = self._run.log.last_step
        return self._reader.count_passes(after) > self._reader.count_passes(before)

    @property
    def is_endless(self) -> bool:
        """Whether a pass never ends, because the run is endless and `stop_every` is not set."""
        return self._reader.is_endless

    def __len__(self) -> int:
        """The number of batches in a full pass, or in the whole run without `stop_every`.

        With stop_every=N, it is N times `micro_batches`. Without `stop_every`, it is known for a
        finite run if the data has token lengths (see `lengths`), or if every document becomes
        exactly one row. Raises `TypeError` if the number is unknown, as with stop_every="epoch".
        """
        return self._reader.count_pass()

    def count_batches(self, epochs: int = 1) -> int:
        """Return the number of global batches in `epochs` epochs of the data.

        Pass the number as `stop_every`, or as a framework's number of steps, so that an epoch of
        the framework is an epoch of the data. The last batch may not be full. Needs token lengths
        (see `lengths`), unless every document becomes exactly one row. For a mixture, returns the
        number of batches in a run with this `epochs` and the loader's `max_epochs` and `stopping`.
        Raises `ValueError` if the number is unknown, or if `epochs` is below 1.
        """
        epochs = checks.as_integer("epochs", epochs, 1)
        return self._reader.count_epochs(epochs)

    def __bool__(self) -> bool:
        return True  # otherwise Python would call len(), which may raise

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(NO_DATASET)

    @property
    def dataset(self) -> NoReturn:
        """Raises `AttributeError` with an explanation for wrappers that expect a `DataLoader`."""
        raise AttributeError(
            "a CloudLoader has no dataset, because it does its own sharding and batching. Do not "
            "pass it to accelerate's prepare_data_loader or another DataLoader wrapper. Iterate "
            "over the CloudLoader directly, and save its state with "
            "accelerator.register_for_checkpointing(loader)"
        )

    def worker_plan(self) -> WorkerPlan:
        """Create the plan for this rank's workers, starting at the current position.

        Also creates the cache folder and builds the orders of the current epochs. Raises
        `CacheError` if the cache folder cannot be used, if an order cannot be written, or if
        `cache_limit` is below the working set. Raises `ValueError` if the world size does not
        divide `num_lanes`, unless token lengths allow any world size.
        """
        return self._reader.worker_plan()

    # ------------------------------------------------------------ saving and resuming

    def state_dict(self, lag: int = 0) -> State:
        """Return the state after the last batch delivered, or `lag` batches (0 to 3) earlier.

        The state is the same on every rank after the same batch, and reading it requires no
        communication. `lag` is for loops that fetch batches ahead. Raises `RanksDisagreeError` if
        ranks that cannot communicate have read batches without token lengths. Count the lengths, or
        initialize torch.distributed. Raises `ValueError` if `lag` is out of range, or exceeds the
        number of batches since the loader was created, loaded a state, or was moved by `seek`.
        """
        return self._run.save(lag)

    def load_state_dict(
        self, state: Mapping[str, Any], *, on_change: Mapping[str, str] | None = None
    ) -> None:
        """Continue from the position of a saved state.

        With token lengths, any world size works. Without them, the world size must divide the
        number of lanes in the state. These may also change:

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
        `on_change={"min_tokens": "accept"}`, and similarly `max_tokens`, `open_rows`, `epochs`,
        `max_epochs`, `on_error`, `row_hook`, `select`, `data`, `tokenizer`, `token_ids`, `bos_eos`,
        `text_key`, `tokens_key`, `strip_tokens`, `transform`, `chat`, `encode`, `fim`,
        `pad_documents_to` and `overflow`. If one of the last thirteen changes, each lane drops the
        rest of the documents that it was reading. If `select` changes, lanes drop only documents
        that are no longer selected. Once a stream of a mixture is in its tail, no change can be
        accepted.

        Raises `StreamChangedError` if the state is damaged or does not match. The message names the
        damaged field, or the fields that differ. Raises `ValueError` for an invalid `on_change` or
        a world size that cannot share the lanes.
        """
        with self._reader.begin_call("load_state_dict"):
            self._resume(self._run.load(state, on_change or {}, self._member))

    def _resume(self, run: CurrentRun) -> None:
        """Continue with `run`, which may have fewer shards than the current one."""
        if run.recipe.corpus is not self.recipe.corpus:
            self._close_tracer()
        self._reader.resume(run, "a state was loaded")

    def load_streaming_state(self, state: Mapping[str, Any]) -> None:
        """Start after exactly the samples that a StreamingDataset has read.

        `state` is its `state_dict()`, or a Composer checkpoint as `torch.load` returns it. The
        loader reads the remainder of that epoch in StreamingDataset's order, and then the next
        epochs. It needs the same data, shuffle, shuffle_algo, and seed (Streaming's shuffle_seed).
        The number of canonical nodes is read from the state. Rows and statistics start at 0.

        Raises `StreamChangedError` if the state is damaged or cannot be continued, and `ValueError`
        if the ranks cannot share the lanes.
        """
        with self._reader.begin_call("load_streaming_state"):
            self._resume(self._run.load_streaming(state, self._member))

    def seek(self, rows: int) -> None:
        """Move to row `rows` of the run, which is then the first row of the next batch.

        With token lengths (see `lengths`), this reads nothing. Without them, the next iteration
        reads the rows in between and drops them. The statistics count these rows, unless row `rows`
        is in the tail of a finite run. Raises `ValueError` for a row before the loader's position,
        and for a row after the end of the run if token lengths determine the end.
        """
        with self._reader.begin_call("seek"):
            position = self._run.find_position(rows, self._member.global_batch)
            self._reader.resume(self._run.moved(position), "the loader was moved by seek")

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
                that all ranks agree on. It may be up to 3 steps back, or any number of rows
                ahead. By default, the row after the last batch delivered.
            batch_size: a new number of rows per rank and step.
            ranks_per_node: the number of ranks per node, which affects only which node downloads
                which shards. By default, the number that a new loader in this process would use.

        Raises `ValueError` for a world that cannot share the lanes, and for `rows` that `seek`
        refuses, except up to 3 steps back; `RanksDisagreeError` if no rank knows the whole state;
        and `CacheError` if `cache_limit` is below the working set in the new world. The world is
        then unchanged.
        """
        with self._reader.begin_call("set_world"):
            member = self._member.moved(rank, size, batch_size, ranks_per_node)
            self._run.check_world(member)
            self._reader.move(member, rows)

    def set_weights(self, weights: Mapping[str, float], *, at_row: int | None = None) -> None:
        """Change the weights of a mixture's streams between two batches.

        Call it on all ranks after the same batch, with the same arguments. The weights are an entry
        of the schedule: they apply from row `at_row` of the run on, by default the next one, until
        the next entry. They are in the state. A resume keeps them, unless the loader's proportions
        or its schedule have changed since. Batches read ahead are dropped and read again, which
        takes as long as a start of the workers.

        Args:
            weights: the weight of each stream by name; 0 for streams without one.
            at_row: the first row of the run with these weights, at or after the next row.

        Raises `ValueError` if the run has no mixture, and for an unknown stream, invalid weights,
        or a row that was delivered. Raises `RanksDisagreeError` if no rank knows the whole state;
        at the next batch, also if the ranks have set different weights.
        """
        with self._reader.begin_call("set_weights"):
            self._reader.set_weights(weights, at_row)

    # ------------------------------------------------------------ inspecting and closing

    @property
    def recipe(self) -> Recipe:
        """The definition of the run: its data, tokenizer, layout and mixture."""
        return self._run.recipe

    @property
    def num_lanes(self) -> int:
        """Number of lanes of the run."""
        return self.recipe.num_lanes

    @property
    def stream_names(self) -> tuple[str, ...]:
        """The names of the streams. A stream's index is its ID in `fields=["stream_ids"]`."""
        return tuple(self.recipe.labels)

    def steps_of(self, rows: Ints) -> Ints:
        """Return the step, counted from 1, that delivered each row of the run: int64 [rows].

        `rows` are indices of rows before the current position, or of the current step. All batches
        since then are assumed to have had the size of the last one.
        """
        position = self._run.position
        # the position is before the current step until the last micro-batch of the step
        steps: Ints = np.where(rows < position.rows, position.steps_of(rows), position.batches + 1)
        return steps

    @property
    def batch_size(self) -> int:
        """Number of rows per batch: at most `micro_batch_size`, or all rows of a rank and step."""
        return self._member.shape.batch_rows

    @property
    def global_batch_size(self) -> int:
        """Number of rows per step, across all ranks, without filler rows."""
        return self._member.global_batch

    @property
    def micro_batches(self) -> int:
        """Number of batches per step, the same on all ranks."""
        return self._member.shape.num_batches

    @property
    def has_fixed_steps(self) -> bool:
        """Whether `global_batch_size` or `micro_batch_size` fixes the rows of a step, so that
        gradients must be accumulated over `micro_batches` batches."""
        delivery = self._member.delivery
        return delivery.batch_size is None or delivery.micro_batch_size is not None

    @property
    def world_size(self) -> int:
        """Number of data-parallel ranks."""
        return self._member.world.size

    @property
    def seq_len(self) -> int:
        """Number of tokens per row."""
        return self.recipe.config.seq_len

    @property
    def vocab_size(self) -> int:
        """The tokenizer's largest token ID, plus 1. Raises `ValueError` without a tokenizer."""
        if not self.recipe.tokenizer.json:
            raise ValueError(
                "the loader has no tokenizer, so the vocabulary size is unknown. Create the loader "
                "with the tokenizer that produced the token IDs"
            )
        return self.recipe.tokenizer.vocab_size

    @property
    def rows(self) -> int:
        """Number of rows delivered, skipped, or passed over by `seek`, on all ranks together."""
        return self._run.position.rows

    @property
    def num_samples(self) -> int:
        """Number of samples in the data. `repeat` and `choose` do not change it."""
        return self.recipe.corpus.num_samples

    def stats(self) -> Stats:
        """Return the statistics of the run up to the last batch delivered or skipped.

        With `exchange_every` above 1, the counts of tokens and documents cover the run only up to
        the last exchange. Ranks that cannot communicate add only their own rows to these counts,
        unless they have token lengths. `delivery` covers this rank since this loader was created.
        """
        run = self._run
        return run.log.stats(run.recipe, run.backend)

    def describe(self) -> Description:
        """Return the loader's resolved values and their sources, in a form that prints as a table.

        Builds the orders of the lanes' current epochs, as iterating does.
        """
        run, member = self._reader.now
        plan, delivered = make_worker_plan(run, member), run.log.meter.stats()
        return describe_loader(repr(self), plan, delivered, is_resumed=run.is_resumed)

    def trace(self, batch: Batch, row: int | None = None) -> list[TracedSpan]:
        """Find the documents of a batch, or of one of its rows (0 is the first), in the data.

        Returns one `TracedSpan` for each span, in the order of `batch.spans`. Raises `ValueError`
        for a row that the batch does not have, and for a copy of a batch's tensors. Raises
        `CloudloadError` if a document cannot be read.
        """
        rows = batch.rows
        if row is not None:
            row = checks.as_integer("row", row, 0, len(rows) - 1)
        spans = batch.spans if row is None else batch.spans[batch.spans[:, tables.SPAN_ROW] == row]
        return self.open_tracer().trace(spans, rows)

    def open_tracer(self) -> Tracer:
        """Return the tracer that finds documents in the data. It exists until `close` is called.

        Raises the errors of `plan`.
        """
        tracer = self._tracer
        if tracer is None:
            plan = self.worker_plan()
            tracer = self._tracer = Tracer(plan.inputs, plan.delivery)
        return tracer

    def close(self) -> None:
        """Stop the workers and close the connections.

        You can still save the state. Iterating starts the workers again.
        """
        self._reader.close()
        self._close_tracer()

    def _close_tracer(self) -> None:
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.close()

    def __enter__(self) -> CloudLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        streams, data = ", ".join(self.recipe.labels), self.recipe.fields["data"][:12]
        return (
            f"CloudLoader({streams}, {self.num_lanes} lanes, {self.rows} rows delivered, "
            f"data {data})"
        )


def _take_fields(config: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the given arguments that are fields of a config."""
    return {each.name: given[each.name] for each in fields(config) if each.name in given}
