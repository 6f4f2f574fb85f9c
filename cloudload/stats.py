"""Statistics of a run so far: exact, and the same on every rank and for every world size.

A token is counted when its row is delivered, and a document when its lane delivers the row after
which the lane has read it to its end. With `best_fit`, the end of such a document may still wait in
an open row, so the counts of documents run ahead by those in open rows.
With `exchange_every` above 1, the counts are those of the last exchange. Without token lengths,
ranks that cannot communicate count only their own rows. `Stats.delivery` covers one rank and one
loader, and is not exact.
"""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

from cloudload.system import reports

COUNTS = (
    *("tokens", "documents", "filtered", "empty", "truncated", "padding", "failed"),
    "deselected",
)
TOKENS, DOCUMENTS, FILTERED, EMPTY, TRUNCATED, PADDING, FAILED, DESELECTED = range(len(COUNTS))
READ = (DOCUMENTS, FILTERED, EMPTY, FAILED, DESELECTED)
"""Indices of the counts whose sum is the number of documents that lanes have passed."""
_TOTALS = ("rows", *COUNTS, "skipped_rows", "dropped")
STAGES = ("fetch", "read", "transform", "tokenize", "pack", "idle")
FETCH, READ_SHARDS, TRANSFORM, TOKENIZE, PACK, IDLE = range(len(STAGES))
"""The stages of a worker's work. `DeliveryStats` has a field for each, such as `fetch_s`."""
STAGE_WORDS = (
    "waiting for shards",
    "reading shards",
    "running the transform",
    "tokenizing",
    "packing",
    "waiting for the training loop",
)
"""What a worker does in each stage."""
MOST_SHARE = 0.05
"""The largest share of its time that a training loop may wait for batches without a reason to
look for the cause."""
_RECENT_BATCHES, _STAGES_EVERY_S = 100, 0.05
_NOT_NUMBERS = ("streams", "delivery", "packing", "tokenizer_backend", "tokenizer_backend_reason")
_BRIEF = ("rows", "tokens", "delivery/stall_s")
_BRIEF_LOSSES = ("failed", "dropped", "truncated", "filtered")
_BRIEF_STREAMS = 3
MEASURED_S = 1
"""Seconds of work, after the start, from which the workers' throughput is known."""


@dataclass(frozen=True)
class StreamStats:
    """Statistics of one stream."""

    tokens: int
    """Number of tokens in rows, bos and eos included."""
    documents: int
    """Number of finished documents with tokens, over all epochs. A document that continues in a
    later row is not counted yet. With `best_fit`, this includes documents that wait in open rows,
    of which each lane has up to `open_rows`."""
    filtered: int
    """Number of documents filtered out by the transform, `min_tokens`, or `max_tokens`."""
    empty: int
    """Number of documents without tokens that were not filtered out."""
    truncated: int
    """Number of tokens cut off by `one_per_row`."""
    failed: int
    """Number of documents left out by on_error="skip"."""
    deselected: int
    """Number of documents that `select` or `drop` left out, which were not read."""
    epoch: float
    """Progress in epochs: 1.5 is halfway through the second epoch. Without a mixture, all streams
    have the same value. With `best_fit`, documents that wait in open rows count as read."""
    share: float
    """The stream's share of the run's tokens, from 0 to 1; 0 before the first token."""
    trained: int | None = field(default=None, compare=False)
    """Number of trained tokens in the batches that this rank has received since the loader was
    created. None if all tokens are trained. Like `Stats.delivery`, it is not saved in the
    state."""


class Traffic(NamedTuple):
    """Counts of a shard cache's traffic in a period. `+` adds up two periods."""

    hits: int = 0
    """Number of shards opened without a fetch."""
    misses: int = 0
    """Number of shards opened after this or another process fetched them."""
    bytes_downloaded: int = 0
    """Number of stored bytes in completed downloads, including invalid data."""
    download_ns: int = 0
    """Nanoseconds spent downloading, summed over the threads."""
    unpack_ns: int = 0
    """Nanoseconds spent checking and decompressing downloads, summed over the threads."""

    def __add__(self, other: Traffic) -> Traffic:  # type: ignore[override]
        return Traffic(*map(operator.add, self, other))


class RecentDelivery(NamedTuple):
    """The delivery of the latest batches of an iteration: at most 100, and not its first."""

    batches: int = 0
    """Number of batches."""
    total_s: float = 0.0
    """Seconds from the arrival of the batch before them to the arrival of the last one."""
    stall_s: float = 0.0
    """Of these, seconds that the training loop waited for batches."""
    exchange_s: float = 0.0
    """Of `stall_s`, seconds that this rank waited for other ranks while its own rows were ready."""
    stages_s: tuple[float, ...] = (0.0,) * len(STAGES)
    """Seconds that workers spent in each of `STAGES`."""

    def describe(self) -> str:
        """Describe in a sentence how long the training loop waited, and if it is long, why."""
        if not self.batches:
            return (
                "too few batches were delivered to say how long the training loop waited for data"
            )
        share = self.stall_s / max(1e-9, self.total_s)
        which = f"last {self.batches} batches" if self.batches > 1 else "last batch"
        start = f"the training loop waited for data for {share:.1%} of the {which} "
        start += f"({self.total_s:,.2f} s in total)"
        return f"{start}{self._explain() if share > MOST_SHARE else ''}; the rest is yours"

    def _explain(self) -> str:
        if self.exchange_s > self.stall_s / 2:
            return ", mostly for other ranks while the rows of this rank were ready"
        most = max(range(len(STAGES)), key=self.stages_s.__getitem__)
        if not self.stages_s[most]:  # the time was too short to see what the workers did
            return ""
        if most == IDLE:
            return ", although its workers mostly waited for it"
        percent = self.stages_s[most] / sum(self.stages_s)
        return f", because its workers spent {percent:.0%} of their time {STAGE_WORDS[most]}"


_NONE_YET = RecentDelivery()


@dataclass(frozen=True)
class DeliveryStats:
    """Statistics of the delivery of batches to this rank, since its loader was created.

    They are not saved in the state, so they are 0 in a new loader. The counts of shards and bytes
    are not exact, because a worker reports them with each block. Work on later blocks is not
    included.
    """

    stall_s: float
    """Seconds that the training loop spent in `next()` or `skip`, mostly waiting for workers
    (including their start) or other ranks. Excludes the setup of an iteration. The value also grows
    during a wait, so another thread can watch it."""
    cache_hits: int
    """Number of shards that workers opened without a fetch. A shard counts each time that it is
    opened. Shards that are mapped in place are not counted."""
    cache_misses: int
    """Number of shards that workers opened after they or another process fetched them."""
    bytes_downloaded: int
    """Number of stored bytes in the workers' completed downloads, valid or not."""
    retries: int
    """Number of failed requests for shards that the workers retried. The value also grows
    while the training loop waits."""
    exchange_s: float = 0.0
    """Seconds of `stall_s` that this rank waited for other ranks while its own rows were ready."""
    fetch_s: float = 0.0
    """Seconds that workers waited for shards. This and the next five fields are summed over the
    workers, and add up to the workers' total time."""
    read_s: float = 0.0
    """Seconds that workers spent reading documents from shards on disk."""
    transform_s: float = 0.0
    """Seconds that workers spent in the transform."""
    tokenize_s: float = 0.0
    """Seconds that workers spent tokenizing."""
    pack_s: float = 0.0
    """Seconds that workers spent packing documents into rows, and on everything else."""
    idle_s: float = 0.0
    """Seconds that workers waited with full queues, because the training loop was slower."""
    download_s: float = 0.0
    """Seconds spent downloading, summed over the threads of all workers."""
    unpack_s: float = 0.0
    """Seconds spent checking and decompressing downloads, summed over all workers' threads."""
    queue: float = 0.0
    """Fill level of the workers' queues, from 0 (empty) to 1 (full); 0 without workers."""
    tokens_made: int = 0
    """Number of tokens in all rows that workers have made, including undelivered rows."""
    start_tokens: int = 0
    """Number of `tokens_made` before the first batch of each iteration."""
    start_s: float = 0.0
    """Seconds that workers worked before the first batch of each iteration. They are part of the
    fields from `fetch_s` to `pack_s`."""
    recent: RecentDelivery = _NONE_YET
    """The delivery of the latest batches, which `describe` describes. It is the only field that is
    not a number, so a logger does not get it."""

    def describe(self) -> str:
        """Say in a sentence how long the training loop waited for data, and if it is long, why.

        The sentence covers the last 100 batches of this rank, or those since the first batch of the
        iteration. It says that the loop waited 0.3% of them, for example, and that the rest is its
        own. Above 5%, it names the stage in which the workers spent most of their time, or the
        other ranks if this rank waited for them.
        """
        return self.recent.describe()

    def numbers(self) -> dict[str, float]:
        """Return the fields that are numbers."""
        return {name: value for name, value in vars(self).items() if name != "recent"}

    def tokens_per_s(self, num_workers: int) -> float | None:
        """Estimate the throughput of `num_workers` workers, in tokens per second.

        The estimate excludes the start of each iteration, up to its first batch, and the time that
        workers waited for the training loop. Returns None until the workers have worked for 1 s
        after the start, because a start says nothing about the speed of a run.
        """
        busy_s = self.fetch_s + self.read_s + self.transform_s + self.tokenize_s + self.pack_s
        tokens, busy_s = self.tokens_made - self.start_tokens, busy_s - self.start_s
        return num_workers * tokens / busy_s if tokens and busy_s >= MEASURED_S else None


class WorkerReports(Protocol):
    """The counters that an iteration's workers update continuously."""

    def total(self) -> int:
        """Return the number of retried requests for shards."""
        ...

    def stage_ns(self) -> list[int]:
        """Return the nanoseconds spent in each of `STAGES`, summed over the workers."""
        ...

    def num_blocks(self) -> int:
        """Return the number of blocks that the workers have finished."""
        ...

    def num_tokens(self) -> int:
        """Return the number of tokens in the blocks that the workers have finished."""
        ...


class _NoReports:
    """The counters before the first iteration."""

    def total(self) -> int:
        return 0

    def stage_ns(self) -> list[int]:
        return [0] * len(STAGES)

    def num_blocks(self) -> int:
        return 0

    def num_tokens(self) -> int:
        return 0


class _Work(NamedTuple):
    """The workers of an iteration, and the counts of the workers before them."""

    reports: WorkerReports = _NoReports()
    most_ahead: int = 0
    """The number of blocks that the workers' queues hold."""
    past_retries: int = 0
    past_tokens: int = 0
    past_ns: Sequence[int] = (0,) * len(STAGES)
    start_tokens: int = 0
    """The number of tokens made before the first batch of each iteration."""
    start_ns: int = 0
    """The workers' nanoseconds before the first batch of each iteration, without idle time."""
    is_starting: bool = True

    def end_start(self) -> _Work:
        """Count this iteration's work so far as its start, unless its start has ended."""
        if not self.is_starting:
            return self
        return self._replace(
            is_starting=False,
            start_tokens=self.start_tokens + self.reports.num_tokens(),
            start_ns=self.start_ns + sum(self.reports.stage_ns()[:IDLE]),
        )

    def count_retries(self) -> int:
        return self.past_retries + self.reports.total()

    def count_tokens(self) -> int:
        return self.past_tokens + self.reports.num_tokens()

    def stage_ns(self) -> list[int]:
        return list(map(operator.add, self.past_ns, self.reports.stage_ns()))

    def measure_queue(self, num_received: int) -> float:
        num_waiting = max(0, self.reports.num_blocks() - num_received)
        return min(1.0, num_waiting / self.most_ahead) if self.most_ahead else 0.0


class _Arrival(NamedTuple):
    """The statistics when a batch arrived in the training loop."""

    at: float
    """In `time.perf_counter` seconds."""
    stall_s: float
    exchange_s: float
    stage_ns: Sequence[int]
    """As read at most `_STAGES_EVERY_S` before, because reading it takes microseconds."""


class DeliveryMeter:
    """Adds up the delivery statistics of one loader and its workers."""

    def __init__(self) -> None:
        self._arrivals: deque[_Arrival] = deque(maxlen=_RECENT_BATCHES + 1)
        self._stages_at, self._stage_ns = 0.0, list[int]()
        self.traffic = Traffic()
        self.exchange_s = 0.0
        """Seconds that this rank waited for other ranks."""
        self.num_received = 0
        """Number of blocks received in the current iteration."""
        self.trained: list[int] = []
        """Number of trained tokens of each stream in batches; empty if all tokens are trained."""
        # single tuples, so that no other thread counts a wait or an iteration's work twice
        self._work = _Work()
        self._stall: tuple[float, float | None] = (0.0, None)
        """Seconds of all completed waits, and the start of the current wait (`perf_counter`)."""

    def begin_wait(self) -> None:
        """Start counting the time as a stall of the training loop."""
        self._stall = (self._stall[0], time.perf_counter())

    def end_wait(self) -> None:
        """Add the time since `begin_wait` to the stall."""
        stall_s, began = self._stall
        if began is not None:
            self._stall = (stall_s + time.perf_counter() - began, None)

    def arrive(self) -> None:
        """Record that a batch has arrived in the training loop."""
        now, arrivals = time.perf_counter(), self._arrivals
        if not arrivals or now - self._stages_at >= _STAGES_EVERY_S:
            self._stages_at, self._stage_ns = now, self._work.stage_ns()
        arrivals.append(_Arrival(now, self._stall[0], self.exchange_s, self._stage_ns))

    def count_trained(self, numbers: Sequence[int]) -> None:
        """Add the numbers of trained tokens of each stream in a batch."""
        self.trained = list(map(operator.add, self.trained or [0] * len(numbers), numbers))

    def forget_arrivals(self) -> None:
        """Leave what comes before the next batch out of `recent`, such as the start of workers."""
        self._arrivals.clear()

    def _measure_recent(self) -> RecentDelivery:
        arrivals = list(self._arrivals)  # in one step, because another thread may add to them
        if len(arrivals) < 2:
            return _NONE_YET
        first, last = arrivals[0], arrivals[-1]
        spent = map(operator.sub, last.stage_ns, first.stage_ns)
        return RecentDelivery(
            len(arrivals) - 1,
            last.at - first.at,
            last.stall_s - first.stall_s,
            last.exchange_s - first.exchange_s,
            tuple(each / 1e9 for each in spent),
        )

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Count the time in the `with` block as waiting for other ranks."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.exchange_s += time.perf_counter() - began

    def begin_iteration(self, reports: WorkerReports, most_ahead: int) -> None:
        """Start measuring an iteration's workers, whose queues hold up to `most_ahead` blocks."""
        work = self._work.end_start()
        past = work.count_retries(), work.count_tokens(), work.stage_ns()
        start = work.start_tokens, work.start_ns
        self._work, self.num_received = _Work(reports, most_ahead, *past, *start), 0

    def receive(self, num_blocks: int) -> None:
        """Count blocks of a batch that the workers delivered. The first batch ends the start."""
        self._work = self._work.end_start()
        self.num_received += num_blocks

    def stats(self) -> DeliveryStats:
        """Return the statistics so far, including the current wait."""
        stall_s, began = self._stall
        if began is not None:
            stall_s += time.perf_counter() - began
        traffic, work = self.traffic, self._work
        stage_ns = work.stage_ns()
        return DeliveryStats(
            stall_s=stall_s,
            cache_hits=traffic.hits,
            cache_misses=traffic.misses,
            bytes_downloaded=traffic.bytes_downloaded,
            retries=work.count_retries(),
            exchange_s=self.exchange_s,
            fetch_s=stage_ns[FETCH] / 1e9,
            read_s=stage_ns[READ_SHARDS] / 1e9,
            transform_s=stage_ns[TRANSFORM] / 1e9,
            tokenize_s=stage_ns[TOKENIZE] / 1e9,
            pack_s=stage_ns[PACK] / 1e9,
            idle_s=stage_ns[IDLE] / 1e9,
            download_s=traffic.download_ns / 1e9,
            unpack_s=traffic.unpack_ns / 1e9,
            queue=work.measure_queue(self.num_received),
            tokens_made=work.count_tokens(),
            start_tokens=work.start_tokens,
            start_s=work.start_ns / 1e9,
            recent=self._measure_recent(),
        )


@dataclass(frozen=True)
class Stats:
    """Statistics of a run, up to the last batch delivered or skipped.

    With `exchange_every` above 1, the counts of tokens and documents are those of the last
    exchange. Fields without a description are sums over the streams; see `StreamStats`.
    """

    rows: int
    """Number of rows that all ranks together have delivered, skipped, or passed over by `seek`."""
    tokens: int
    documents: int
    """Number of finished documents with tokens, summed over the streams. With `best_fit`, this
    includes documents that wait in open rows."""
    filtered: int
    empty: int
    truncated: int
    padding: int
    """Number of padding tokens in rows."""
    failed: int
    deselected: int
    skipped_rows: int
    """Number of rows skipped by `skip`."""
    dropped: int
    """Number of tokens left over at the end of a finite run with tail="drop"."""
    streams: Mapping[str, StreamStats]
    delivery: DeliveryStats = field(compare=False)
    """Statistics of this rank and this loader, not of the run. Ignored by `==`."""
    tokenizer_backend: str
    """The tokenizer backend of this process and its workers: `hf` or `fastokens`; `none` if no
    text is tokenized."""
    tokenizer_backend_reason: str | None
    """Why tokenizer_backend="auto" chose hf over fastokens; None in all other cases."""
    packing: str
    """The packing of the run."""

    def __str__(self) -> str:
        """Return the statistics as tables of up to 80 columns."""
        totals = self._totals()
        width = max(len(value) for _, value, _ in totals)
        aligned = [(name, f"{value:>{width}}", remark) for name, value, remark in totals]
        delivery = {name: _show(value) for name, value in self.delivery.numbers().items()}
        reason = self.tokenizer_backend_reason
        backend = f"{self.tokenizer_backend}{f' because {reason}' if reason else ''}"
        return "\n".join(
            [
                reports.list_values("statistics of the run", aligned),
                reports.render_columns("streams", *self._streams()),
                reports.render_columns(
                    "delivery to this rank since the loader was created",
                    ("", *delivery),
                    [("", *delivery.values())],
                ),
                *reports.wrap_text(self.delivery.describe(), reports.WIDTH, reports.WIDTH),
                *reports.wrap_text(f"tokenizer backend: {backend}", reports.WIDTH, reports.WIDTH),
            ]
        )

    def __repr__(self) -> str:
        return (
            f"Stats(rows={self.rows}, tokens={self.tokens}, documents={self.documents}, "
            f"streams={len(self.streams)})"
        )

    def _repr_html_(self) -> str:
        """Return the statistics as tables, for a notebook."""
        counts = [(name, f"{value} {remark}".rstrip()) for name, value, remark in self._totals()]
        return reports.render_table(
            "statistics of the run", ("count", "value"), counts
        ) + reports.render_table("streams", *self._streams())

    def _totals(self) -> list[tuple[str, str, str]]:
        """List the counts, their values, and remarks."""
        waiting = "includes those that wait in open rows"
        remarks = {"documents": waiting} if self.packing == "best_fit" else {}
        return [(name, f"{getattr(self, name):,}", remarks.get(name, "")) for name in _TOTALS]

    def _streams(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the head and the rows of the table of streams."""
        has_masks = any(each.trained is not None for each in self.streams.values())
        deselected = ("deselected",) if self.deselected else ()
        counts = (*COUNTS[1:5], COUNTS[6], *deselected, *(("trained",) if has_masks else ()))
        heads = ("stream", "tokens", "share", "epoch", *counts)
        rows = [
            (
                *(name, f"{each.tokens:,}", f"{each.share:.2%}", f"{each.epoch:.3f}"),
                *(f"{getattr(each, count) or 0:,}" for count in counts),
            )
            for name, each in self.streams.items()
        ]
        return heads, rows

    def as_dict(self, prefix: str = "", *, brief: bool = False) -> dict[str, Any]:
        """Return the statistics as a flat dict of numbers, for a logger.

        Every key starts with `prefix`. Nested keys are `streams/<name>/<count>` and
        `delivery/<count>`. Omits the packing and the tokenizer backend, which are not numbers.

        With `brief`, returns at most ten: `rows`, `tokens`, `delivery/stall_s`, the epochs of the
        first three streams, and those of `failed`, `dropped`, `truncated`, and `filtered` that are
        not 0.
        """
        numbers = {name: value for name, value in asdict(self).items() if name not in _NOT_NUMBERS}
        for stream, stats in self.streams.items():
            counts = asdict(stats).items()
            numbers.update(
                {f"streams/{stream}/{name}": value for name, value in counts if value is not None}
            )
        numbers.update(
            {f"delivery/{name}": value for name, value in self.delivery.numbers().items()}
        )
        names = self._brief_names() if brief else numbers
        return {f"{prefix}{name}": numbers[name] for name in names}

    def _brief_names(self) -> list[str]:
        streams = list(self.streams)[:_BRIEF_STREAMS]
        losses = [name for name in _BRIEF_LOSSES if getattr(self, name)]
        return [*_BRIEF, *(f"streams/{stream}/epoch" for stream in streams), *losses]


def _show(value: float) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
