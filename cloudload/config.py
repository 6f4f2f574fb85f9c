"""The options of a loader, in two halves.

`RowsConfig` says *which tokens, in which order*; the state holds a resume to it. `DeliveryConfig`
says *how they arrive*; it is free to change at every resume.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from cloudload.arrays import divisors
from cloudload.option_docs import explained
from cloudload.segments import FIELDS
from cloudload.storage.base import Retry
from cloudload.storage.redaction import redact
from cloudload.storage.urls import check_location, join_url

SEEKABLE = "seekable"
ONCE, ALWAYS, OFF = "once", "always", "off"
EPOCH = "epoch"
AUTO = "auto"
HF = "hf"
FASTOKENS = "fastokens"
SAME = "same"

ShuffleAlgorithm = Literal["py1e", "py1br", "py1s", "py2s", "naive", "seekable"]
PackingName = Literal["concat", "best_fit", "one_per_row"]
Overflow = Literal["cut", "rows"]
TailMode = Literal["pad", "drop"]
StartMethod = Literal["fork", "spawn", "forkserver"]
Verification = Literal["once", "always", "off"]
TokenizerBackend = Literal["auto", "hf", "fastokens"]

SHUFFLE_ALGORITHMS = get_args(ShuffleAlgorithm)
PACKINGS = get_args(PackingName)
OVERFLOWS = get_args(Overflow)
TAILS = get_args(TailMode)
START_METHODS = (None, *get_args(StartMethod))
VERIFICATIONS = get_args(Verification)
TOKENIZER_BACKENDS = get_args(TokenizerBackend)

Transform = Callable[[dict[str, Any]], str | None]


@explained
@dataclass(frozen=True)
class Stream:
    """One MDS dataset: its location, and how much of it to read."""

    remote: str
    """URL or folder that holds `index.json`, or the folder above its splits."""
    split: str | None = None
    """Subfolder to read, such as `train`."""
    proportion: float | None = None
    """Share of the rows, relative to the other streams. Each stream then has its own shuffle order
    and epochs."""
    repeat: float | None = None
    """How many times an epoch of all streams together reads its samples, as in StreamingDataset:
    0.5 reads every other one."""
    choose: int | None = None
    """How many of its samples an epoch of all streams together reads; an alternative to
    `repeat`."""
    name: str | None = None
    """The name for schedules, statistics and traces. By default its URL."""
    bos: str | None = SAME
    """Token before each of its documents: a token, None, `auto`, or `same` as for the other
    streams."""
    eos: str | None = SAME
    """Token after each of its documents, likewise."""

    def __post_init__(self) -> None:
        if not isinstance(self.remote, str):
            raise ValueError(
                f"a stream's remote is {self.remote!r}; give the URL or folder of an MDS dataset"
            )
        check_location(self.remote)
        share = self.proportion
        if share is not None and (not _is_number(share) or not 0 <= share < math.inf):
            raise ValueError(
                f"proportion of {self.label} is {share!r}; it must be a number of 0 or more"
            )
        if self.proportion is not None and (self.repeat is not None or self.choose is not None):
            raise ValueError(
                f"{self.label} has a proportion and repeat or choose: a stream is either mixed in "
                "or part of one pass"
            )
        for name in ("bos", "eos"):
            _check_token(f"{name} of {self.label}", getattr(self, name))

    def __repr__(self) -> str:
        shown = {
            "remote": redact(self.remote),
            **{name: value for name, value in vars(self).items() if name != "remote"},
        }
        given = [
            f"{each.name}={shown[each.name]!r}"
            for each in fields(self)
            if shown[each.name] != each.default
        ]
        return f"Stream({', '.join(given)})"

    @property
    def label(self) -> str:
        """Its name, or else its URL without secrets."""
        return self.name or redact(self.url)

    @property
    def url(self) -> str:
        """Where `index.json` lies."""
        return join_url(self.remote, self.split or "").rstrip("/")


@explained
@dataclass(frozen=True)
class RowsConfig:
    """Which tokens, in which order. None means: settled from the data (see `describe()`)."""

    streams: tuple[Stream, ...]
    """The datasets, read as one, in this order."""
    seq_len: int
    """Tokens per row. May change at a resume."""
    packing: PackingName = "concat"
    """How documents fill rows. `concat`: documents continue across the ends of rows. `best_fit`: no
    document that fits a row is split. `one_per_row`: one document a row."""
    open_rows: int = 16
    """Rows that `best_fit` keeps open in each lane."""
    overflow: Overflow = "cut"
    """What `one_per_row` does with the rest of a longer document: `cut` it off, or give it
    `rows`."""
    shuffle: bool = True
    """Whether each epoch is shuffled."""
    shuffle_algo: ShuffleAlgorithm = "py1e"
    """The shuffle: one of StreamingDataset's, or `seekable`, which is like py1br but found position
    by position, for 10^8 documents and more."""
    shuffle_block_size: int | None = None
    """Documents that are shuffled with each other, in each canonical node. By default four shards
    of them."""
    num_canonical_nodes: int | None = None
    """Parts that the shuffled epoch is divided into. A number of nodes that divides it downloads
    each shard on one node only. By default up to 64, with at least four shards each."""
    seed: int = 17
    """Seed of the shuffle, 0 to 2^32 - 1. StreamingDataset's algorithm mixes in the epoch."""
    num_lanes: int | None = None
    """Logical shards that are packed separately. Every world size must divide it. By default 12 to
    3,840, by the number of documents."""
    epochs: int | None = None
    """Passes over the data. None is endless."""
    schedule: Sequence[tuple[int, Mapping[str, float]]] | None = None
    """Pairs of a row and the streams' weights from that row on. None keeps the streams'
    proportions."""
    text_key: str = "text"
    """The column that holds the document."""
    transform: Transform | None = None
    """A function from a sample (a dict) to its text, or to None to filter it out. It must be
    deterministic, and picklable where workers are spawned."""
    min_tokens: int = 0
    """Documents with fewer tokens, bos and eos included, are filtered out."""
    bos: str | None = AUTO
    """Token before each document: a token, None, or `auto`, which takes it from the tokenizer's own
    template."""
    eos: str | None = AUTO
    """Token after each document: a token, None, or `auto`, which is the tokenizer's end-of-text
    token."""

    def __post_init__(self) -> None:
        if self.schedule is not None:
            object.__setattr__(self, "schedule", tuple(self.schedule))
        if not self.streams:
            raise ValueError("no streams: give a URL, a Stream, or a list of them")
        _check_positive("seq_len", self.seq_len)
        if (
            not isinstance(self.seed, int)
            or isinstance(self.seed, bool)
            or not 0 <= self.seed < 1 << 32
        ):
            raise ValueError(
                f"seed is {self.seed!r}; it must be a whole number from 0 to 4,294,967,295"
            )
        _check_choice("shuffle", self.shuffle, (True, False))
        for name in ("shuffle_block_size", "num_canonical_nodes", "num_lanes", "epochs"):
            if (value := getattr(self, name)) is not None:
                _check_positive(name, value)
        if self.shuffle_block_size == 1:
            raise ValueError(
                "shuffle_block_size is 1; StreamingDataset's shuffles need at least 2. To keep the "
                "order, use shuffle=False"
            )
        for name in ("bos", "eos"):
            _check_token(name, getattr(self, name))
        _check_choice("packing", self.packing, PACKINGS)
        _check_choice("overflow", self.overflow, OVERFLOWS)
        _check_positive("open_rows", self.open_rows)
        _check_count("min_tokens", self.min_tokens)
        if self.transform is not None and not callable(self.transform):
            raise ValueError(
                f"transform is {self.transform!r}; give a function from a "
                "sample (a dict) to text or None"
            )
        self._check_mixing()
        _check_choice("shuffle_algo", self.shuffle_algo, SHUFFLE_ALGORITHMS)
        if (
            self.num_lanes
            and self.num_canonical_nodes
            and self.num_lanes % self.num_canonical_nodes
        ):
            raise ValueError(
                f"num_canonical_nodes {self.num_canonical_nodes} does not divide num_lanes "
                f"{self.num_lanes}. "
                f"Use one of {divisors(self.num_lanes)}, or another num_lanes"
            )

    def _check_mixing(self) -> None:
        labels = [stream.label for stream in self.streams]
        if repeated := sorted({label for label in labels if labels.count(label) > 1}):
            raise ValueError(
                f"two streams are called {repeated[0]!r}; give each "
                "Stream(..., name=...) of its own"
            )
        if not self.is_mixed:
            return
        if without := [
            stream.label
            for stream in self.streams
            if stream.proportion is None and self.schedule is None
        ]:
            raise ValueError(
                f"{without[0]} has no proportion, but other streams have. "
                "Give each a proportion, or none"
            )
        if self.epochs is not None:
            raise ValueError(
                f"epochs is {self.epochs!r}, but streams that are mixed by proportion each have "
                "epochs of their own. "
                "Leave epochs out and use take(n), or give the streams repeat or choose for one "
                "pass over all"
            )
        if part := [
            stream.label
            for stream in self.streams
            if stream.repeat is not None or stream.choose is not None
        ]:
            raise ValueError(
                f"{part[0]} has repeat or choose, which do not go with a "
                "schedule or with proportions"
            )

    @property
    def is_mixed(self) -> bool:
        """Whether each stream is read in an order of its own."""
        return self.schedule is not None or any(
            stream.proportion is not None for stream in self.streams
        )

    @property
    def transform_name(self) -> str | None:
        """By which a transform is known again: its name and, where it can be had, a hash of its
        source."""
        return None if self.transform is None else _name_function(self.transform)


def _name_function(function: Callable[..., Any]) -> str:
    inner = getattr(function, "func", function)  # of a functools.partial
    qualified = getattr(inner, "__qualname__", type(inner).__qualname__)
    name = f"{getattr(inner, '__module__', '')}.{qualified}"
    if inner is not function:
        keywords = sorted(getattr(function, "keywords", {}).items())
        name += f"{getattr(function, 'args', ())!r}{keywords!r}"
    try:
        source = inspect.getsource(inner if inspect.isroutine(inner) else type(inner))
    except (OSError, TypeError):
        return name
    return f"{name}#{hashlib.sha256(source.encode()).hexdigest()[:12]}"


@explained
@dataclass(frozen=True)
class DeliveryConfig:
    """How rows arrive."""

    batch_size: int
    """Rows per rank and step. The global batch is this times the number of data-parallel ranks."""
    tail: TailMode = "pad"
    """The last global batch of a finite run: `pad` it with masked rows, or `drop` it if it is not
    full."""
    fields: Sequence[str] = ()
    """Tensors beside input_ids and labels: `position_ids`, `segment_ids`, `cu_seqlens` (with
    `max_seqlen`)."""
    mask_edges: bool = False
    """Whether to mask the label of each document's first token, which only the document before it
    could predict."""
    local: str | os.PathLike[str] | None = None
    """Folder of the node's shard cache. By default `$CLOUDLOAD_CACHE`, or `~/.cache/cloudload`."""
    tokenizer_backend: TokenizerBackend = "auto"
    """What encodes, to the same ids: `hf`, `fastokens`, or `auto`, which is fastokens if it is
    found to give hf's ids, and else hf."""
    num_workers: int = 4
    """Worker processes per rank, at most one for each of its lanes. 0 works in the training
    process."""
    prefetch_batches: int = 4
    """Batches that workers run ahead of the training loop, at least."""
    predownload: int | None = None
    """Documents of look-ahead per worker, whose shards are fetched. By default two shards for each
    canonical node."""
    download_threads: int = 4
    """Shards that one worker fetches at a time."""
    cache_limit: int | str | None = None
    """Upper bound of the node's shard cache: bytes, or text such as `200gb`. None is no limit."""
    verify: Verification = "once"
    """When a shard's hash in the index is checked: `once`, when it is fetched, and again only if
    its file was modified; `always`, also whenever a process first opens it; or `off`. Sizes and
    headers are always checked."""
    retry: Retry = field(default_factory=Retry)
    """How long to retry the object store."""
    stop_every: int | Literal["epoch"] | None = None
    """When a pass over the loader ends: after this many batches of the run, at each `epoch` of the
    data, or, with None, with the run."""
    exchange_every: int = 1
    """Batches between exchanges of cursors among the ranks; a resume replays at most one fewer.
    Always 1 with `epochs` or stop_every="epoch"."""
    exchange_timeout_s: float = 1800.0
    """Seconds that a rank waits for the others."""
    start_method: StartMethod | None = None
    """How workers start: `fork`, `spawn`, `forkserver`. None is Python's default."""
    pin_memory: bool = False
    """Whether batches are in page-locked memory, if there is CUDA."""
    dp_rank: int | None = None
    """Data-parallel rank, if it is not the rank of the process."""
    dp_world_size: int | None = None
    """Number of data-parallel ranks, if not every process is one."""
    has_mesh: bool = False
    """Whether `dp_rank` and `dp_world_size` are those of a `device_mesh`."""

    def __post_init__(self) -> None:
        given = (self.fields,) if isinstance(self.fields, str) else tuple(self.fields)
        object.__setattr__(self, "fields", given)
        if self.local is not None:
            object.__setattr__(self, "local", os.fspath(self.local))
        for name in ("batch_size", "prefetch_batches", "download_threads", "exchange_every"):
            _check_positive(name, getattr(self, name))
        _check_count("num_workers", self.num_workers)
        _check_choice("tail", self.tail, TAILS)
        _check_choice("mask_edges", self.mask_edges, (True, False))
        for name in self.fields:
            _check_choice("fields", name, tuple(FIELDS))
        if self.predownload is not None:
            _check_positive("predownload", self.predownload)
        if self.stop_every is not None and self.stop_every != EPOCH:
            if not isinstance(self.stop_every, int):
                raise ValueError(
                    f"stop_every is {self.stop_every!r}; give a number of batches, or {EPOCH!r}"
                )
            _check_positive("stop_every", self.stop_every)
        if not isinstance(self.exchange_timeout_s, int | float) or self.exchange_timeout_s <= 0:
            raise ValueError(
                f"exchange_timeout_s is {self.exchange_timeout_s!r}; it must be a number of "
                "seconds above 0"
            )
        _check_choice("tokenizer_backend", self.tokenizer_backend, TOKENIZER_BACKENDS)
        _check_choice("verify", self.verify, VERIFICATIONS)
        _check_choice("start_method", self.start_method, START_METHODS)
        if not isinstance(self.retry, Retry):
            raise ValueError(
                f"retry is {self.retry!r}; give a cloudload.Retry(timeout_s=…, deadline_s=…)"
            )
        if (self.dp_rank is None) != (self.dp_world_size is None):
            raise ValueError("dp_rank and dp_world_size go together: give both or neither")
        self.cache_limit_bytes()

    def cache_limit_bytes(self) -> int | None:
        """The cache limit in bytes."""
        return None if self.cache_limit is None else parse_bytes(self.cache_limit)


def read_options(options: Mapping[str, Any]) -> tuple[RowsConfig, DeliveryConfig]:
    """The two configs of a loader's options, by the names of their fields.

    Where the data ends a pass, the ranks must agree on its last batch before it is handed out:
    there `exchange_every` is 1.
    """
    rows = RowsConfig(streams=_as_streams(options["data"]), **_pick(RowsConfig, options))
    given = {**_pick(DeliveryConfig, options), "retry": options["retry"] or Retry()}
    delivery = DeliveryConfig(**given)
    if rows.epochs is not None or delivery.stop_every == EPOCH:
        delivery = replace(delivery, exchange_every=1)
    if delivery.stop_every == EPOCH and rows.is_mixed:
        raise ValueError(
            f"stop_every is {EPOCH!r}, but streams that are mixed by "
            "proportion each have their own "
            "epochs. Give a number of batches"
        )
    return rows, delivery


def _pick(config: type, options: Mapping[str, Any]) -> dict[str, Any]:
    names = [option.name for option in fields(config) if option.name in options]
    return {name: options[name] for name in names}


def _as_streams(data: Any) -> tuple[Stream, ...]:
    items: list[Any] = list(data) if isinstance(data, list | tuple) else [data]
    if wrong := [item for item in items if not isinstance(item, str | os.PathLike | Stream)]:
        raise ValueError(
            f"data is {wrong[0]!r}; give the URL or folder of an MDS "
            "dataset, a Stream, or a list of "
            "them"
        )
    return tuple(item if isinstance(item, Stream) else Stream(os.fspath(item)) for item in items)


def parse_bytes(value: int | str) -> int:
    """Bytes from `1024`, `"500mb"`, `"1.5tb"`, `"64MiB"`; kb, mb, … are powers of 1024, as
    Streaming has them."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kmgtp]?)i?b?\s*", str(value).lower())
    size = int(float(match[1]) * 1024 ** " kmgtp".index(match[2] or " ")) if match else 0
    if size < 1:
        raise ValueError(f"{value!r} is not a size; write bytes, or a number with kb, mb, gb or tb")
    return size


def _check_positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of 0 or more")


def _check_token(name: str, value: Any) -> None:
    if not isinstance(value, str | None):
        raise ValueError(f"{name} is {value!r}; give the text of a token, None, or 'auto'")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; use one of {', '.join(map(str, choices))}")
