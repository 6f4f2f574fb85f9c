"""Find, fetch, read and tokenize the documents of lanes, many at a time.

    lane, ordinal ─► epoch, position ─► sample ─► text ─► IDs ─┐
                                            └───────────► IDs ─┤
                               a row of the document table ◄───┘

Once tokenized, a document is a row of integers and a range of token IDs, not a Python object. Lanes
are flat lanes, `component * num_lanes + lane`. A worker has one `LaneDocuments`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from cloudload.config import DeliveryConfig, choices
from cloudload.data import BadDocumentError, ShardCache
from cloudload.errors import DatasetError, StreamChangedError
from cloudload.loading.workers.bad_documents import SkipLog
from cloudload.loading.workers.document_reader import DocumentReader, TokenPart
from cloudload.loading.workers.token_reader import SampleTokens, TokenReader
from cloudload.order import EpochOrders
from cloudload.rows import (
    PAD_IN_DOCUMENT,
    DocumentTokenizer,
    decode_ids,
    ids_of,
    residue_spans,
    tables,
)
from cloudload.run import Position, Recipe, RunInputs, length_files
from cloudload.stats import DOCUMENTS, EMPTY, FILTERED
from cloudload.system import NEVER, Flags, Ints, Tokens, count_within

CHANGED_ADVICE = (
    "The transform, the tokenizer or the data changed in a way that the state's fingerprints do "
    "not show, or the transform is not deterministic. Restore the original transform, tokenizer "
    "and data, or load an earlier state. To continue with a changed transform, pass "
    "transform_id='NAME' and on_change={'transform': 'accept'}"
)


@dataclass(frozen=True)
class FoundDocuments:
    """The lane, ordinal, epoch and sample of each document: int64 [documents] each.

    `samples` are indices in the corpus.
    """

    flat_lanes: Ints
    ordinals: Ints
    epochs: Ints
    samples: Ints

    def __len__(self) -> int:
        return len(self.flat_lanes)

    def __getitem__(self, chosen: slice | Ints) -> FoundDocuments:
        return FoundDocuments(
            self.flat_lanes[chosen],
            self.ordinals[chosen],
            self.epochs[chosen],
            self.samples[chosen],
        )

    def begun_sizes(self, position: Position) -> Ints:
        """The size of each document that its lane has partly read at a position: int64 [documents].

        The size is `Size.ABSENT` for other documents, and may be `Size.UNKNOWN`. The documents in
        the lanes' residues also count as partly read.
        """
        starts = position.cursors.reshape(-1, tables.NUM_CURSOR_COLUMNS)
        start = starts[self.flat_lanes]
        is_begun = (start[:, tables.CURSOR_ORDINAL] == self.ordinals) & (
            start[:, tables.CURSOR_OFFSET] > 0
        )
        # a cursor's size is 0 if it is not known
        known = np.where(
            start[:, tables.CURSOR_SIZE] > 0, start[:, tables.CURSOR_SIZE], tables.Size.UNKNOWN
        )
        sizes = np.where(is_begun, known, tables.Size.ABSENT)
        before = np.flatnonzero(self.ordinals < start[:, tables.CURSOR_ORDINAL])
        if position.residues is not None and len(before):
            residues = position.residues.ravel()
            lanes, ordinals = self.flat_lanes[before], self.ordinals[before].tolist()
            of_lanes = {
                lane: {
                    document: size
                    for document, _, size in residue_spans(
                        residues[lane], int(starts[lane, tables.CURSOR_ORDINAL])
                    )
                }
                for lane in np.unique(lanes).tolist()
            }
            pairs = zip(lanes.tolist(), ordinals, strict=True)
            sizes[before] = [of_lanes[lane][ordinal] for lane, ordinal in pairs]
        return sizes


def split_by_component(flat_lanes: Ints, num_lanes: int) -> Iterator[tuple[int, Ints]]:
    """Yield (component, indices of its lanes in `flat_lanes`), by component.

    `flat_lanes` is int64 [lanes]. One sort serves all components, of which there may be thousands.
    """
    components = flat_lanes // num_lanes
    order = np.argsort(components, kind="stable")
    starts = np.flatnonzero(np.diff(components[order], prepend=-1))
    for own in np.split(order, starts[1:]) if len(order) else ():
        yield int(components[own[0]]), own


class LaneDocuments:
    """Finds and reads the documents of lanes."""

    def __init__(
        self,
        recipe: Recipe,
        orders: Sequence[EpochOrders],
        reader: TokenReader,
        *,
        lengths: length_files.CorpusLengths | None = None,
    ) -> None:
        self._corpus, self._components = recipe.corpus, recipe.components
        config, self._num_lanes = recipe.config, recipe.num_lanes
        self._min_tokens, self._max_tokens = config.min_tokens, config.max_tokens or NEVER
        self._orders, self._reader, self._lengths = orders, reader, lengths
        self._text, self._labels = recipe.tokenizer.json, recipe.labels
        self._skips, self._skip_log = recipe.config.on_error == choices.SKIP, SkipLog()
        self._framing, self._selection = recipe.framing, recipe.selection

    def find(self, flat_lanes: Ints, ordinals: Ints) -> FoundDocuments:
        """Find the epoch and sample of each document, and omit the holes at the ends of epochs.

        `flat_lanes` and `ordinals` are int64 [documents]. Raises `CacheError` if the order of an
        epoch is not on disk and cannot be written.
        """
        epochs, samples = np.empty_like(flat_lanes), np.empty_like(flat_lanes)
        for component, own in split_by_component(flat_lanes, self._num_lanes):
            epochs[own], samples[own] = self._components[component].find_samples(
                self._orders[component], flat_lanes[own] % self._num_lanes, ordinals[own]
            )
        found = FoundDocuments(flat_lanes, ordinals, epochs, samples)
        return found if samples.min(initial=0) >= 0 else found[np.flatnonzero(samples >= 0)]

    def find_next(self, flat_lanes: Ints, firsts: Ints, counts: Ints) -> FoundDocuments:
        """Find the documents of lanes from ordinals `firsts` on, `counts` of each, by lane.

        The arguments are int64 [lanes]. Omits holes, and raises the errors of `find`.
        """
        ordinals = np.repeat(firsts, counts) + count_within(counts)
        return self.find(np.repeat(flat_lanes, counts), ordinals)

    def is_selected(self, samples: Ints) -> Flags:
        """Whether each of `samples` (int64 [samples]) is selected: bool [samples]."""
        if self._selection is None:
            return np.ones(len(samples), np.bool_)
        return self._selection.of(samples)

    def read(self, found: FoundDocuments, begun_sizes: Ints | None = None) -> tables.ReadDocuments:
        """Read and tokenize documents, in their order. Column `START` is 0.

        A document that was accepted before is exempt from filtering: a cursor is inside it, a
        residue or a row of the tail contains it, or it is being traced. For such documents,
        `begun_sizes` (int64 [documents]) is the size that they had, or `Size.UNKNOWN`. For all
        others, it is `Size.ABSENT`. Pass only documents that are selected (`is_selected`), or that
        were accepted before.

        Raises `TokenizerError` if a text cannot be encoded, `StreamChangedError` if a document that
        was accepted now has a different size or is bad, and the errors of `DocumentReader`.
        """
        has_begun = None if begun_sizes is None else begun_sizes != tables.Size.ABSENT
        table = self.describe(found)
        streams = table[:, tables.STREAM]
        read = self._reader.read(found.samples)
        if self._skips:
            self._log_skips(streams, read, has_begun)
        buffers = [self._put(table, part, index).data for index, part in enumerate(read.parts)]
        if self._lengths is not None:
            self._check_lengths(self._lengths, found.samples, read.lengths)
        whole = read.sizes + self._framing.num_framing[streams]
        sizes = self._framing.pad_sizes(whole)
        if begun_sizes is not None:
            self._check_sizes(found, sizes, begun_sizes)
        left_out = read.left_out
        is_filtered = (whole < self._min_tokens) | (whole > self._max_tokens)
        left_out[is_filtered & (left_out == 0)] = FILTERED
        # a document that was accepted before stays in the rows
        if has_begun is not None:
            left_out[has_begun] = 0
        is_left_out = left_out > 0
        table[:, tables.SIZE] = np.where(is_left_out, 0, sizes)
        table[:, tables.COUNT] = np.where(
            is_left_out, left_out, np.where(sizes > 0, DOCUMENTS, EMPTY)
        )
        return tables.ReadDocuments(table, buffers)

    def _put(self, table: Ints, part: TokenPart, buffer: int) -> Tokens:
        """Write to a document table where the tokens of a part are. Returns what `buffer` holds."""
        streams, tokens, sizes = table[part.indices, tables.STREAM], part.tokens, part.sizes
        # `BASE` is where token 0 would be, and if that is the bos, it is before the text
        num_before: Ints | int = (self._framing.bos[streams] >= 0).astype(np.int64)
        if self._framing.multiple > 1:
            tokens, sizes = self._framing.frame(tokens, sizes, streams)
            num_before = 0
        table[part.indices, tables.BASE] = np.cumsum(sizes) - sizes - num_before
        table[part.indices, tables.BUFFER] = buffer
        return tokens

    def describe(self, found: FoundDocuments) -> Ints:
        """Return the document table of documents without reading them: int64 [documents, 10].

        All columns after `SAMPLE` are 0.
        """
        table = np.zeros((len(found), tables.NUM_DOCUMENT_COLUMNS), np.int64)
        table[:, tables.FLAT_LANE], table[:, tables.ORDINAL] = found.flat_lanes, found.ordinals
        streams = self._corpus.streams_of(found.samples)
        table[:, tables.STREAM], table[:, tables.EPOCH] = streams, found.epochs
        table[:, tables.SAMPLE] = found.samples - self._corpus.stream_starts[streams]
        return table

    def compare(self, samples: Ints, reader: DocumentReader) -> None:
        """Read `samples` of the corpus (int64 [samples]) with `reader`, and compare each with its
        counted length.

        Raises the errors of `read`, and `DatasetError` for a sample with a different length.
        """
        other = copy(self._reader)
        other.samples = reader
        assert self._lengths is not None
        self._check_lengths(self._lengths, samples, other.read(samples).lengths)

    def _check_sizes(self, found: FoundDocuments, sizes: Ints, begun_sizes: Ints) -> None:
        """Raise `StreamChangedError` if a document's size differs from the one in `begun_sizes`."""
        changed = np.flatnonzero((begun_sizes > 0) & (sizes != begun_sizes))
        if len(changed):
            index = int(changed[0])
            where = self._reader.samples.where(int(found.samples[index]))
            raise StreamChangedError(
                f"{where} has {sizes[index]:,} tokens, but had {begun_sizes[index]:,} when the run "
                f"first read a part of it, in lane {found.flat_lanes[index] % self._num_lanes}. "
                f"{CHANGED_ADVICE}"
            )

    def _log_skips(self, streams: Ints, read: SampleTokens, has_begun: Flags | None) -> None:
        """Log bad documents, which are left out. Raises `StreamChangedError` for one that the run
        has begun to read."""
        labels = [self._labels[stream] for stream in streams.tolist()]
        self._skip_log.count_read(labels)
        for index, error in read.failures.items():
            if has_begun is not None and has_begun[index]:
                raise StreamChangedError(
                    f"{error.summary}. The run has already read a part of this document. "
                    f"{CHANGED_ADVICE}"
                )
            self._skip_log.record(labels[index], error)

    def _check_lengths(self, lengths: length_files.CorpusLengths, samples: Ints, now: Ints) -> None:
        """Raise `DatasetError` if a document does not have the length that was counted."""
        counted = lengths.of_all(samples)
        if (counted == now).all():
            return
        index = int(np.argmax(counted != now))
        was, has = (_describe_length(int(each[index])) for each in (counted, now))
        where = self._reader.samples.where(int(samples[index]))
        raise DatasetError(
            f"{where} {was} in the token lengths, but now {has}. The text, the transform, or the "
            "tokenizer changed. If the change is intended, run cloudload count --again, or set "
            "lengths='off'"
        )

    def has_order(self, component: int, epoch: int) -> bool:
        """Whether the order of an epoch is in memory, is on disk, or is cheap to build."""
        return self._orders[component].is_ready(epoch)

    def build_order(self, component: int, epoch: int) -> None:
        """Start building the order of an epoch in a background process, and return immediately.

        Does nothing if the order exists or is cheap to build.
        """
        self._orders[component].build_in_background(epoch)

    def decode(self, tokens: Tokens) -> str:
        """Decode tokens (int32 [tokens]) to text, control tokens included and padding omitted.

        Without a tokenizer, the text is the IDs, separated by spaces.
        """
        return decode_ids(self._text, ids_of(tokens[tokens != PAD_IN_DOCUMENT]))

    def take_doubts(self) -> dict[int, str]:
        """Return and clear the warnings that a stream's documents do not look like text, by stream
        index."""
        return self._reader.samples.take_doubts()

    def find_failure(self, sample: int) -> BadDocumentError | None:
        """The error because of which on_error="skip" leaves out a sample of the corpus, if any.

        Raises the errors of `read`.
        """
        return self._reader.read(np.array([sample])).failures.get(0)

    def prefetch(self, samples: Ints, *, in_parts: bool = False) -> None:
        """Start fetching the shards of those of `samples` (int64 [samples]) that are selected, in
        the samples' order. `in_parts` is as for `DocumentReader.prefetch`."""
        self._reader.samples.prefetch(samples[self.is_selected(samples)], in_parts=in_parts)


def _describe_length(length: int) -> str:
    named: dict[int, str] = {
        tables.Size.FILTERED: "is filtered out",
        tables.Size.FAILED: "is left out as a bad document",
        tables.Size.DESELECTED: "is not selected",
    }
    return named.get(length) or f"has {length:,} tokens"


def open_documents(inputs: RunInputs, cache: ShardCache, *, compares: bool = True) -> LaneDocuments:
    """Open the documents of a run's lanes. Uses the run's orders and tokenizer.

    `compares` is passed to `DocumentTokenizer`.
    """
    recipe = inputs.recipe
    orders = [component.orders(inputs.cache_root) for component in recipe.components]
    tokenizer = None
    if recipe.tokenizes:
        tokenizer = DocumentTokenizer(recipe.tokenizer, inputs.backend.name, compares=compares)
    reader = TokenReader(recipe, DocumentReader(recipe, cache), tokenizer)
    return LaneDocuments(recipe, orders, reader, lengths=inputs.lengths)


def open_cache(
    inputs: RunInputs, delivery: DeliveryConfig, retries: Ints | None = None
) -> ShardCache:
    """Open the cache for the shards of a run's corpus. The cache counts retries in `retries`."""
    return ShardCache(
        inputs.recipe.corpus,
        inputs.cache_root,
        limit_bytes=delivery.cache_limit_bytes(),
        threads=delivery.download_threads,
        verify=delivery.verify,
        retries=retries,
    )
