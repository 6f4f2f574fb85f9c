"""View the rows of steps as the model receives them, token by token, with their documents.

batch ─┬─ input_ids, labels, position_ids ─────────────────► ViewedRow
       └─ spans ─► Tracer ─► id, shard, text of documents ─► ViewedSpan
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload.config import alone
from cloudload.errors import DatasetError
from cloudload.loading import Batch, CloudLoader, TracedSpan, WholeDocument
from cloudload.rows import tables
from cloudload.segments import IGNORED_LABEL
from cloudload.system import Ints, Tokens, reports
from cloudload.tools.inspect.token_texts import TokenTexts
from cloudload.tools.provenance.state_run import Run, open_lane

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
    """The token IDs: int32 [seq_len]. Padding has the ID `pad_id`."""
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
    """The documents in the row, in order. The rest of the row is padding, after the `row_bos` if
    there is one."""

    @property
    def length(self) -> int:
        """Number of tokens before the padding, the `row_bos` included."""
        return self.spans[0].row_start + self.num_tokens if self.spans else 0

    @property
    def num_tokens(self) -> int:
        """Number of tokens of documents."""
        return sum(each.span.stop - each.span.start for each in self.spans)

    def _repr_html_(self) -> str:
        """Render the row for a notebook: its first 2,048 tokens in color, and its documents.

        Tokens that are not trained are faded."""
        documents = np.full(len(self.input_ids), -1)
        for number, each in enumerate(self.spans):
            stop = each.row_start + each.span.stop - each.span.start
            documents[each.row_start : stop] = number
        is_trained = self.labels != IGNORED_LABEL
        each_token = zip(self.texts, documents.tolist(), is_trained.tolist(), strict=True)
        tokens = "".join(
            itertools.starmap(_color_token, itertools.islice(each_token, _MOST_TOKENS))
        )
        title = f"step {self.step:,}, row {self.row:,}: {self.num_tokens:,} tokens"
        if (num_trained := int(is_trained.sum())) < self.num_tokens:
            title += f", {num_trained:,} trained"
        heads = ("place", "stream", "id", "shard", "tokens", "of")
        rows = [
            (
                *(f"{each.row_start:,}", each.span.stream, str(each.span.id), each.span.shard),
                *(f"{each.span.start:,}:{each.span.stop:,}", f"{each.document.num_tokens:,}"),
            )
            for each in self.spans
        ]
        return f'<div style="white-space:pre-wrap">{tokens}</div>' + reports.render_table(
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


def _color_token(text: str, document: int, is_trained: bool) -> str:
    """Render a token with its document's background color; padding (-1) is gray.

    A token that is not trained is faded.
    """
    color = _COLORS[document % len(_COLORS)] if document >= 0 else "#8883"
    faded = "" if is_trained else ";opacity:.5"
    return f'<span style="background:{color}{faded}">{reports.escape_text(text)}</span>'


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
    options = {**delivery, "mask_edges": mask_edges, "fields": ["position_ids"]}
    token_texts: TokenTexts | None = None
    for step, loader, batch, indices in _read_steps(run, steps, rows, options):
        token_texts = token_texts or TokenTexts(loader.recipe.tokenizer.json)
        first_row = run.rows_of_step(step).start
        yield from _view_batch(loader, batch, indices, (step, first_row), token_texts)


def _view_batch(
    loader: CloudLoader,
    batch: Batch,
    indices: Sequence[int],
    step: tuple[int, int],
    token_texts: TokenTexts,
) -> Iterator[ViewedRow]:
    """View the rows at `indices` of a batch. `step` is (step, first row of the step in the run)."""
    spans = batch.spans[np.isin(batch.spans[:, tables.SPAN_ROW], indices)]
    traced = loader.open_tracer().trace_whole(spans, batch.rows)
    step_index, first_row = step
    for index in indices:
        own = np.flatnonzero(spans[:, tables.SPAN_ROW] == index).tolist()
        input_ids = batch["input_ids"][index].numpy().astype(np.int32)
        ids = input_ids.tolist()
        viewed = _place_spans([traced[each] for each in own], batch.num_lead)
        yield ViewedRow(
            step=step_index,
            row=int(batch.rows[index]) - first_row,
            run_row=int(batch.rows[index]),
            input_ids=input_ids,
            labels=batch["labels"][index].numpy(),
            position_ids=batch["position_ids"][index].numpy(),
            texts=tuple(token_texts.of(ids)),
            special=tuple(index for index, id in enumerate(ids) if token_texts.is_special(id)),
            spans=tuple(viewed),
        )


def _place_spans(
    traced: Iterable[tuple[TracedSpan, WholeDocument]], index: int
) -> Iterator[ViewedSpan]:
    """Yield the spans of a row with their offsets, from the row's token `index`, without gaps."""
    for span, document in traced:
        yield ViewedSpan(index, span, document)
        index += span.stop - span.start


def trace_steps(
    run: Run, steps: range, row: int | Sequence[int] | None = None, **delivery: Any
) -> Iterator[tuple[int, list[TracedSpan]]]:
    """Yield (step, spans) for each of `steps`, or fewer if the data ends first.

    `steps` must be consecutive. With `row` (from 0), yields only the spans in that row, or in these
    rows, of the global batch. In an endless run, tracing a single row reads only one lane per step.
    `delivery` takes options of `DeliveryConfig`. Raises `ValueError` for a row that a step does not
    have, and for a step that is not after the state. Also raises the errors of `Run.loader`.
    """
    rows = [row] if isinstance(row, int) else row
    for step, loader, batch, indices in _read_steps(run, steps, rows, delivery):
        spans = batch.spans[np.isin(batch.spans[:, tables.SPAN_ROW], indices)]
        yield step, loader.open_tracer().trace(spans, batch.rows)


def _read_steps(
    run: Run, steps: range, rows: Sequence[int] | None, delivery: Mapping[str, Any]
) -> Iterator[tuple[int, CloudLoader, Batch, Sequence[int]]]:
    """Yield (step, loader, batch, indices of `rows` in it) for each of `steps`, as `trace_steps`.

    The indices ascend, and are those of all rows if `rows` is None. Each batch is valid until the
    next one is requested.
    """
    for row in rows or ():
        if not 0 <= row < run.global_batch:
            raise ValueError(
                f"row is {row}. Use a row of the step, from 0 to {run.global_batch - 1}"
            )
    if not steps:
        return
    if rows is not None and len(rows) == 1 and not run.can_end:
        for step in steps:
            number = run.rows_of_step(step)[rows[0]]
            with open_lane(run, number % run.saved.layout.num_lanes, 1, delivery) as loader:
                loader.seek(number)
                yield step, loader, next(iter(loader)), [0]
        return
    with run.loader(**delivery, **alone(run.global_batch)) as loader:
        loader.seek(run.rows_of_step(steps[0]).start)
        for step, batch in zip(steps, loader, strict=False):
            yield step, loader, batch, sorted(set(range(len(batch.rows)) if rows is None else rows))


def trace_documents(run: Run, spans: Ints, rows: Ints, **delivery: Any) -> list[TracedSpan]:
    """Read the documents of spans in any rows of a run, as `loader.trace` does for one batch.

    `spans` is int64 [spans, 6], with the columns of `Batch.spans`, and `rows`, int64 [rows], maps
    their rows to rows of the run. `delivery` takes options of `DeliveryConfig`. Raises
    `DatasetError` for a stream or sample that does not exist, and the errors of `Run.loader`.
    """
    with run.loader(**delivery, **alone()) as loader:
        starts = loader.recipe.corpus.stream_starts
        streams = np.minimum(spans[:, tables.SPAN_STREAM], len(starts) - 2)
        is_known = streams == spans[:, tables.SPAN_STREAM]
        is_known &= spans[:, tables.SPAN_SAMPLE] < np.diff(starts)[streams]
        if not is_known.all():
            stream, sample = spans[~is_known][0, [tables.SPAN_STREAM, tables.SPAN_SAMPLE]].tolist()
            raise DatasetError(
                f"the data has no sample {sample:,} in stream {stream}. Either this is not the "
                "data of the run, or shards are missing. Pass the data that the run read (--data)"
            )
        return loader.open_tracer().trace(spans, rows)
