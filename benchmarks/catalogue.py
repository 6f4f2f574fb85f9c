"""The races of `make bench`, the sides of each race, and the packages that the sides need.

To add a peer, write `side_<peer>.py` and add an `Entry` here. If its versions conflict with
cloudload's, add an environment too.
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

ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "hf": ("torch==2.13.0", "datasets==5.2.0", "torchdata==0.11.0", "tokenizers=={tokenizers}"),
    "litdata": ("torch==2.13.0", "litdata==0.2.76"),
    "lance": ("torch==2.13.0", "lancedb==0.40.0", "pylance==14.0.2"),
}
"""The pip requirements of peers whose dependencies conflict with cloudload's, by environment.

`{tokenizers}` is replaced by the version of tokenizers in cloudload's environment."""

ADDITIONS: dict[str, tuple[str, ...]] = {
    "epochraft": (
        "epochraft==0.1.0.dev20231107",
        "braceexpand==0.1.7",
        "smart-open==7.5.0",
        "wrapt==2.0.1",
    ),
}
"""The pip requirements of peers that run in cloudload's environment, in addition to its own."""


@dataclass(frozen=True)
class Entry:
    """One side of a race: its script, the script's options, and the environment to run it in."""

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


def ours(name: str, num_workers: int = 1, **options: Any) -> Entry:
    """Return an entry for cloudload. `options` go to `CloudLoader`, except `state_every_batch`."""
    return Entry(name, OURS, "side_cloudload", options, num_workers=num_workers)


def pretokenized(
    name: str,
    script: str,
    environment: str | None = None,
    *,
    kind: str = CEILING,
    num_workers: int = 1,
    **options: Any,
) -> Entry:
    """Return an entry that reads pre-tokenized data. `benchmarks.run` sets its option `tokens`."""
    return Entry(name, kind, script, {"tokens": None, **options}, environment, num_workers)


BARE_HF = Entry("HF tokenizers, bare", BARE, "side_bare", {"backend": "hf", "documents": "fresh"})
BARE_FASTOKENS = Entry(
    "fastokens, bare", BARE, "side_bare", {"backend": "fastokens", "documents": "fresh"}
)
LITDATA = pretokenized("LitData, pre-tokenized", "side_litdata", "litdata")
STREAMING_EACH = Entry("Streaming, llm-foundry's way", PEER, "side_streaming", {"calls": "each"})
STREAMING_GROUPS = Entry(
    "Streaming, documents in groups", PEER, "side_streaming", {"calls": "groups"}
)
HF_DATASETS = Entry("HF datasets + torchdata", PEER, "side_hf_datasets", {}, "hf")

RACES = (
    Race(
        "peers",
        "One worker, one core",
        1,
        BARE_HF.name,
        (
            BARE_FASTOKENS,
            Entry(
                "fastokens, bare, same strings",
                BARE,
                "side_bare",
                {"backend": "fastokens", "documents": "kept"},
            ),
            BARE_HF,
            Entry(
                "HF tokenizers, bare, same strings",
                BARE,
                "side_bare",
                {"backend": "hf", "documents": "kept"},
            ),
            ours("cloudload, fastokens", tokenizer_backend="fastokens"),
            ours(
                "cloudload, fastokens, best_fit", tokenizer_backend="fastokens", packing="best_fit"
            ),
            ours("cloudload, HF", tokenizer_backend="hf"),
            STREAMING_EACH,
            STREAMING_GROUPS,
            HF_DATASETS,
            Entry("Epochraft", PEER, "side_epochraft", {}, "epochraft"),
            LITDATA,
            pretokenized(
                "LanceDB, pre-tokenized, packed", "side_lancedb", "lance", packing="packed"
            ),
            pretokenized("LanceDB, pre-tokenized, rows", "side_lancedb", "lance", packing="rows"),
        ),
    ),
    Race(
        "pretokenized",
        "Pre-tokenized data, one worker, one core",
        1,
        LITDATA.name,
        (
            pretokenized(
                "cloudload, documents", "side_cloudload_tokens", kind=OURS, samples="documents"
            ),
            pretokenized("cloudload, rows", "side_cloudload_tokens", kind=OURS, samples="rows"),
            pretokenized(
                "cloudload, documents, no worker",
                "side_cloudload_tokens",
                kind=OURS,
                num_workers=0,
                samples="documents",
            ),
            pretokenized(
                "cloudload, rows, no worker",
                "side_cloudload_tokens",
                kind=OURS,
                num_workers=0,
                samples="rows",
            ),
            LITDATA,
            pretokenized(
                "LitData, no worker, pre-tokenized", "side_litdata", "litdata", num_workers=0
            ),
            pretokenized(
                "Streaming, rows of int64 bytes", "side_streaming_tokens", encoding="bytes"
            ),
            pretokenized(
                "Streaming, rows of int32 arrays",
                "side_streaming_tokens",
                encoding="ndarray:int32",
            ),
        ),
    ),
    Race(
        "options",
        "cloudload's options, one worker, one core",
        1,
        "default",
        (
            ours("default"),
            ours("best_fit", packing="best_fit"),
            ours("64 lanes", num_lanes=64),
            ours("960 lanes", num_lanes=960),
            ours("8,192 lanes", num_lanes=8192),
            ours("state_dict() after every batch", state_every_batch=True),
            ours(
                "8,192 lanes, state_dict() after every batch",
                num_lanes=8192,
                state_every_batch=True,
            ),
            ours(
                "best_fit, state_dict() after every batch",
                packing="best_fit",
                state_every_batch=True,
            ),
        ),
    ),
    Race(
        "workers",
        "One and two workers, on two cores",
        2,
        "cloudload, HF, 1 worker",
        (
            ours("cloudload, fastokens, 1 worker", 1, tokenizer_backend="fastokens"),
            ours("cloudload, fastokens, 2 workers", 2, tokenizer_backend="fastokens"),
            ours("cloudload, HF, 1 worker", 1, tokenizer_backend="hf"),
            ours("cloudload, HF, 2 workers", 2, tokenizer_backend="hf"),
            Entry(
                "Streaming, documents in groups, 2 workers",
                PEER,
                "side_streaming",
                {"calls": "groups"},
                num_workers=2,
            ),
            Entry(
                "HF datasets + torchdata, 2 workers",
                PEER,
                "side_hf_datasets",
                {},
                "hf",
                num_workers=2,
            ),
        ),
    ),
    Race(
        "states",
        "state_dict() after every batch, one core each for worker and training process",
        2,
        "960 lanes",
        (
            ours("960 lanes", num_lanes=960),
            ours(
                "960 lanes, state_dict() after every batch", num_lanes=960, state_every_batch=True
            ),
            ours("8,192 lanes", num_lanes=8192),
            ours(
                "8,192 lanes, state_dict() after every batch",
                num_lanes=8192,
                state_every_batch=True,
            ),
        ),
    ),
)
