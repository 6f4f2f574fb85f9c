"""A loader for tiny corpora, with the options that most tests use."""

from __future__ import annotations

from typing import Any

from cloudload import CloudLoader
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


def list_settings(loader: CloudLoader) -> str:
    """The settings that `describe` shows, one a line, however wide."""
    return "\n".join(f"{each.name} {each}" for each in loader.describe().settings)
