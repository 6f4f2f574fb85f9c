"""The races of `make bench`, and the sides of each race.

To add a peer, write `benchmarks/peers/<peer>.py`, and add an `Entry` here. If its packages are not
in cloudload's environment, add them to `benchmarks/peers/environments.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

BARE, OURS, PEER, CEILING = (
    "bare tokenizer",
    "cloudload",
    "tokenizes on the way",
    "tokenized before",
)


@dataclass(frozen=True)
class Entry:
    """One side of a race: its script in `benchmarks/peers`, and the environment to run it in."""

    name: str
    kind: str
    script: str
    options: dict[str, Any] = field(default_factory=dict)
    environment: str | None = None
    num_workers: int = 1


@dataclass(frozen=True)
class Race:
    """A comparison of sides that take turns on the same cores.

    In each round, the speed of every side is divided by that of the side named `baseline`.
    """

    name: str
    title: str
    cores: int
    baseline: str
    entries: tuple[Entry, ...]


def bare(name: str, backend: str, documents: str) -> Entry:
    return Entry(name, BARE, "bare", {"backend": backend, "documents": documents})


def ours(name: str, num_workers: int = 1, **options: Any) -> Entry:
    """Return an entry for cloudload. `options` go to `CloudLoader`, except `state_every_batch`."""
    return Entry(name, OURS, "cloudload_text", options, num_workers=num_workers)


def peer(
    name: str, script: str, environment: str | None = None, num_workers: int = 1, **options: Any
) -> Entry:
    return Entry(name, PEER, script, options, environment, num_workers)


def on_tokens(
    name: str,
    script: str,
    environment: str | None = None,
    num_workers: int = 1,
    kind: str = CEILING,
    **options: Any,
) -> Entry:
    """Return an entry that reads pre-tokenized data. The race sets its option `tokens`."""
    return Entry(name, kind, script, {"tokens": None, **options}, environment, num_workers)


def our_tokens(name: str, samples: str, num_workers: int = 1) -> Entry:
    return on_tokens(name, "cloudload_tokens", None, num_workers, OURS, samples=samples)


BARE_HF = bare("HF tokenizers, bare", "hf", "fresh")
LITDATA = on_tokens("LitData, pre-tokenized", "litdata", "litdata")
IN_GROUPS = "Streaming, documents in groups"

PEERS = (
    bare("fastokens, bare", "fastokens", "fresh"),
    bare("fastokens, bare, same strings", "fastokens", "kept"),
    BARE_HF,
    bare("HF tokenizers, bare, same strings", "hf", "kept"),
    ours("cloudload, fastokens", tokenizer_backend="fastokens"),
    ours("cloudload, fastokens, best_fit", tokenizer_backend="fastokens", packing="best_fit"),
    ours("cloudload, HF", tokenizer_backend="hf"),
    peer("Streaming, llm-foundry's way", "streaming_text", calls="each"),
    peer(IN_GROUPS, "streaming_text", calls="groups"),
    peer("HF datasets + torchdata", "hf_datasets", "hf"),
    peer("Epochraft", "epochraft", "epochraft"),
    LITDATA,
    on_tokens("LanceDB, pre-tokenized, packed", "lancedb", "lance", packing="packed"),
    on_tokens("LanceDB, pre-tokenized, rows", "lancedb", "lance", packing="rows"),
)
PRETOKENIZED = (
    our_tokens("cloudload, documents", "documents"),
    our_tokens("cloudload, rows", "rows"),
    our_tokens("cloudload, documents, no worker", "documents", 0),
    our_tokens("cloudload, rows, no worker", "rows", 0),
    LITDATA,
    on_tokens("LitData, no worker, pre-tokenized", "litdata", "litdata", 0),
    on_tokens("Streaming, rows of int64 bytes", "streaming_tokens", encoding="bytes"),
    on_tokens("Streaming, rows of int32 arrays", "streaming_tokens", encoding="ndarray:int32"),
)
SAVING: dict[str, Any] = {"state_every_batch": True}
OPTIONS = (
    ours("default"),
    ours("best_fit", packing="best_fit"),
    ours("64 lanes", num_lanes=64),
    ours("960 lanes", num_lanes=960),
    ours("8,192 lanes", num_lanes=8192),
    ours("state_dict() after every batch", **SAVING),
    ours("8,192 lanes, state_dict() after every batch", num_lanes=8192, **SAVING),
    ours("best_fit, state_dict() after every batch", packing="best_fit", **SAVING),
)
WORKERS = (
    ours("cloudload, fastokens, 1 worker", 1, tokenizer_backend="fastokens"),
    ours("cloudload, fastokens, 2 workers", 2, tokenizer_backend="fastokens"),
    ours("cloudload, HF, 1 worker", 1, tokenizer_backend="hf"),
    ours("cloudload, HF, 2 workers", 2, tokenizer_backend="hf"),
    peer(f"{IN_GROUPS}, 2 workers", "streaming_text", None, 2, calls="groups"),
    peer("HF datasets + torchdata, 2 workers", "hf_datasets", "hf", 2),
)
RACES = (
    Race("peers", "One worker, one core", 1, BARE_HF.name, PEERS),
    Race("pretokenized", "Pre-tokenized data, one worker, one core", 1, LITDATA.name, PRETOKENIZED),
    Race("options", "cloudload's options, one worker, one core", 1, "default", OPTIONS),
    Race("workers", "One and two workers, on two cores", 2, "cloudload, HF, 1 worker", WORKERS),
)
