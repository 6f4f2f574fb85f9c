"""What a loader is asked for, in two halves.

`RowsConfig` says *which tokens, in which order*; it goes into the state, and a resume is held to
it. `DeliveryConfig` says *how they arrive*; it is free to change at every resume.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from cloudload.arrays import divisors
from cloudload.storage.base import Retry
from cloudload.storage.redaction import redact
from cloudload.storage.urls import check_location, join_url

SEEKABLE = "seekable"
SHUFFLE_ALGORITHMS = ("py1e", "py1br", "py1s", "py2s", "naive", SEEKABLE)
PACKINGS = ("concat", "best_fit", "one_per_row")
OVERFLOWS = ("cut", "rows")
TAILS = ("pad", "drop")
FIELDS = ("position_ids", "segment_ids", "cu_seqlens")
START_METHODS = (None, "fork", "spawn", "forkserver")
ONCE, ALWAYS, OFF = "once", "always", "off"
VERIFICATIONS = (ONCE, ALWAYS, OFF)
EPOCH = "epoch"
AUTO = "auto"
HF = "hf"
FASTOKENS = "fastokens"
TOKENIZER_BACKENDS = (AUTO, HF, FASTOKENS)
SAME = "same"

Transform = Callable[[dict[str, Any]], str | None]


@dataclass(frozen=True)
class Stream:
    """One MDS dataset: where it lies, and how much of it to read."""

    remote: str
    """URL or folder that holds `index.json`, or the folder above its splits."""
    split: str | None = None
    """Sub-folder to read, such as `train`."""
    proportion: float | None = None
    """Share of the rows, relative to the other streams': each stream is then read in an order and
    epochs of its own."""
    repeat: float | None = None
    """How many times its samples come in an epoch of all streams together, as StreamingDataset has
    it: 0.5 is every other one."""
    choose: int | None = None
    """How many of its samples come in an epoch of all streams together; in place of `repeat`."""
    name: str | None = None
    """By which a schedule, statistics and traces call it; default: its URL."""
    bos: str | None = SAME
    """Token before each of its documents, where it is not as for the other streams: a token, None,
    or `auto`."""
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


@dataclass(frozen=True)
class RowsConfig:
    """Which tokens, in which order. None means: from the data (see `lanes.resolve`)."""

    streams: tuple[Stream, ...]
    """The datasets, read as one, in this order."""
    seq_len: int
    """Tokens a row; may change at a resume."""
    packing: str = "concat"
    """`concat`: documents run on over the ends of rows. `best_fit`: no document that fits a row is
    split. `one_per_row`."""
    open_rows: int = 16
    """Rows that `best_fit` holds open in each lane."""
    overflow: str = "cut"
    """What `one_per_row` does with the rest of a longer document: `cut` it, or give it `rows` of
    its own."""
    shuffle: bool = True
    """Whether each epoch is shuffled."""
    shuffle_algo: str = "py1e"
    """StreamingDataset's, or `seekable`: as py1br, found position by position, for 10^8 documents
    and more."""
    shuffle_block_size: int | None = None
    """Documents that are shuffled among each other, per canonical node."""
    num_canonical_nodes: int | None = None
    """Parts that the shuffled epoch is cut into; the node counts that divide it touch only their
    own shards."""
    seed: int = 17
    """Seed of the shuffle; the epoch's number is mixed in by StreamingDataset's algorithm."""
    num_lanes: int | None = None
    """Logical shards that are packed on their own; every world size must divide it."""
    epochs: int | None = None
    """Passes over the data; None is endless."""
    schedule: tuple[tuple[int, Mapping[str, float]], ...] | None = None
    """(row, {stream: weight}) from which rows on the streams have which shares; None: the streams'
    proportions, for ever."""
    text_key: str = "text"
    """The column that holds the document."""
    transform: Transform | None = None
    """From a sample to its text, or None to leave it out; deterministic, and picklable where
    workers are spawned."""
    min_tokens: int = 0
    """Documents of fewer tokens, bos and eos included, are left out."""
    bos: str | None = AUTO
    """Token before each document: a token, None, or `auto`: where the tokenizer's own template has
    one."""
    eos: str | None = AUTO
    """Token after each document: a token, None, or `auto`: the tokenizer's own end-of-text
    token."""

    def __post_init__(self) -> None:
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
    name = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"
    if inner is not function:
        name += f"{getattr(function, 'args', ())!r}{sorted(getattr(function, 'keywords', {}).items())!r}"
    try:
        source = inspect.getsource(inner if inspect.isroutine(inner) else type(inner))
    except (OSError, TypeError):
        return name
    return f"{name}#{hashlib.sha256(source.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class DeliveryConfig:
    """How rows arrive."""

    batch_size: int
    """Rows per rank and step."""
    tail: str = "pad"
    """The last global batch of a finite run: `pad` it with masked rows, or `drop` it where it is
    not whole."""
    fields: tuple[str, ...] = ()
    """What batches have beside input_ids and labels: position_ids, segment_ids, cu_seqlens (with
    max_seqlen)."""
    mask_edges: bool = False
    """Whether the label of a document's first token is masked, which only the document before it
    could predict."""
    local: str | None = None
    """The node's shard cache; default `~/.cache/cloudload` (or `$CLOUDLOAD_CACHE`)."""
    tokenizer_backend: str = AUTO
    """What encodes, to the same ids: `hf`, `fastokens`, or `auto`: fastokens where it is found to
    give hf's ids, else hf."""
    num_workers: int = 4
    """Worker processes per rank, at most one for each of its lanes; 0 works in the training
    process."""
    prefetch_batches: int = 4
    """Batches that the workers run ahead of the training loop, at least."""
    predownload: int | None = None
    """Documents of look-ahead per worker, whose shards are fetched; None: two shards for each
    canonical node."""
    download_threads: int = 4
    """Shards that one worker fetches at a time."""
    cache_limit: int | str | None = None
    """Most bytes of the node's shard cache, or a text such as `200gb`; None is no limit."""
    verify: str = ONCE
    """When a shard's hash in the index is checked: `once`, when it is fetched, and again only if
    its file was written to since; `always`, also whenever a process first opens it; or `off`. Sizes
    and heads are always checked."""
    retry: Retry = field(default_factory=Retry)
    """How long the store is tried."""
    stop_every: int | str | None = None
    """When a pass over the loader ends: after so many batches of the run, at each `epoch` of the
    data, or, None, with the run."""
    exchange_every: int = 1
    """Batches between exchanges of cursors among the ranks; a resume replays at most one less.
    Always 1 with `epochs`, and with stop_every="epoch"."""
    exchange_timeout_s: float = 1800.0
    """Seconds that a rank waits for the others."""
    start_method: str | None = None
    """How workers start: `fork`, `spawn`, `forkserver`; None is Python's default."""
    pin_memory: bool = False
    """Whether batches are in page-locked memory, where there is CUDA."""
    dp_rank: int | None = None
    """Data-parallel rank, where it is not the rank of the process."""
    dp_world_size: int | None = None
    """Data-parallel ranks, where not every process is one."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "prefetch_batches", "download_threads", "exchange_every"):
            _check_positive(name, getattr(self, name))
        _check_count("num_workers", self.num_workers)
        _check_choice("tail", self.tail, TAILS)
        _check_choice("mask_edges", self.mask_edges, (True, False))
        for name in self.fields:
            _check_choice("fields", name, FIELDS)
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
