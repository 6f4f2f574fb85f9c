"""Trace rows to their documents, by reading the documents of the rows' spans again.

span (row, stream, epoch, sample, start, stop) ─► the sample's ID, its shard, the tokens' text
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from cloudload.config import DeliveryConfig
from cloudload.data import ID_KEY, ShardCache
from cloudload.loading.workers.document_reader import DocumentReader
from cloudload.loading.workers.documents import (
    FoundDocuments,
    LaneDocuments,
    open_cache,
    open_documents,
)
from cloudload.rows import fill_rows, tables
from cloudload.run import RunInputs
from cloudload.stats import EMPTY, FILTERED
from cloudload.system import Ints, Spares, Tokens, reports


@dataclass(frozen=True)
class TracedSpan:
    """Tokens [start, stop) of a document in a row of the run."""

    row: int
    """The index of the row in the run, from 0."""
    stream: str
    """The name of the stream."""
    epoch: int
    """The index of the epoch, from 0."""
    sample: int
    """The index of the sample within its stream, from 0."""
    id: Any
    """The sample's value in the column `id`. None if the sample has no such column."""
    shard: str
    """The file name of the sample's uncompressed shard within its dataset."""
    start: int
    """The index of the span's first token within the document, bos included."""
    stop: int
    """The index after the span's last token."""
    text: str
    """The text of the tokens, control tokens included."""

    def as_dict(self) -> dict[str, Any]:
        """The fields by name. All values are plain JSON types, except an `id` of type bytes."""
        return asdict(self)

    def _repr_html_(self) -> str:
        """The span as a table, for a notebook."""
        values = {**self.as_dict(), "text": reports.shorten_text(self.text)}
        rows = [(name, str(value)) for name, value in values.items()]
        return reports.render_table("", ("tokens of a document", ""), rows)


@dataclass(frozen=True)
class WholeDocument:
    """The document of a span."""

    num_tokens: int
    """Number of tokens, bos and eos included."""
    text: str
    """The text after the transform; for data of token IDs, the text of its tokens."""


@dataclass(frozen=True)
class _Reader:
    """Reads documents for one caller at a time."""

    cache: ShardCache
    documents: LaneDocuments
    samples: DocumentReader

    @staticmethod
    def open(inputs: RunInputs, delivery: DeliveryConfig) -> _Reader:
        cache = open_cache(inputs, delivery)
        samples = DocumentReader(inputs.recipe, cache)
        return _Reader(cache, open_documents(inputs, cache), samples)

    def close(self) -> None:
        self.cache.close()


class Tracer:
    """Reads the documents of spans in this process, without workers. Thread-safe."""

    def __init__(self, inputs: RunInputs, delivery: DeliveryConfig) -> None:
        self._readers = Spares(partial(_Reader.open, inputs, delivery), _Reader.close)
        recipe = inputs.recipe
        self._framing = recipe.framing
        self._labels, self._corpus = recipe.labels, recipe.corpus
        self._is_text = [source.is_text for source in recipe.config.sources]
        self._starts = self._corpus.stream_starts

    def trace(self, spans: Ints, rows: Ints) -> list[TracedSpan]:
        """Read the documents of spans, and return a `TracedSpan` for each, in order.

        `spans` is int64 [spans, 6], with columns `tables.SPAN_COLUMNS`. `rows`, int64 [rows], maps
        the rows in `spans` to rows of the run. Raises the errors of `LaneDocuments.read`.
        """
        with self._readers.lend() as reader:
            tokens = self._read_tokens(reader, self._locate(spans))
            return self._trace(reader, spans, rows, tokens)

    def trace_whole(self, spans: Ints, rows: Ints) -> list[tuple[TracedSpan, WholeDocument]]:
        """Like `trace`, but also returns the whole document of each span."""
        samples = self._locate(spans)
        with self._readers.lend() as reader:
            tokens = self._read_tokens(reader, samples)
            texts = {
                key: self._read_text(reader, key[0], sample, tokens[key])
                for key, sample in samples.items()
            }
            traced = self._trace(reader, spans, rows, tokens)
        documents = {key: WholeDocument(len(tokens[key]), text) for key, text in texts.items()}
        return [(each, documents[key]) for each, key in zip(traced, _keys(spans), strict=True)]

    def _locate(self, spans: Ints) -> dict[tuple[int, int], int]:
        """The index in the corpus of each (stream, sample) of spans."""
        return {key: int(self._starts[key[0]]) + key[1] for key in _keys(spans)}

    def _read_text(self, reader: _Reader, stream: int, sample: int, tokens: Tokens) -> str:
        if not self._is_text[stream]:
            return reader.documents.decode(tokens)
        [text] = reader.samples.read_texts(np.array([sample]))
        return text if isinstance(text, str) else ""

    def _trace(
        self, reader: _Reader, spans: Ints, rows: Ints, tokens: Mapping[tuple[int, int], Tokens]
    ) -> list[TracedSpan]:
        samples, traced = self._locate(spans), []
        for row, stream, epoch, sample, start, stop in spans.tolist():
            key = stream, sample
            shard, values = reader.samples.read_sample(samples[key], [ID_KEY])
            text = reader.documents.decode(tokens[key][start:stop])
            identifier = values.get(ID_KEY)
            traced.append(
                TracedSpan(
                    int(rows[row]),
                    self._labels[stream],
                    epoch,
                    sample,
                    identifier,
                    shard.info.raw.name,
                    start,
                    stop,
                    text,
                )
            )
        return traced

    def _read_tokens(
        self, reader: _Reader, samples: Mapping[tuple[int, int], int]
    ) -> dict[tuple[int, int], Tokens]:
        """Read the tokens of each document: int32 [tokens], bos and eos included.

        `samples` maps each (stream, sample) to the sample's index in the corpus.
        """
        indices = np.fromiter(samples.values(), np.int64, len(samples))
        nowhere = np.zeros_like(indices)
        found = FoundDocuments(nowhere, nowhere, nowhere, indices)
        documents = reader.documents.read(found, np.full_like(indices, tables.Size.UNKNOWN))
        sizes = documents.table[:, tables.SIZE]
        joined = np.empty((1, int(sizes.sum())), np.int32)
        fill_rows(joined, tables.join_whole(documents), self._framing)
        return dict(zip(samples, np.split(joined[0], np.cumsum(sizes))[:-1], strict=True))

    def explain_absence(self, stream: int, sample: int) -> str | None:
        """Say why a sample of a stream is in no row, or return None if it is not left out.

        `stream` and `sample` are indices. Raises the errors of `LaneDocuments.read`.
        """
        index = np.array([self._starts[stream] + sample])
        nowhere = np.zeros_like(index)
        found = FoundDocuments(nowhere, nowhere, nowhere, index)
        with self._readers.lend() as reader:
            where = reader.samples.where(index[0])
            if not reader.documents.is_selected(index).all():
                return f"select or drop leaves out {where}"
            if failure := reader.documents.find_failure(int(index[0])):
                return f"on_error='skip' leaves out the document: {failure.summary}"
            count = reader.documents.read(found).table[0, tables.COUNT]
        if count == FILTERED:
            return f"encode, the transform, max_tokens, or min_tokens filters out {where}"
        return f"{where} has no tokens" if count == EMPTY else None

    def find_id(self, identifier: str) -> list[tuple[int, int]]:
        """Find every sample whose column `id`, as text, is `identifier`. Reads all shards.

        A sample without the column, or with null in it, has no ID. Returns (stream, sample
        within the stream) of each.
        """
        with self._readers.lend() as reader:
            every = range(int(self._starts[-1]))
            samples = [sample for sample in every if reader.samples.has_id(sample, identifier)]
        streams = self._corpus.streams_of(np.array(samples, np.int64)).tolist()
        return [
            (stream, sample - int(self._starts[stream]))
            for stream, sample in zip(streams, samples, strict=True)
        ]

    def close(self) -> None:
        """Stop fetching and unmap the shards."""
        self._readers.close()


def _keys(spans: Ints) -> list[tuple[int, int]]:
    """The (stream, sample) of each span."""
    return [(stream, sample) for _, stream, _, sample, _, _ in spans.tolist()]
