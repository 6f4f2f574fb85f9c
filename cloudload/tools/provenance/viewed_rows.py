"""View the rows of steps as the model receives them, token by token, with their documents.

batch ─┬─ input_ids, labels, position_ids ─────────────────► ViewedRow
       └─ spans ─► Tracer ─► id, shard, text of documents ─► ViewedSpan
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload.loading.batch import Batch
from cloudload.loading.loader import CloudLoader
from cloudload.loading.workers.trace import TracedSpan, WholeDocument
from cloudload.rows.packing.tables import SPAN_ROW
from cloudload.rows.tokenization.token_texts import TokenTexts
from cloudload.system.arrays import Ints, Tokens
from cloudload.system.html_tables import escape_text, render_table
from cloudload.tools.provenance.rows import check_rows, read_steps
from cloudload.tools.provenance.state_run import Run

_MOST_TOKENS = 2_048
# translucent, so that they suit light and dark notebooks
_COLORS = ("#4e9af155", "#f1a14e55", "#5cc47a55", "#d971c955", "#c9c04655")


@dataclass(frozen=True)
class ViewedSpan:
    """Consecutive tokens of a document in a row."""

    row_start: int
    """The index within the row of the span's first token."""
    span: TracedSpan
    """The tokens' document, and their range within it."""
    document: WholeDocument
    """The whole document: its number of tokens, and its text."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, without nesting. `document` is the document's text."""
        values = self.span.as_dict()
        del values["row"]
        whole = {"num_tokens": self.document.num_tokens, "document": self.document.text}
        return {"row_start": self.row_start, **values, **whole}


@dataclass(frozen=True, eq=False)
class ViewedRow:
    """A row of a step, as the model receives it."""

    step: int
    """The step, from 1."""
    row: int
    """The index of the row within the global batch, from 0."""
    run_row: int
    """The index of the row in the run, from 0."""
    input_ids: Tokens
    """The token IDs: int32 [seq_len]. Padding is 0."""
    labels: Ints
    """The labels, not shifted: int64 [seq_len]. Padding and masked labels are -100."""
    position_ids: Ints
    """The position of each token within its span, as with `fields=["position_ids"]`: int64
    [seq_len]."""
    texts: tuple[str, ...]
    """The text of each token. A byte that is only a part of a character is a surrogate, as in
    Python's `surrogateescape`."""
    special: tuple[int, ...]
    """The indices within the row of special tokens, such as eos."""
    spans: tuple[ViewedSpan, ...]
    """The documents in the row, in order. The rest of the row is padding."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens, without padding."""
        return sum(each.span.stop - each.span.start for each in self.spans)

    def _repr_html_(self) -> str:
        """Render the row for a notebook: its first 2,048 tokens in color, and its documents."""
        documents = np.full(len(self.input_ids), -1)
        for number, each in enumerate(self.spans):
            stop = each.row_start + each.span.stop - each.span.start
            documents[each.row_start : stop] = number
        pairs = zip(self.texts, documents[:_MOST_TOKENS].tolist(), strict=False)
        tokens = "".join(_color_token(text, document) for text, document in pairs)
        title = f"step {self.step:,}, row {self.row:,}: {self.num_tokens:,} tokens"
        heads = ("place", "stream", "id", "shard", "tokens", "of")
        rows = [
            (
                *(f"{each.row_start:,}", each.span.stream, str(each.span.id), each.span.shard),
                *(f"{each.span.start:,}:{each.span.stop:,}", f"{each.document.num_tokens:,}"),
            )
            for each in self.spans
        ]
        return f'<div style="white-space:pre-wrap">{tokens}</div>' + render_table(
            title, heads, rows
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name. They are JSON types, except for an `id` of type bytes."""
        values = {name: getattr(self, name) for name in ("step", "row", "run_row")}
        for name in ("input_ids", "labels", "position_ids"):
            values[name] = getattr(self, name).tolist()
        for name in ("texts", "special"):
            values[name] = list(getattr(self, name))
        return {**values, "spans": [each.as_dict() for each in self.spans]}


def _color_token(text: str, document: int) -> str:
    """Render a token with its document's background color; padding (-1) is gray."""
    color = _COLORS[document % len(_COLORS)] if document >= 0 else "#8883"
    return f'<span style="background:{color}">{escape_text(text)}</span>'


def view_rows(
    run: Run,
    steps: range,
    rows: Sequence[int] | None = None,
    *,
    mask_edges: bool = False,
    **delivery: Any,
) -> Iterator[ViewedRow]:
    """Yield the rows of `steps`, in order, or fewer if the data ends first.

    `steps` must be consecutive. With `rows` (from 0), yields only these rows of each global batch.
    In an endless run, viewing a single row reads only one lane per step. `mask_edges` masks the
    label of the first token of each span, as the loader's option does; the state does not record
    it. `delivery` takes other options of `DeliveryConfig`. Raises `ValueError` for a row that a
    step does not have, and for a step that is not after the state. Also raises the errors of
    `Run.loader`.
    """
    only = check_rows(run, rows)
    options = {**delivery, "mask_edges": mask_edges, "fields": ["position_ids"]}
    token_texts: TokenTexts | None = None
    for step, loader, batch, place in read_steps(run, steps, only, options):
        token_texts = token_texts or TokenTexts(loader.recipe.tokenizer.json)
        if place is not None:
            places: Sequence[int] = [place]
        else:
            places = range(len(batch.rows)) if rows is None else sorted(set(rows))
        first_row = run.rows_of_step(step).start
        yield from _view_batch(loader, batch, places, (step, first_row), token_texts)


def _view_batch(
    loader: CloudLoader,
    batch: Batch,
    places: Sequence[int],
    step: tuple[int, int],
    token_texts: TokenTexts,
) -> Iterator[ViewedRow]:
    """View the rows at `places` of a batch. `step` is (step, first row of the step in the run)."""
    spans = batch.spans[np.isin(batch.spans[:, SPAN_ROW], places)]
    traced = loader.open_tracer().trace_whole(spans, batch.rows)
    step_index, first_row = step
    for place in places:
        own = np.flatnonzero(spans[:, SPAN_ROW] == place).tolist()
        input_ids = batch["input_ids"][place].numpy().astype(np.int32)
        ids = input_ids.tolist()
        viewed = _place_spans([traced[each] for each in own])
        yield ViewedRow(
            step=step_index,
            row=int(batch.rows[place]) - first_row,
            run_row=int(batch.rows[place]),
            input_ids=input_ids,
            labels=batch["labels"][place].numpy(),
            position_ids=batch["position_ids"][place].numpy(),
            texts=tuple(token_texts.of(ids)),
            special=tuple(place for place, id in enumerate(ids) if token_texts.is_special(id)),
            spans=tuple(viewed),
        )


def _place_spans(traced: Iterable[tuple[TracedSpan, WholeDocument]]) -> Iterator[ViewedSpan]:
    """Yield the spans of a row with their places, from the row's start, without gaps."""
    place = 0
    for span, document in traced:
        yield ViewedSpan(place, span, document)
        place += span.stop - span.start
