"""The recipe of a run: everything that determines its rows, including resolved defaults.

RowsConfig ─► tokenizer, indexes of the streams ─► component specs ─► layout ─► components
                                                                      mixture
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from cloudload.config import Chat, DocumentSource, RowsConfig, Stream, TokensColumn, choices
from cloudload.data import ColumnChoice, Corpus, Retry, open_corpus, selections
from cloudload.errors import DatasetError, TokenizerError
from cloudload.order import Layout, Mixture, build_mixture
from cloudload.rows import (
    ChatTemplate,
    Framing,
    MiddleRule,
    Packing,
    TokenizerSpec,
    TokenName,
    find_rule,
    find_tokenizer,
    frame_without_tokenizer,
    load_template,
    load_tokenizer,
)
from cloudload.run import state_fields
from cloudload.run.components import (
    Component,
    ComponentSpec,
    build_components,
    settle_layout,
    specify_components,
)
from cloudload.run.sources import describe_sources, weigh_sources
from cloudload.system import Ints, Tokens

_MOST_CURSORS = 1 << 22
"""1,000 streams may have 3,840 lanes. Their state has 52 MB."""


@dataclass(frozen=True)
class StreamChat:
    """How the conversations of one stream become documents."""

    template: ChatTemplate
    max_tokens: int | None
    """The most tokens of a document; None if documents have no limit."""

    @property
    def name(self) -> str:
        """What identifies the documents in a state, such as `tokenizer#1f0c2b9d3a4e/4096`."""
        return f"{quote(self.template.identity, safe='#')}/{self.max_tokens or ''}"

    def count_kept(self, document: Tokens) -> int:
        """The number of tokens that are kept of a document, int32 [tokens]; 0 if it is left out.

        A document that is truncated ends with a trained turn: a trained token is followed by one
        that is not. If all tokens are trained, there are no turns, so `max_tokens` are kept.
        """
        limit = self.max_tokens
        if limit is None or len(document) <= limit:
            return len(document)
        if self.template.chat.overlong != "truncate":
            return 0
        is_trained = document >= 0
        if is_trained.all():
            return limit
        ends = np.flatnonzero(is_trained[:limit] & ~is_trained[1 : limit + 1]) + 1
        return int(ends[-1]) if len(ends) else 0


@dataclass(frozen=True)
class OpenedTokenizer:
    """The tokenizer of a run, and the chat templates, which may be the tokenizer's own."""

    spec: TokenizerSpec
    chats: tuple[StreamChat | None, ...]
    """How the conversations of each stream become documents; None for a stream without."""


@dataclass(frozen=True)
class Recipe:
    """The definition of a run. Equal recipes yield equal rows."""

    config: RowsConfig
    tokenizer: TokenizerSpec
    corpus: Corpus
    sources: str
    """Locations of data and tokenizer, bos and eos, and the columns of token IDs, as JSON without
    secrets; `cloudload.provenance` reopens the run from them. The tokenizer is null if there is
    none, or if it was passed as an object without a name."""
    layout: Layout
    components: tuple[Component, ...]
    mixture: Mixture
    """The assignment of rows to components. Once the ends of the streams are known, each stream has
    weight 0 from its end on."""
    fair_from: int | None = 0
    """See `Packing.fair_from`. It is None if the run began with a version that had no such rule."""
    chats: tuple[StreamChat | None, ...] = ()
    """How the conversations of each stream become documents; None for a stream without. By default,
    no stream has any."""
    middles: tuple[MiddleRule | None, ...] = ()
    """How the middles of each stream's documents are moved, likewise."""
    selected: tuple[selections.Selection | None, ...] = ()
    """The documents of each stream that are read, likewise; None if all of them are."""
    shared: tuple[range, ...] = ()
    """The indices of streams that divide one proportion. Until `divide_proportions`, each of them
    has all of it."""
    index_s: float = field(default=0.0, compare=False)
    """Time spent on reading the streams' indexes, in seconds, for the log."""

    def __post_init__(self) -> None:
        if not self.chats:
            object.__setattr__(self, "chats", (None,) * len(self.config.streams))
        if not self.selected:
            object.__setattr__(self, "selected", (None,) * len(self.config.streams))
        if not self.middles:
            object.__setattr__(self, "middles", (None,) * len(self.config.streams))

    @cached_property
    def packing(self) -> Packing:
        """The settings that determine how documents become rows. Its `seq_len` does not include the
        `row_bos`."""
        config = self.config
        seq_len = config.seq_len - config.num_lead
        return Packing(config.packing, seq_len, config.open_rows, config.overflow, self.fair_from)

    @cached_property
    def framing(self) -> Framing:
        """The bos and eos of each stream's documents, and the padding after a document."""
        return Framing.of(self.tokenizer.frames, multiple=self.config.pad_documents_to)

    @cached_property
    def selection(self) -> selections.CorpusSelection | None:
        """The documents of the corpus that are read, or None if all of them are."""
        return selections.CorpusSelection.join(self.selected, self.corpus)

    @cached_property
    def read_of_shards(self) -> Ints:
        """The number of samples of each shard that are read: int64 [shards]."""
        if self.selection is None:
            return self.corpus.shard_sizes
        return self.selection.count_of_shards(self.corpus)

    @property
    def config_mixture(self) -> Mixture:
        """The mixture as the config has it, at every row of the run."""
        return mixture_of(self.config)

    @property
    def num_lanes(self) -> int:
        """Number of lanes of the run."""
        return self.layout.num_lanes

    @property
    def has_tails(self) -> bool:
        """Whether the run or any of its streams ends, so that tails may have incomplete rows."""
        return self.config.has_ends

    @property
    def tokenizes(self) -> bool:
        """Whether a tokenizer is used: for text, or by an `encode` function."""
        config = self.config
        return config.has_text or (config.may_tokenize and bool(self.tokenizer.json))

    @property
    def has_row_per_document(self) -> bool:
        """Whether each document of the only component is certain to become exactly one row."""
        config = self.config
        is_cut = (config.packing, config.overflow) == ("one_per_row", "cut")
        has_limits = config.min_tokens > 1 or config.max_tokens is not None
        may_filter = has_limits or any(each.may_mask for each in config.sources)
        keeps_all = not (may_filter or any(self.selected)) and config.on_error == choices.RAISE
        has_tokens = all(bos is not None or eos is not None for bos, eos in self.tokenizer.frames)
        is_one = len(self.components) == 1 and config.streams[0].max_epochs is None
        return is_cut and keeps_all and has_tokens and is_one

    @cached_property
    def has_masks(self) -> bool:
        """Whether some tokens of documents may not be trained."""
        of_rows = self.config.pad_documents_to > 1 or self.config.row_hook is not None
        return of_rows or any(source.may_mask for source in self.config.sources)

    def components_of(self, rows: Ints) -> Ints:
        """The index of the component of each row of the run: int64 [rows]."""
        if len(self.components) == 1:
            return np.zeros(len(rows), np.int64)
        return self.mixture.components(rows, self.num_lanes)

    @cached_property
    def labels(self) -> list[str]:
        """The names of the streams."""
        return [stream.label for stream in self.config.streams]

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The values, by name, that a state saves, and that are compared with a state on resume.

        They are plain JSON types. A field with a value per stream or component joins the values by
        commas.
        """
        chosen = [
            each.sampling.choose if each.sampling else (each.num_positions,)
            for each in self.components
        ]
        return {
            **{name: getattr(self.config, name) for name in state_fields.HELD_CONFIG_FIELDS},
            **self.source_fields(len(self.labels)),
            "num_lanes": self.layout.num_lanes,
            "num_canonical_nodes": ",".join(map(str, self.layout.canonical_nodes)),
            "shuffle_block_size": ",".join(map(str, self.layout.shuffle_block_sizes)),
            "data": ",".join(self.corpus.fingerprint(each.streams) for each in self.components),
            state_fields.SAMPLES_FIELD: ",".join(
                self.corpus.fingerprint_samples(each.streams) for each in self.components
            ),
            "shards": ",".join(_hash_sizes(each.shard_sizes) for each in self.components),
            "tokenizer": self.tokenizer.fingerprint,
            "token_ids": self.tokenizer.token_ids if self.tokenizes else "",
            "bos_eos": ",".join(f"{bos}/{eos}" for bos, eos in self.tokenizer.frames),
            state_fields.ROW_BOS_FIELD: self.tokenizer.row_bos,
            state_fields.HOOK_FIELD: self.config.row_hook_name,
            state_fields.MULTIPLE_FIELD: self.framing.multiple
            if self.framing.multiple > 1
            else None,
            "choose": ",".join(map(str, itertools.chain.from_iterable(chosen))),
            state_fields.TOKENS_FIELD: ",".join(map(_describe_column, self.config.token_columns)),
            state_fields.CHAT_FIELD: ",".join(chat.name if chat else "" for chat in self.chats),
            state_fields.ENCODE_FIELD: ",".join(
                quote(each.encode_name or "", safe="#=<>") for each in self.config.sources
            ),
            state_fields.FIM_FIELD: ",".join(rule.name if rule else "" for rule in self.middles),
            state_fields.STRIP_FIELD: ",".join(map(str, self.config.strip_tokens)),
            state_fields.SELECT_FIELD: ",".join(
                each.digest if each else "" for each in self.selected
            ),
            state_fields.STREAM_SHARDS_FIELD: self._describe_shards(),
            state_fields.MAX_EPOCHS_FIELD: ",".join(
                str(each.max_epochs or "") for each in self.config.streams
            ),
            "stopping": self.config.stopping,
            state_fields.ORDER_FIELD: ",".join(
                sorted({each.order_ids for each in self.components})
            ),
            state_fields.FAIR_FIELD: state_fields.FAIR
            if self.packing.has_residue and self.fair_from is not None
            else "",
        }

    def source_fields(self, num_streams: int) -> dict[str, Any]:
        """The `fields` about what the documents of the first streams are made of.

        If the streams differ, the values are joined by commas.
        """
        sources = self.config.sources[:num_streams]
        return {
            "text_key": _join_values([each.text_key for each in sources]),
            "transform": _join_values([each.transform_name for each in sources]),
        }

    @cached_property
    def saved_fields(self) -> dict[str, Any]:
        """The `fields` that a state stores.

        A field in `OPTIONAL_FIELDS` is left out if it is empty or has its default value.
        """
        return {
            name: value
            for name, value in self.fields.items()
            if name not in state_fields.OPTIONAL_FIELDS
            or (value is not None and str(value).strip(",") not in ("", choices.RAISE, choices.ALL))
        }

    def _describe_shards(self) -> str:
        if len(self.components) == len(self.corpus.datasets):
            return ""
        return ",".join(str(len(dataset.shards)) for dataset in self.corpus.datasets)

    def take(self, shards: Sequence[int]) -> Recipe:
        """Return a copy that reads only the first `shards[i]` shards of each stream i."""
        corpus = self.corpus.take(shards)
        selection = self.selection and self.selection.take(corpus)
        selected = selection.datasets if selection else (None,) * len(self.selected)
        specs = specify_components(self.config, corpus, selected)
        layout, components = _settle(self.config, specs, None)
        return replace(self, corpus=corpus, selected=selected, layout=layout, components=components)

    def reconfigure(self, **options: Any) -> Recipe:
        """Return a copy with changed config options, for which the layout is resolved again."""
        config = replace(self.config, **options)
        layout, components = _settle(config, self.components, None)
        return replace(self, config=config, layout=layout, components=components)

    def divide_proportions(self, tokens: Sequence[int]) -> Recipe:
        """Return a copy in which `shared` streams divide their proportion by their tokens.

        `tokens` has the number of tokens of the documents that each stream reads. Raises
        `DatasetError` if streams that share a proportion have no tokens.
        """
        shares: dict[int, float] = {}
        for group in self.shared:
            streams = self.config.streams[group.start : group.stop]
            if not (total := sum(tokens[each] for each in group)):
                raise DatasetError(
                    f"{streams[0].label} and the other datasets of its glob have no tokens, so "
                    "they cannot divide a proportion. Remove the glob"
                )
            for index, stream in zip(group, streams, strict=True):
                shares[index] = (stream.proportion or 0.0) * tokens[index] / total
        return self.weigh(shares)

    def weigh(self, shares: Mapping[int, float]) -> Recipe:
        """Return a copy in which some streams, given by index, have other proportions."""
        streams = list(self.config.streams)
        for index, share in shares.items():
            streams[index] = replace(streams[index], proportion=share)
        config = replace(self.config, streams=tuple(streams))
        sources = weigh_sources(self.sources, shares)
        return replace(self, config=config, sources=sources, mixture=mixture_of(config))

    def settle(self, saved: Layout | None) -> Recipe:
        """Return a copy with the layout of the config, and values of `saved` where it sets none.

        If `saved` is None, values that the config does not set are chosen from the data.
        """
        layout, components = _settle(self.config, self.components, saved)
        return replace(self, layout=layout, components=components)


def open_recipe(
    config: RowsConfig,
    tokenizer: Any,
    retry: Retry,
    opened: OpenedTokenizer | None = None,
    cache_root: Path | None = None,
    *,
    shared: tuple[range, ...] = (),
) -> Recipe:
    """Load the tokenizer, read each stream's index, and choose the values that the config omits.

    Pass `opened` if the tokenizer is already open. `shared` is as in `Recipe`. If there is a cache
    folder `cache_root`, the processes of a node share large indexes in it. Raises `TokenizerError`,
    `StoreError`, or `DatasetError` if the tokenizer or the data cannot be used, and `ValueError`
    for a config that does not fit the data.
    """
    opened = opened or open_tokenizer(config, tokenizer)
    spec = opened.spec
    began = time.monotonic()
    corpus = open_corpus(
        [each.locate(retry) for each in config.streams],
        cache_root,
        choices=list(map(_choose_columns, config.sources)),
        may_be_empty=not config.is_mixed,
    )
    index_s = time.monotonic() - began
    for dataset, source in zip(corpus.datasets, config.sources, strict=True):
        source.check_columns(dataset)
    for token_id in config.strip_tokens:
        spec.check_id("a token ID in strip_tokens", token_id)
    selected = tuple(
        selections.open_selection(dataset, stream.select, stream.drop, cache_root)
        for dataset, stream in zip(corpus.datasets, config.streams, strict=True)
    )
    layout, components = _settle(config, specify_components(config, corpus, selected), None)
    _check_cursors(config, layout.num_lanes)
    return Recipe(
        config=config,
        tokenizer=spec,
        corpus=corpus,
        sources=describe_sources(config, tokenizer),
        layout=layout,
        components=components,
        mixture=mixture_of(config),
        chats=opened.chats,
        middles=_find_middles(config, spec),
        selected=selected,
        shared=shared if config.schedule is None else (),
        index_s=index_s,
    )


def _check_cursors(config: RowsConfig, num_lanes: int) -> None:
    """Raise `ValueError` if the streams of a mixture have more cursors than a state should hold."""
    num_streams = len(config.streams)
    if config.is_mixed and (number := num_streams * num_lanes) > _MOST_CURSORS:
        raise ValueError(
            f"{num_streams:,} streams with shares of their own have {number:,} cursors in "
            f"{num_lanes:,} lanes, which every state holds, and at most {_MOST_CURSORS:,} are "
            "allowed. Read the streams as one corpus, without proportions and schedule, which "
            "keeps their natural shares with one cursor for each lane, or set num_lanes to at most "
            f"{_MOST_CURSORS // num_streams:,}"
        )


def open_recipe_without_data(config: RowsConfig, tokenizer: Any) -> Recipe:
    """Open a recipe whose corpus has no shards, for data that is not written yet.

    Raises `TokenizerError` for a tokenizer that cannot be used, and `ValueError` if the documents
    are text and there is no tokenizer.
    """
    opened = open_tokenizer(config, tokenizer)
    return Recipe(
        config=config,
        tokenizer=opened.spec,
        corpus=Corpus(()),
        sources=describe_sources(config, tokenizer),
        layout=Layout(1, (), ()),
        components=(),
        mixture=mixture_of(config),
        chats=opened.chats,
    )


def _find_middles(config: RowsConfig, spec: TokenizerSpec) -> tuple[MiddleRule | None, ...]:
    """Find the tokens that mark the parts of each stream's documents that are cut.

    Raises `TokenizerError` if the tokenizer has none.
    """
    fims = map(config.fim_of, config.streams)
    return tuple(None if fim is None else find_rule(fim, spec, config.seed) for fim in fims)


def _load_chats(config: RowsConfig, tokenizer: Any) -> tuple[StreamChat | None, ...]:
    """Load the chat template of each stream of conversations.

    Raises `ValueError` if a template cannot be used.
    """

    @functools.cache
    def load(chat: Chat) -> StreamChat:
        limit = None if chat.overlong == "split" else chat.max_tokens or config.seq_len
        return StreamChat(load_template(chat, tokenizer), limit)

    return tuple(load(source.chat) if source.chat else None for source in config.sources)


def open_tokenizer(
    config: RowsConfig, tokenizer: Any, cache_root: Path | None = None
) -> OpenedTokenizer:
    """Load the tokenizer, the bos and eos of each stream, and the chat template of each.

    The tokenizer is saved in the folder `cache_root`, if there is one. Raises `TokenizerError` if
    it cannot be used, and `ValueError` if a template cannot be used, or if the data is text and
    there is no tokenizer.
    """
    if tokenizer is None and config.has_text:
        raise ValueError(
            "tokenizer is None, but the documents are text. Pass a tokenizer, or tokens_key if the "
            "data is pre-tokenized, or an encode function"
        )
    # find it once, because loading a tokenizer by name takes seconds
    found = None if tokenizer is None else find_tokenizer(tokenizer)
    return OpenedTokenizer(_load_framed(config, found, cache_root), _load_chats(config, found))


def _load_framed(config: RowsConfig, tokenizer: Any, cache_root: Path | None) -> TokenizerSpec:
    """Load a tokenizer, if there is one, with the bos and eos of each stream."""
    frames = [frame_of(config, stream) for stream in config.streams]

    def find(frames: list[tuple[TokenName, TokenName]]) -> TokenizerSpec:
        if tokenizer is None:
            return frame_without_tokenizer(frames)
        return load_tokenizer(tokenizer, frames, cache_root)

    if config.row_bos is None:
        return find(frames)
    try:
        spec = find([*frames, (config.row_bos, None)])
    except TokenizerError as error:
        find(frames)  # raises if the tokenizer, a bos or an eos is at fault
        raise TokenizerError(
            f"row_bos={config.row_bos!r} is not a token of this tokenizer. Set it to a token of "
            "this tokenizer, to its ID, or to None"
        ) from error
    *own, (row_bos, _) = spec.frames
    for stream, (bos, _) in zip(config.streams, own, strict=True):
        if bos is not None:
            raise ValueError(
                f"row_bos is {config.row_bos!r}, but documents of {stream.label} have the bos "
                f"{bos}, so a row that begins with a document would begin with two tokens. Set "
                "bos=None, or omit row_bos"
            )
    framing, _, _ = spec.framing.rpartition(" · ")  # without the frame of rows
    return replace(spec, frames=tuple(own), row_bos=row_bos, framing=framing)


def frame_of(config: RowsConfig, stream: Stream) -> tuple[TokenName, TokenName]:
    """The bos and eos of a stream. For token IDs and conversations, "auto" adds no tokens, because
    the data, the template, or the `encode` function has them."""
    has_own_column = stream.tokens_key not in (choices.SAME, None)
    source = config.source_of(stream)
    is_text = source.is_text and source.chat is None
    bos, eos = (
        (choices.AUTO if has_own_column else of_loader) if token == choices.SAME else token
        for token, of_loader in ((stream.bos, config.bos), (stream.eos, config.eos))
    )
    return (bos, eos) if is_text else (_without_auto(bos), _without_auto(eos))


def _without_auto(token: TokenName) -> TokenName:
    return None if token == choices.AUTO else token


def _choose_columns(source: DocumentSource) -> ColumnChoice:
    """The columns that a stream's documents are made of: one, or all of them if it has code."""
    if source.tokens is not None:
        return ColumnChoice(source.tokens.key, has_others=source.tokens.labels_key is not None)
    is_read_whole = source.chat or source.encode
    return ColumnChoice(None if is_read_whole else source.text_key, has_others=not source.is_column)


def _join_values(values: Sequence[str | None]) -> str | None:
    """The value of a field with a value per stream: the value itself if all streams have it."""
    if len(set(values)) == 1:
        return values[0]
    return ",".join((value or "").replace("%", "%25").replace(",", "%2C") for value in values)


def _describe_column(column: TokensColumn | None) -> str:
    """A column of token IDs as `name`, `name:dtype` or `name:dtype:labels`; "" for text."""
    if column is None:
        return ""
    parts = column if column.labels_key is not None else column[:2]
    shown = [quote(part or "", safe="") for part in parts]
    return ":".join(shown if column.labels_key or column.dtype else shown[:1])


def _settle(
    config: RowsConfig, specs: Sequence[ComponentSpec], saved: Layout | None
) -> tuple[Layout, tuple[Component, ...]]:
    layout = settle_layout(config, specs, saved)
    return layout, build_components(config, specs, layout)


def _hash_sizes(shard_sizes: Ints) -> str:
    """A fingerprint of the shard sizes, on which the order depends."""
    return hashlib.sha256(shard_sizes.tobytes()).hexdigest()[:16]


def mixture_of(config: RowsConfig) -> Mixture:
    """The mixture of a config. Without proportions or a schedule, it has one component."""
    labels = [stream.label for stream in config.streams]
    if config.is_mixed:
        proportions = [stream.proportion or 0.0 for stream in config.streams]
        return build_mixture(labels, proportions, config.schedule)
    return build_mixture([" + ".join(labels)], [1.0], None)
