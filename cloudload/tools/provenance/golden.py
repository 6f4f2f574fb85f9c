"""Record the first rows of a run in a file, and test later that a run reads the same rows.

    options ─► record_golden ─► Golden ─► golden.json
    golden.json, options ─► compare_golden ─► the first row that differs, and why

For each document of a row, the file has its stream, epoch, and sample, a hash of its text, and a
hash of its tokens in the row. The first document whose tokens differ shows the cause:

    document              text       cause
    a different document  -          order, or data with different samples
    the same document     differs    data
    the same document     the same   tokenizer, or data if only the masks of tokens differ
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from cloudload.config import alone, checks
from cloudload.errors import DatasetError, StreamChangedError
from cloudload.loading import Batch, CloudLoader
from cloudload.rows import tables
from cloudload.run import read_state
from cloudload.segments import IGNORED_LABEL
from cloudload.tools.provenance.describe_state import (
    Difference,
    compare_options,
    shorten_value,
    show_field,
)

DATA, TOKENIZER, ORDER = "data", "tokenizer", "order"
NUM_ROWS = 256
"""Default number of rows to record."""

_FORMAT = 1
_KEY = "cloudload_golden"
_FIELDS_OF = {
    DATA: (
        *("data", "samples", "shards", "stream_shards", "transform", "text_key", "tokens_key"),
        *("chat", "encode", "fim", "strip_tokens", "min_tokens", "max_tokens", "on_error"),
    ),
    TOKENIZER: ("tokenizer", "token_ids", "bos_eos", "row_bos", "pad_documents_to", "row_hook"),
}
_NO_EFFECT = ("sources", "tokenizer_backend", "cloudload")


@dataclass(frozen=True)
class GoldenSpan:
    """A part of a recorded row: consecutive tokens from one document."""

    stream: int
    epoch: int
    sample: int
    """The index of the sample within its stream, from 0."""
    start: int
    """The index of the first token within the document."""
    stop: int
    id: str | None
    text: str
    """The hash of the document's text."""
    tokens: str
    """The hash of tokens [start, stop) of the document."""

    @property
    def index(self) -> tuple[int, int, int]:
        """The stream, epoch, and sample, which identify the document."""
        return self.stream, self.epoch, self.sample

    def __str__(self) -> str:
        known = "" if self.id is None else f" (id {self.id!r})"
        return f"sample {self.sample:,} of stream {self.stream}{known}"


Row = tuple[GoldenSpan, ...]
"""The documents of a row, in order."""


@dataclass(frozen=True)
class Golden:
    """The recorded first rows of a run."""

    state: Mapping[str, Any]
    """The state of the loader before the first row."""
    rows: tuple[Row, ...]
    is_whole: bool
    """Whether the run ended after the recorded rows."""

    @property
    def digest(self) -> str:
        """A hash of the tokens in all rows: 32 hex digits."""
        tokens = json.dumps([_tokens_of(row) for row in self.rows])
        return hashlib.sha256(tokens.encode()).hexdigest()[:32]

    def to_json(self) -> str:
        """Return the rows as JSON, with one row per line."""
        rows = [json.dumps([list(asdict(span).values()) for span in row]) for row in self.rows]
        head: dict[str, Any] = {_KEY: _FORMAT, "digest": self.digest, "is_whole": self.is_whole}
        head["state"] = self.state
        return f'{json.dumps(head)[:-1]}, "rows": [\n' + ",\n".join(rows) + "\n]}\n"


@dataclass(frozen=True)
class GoldenReport:
    """The result of comparing a run with golden rows."""

    rows: int
    """Number of rows that were compared."""
    first_row: int | None
    """The first row of the run that differs; None if all rows are the same."""
    cause: str | None
    """The cause of the difference: `data`, `tokenizer`, or `order`; None if no row differs."""
    what: str
    """The first difference, in words."""
    changed: tuple[Difference, ...]
    """The options, and the properties of the data and the tokenizer, that differ."""

    @property
    def is_same(self) -> bool:
        """Whether all rows are the same."""
        return self.first_row is None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, and `is_same`."""
        return {**asdict(self), "is_same": self.is_same}


def record_golden(num_rows: int = NUM_ROWS, **options: Any) -> Golden:
    """Record the first rows of the run that a `CloudLoader` with these options reads.

    The batch size, the world, and the workers have no effect. If the run ends before `num_rows`,
    the whole run is recorded. Raises `ValueError` for a number of rows below 1, and the errors of
    `CloudLoader`.
    """
    num_rows = checks.as_integer("num_rows", num_rows, 1)
    with _open_alone(options) as loader:
        state = loader.state_dict()
        rows = tuple(itertools.islice(_read_rows(loader), num_rows + 1))
        return Golden(state, rows[:num_rows], is_whole=len(rows) <= num_rows)


def read_golden(path: Path) -> Golden:
    """Read the JSON of a `Golden`. Raises `DatasetError` if it is missing or invalid."""
    try:
        content = json.loads(path.read_text("utf-8"))
        if content[_KEY] != _FORMAT:
            raise ValueError(
                f"its format is {content[_KEY]}, but this version of cloudload reads format "
                f"{_FORMAT}"
            )
        rows = tuple(tuple(GoldenSpan(*span) for span in row) for row in content["rows"])
        golden = Golden(content["state"], rows, is_whole=content["is_whole"])
        if golden.digest != content["digest"]:
            raise ValueError("its digest does not match its rows")
        _check_state(golden.state)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DatasetError(
            f"{path} is not a valid file of golden rows: {error}. Write it again (--write-golden)"
        ) from error
    return golden


def _check_state(state: Any) -> None:
    """Raise `ValueError` if the recorded state is invalid."""
    if not isinstance(state, Mapping):
        raise ValueError(f"its state is {shorten_value(state)}, not a mapping")
    try:
        read_state(state)
    except StreamChangedError as error:
        raise ValueError(f"in its state, {str(error).partition('. ')[0]}") from error


def compare_golden(golden: Golden, **options: Any) -> GoldenReport:
    """Compare recorded rows with those that a `CloudLoader` with these options reads.

    Stops at the first row that differs. If the recorded run ended after these rows, the new run
    must end there, too. Raises the errors of `CloudLoader`.
    """
    with _open_alone(options) as loader:
        found_changes = compare_options(golden.state, loader.state_dict())
        changed = tuple(each for each in found_changes if _has_effect(each))
        found = itertools.islice(_read_rows(loader), len(golden.rows) + golden.is_whole)
        pairs = itertools.zip_longest(golden.rows, found, fillvalue=())
        for number, (before, now) in enumerate(pairs):
            if _tokens_of(before) != _tokens_of(now):
                cause, what = _explain(before, now, changed)
                return GoldenReport(number + 1, number, cause, what, changed)
    return GoldenReport(len(golden.rows), None, None, "", changed)


def _has_effect(change: Difference) -> bool:
    """Whether a difference may affect the rows. The name of a stream does not."""
    if change.name != "mixture":
        return change.name not in _NO_EFFECT
    before, after = (json.loads(each)["schedule"] for each in (change.before, change.after))
    return bool(before != after)


def _open_alone(options: Mapping[str, Any]) -> CloudLoader:
    own = {"num_workers": 0, "stop_every": None, "mask_edges": False}
    return CloudLoader(**{**options, **alone(), **own})


def _read_rows(loader: CloudLoader) -> Iterator[Row]:
    for batch in loader:
        yield tuple(_record(loader, batch))


def _record(loader: CloudLoader, batch: Batch) -> Iterator[GoldenSpan]:
    """Yield the spans of a batch with a single row."""
    # the hash of the first span includes the tokens before it
    tokens, index, stop = batch["input_ids"][0].numpy(), 0, batch.num_lead
    if loader.recipe.has_masks:
        # the hash also covers which tokens are trained
        tokens = np.where(batch["labels"][0].numpy() == IGNORED_LABEL, -1 - tokens, tokens)
    if batch.is_pad is not None:
        tokens[batch.is_pad[0]] = -1  # whatever `pad_id` is
    traced = loader.open_tracer().trace_whole(batch.spans, batch.rows)
    streams = batch.spans[:, tables.SPAN_STREAM].tolist()
    for stream, (span, document) in zip(streams, traced, strict=True):
        stop += span.stop - span.start
        yield GoldenSpan(
            stream=stream,
            epoch=span.epoch,
            sample=span.sample,
            start=span.start,
            stop=span.stop,
            id=None if span.id is None else str(span.id),
            text=_hash(document.text.encode("utf-8", "surrogatepass")),
            tokens=_hash(tokens[index:stop].astype("<i8").tobytes()),
        )
        index = stop


def _hash(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)


def _tokens_of(row: Row) -> list[tuple[int, str]]:
    return [(each.stop - each.start, each.tokens) for each in row]


def _explain(before: Row, now: Row, changed: Sequence[Difference]) -> tuple[str, str]:
    """Return the cause of the first difference between two rows, and describe the difference."""
    pairs = list(itertools.zip_longest(before, now))
    index, (old, new) = next(
        (index, pair)
        for index, pair in enumerate(pairs)
        if not all(pair) or _tokens_of(pair[:1]) != _tokens_of(pair[1:])
    )
    where = f"document {index + 1} of the row"
    if old is None or new is None or old.index != new.index or old.start != new.start:
        was, is_now = (str(each) if each else "missing" for each in (old, new))
        return _blame(changed), f"{where} was {was}, but is now {is_now}"
    if old.text != new.text:
        return DATA, f"{where}, {new}, has different text"
    if old.stop != new.stop and any(each.name == "seq_len" for each in changed):
        return ORDER, f"{where}, {new}, is cut at a different token"
    if DATA in (causes := {_cause_of(each.name) for each in changed}) and TOKENIZER not in causes:
        return DATA, f"{where}, {new}, has the same text, but other tokens are trained or special"
    return TOKENIZER, f"{where}, {new}, has the same text, but different tokens"


def _blame(changed: Iterable[Difference]) -> str:
    """Return the first of data, order, and tokenizer that changed, or the order if none did."""
    causes = {_cause_of(each.name) for each in changed}
    return next((each for each in (DATA, ORDER, TOKENIZER) if each in causes), ORDER)


def _cause_of(field: str) -> str:
    return next((cause for cause, names in _FIELDS_OF.items() if field in names), ORDER)


def describe_report(report: GoldenReport) -> Iterator[str]:
    """Yield the report as lines of text."""
    if report.is_same:
        yield f"golden: all {report.rows:,} rows are the same"
    else:
        yield f"golden: row {report.first_row:,} differs, because of the {report.cause}"
        yield f"  {report.what}"
    for each in report.changed:
        before, after = (show_field(each.name, value) for value in (each.before, each.after))
        yield f"  {each.name} ({_cause_of(each.name)}): {before} → {after}"
