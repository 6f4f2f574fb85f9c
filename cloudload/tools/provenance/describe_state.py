"""Describe a state without its data: the run's position, its fixed fields, and differences.

describe_state(state)               rows, tokens, epochs by stream, lanes, worlds
compare_states(before, after)       the fields that differ, and their effect on a resume
compare_with_loader(state, loader)  the same for a state and the loader that would resume it
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from cloudload.errors import CloudloadError, StreamChangedError
from cloudload.loading import CloudLoader
from cloudload.order import Lanes
from cloudload.rows import tables
from cloudload.run import (
    ACCEPTABLE_FIELDS,
    FIELD_MEANINGS,
    Saved,
    read_sources,
    read_state,
    state_fields,
)
from cloudload.stats import DESELECTED, DOCUMENTS, FAILED, PADDING, READ, TOKENS
from cloudload.system import counted, divisors, escape, reports

V = TypeVar("V")

_POSITION = ("rows", "table_rows", "batches", "tail", "stream_tails", "skipped", "origin")
_LANES = ("counts", "cursors", "document_sizes", "residues")
_FREE = {
    "seq_len": "may change: later rows have the new length",
    "mixture": "may change: it applies from the next row on",
    "stopping": "may change: it applies from the next row on",
    "sources": "may change: the data may have moved",
    "tokenizer_backend": "may change: all backends give the same IDs",
    "global_batch": "may change: no rows are lost or repeated",
    "cloudload": "may change: it is the version that wrote the state",
    state_fields.STREAM_SHARDS_FIELD: (
        "may change: a resume reads the shards that the run began with"
    ),
    state_fields.FAIR_FIELD: "may change: a resume keeps the rule that the run began with",
    state_fields.SAMPLES_FIELD: "compared only if data differs",
}
_BY_STREAM = (
    *(state_fields.TOKENS_FIELD, state_fields.CHAT_FIELD, state_fields.ENCODE_FIELD),
    *(state_fields.FIM_FIELD, state_fields.MAX_EPOCHS_FIELD, state_fields.SELECT_FIELD),
)
"""The fields with a comma-separated value for each stream. A value may be empty."""
_HELD = "held: a resume rejects a different value"
_ACCEPTABLE = "held, unless you accept a different value with on_change={{{name!r}: 'accept'}}"
_MOST_SHOWN = 120
_MOST_WORLDS = 24


@dataclass(frozen=True)
class StreamPosition:
    """The progress of a run in a stream."""

    name: str
    tokens: int
    documents: int
    """Number of finished documents with tokens. With `best_fit`, this includes documents that wait
    in open rows."""
    deselected: int
    """Number of passed documents that `select` or `drop` left out."""
    share: float
    """Share of the run's tokens, from 0 to 1."""
    epoch: float
    """Progress in epochs of the stream, or of the corpus if streams are read as one."""


@dataclass(frozen=True)
class LanePositions:
    """The progress of the lanes in a component's documents."""

    streams: tuple[str, ...]
    """The streams that the component reads."""
    first_epoch: float
    """Progress of the least advanced lane, in epochs."""
    last_epoch: float
    """Progress of the most advanced lane, in epochs."""
    num_inside: int
    """Number of lanes that are inside a document."""


@dataclass(frozen=True)
class StateDescription:
    """The contents of a state, for people to read."""

    cloudload: str
    """The version of cloudload that saved the state."""
    rows: int
    steps: int
    global_batch: int
    """Rows of the last step."""
    seq_len: int
    tokens: int
    padding: int
    failed: int
    """Number of documents left out by on_error="skip"."""
    rows_to_replay: int
    """Number of rows that a resume without token lengths reads again and drops."""
    is_in_tail: bool
    """Whether a finite run's lanes have ended."""
    streams_in_tail: tuple[str, ...]
    """The streams of a finite mixture whose lanes have ended."""
    skipped: tuple[tuple[int, int], ...]
    """Ranges [start, stop) of rows that `skip` skipped."""
    streams: tuple[StreamPosition, ...]
    num_lanes: int
    lanes: tuple[LanePositions, ...]
    worlds: tuple[int, ...]
    """World sizes that divide the number of lanes. With token lengths, any world size works."""
    mixture: tuple[tuple[int, Mapping[str, float]], ...]
    """The shares of the streams by name, each with the first row to which the shares apply."""
    held: Mapping[str, Any]
    """The fields that a resume compares with the loader's."""
    fair_start: str | None
    """The rule that makes the first rows of `best_fit` a fair sample; None if there is none."""
    data: tuple[str, ...]
    """The locations of the streams, without secrets; empty if the state's record is damaged."""
    tokenizer: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, as plain JSON types."""
        values: dict[str, Any] = reports.to_plain(self)
        return values

    def describe(self) -> Iterator[str]:
        """Yield the description as lines of text."""
        yield (
            f"after {counted(self.steps, 'step')}: {counted(self.rows, 'row')} of "
            f"{self.seq_len:,} tokens, {counted(self.tokens, 'token')}, {self.padding:,} of padding"
        )
        if self.is_in_tail:
            yield "  in the tail of a finite run, or at its end"
        if self.streams_in_tail:
            yield f"  in their tails, or at their ends: {', '.join(self.streams_in_tail)}"
        if self.rows_to_replay:
            rows = counted(self.rows_to_replay, "row")
            yield f"  a resume reads {rows} again without token lengths"
        if self.failed:
            yield f"  {counted(self.failed, 'document')} left out (on_error='skip')"
        for start, stop in self.skipped:
            yield f"  rows {start:,} to {stop - 1:,} were skipped"
        yield f"  saved by cloudload {self.cloudload}; last step: {self.global_batch:,} rows"
        yield "streams"
        for name, stream in _align((each.name for each in self.streams), self.streams):
            left_out = f"{stream.deselected:,} not selected, " if stream.deselected else ""
            yield (
                f"  {name}  {stream.tokens:,} tokens ({stream.share:.1%}), "
                f"{stream.documents:,} documents, {left_out}epoch {stream.epoch:.3f}"
            )
        yield "lanes"
        for name, lane in _align((each.streams[0] for each in self.lanes), self.lanes):
            shown = f"{name}  " if len(self.lanes) > 1 else ""
            yield (
                f"  {shown}{self.num_lanes:,} lanes from epoch {lane.first_epoch:.3f} to "
                f"{lane.last_epoch:.3f}, {lane.num_inside:,} of them inside a document"
            )
        yield from ("worlds", f"  {self._describe_worlds()}", "held fixed")
        yield from self._describe_fields()
        yield from ("read from", *(f"  {url}" for url in self.data))
        yield f"  tokenizer {self.tokenizer or 'none, or an object without a name'}"

    def _describe_worlds(self) -> str:
        shown = ", ".join(f"{size:,}" for size in self.worlds[:_MOST_WORLDS])
        if len(self.worlds) > _MOST_WORLDS:
            shown += f", … {self.worlds[-1]:,}"
        return f"{shown} ranks; any with token lengths"

    def _describe_fields(self) -> Iterator[str]:
        for name, (field, value) in _align(self.held, self.held.items()):
            shown, meaning = show_field(field, value), FIELD_MEANINGS.get(field, "")
            if meaning.startswith("fingerprint"):
                meaning = "fingerprint"  # the rest does not fit in 80 columns
            note = f"  ({meaning})" if meaning and shown != "none" else ""
            yield f"  {name}  {shown}{note}"
        if self.held["packing"] == "best_fit":
            name, width = state_fields.FAIR_FIELD, max(map(len, self.held))
            yield f"  {name:<{width}}  {show_field(name, self.fair_start)}"


def _align(names: Iterable[str], values: Iterable[V]) -> Iterator[tuple[str, V]]:
    """Yield (name, value), with names of equal width."""
    shown = [*map(escape, names)]
    width = max(map(len, shown))
    yield from zip((f"{name:<{width}}" for name in shown), values, strict=True)


@dataclass(frozen=True)
class Difference:
    """A field that differs between two states, and the effect on a resume."""

    name: str
    before: Any
    after: Any
    rule: str
    """The effect of the difference on a resume."""

    def describe(self) -> str:
        """Describe the difference in a line of text."""
        if self.rule == "position of lanes":
            return f"  {self.name}: differs ({self.rule})"
        before, after = (show_field(self.name, value) for value in (self.before, self.after))
        return f"  {self.name}: {before} → {after} ({self.rule})"


def describe_state(state: Mapping[str, Any]) -> StateDescription:
    """Describe a state. Raises `StreamChangedError` if it is damaged."""
    saved = read_state(state)
    position, counts = saved.position, saved.position.counts
    tails, is_one = position.lanes.arrays.tails, len(saved.mixture.names) == 1
    names, data, tokenizer = _list_streams(saved, len(counts))
    in_tails = tuple(name for name, tail in zip(names, tails, strict=False) if tail)
    return StateDescription(
        cloudload=str(state["cloudload"]),
        rows=position.rows,
        steps=position.batches,
        global_batch=position.global_batch,
        seq_len=saved.seq_len,
        tokens=int(counts[:, TOKENS].sum()),
        padding=int(counts[:, PADDING].sum()),
        failed=int(counts[:, FAILED].sum()),
        rows_to_replay=position.rows - position.table_rows,
        is_in_tail=is_one and position.is_in_tail,
        streams_in_tail=() if is_one else in_tails,
        skipped=position.skipped,
        streams=tuple(_describe_streams(saved, names)),
        num_lanes=saved.layout.num_lanes,
        lanes=tuple(_describe_lanes(saved, names)),
        worlds=tuple(divisors(saved.layout.num_lanes)),
        mixture=tuple(
            (row, dict(zip(saved.mixture.names, weights, strict=True)))
            for row, weights in saved.mixture.schedule
        ),
        held=dict(saved.fields),
        fair_start=state_fields.FAIR if saved.is_fair else None,
        data=data,
        tokenizer=tokenizer,
    )


def _list_streams(saved: Saved, number: int) -> tuple[tuple[str, ...], tuple[str, ...], str | None]:
    """Return the names and locations of the streams, and the location of the tokenizer."""
    try:
        sources = read_sources(saved.sources)
    except StreamChangedError:
        return tuple(f"stream {index}" for index in range(number)), (), None
    urls = tuple(sources.urls.split(", "))
    if len(saved.mixture.names) == number:
        return tuple(saved.mixture.names), urls, sources.tokenizer
    names = tuple(saved.mixture.names[0].split(" + "))
    return names if len(names) == number else urls, urls, sources.tokenizer


def _list_components(saved: Saved) -> list[tuple[range, int]]:
    """List each component's streams, and the number of documents in each of its epochs.

    Raises `StreamChangedError` if the state does not have one number for each component.
    """
    text, number = str(saved.fields["choose"]), len(saved.position.counts)
    chosen = [int(each) for each in text.split(",") if re.fullmatch(r"[0-9]{1,18}", each)]
    is_one = len(saved.layout.canonical_nodes) == 1
    if len(chosen) != text.count(",") + 1 or (not is_one and len(chosen) != number):
        raise StreamChangedError(
            f"the state is damaged, because its field 'choose' is {text!r:.60}, not the number of "
            "documents of each stream. Use a different checkpoint"
        )
    if is_one:
        return [(range(number), sum(chosen))]
    return [(range(index, index + 1), chosen[index]) for index in range(number)]


def _describe_streams(saved: Saved, names: tuple[str, ...]) -> list[StreamPosition]:
    counts, origin = saved.position.counts, saved.position.origin
    total = max(1, int(counts[:, TOKENS].sum()))
    found = []
    for streams, documents in _list_components(saved):
        own = counts[streams.start : streams.stop]
        num_read = int(own[:, list(READ)].sum()) + origin.epoch * documents + origin.num_read
        for stream, each in zip(streams, own.tolist(), strict=True):
            found.append(
                StreamPosition(
                    names[stream],
                    each[TOKENS],
                    each[DOCUMENTS],
                    each[DESELECTED],
                    each[TOKENS] / total,
                    num_read / max(1, documents),
                )
            )
    return found


def _describe_lanes(saved: Saved, names: tuple[str, ...]) -> list[LanePositions]:
    num_lanes = saved.layout.num_lanes
    found = []
    for cursors, (streams, documents) in zip(
        saved.position.cursors, _list_components(saved), strict=True
    ):
        stride = Lanes(num_lanes, documents, epochs=None).stride
        epochs = cursors[:, tables.CURSOR_ORDINAL] * num_lanes / max(1, stride)
        found.append(
            LanePositions(
                names[streams.start : streams.stop],
                float(epochs.min()),
                float(epochs.max()),
                int(np.count_nonzero(cursors[:, tables.CURSOR_OFFSET])),
            )
        )
    return found


def compare_states(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """List the fields in which two states differ, position first.

    Raises `StreamChangedError` if a state is damaged.
    """
    for state in (before, after):
        read_state(state)
    first = (*_POSITION, *_LANES)
    names = [*first, *sorted({*before, *after} - {*first, state_fields.PART_FIELD})]
    return [
        Difference(name, before.get(name), after.get(name), _rule_of(name))
        for name in names
        if before.get(name) != after.get(name)
    ]


def compare_with_loader(
    state: Mapping[str, Any], loader: CloudLoader
) -> tuple[list[Difference], str | None]:
    """List the fields in which a state differs from a loader that has not started.

    Also returns the reason why the loader refuses the state, or None if it continues from it. The
    position is not compared, because loading the state moves the loader to it.
    """
    changed = compare_options(state, loader.state_dict())
    try:
        loader.load_state_dict(state)
    except (CloudloadError, ValueError) as error:
        return changed, str(error)
    return changed, None


def compare_options(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """List the fields in which two states differ, except for fields of the position."""
    found = compare_states(before, after)
    return [each for each in found if each.name not in {*_POSITION, *_LANES, "global_batch"}]


def _rule_of(name: str) -> str:
    if name in _POSITION:
        return "position"
    if name in _LANES:
        return "position of lanes"
    if name in _FREE:
        return _FREE[name]
    return _ACCEPTABLE.format(name=name) if name in ACCEPTABLE_FIELDS else _HELD


def show_field(name: str, value: Any) -> str:
    """Format a field of a state as text of limited length. Empty values become `none`."""
    if name in _BY_STREAM and value is not None:
        parts = str(value).split(",")
        value = ", ".join(part or "none" for part in parts) if any(parts) else None
    return shorten_value(None if value == "" else value)


def shorten_value(value: Any) -> str:
    """Format a value of a state as text of limited length."""
    text = "none" if value is None else str(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}… ({len(text):,} characters)"
