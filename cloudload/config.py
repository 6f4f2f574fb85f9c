"""What a loader is asked for, in two halves.

`RowsConfig` says *which tokens, in which order*; it goes into the state, and a resume is held to it.
`DeliveryConfig` says *how they arrive*; it is free to change at every resume.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from cloudload.backends import Retry
from cloudload.locations import check_location, join_url

SHUFFLE_ALGORITHMS = ("py1e", "py1br", "py1s", "py2s", "naive")
PACKINGS = ("concat",)
START_METHODS = (None, "fork", "spawn", "forkserver")
AUTO = "auto"


@dataclass(frozen=True)
class Stream:
    """One MDS dataset: where it lies, and which split of it to read."""

    remote: str
    """URL or folder that holds `index.json`, or the folder above its splits."""
    split: str | None = None
    """Sub-folder to read, such as `train`."""

    def __post_init__(self) -> None:
        if not isinstance(self.remote, str):
            raise ValueError(f"a stream's remote is {self.remote!r}; give the URL or folder of an MDS dataset")
        check_location(self.remote)

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
    """`concat`: documents run on over the ends of rows."""
    shuffle: bool = True
    """Whether each epoch is shuffled."""
    shuffle_algo: str = "py1e"
    """StreamingDataset's shuffle algorithm."""
    shuffle_block_size: int | None = None
    """Documents that are shuffled among each other, per canonical node."""
    num_canonical_nodes: int | None = None
    """Parts that the shuffled epoch is cut into; the node counts that divide it touch only their own shards."""
    seed: int = 17
    """Seed of the shuffle; the epoch's number is mixed in by StreamingDataset's algorithm."""
    num_lanes: int | None = None
    """Logical shards that are packed on their own; every world size must divide it."""
    epochs: int | None = None
    """Passes over the data; None is endless."""
    text_key: str = "text"
    """The column that holds the document."""
    bos: str | None = AUTO
    """Token before each document: a token, None, or `auto`: where the tokenizer's own template has one."""
    eos: str | None = AUTO
    """Token after each document: a token, None, or `auto`: the tokenizer's own end-of-text token."""

    def __post_init__(self) -> None:
        if not self.streams:
            raise ValueError("no streams: give a URL, a Stream, or a list of them")
        _check_positive("seq_len", self.seq_len)
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or not 0 <= self.seed < 1 << 32:
            raise ValueError(f"seed is {self.seed!r}; it must be a whole number from 0 to 4,294,967,295")
        _check_choice("shuffle", self.shuffle, (True, False))
        for name in ("shuffle_block_size", "num_canonical_nodes", "num_lanes", "epochs"):
            if (value := getattr(self, name)) is not None:
                _check_positive(name, value)
        if self.shuffle_block_size == 1:
            raise ValueError(
                "shuffle_block_size is 1; StreamingDataset's shuffles need at least 2. To keep the order, use shuffle=False"
            )
        for name in ("bos", "eos"):
            if not isinstance(getattr(self, name), str | None):
                raise ValueError(f"{name} is {getattr(self, name)!r}; give the text of a token, None, or 'auto'")
        _check_choice("packing", self.packing, PACKINGS)
        _check_choice("shuffle_algo", self.shuffle_algo, SHUFFLE_ALGORITHMS)
        if self.num_lanes and self.num_canonical_nodes and self.num_lanes % self.num_canonical_nodes:
            raise ValueError(
                f"num_canonical_nodes {self.num_canonical_nodes} does not divide num_lanes {self.num_lanes}. "
                f"Use one of {divisors(self.num_lanes)}, or another num_lanes"
            )


@dataclass(frozen=True)
class DeliveryConfig:
    """How rows arrive."""

    batch_size: int
    """Rows per rank and step."""
    local: str | None = None
    """The node's shard cache; default `~/.cache/cloudload` (or `$CLOUDLOAD_CACHE`)."""
    num_workers: int = 4
    """Worker processes per rank, at most one for each of its lanes; 0 works in the training process."""
    prefetch_batches: int = 4
    """Batches that the workers run ahead of the training loop, at least."""
    predownload: int | None = None
    """Documents of look-ahead per worker, whose shards are fetched; None: two shards for each canonical node."""
    download_threads: int = 4
    """Shards that one worker fetches at a time."""
    cache_limit: int | str | None = None
    """Most bytes of the node's shard cache, or a text such as `200gb`; None is no limit."""
    retry: Retry = field(default_factory=Retry)
    """How long the store is tried."""
    exchange_every: int = 1
    """Batches between exchanges of cursors among the ranks; a resume replays at most one less. Always 1 with `epochs`."""
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
        if not isinstance(self.num_workers, int) or isinstance(self.num_workers, bool) or self.num_workers < 0:
            raise ValueError(f"num_workers is {self.num_workers!r}; it must be a whole number of 0 or more")
        if self.predownload is not None:
            _check_positive("predownload", self.predownload)
        if not isinstance(self.exchange_timeout_s, int | float) or self.exchange_timeout_s <= 0:
            raise ValueError(f"exchange_timeout_s is {self.exchange_timeout_s!r}; it must be a number of seconds above 0")
        _check_choice("start_method", self.start_method, START_METHODS)
        if not isinstance(self.retry, Retry):
            raise ValueError(f"retry is {self.retry!r}; give a cloudload.Retry(timeout_s=…, deadline_s=…)")
        if (self.dp_rank is None) != (self.dp_world_size is None):
            raise ValueError("dp_rank and dp_world_size go together: give both or neither")
        self.cache_limit_bytes()

    def cache_limit_bytes(self) -> int | None:
        """The cache limit in bytes."""
        return None if self.cache_limit is None else parse_bytes(self.cache_limit)


def parse_bytes(value: int | str) -> int:
    """Bytes from `1024`, `"500mb"`, `"1.5tb"`, `"64MiB"`; kb, mb, … are powers of 1024, as Streaming has them."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kmgtp]?)i?b?\s*", str(value).lower())
    size = int(float(match[1]) * 1024 ** " kmgtp".index(match[2] or " ")) if match else 0
    if size < 1:
        raise ValueError(f"{value!r} is not a size; write bytes, or a number with kb, mb, gb or tb")
    return size


def divisors(number: int) -> list[int]:
    """Every divisor, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def _check_positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; use one of {', '.join(map(str, choices))}")
