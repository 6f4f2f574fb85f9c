"""Loaders for tiny corpora with the options that most tests use, and the rows that they read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from cloudload import CloudLoader
from cloudload.batch import Batch
from testkit.corpora import EOS, byte_tokenizer

SEQ_LEN = 16


def make_loader(data: Any, **settings: Any) -> CloudLoader:
    """Make a loader. By default it has no workers, 12 lanes, and batches of 4 rows."""
    defaults: dict[str, Any] = {
        "tokenizer": byte_tokenizer(),
        "eos": EOS,
        "seq_len": SEQ_LEN,
        "batch_size": 4,
        "num_workers": 0,
        "num_lanes": 12,
    }
    return CloudLoader(data, **{**defaults, **settings})


def ranks(data: Any, *, on_change: dict[str, str] | None = None, **settings: Any) -> Any:
    """A function that makes the loader of each rank, for `run_leg` and the laws.

    The loaders accept the changes in `on_change` when they load a state.
    """
    if on_change is None:
        return partial(make_loader, data, **settings)

    def make_accepting(**rank: Any) -> CloudLoader:
        loader = make_loader(data, **{**settings, **rank})
        load = loader.load_state_dict
        vars(loader)["load_state_dict"] = lambda state: load(state, on_change=on_change)
        return loader

    return make_accepting


def open_ranks(data: Any, number: int, **settings: Any) -> list[CloudLoader]:
    """Make one loader per rank, in one process, so the ranks cannot communicate."""
    return [
        make_loader(data, dp_rank=rank, dp_world_size=number, **settings) for rank in range(number)
    ]


def ids_of(batches: Iterable[Batch]) -> list[list[list[int]]]:
    """The token IDs of each batch."""
    return [batch["input_ids"].tolist() for batch in batches]


def rows_of(batches: Iterable[Batch]) -> list[list[int]]:
    """The token IDs of each row of the batches."""
    return [row for batch in ids_of(batches) for row in batch]


def numbered_rows(batches: Iterable[Batch]) -> dict[int, list[int]]:
    """The token IDs of each row of the batches, by the row's index in the run."""
    return {
        row: ids
        for batch in batches
        for row, ids in zip(batch.rows.tolist(), batch["input_ids"].tolist(), strict=True)
    }


def list_settings(loader: CloudLoader) -> str:
    """The settings that `describe` shows, one a line, however wide."""
    return "\n".join(f"{each.name} {each}" for each in loader.describe().settings)
