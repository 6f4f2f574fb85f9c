"""The recipe of a run: all that its rows follow from, opened and settled.

RowsConfig ─► tokenizer, indexes of the streams ─► layout ─► components, mixture ─► fields, which a
state holds a run to
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cloudload.arrays import Ints
from cloudload.config import SAME, RowsConfig
from cloudload.mds.dataset import Corpus, check_text_column, open_corpus
from cloudload.order.lanes import Layout, resolve
from cloudload.order.mixture import Mixture, build_mixture
from cloudload.packing.packers import Packing
from cloudload.run.components import Component, build_components, component_sizes
from cloudload.storage.base import Retry
from cloudload.storage.redaction import redact
from cloudload.tokenization.tokenizer import TokenizerSpec, load_tokenizer

_CONFIG_FIELDS = (
    "packing",
    "open_rows",
    "overflow",
    "shuffle",
    "shuffle_algo",
    "seed",
    "epochs",
    "text_key",
    "min_tokens",
)


@dataclass(frozen=True)
class Recipe:
    """Equal recipes give equal rows."""

    config: RowsConfig
    tokenizer: TokenizerSpec
    corpus: Corpus
    sources: str
    """Where data and tokenizer are, as JSON: with a state, enough to make the loader again."""
    layout: Layout
    components: tuple[Component, ...]
    mixture: Mixture
    """Of the components."""

    @cached_property
    def packing(self) -> Packing:
        """How documents become rows."""
        return Packing(
            self.config.packing, self.config.seq_len, self.config.open_rows, self.config.overflow
        )

    @property
    def num_lanes(self) -> int:
        """The lanes of the run."""
        return self.layout.num_lanes

    def components_of(self, rows: Ints) -> Ints:
        """The component of each row of the run."""
        return (
            self.mixture.components(rows, self.num_lanes)
            if len(self.components) > 1
            else np.zeros(len(rows), np.int64)
        )

    @cached_property
    def labels(self) -> list[str]:
        """What the streams are called."""
        return [stream.label for stream in self.config.streams]

    @cached_property
    def fields(self) -> dict[str, Any]:
        """What a state holds a run to, by name; plain JSON types, those of streams joined by
        commas."""
        chosen = [
            each.sampling.choose if each.sampling else (each.lanes.num_positions,)
            for each in self.components
        ]
        return {
            **{name: getattr(self.config, name) for name in _CONFIG_FIELDS},
            "transform": self.config.transform_name,
            "num_lanes": self.layout.num_lanes,
            "num_canonical_nodes": ",".join(map(str, self.layout.canonical_nodes)),
            "shuffle_block_size": ",".join(map(str, self.layout.shuffle_block_sizes)),
            "data": ",".join(
                self.corpus.fingerprint(component.streams) for component in self.components
            ),
            "shards": ",".join(_hash_sizes(component.shard_sizes) for component in self.components),
            "tokenizer": self.tokenizer.fingerprint,
            "bos_eos": ",".join(f"{bos}/{eos}" for bos, eos in self.tokenizer.frames),
            "choose": ",".join(map(str, itertools.chain.from_iterable(chosen))),
        }

    def settle(self, saved: Layout | None) -> Recipe:
        """What was left open filled in: as it was `saved`, else from the data."""
        layout = resolve(self.config, component_sizes(self.config, self.corpus), saved)
        return replace(
            self, layout=layout, components=build_components(self.config, self.corpus, layout)
        )


def open_recipe(config: RowsConfig, tokenizer: Any, retry: Retry) -> Recipe:
    """Load the tokenizer, read the index of each stream, and settle what was left open from the
    data.

    Raises `TokenizerError`, `StoreError`, `DatasetError`, and `ValueError` for a config that does
    not fit the data.
    """
    frames = [
        (_own(stream.bos, config.bos), _own(stream.eos, config.eos)) for stream in config.streams
    ]
    spec = load_tokenizer(tokenizer, frames)
    corpus = open_corpus(config.streams, retry, may_be_empty=not config.is_mixed)
    if config.transform is None:
        check_text_column(corpus, config.text_key)
    layout = resolve(config, component_sizes(config, corpus))
    return Recipe(
        config=config,
        tokenizer=spec,
        corpus=corpus,
        sources=_describe_sources(config, tokenizer),
        layout=layout,
        components=build_components(config, corpus, layout),
        mixture=_build_mixture(config),
    )


def _hash_sizes(shard_sizes: Ints) -> str:
    """Of what the order follows from, beside the config."""
    return hashlib.sha256(shard_sizes.tobytes()).hexdigest()[:16]


def _own(token: str | None, of_loader: str | None) -> str | None:
    return of_loader if token == SAME else token


def _build_mixture(config: RowsConfig) -> Mixture:
    labels = [stream.label for stream in config.streams]
    if config.is_mixed:
        return build_mixture(
            labels, [stream.proportion or 0.0 for stream in config.streams], config.schedule
        )
    return build_mixture([" + ".join(labels)], [1.0], None)


def _describe_sources(config: RowsConfig, tokenizer: Any) -> str:
    name = (
        os.fspath(tokenizer)
        if isinstance(tokenizer, str | os.PathLike)
        else getattr(tokenizer, "name_or_path", None)
    )
    streams = [{**asdict(stream), "remote": redact(stream.remote)} for stream in config.streams]
    return json.dumps(
        {
            "streams": streams,
            "is_mixed": config.is_mixed,
            "tokenizer": name or None,
            "bos": config.bos,
            "eos": config.eos,
        }
    )
