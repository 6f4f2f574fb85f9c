"""Read the samples of a corpus: their texts, or their token IDs.

samples ─► by shard ─┬─► texts ─► transform ─► str, None, or a bad document's error
                     ├─► encode ─────────────► IDs, None, or a bad document's error
                     └─► bytes of IDs, of one dtype or several ─► checked, int32
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from cloudload.config import EncodeContext, Text, TokenIds, choices, show_function
from cloudload.data import SKIP_ADVICE, BadDocumentError, Shard, document_columns
from cloudload.errors import DatasetError
from cloudload.loading.workers.bad_documents import TextCheck, find_foreign_cause
from cloudload.rows import ChatError, DocumentTokenizer, Renderer, ids_of, mark_untrained
from cloudload.run import Recipe
from cloudload.segments import IGNORED_LABEL
from cloudload.stats import FETCH, READ_SHARDS, TRANSFORM
from cloudload.system import Flags, Ids, Ints, Tokens, activity, stage

TextOrError = str | BadDocumentError | None
"""The text of a sample; None if the transform filters it out; an error if on_error="skip" leaves it
out."""
TokensOrError = Tokens | BadDocumentError | None
"""The tokens that `encode` makes of a sample, None, or an error; likewise."""
_Made = TypeVar("_Made", str, Tokens)


class TokenPart(NamedTuple):
    """The tokens of some of the samples that were read."""

    indices: Ints
    """The samples' indices among those that were read, ascending: int64 [n]."""
    tokens: Tokens
    """The tokens of all documents, concatenated: int32 [tokens]. May be read-only."""
    sizes: Ints
    """The number of tokens of each: int64 [n]."""


def strip_ends(tokens: Tokens, sizes: Ints, stripped: Tokens) -> tuple[Tokens, Ints]:
    """Remove the IDs `stripped` from both ends of each document. Returns the tokens and sizes left.

    Example: stripping 0 and 2 from IDs 0 7 2 8 2 2 | 2 of sizes 6 1 gives 7 2 8 of sizes 3 0.
    """
    stops = np.cumsum(sizes)
    kept = np.flatnonzero(~np.isin(ids_of(tokens), stripped))
    first, last = np.searchsorted(kept, [stops - sizes, stops])
    is_left = first < last
    starts, ends = kept[first[is_left]], kept[last[is_left] - 1] + 1
    left = np.zeros_like(sizes)
    left[is_left] = ends - starts
    parts = [tokens[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.concatenate([tokens[:0], *parts]), left


def find_trained(labels: Ids, ids: Tokens) -> Flags | None:
    """Which tokens of a document its labels say are trained: bool [tokens].

    `labels` are the IDs or -100, or a mask of 0 and 1. None if they are neither, or if there are
    not as many as `ids` (int32 [tokens]).
    """
    if len(labels) != len(ids):
        return None
    is_hidden: Flags = labels == IGNORED_LABEL
    is_one: Flags = labels == 1
    if (is_hidden | (labels == ids)).all():
        return ~is_hidden
    return is_one if (is_one | (labels == 0)).all() else None


class ShardSource(Protocol):
    """The shards of a corpus, by index: a `ShardCache` or `MemoryShards`."""

    def shard(self, index: int, samples: Ints | None = None) -> Shard:
        """Return the shard with index `index`, and fetch it if necessary.

        With `samples`, int64 [n], the shard may have only these.

        Raises `StoreError` if the download fails, and `DatasetError` if the shard is invalid.
        """
        ...

    def prefetch(self, shards: Mapping[int, Ints | None]) -> None:
        """Start fetching shards, in this order. If a fetch fails, `shard` raises the error.

        `shards` maps a shard to the only samples in it that are needed for now, or to None.
        """
        ...


@dataclass(frozen=True)
class OneShard:
    """A `ShardSource` whose only shard is open."""

    only: Shard

    def shard(self, index: int, samples: Ints | None = None) -> Shard:
        """Return the shard."""
        return self.only

    def prefetch(self, shards: Mapping[int, Ints | None]) -> None:
        """Do nothing."""


class DocumentReader:
    """Reads the samples of a corpus, given as indices, and fetches their shards."""

    def __init__(self, recipe: Recipe, cache: ShardSource) -> None:
        self._corpus, self._cache = recipe.corpus, cache
        self._sources = recipe.config.sources
        self._renderers = [Renderer(chat.template) if chat else None for chat in recipe.chats]
        self._strip_tokens = np.array(recipe.config.strip_tokens, np.int32)
        self._skips = recipe.config.on_error == choices.SKIP
        self._vocab_size = recipe.tokenizer.vocab_size
        of_text = [stream for stream, source in enumerate(self._sources) if source.is_text]
        self._labels, self._text_check = recipe.labels, TextCheck(of_text)
        self._seed = recipe.config.seed
        self._doubts: dict[int, str] = {}

    def read_texts(self, samples: Ints) -> list[TextOrError]:
        """Read the texts of `samples` (int64 [samples]), in their order.

        Opens each shard once. Raises `BadDocumentError` for a bad document unless on_error="skip",
        `DatasetError` if a shard is damaged or the transform fails for another reason, and the
        errors of `ShardCache.shard` if a shard cannot be fetched.
        """
        texts: list[TextOrError] = [None] * len(samples)
        for shard, indices, within in self._by_shard(samples):
            stream = self._corpus.find_owner(shard)[0]
            found = self._read_shard(self._open(shard, within), within.tolist(), stream)
            if not self._text_check.is_over:
                self._check_texts(shard, samples[indices], found)
            if len(indices) == len(samples):
                return list(found)
            for index, text in zip(indices.tolist(), found, strict=True):
                texts[index] = text
        return texts

    def read_encoded(
        self, samples: Ints, tokenizer: DocumentTokenizer | None
    ) -> list[TokensOrError]:
        """Make the tokens of `samples` (int64 [samples]) of streams with `encode`, in their order.

        `tokenizer` encodes the texts that such a function passes to it. Opens each shard once.
        Raises the errors of `read_texts`.
        """
        made: list[TokensOrError] = [None] * len(samples)
        for shard_index, indices, within in self._by_shard(samples):
            shard = self._open(shard_index, within)
            stream = self._corpus.find_owner(shard_index)[0]
            numbers = self._corpus.number_samples(stream, samples[indices])
            what = f"running encode on {len(within):,} documents of {shard.url}"
            with activity.doing(what), stage(TRANSFORM):
                for index, sample, number in zip(
                    indices.tolist(), within.tolist(), numbers.tolist(), strict=True
                ):
                    made[index] = self._or_skip(
                        partial(self._encoded, shard, sample, stream, number, tokenizer)
                    )
        return made

    def take_doubts(self) -> dict[int, str]:
        """Return and clear the warnings that a stream's documents do not look like text, by stream
        index."""
        doubts, self._doubts = self._doubts, {}
        return doubts

    def _check_texts(self, shard: int, samples: Ints, texts: Sequence[TextOrError]) -> None:
        stream = self._corpus.find_owner(shard)[0]
        good = [text if isinstance(text, str) else None for text in texts]
        doubt = self._text_check.look(stream, samples, good)
        if doubt is None:
            return
        key, is_column = self._sources[stream].text_key, self._sources[stream].is_column
        documents = f"in column {key!r}" if is_column else "from the transform"
        advice = (
            f"Set text_key to a column of text. If {key!r} contains token IDs, set "
            f"tokens_key={key!r} instead"
        )
        if not is_column:
            advice = "Fix the transform, or set text_key to a column of text"
        self._doubts[stream] = (
            f"most of the first documents of stream {self._labels[stream]!r} {documents} do not "
            f"look like text. For example, {self.where(doubt.sample)} {doubt.reason} and starts "
            f"with {doubt.excerpt}. {advice}. Training continues on these documents"
        )

    def _read_shard(
        self, shard: Shard, samples: Sequence[int], stream: int
    ) -> Sequence[TextOrError]:
        source = self._sources[stream]
        if not source.is_fast:
            what = "rendering" if source.chat else "running the transform on"
            what += f" {len(samples):,} documents of {shard.url}"
            with activity.doing(what), stage(TRANSFORM):
                return [self._read_or_skip(shard, sample, stream) for sample in samples]
        try:
            with stage(READ_SHARDS):
                return shard.read_texts(samples, shard.column_index(source.text_key))
        except BadDocumentError:
            if not self._skips:
                raise
        return [self._read_or_skip(shard, sample, stream) for sample in samples]

    def _read_or_skip(self, shard: Shard, sample: int, stream: int) -> TextOrError:
        return self._or_skip(partial(self._read_text, shard, sample, stream))

    def _read_text(self, shard: Shard, sample: int, stream: int) -> str | None:
        source, renderer = self._sources[stream], self._renderers[stream]
        if renderer is not None:
            return _render(renderer, shard, sample)
        if source.transform is not None:
            return self._transformed(shard, sample, source.transform)
        [text] = shard.read_texts([sample], shard.column_index(source.text_key))
        return text

    def _or_skip(self, read: Callable[[], _Made | None]) -> _Made | BadDocumentError | None:
        """Call `read`. Returns its `BadDocumentError` if on_error="skip" leaves documents out."""
        try:
            return read()
        except BadDocumentError as error:
            if not self._skips:
                raise
            return BadDocumentError(error.summary)  # drop the frames, which keep the sample alive

    def read_tokens(self, samples: Ints) -> list[TokenPart]:
        """Read the tokens of pre-tokenized `samples` (int64 [samples]).

        Returns one part for each dtype in which IDs are stored. Opens each shard once. Raises
        `DatasetError` if a sample is damaged, has labels that do not match its IDs, or has an ID
        that is negative or not in the vocabulary, and the errors of `ShardCache.shard`.
        """
        values: list[memoryview] = [memoryview(b"")] * len(samples)
        labels: dict[int, Ids] = {}
        indices_of: defaultdict[np.dtype[Any], list[Ints]] = defaultdict(list)
        for shard_index, indices, within in self._by_shard(samples):
            shard = self._open(shard_index, within)
            owner = self._corpus.find_owner(shard_index)[0]
            column = self._sources[owner].tokens
            assert column is not None
            with stage(READ_SHARDS):
                of_ids = document_columns.open_token_column(shard, column.key, column.dtype)
                for raw in of_ids.read(shard, within):
                    indices_of[raw.dtype].append(indices[raw.indices])
                    for index, value in zip(indices[raw.indices].tolist(), raw.values, strict=True):
                        values[index] = value
                if column.labels_key is not None:
                    of_labels = document_columns.open_token_column(
                        shard, column.labels_key, column.dtype, has_labels=True
                    )
                    for raw in of_labels.read(shard, within):
                        found = [np.frombuffer(value, raw.dtype) for value in raw.values]
                        labels |= zip(indices[raw.indices].tolist(), found, strict=True)
        with stage(READ_SHARDS):
            return [
                self._join(np.sort(np.concatenate(indices)), values, dtype, samples, labels)
                for dtype, indices in indices_of.items()
            ]

    def _open(self, shard: int, samples: Ints) -> Shard:
        with stage(FETCH):
            return self._cache.shard(shard, samples)

    def _join(
        self,
        indices: Ints,
        values: Sequence[memoryview],
        dtype: np.dtype[Any],
        samples: Ints,
        labels: Mapping[int, Ids],
    ) -> TokenPart:
        """Join the IDs in `values` at `indices`, check that all are in the vocabulary, mark those
        that `labels` hides, and strip `strip_tokens`."""
        chosen = [values[index] for index in indices.tolist()]
        sizes = np.fromiter(map(len, chosen), np.int64, len(chosen)) // dtype.itemsize
        stored = np.frombuffer(b"".join(chosen), dtype)
        # viewed as unsigned, a negative ID is larger than any vocabulary
        unsigned = stored.view(f"<u{dtype.itemsize}")
        if unsigned.max(initial=0) >= self._vocab_size:
            index = int(np.argmax(unsigned >= self._vocab_size))
            document = int(np.searchsorted(np.cumsum(sizes), index, side="right"))
            within = index - int(sizes[:document].sum())
            raise self._wrong_id(int(samples[indices[document]]), within, int(stored[index]), dtype)
        ids = stored.astype(np.int32, copy=False).view(np.int32)
        if labels:
            parts = np.split(ids, np.cumsum(sizes)[:-1])
            is_trained = [
                self._find_trained(int(samples[index]), labels.get(index, part), part)
                for index, part in zip(indices.tolist(), parts, strict=True)
            ]
            ids = mark_untrained(ids, np.concatenate(is_trained))
        if len(self._strip_tokens):
            ids, sizes = strip_ends(ids, sizes, self._strip_tokens)
        return TokenPart(indices, ids, sizes)

    def _find_trained(self, sample: int, labels: Ids, ids: Tokens) -> Flags:
        """Which tokens of a sample are trained. Raises `DatasetError` for impossible labels."""
        is_trained = find_trained(labels, ids)
        if is_trained is not None:
            return is_trained
        if len(labels) != len(ids):
            what = f"has {len(labels):,} labels, but {len(ids):,} token IDs"
        else:
            index = int(np.argmax((labels != ids) & (labels != IGNORED_LABEL)))
            what = f"has the label {labels[index]} at token {index:,}, whose ID is {ids[index]}"
        raise DatasetError(
            f"{self.where(sample)} {what}. A label is its token's own ID, not that of the next "
            "token, or -100; in a mask, it is 0 or 1. Set labels_key to such a column, or omit it"
        )

    def _wrong_id(self, sample: int, index: int, found: int, dtype: np.dtype[Any]) -> DatasetError:
        return DatasetError(
            f"token {index:,} of {self.where(sample)} is {found:,} as {dtype.name}, not an ID from "
            f"0 to {self._vocab_size - 1:,}. Usually, tokens_dtype is not the dtype that was "
            "written, or the data was tokenized with a different tokenizer. Set tokens_dtype and "
            "the tokenizer to match the data"
        )

    def _by_shard(self, samples: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        """Group samples by shard.

        Yields, for each shard, its index, the samples' indices in `samples`, and the samples'
        indices in the shard.
        """
        if not len(samples):
            return
        shards = self._corpus.shards_of(samples)
        if (shards == shards[0]).all():
            shard = int(shards[0])
            yield shard, np.arange(len(samples)), samples - self._corpus.shard_starts[shard]
            return
        order = np.argsort(shards, kind="stable")
        within = (samples - self._corpus.shard_starts[shards])[order]
        opened, firsts = np.unique(shards[order], return_index=True)
        for shard, first, stop in zip(
            opened.tolist(), firsts.tolist(), [*firsts[1:].tolist(), len(samples)], strict=True
        ):
            yield shard, order[first:stop], within[first:stop]

    def read_sample(self, sample: int, columns: Sequence[str]) -> tuple[Shard, dict[str, Any]]:
        """Read a sample, and return its shard and its values by column name.

        Omits `columns` that do not exist. Raises `DatasetError` if the sample cannot be read, and
        the errors of `ShardCache.shard`.
        """
        shard, within = self._find(sample)
        return shard, shard.read_columns(within, columns)

    def has_id(self, sample: int, identifier: str) -> bool:
        """Whether a sample's value in the column `id`, as text, is `identifier`.

        Raises the errors of `read_sample`.
        """
        shard, within = self._find(sample)
        return shard.has_id(within, identifier)

    def where(self, sample: int) -> str:
        """Describe a sample for a message: its index in its shard, the shard, and its ID, if any.

        Raises the errors of `ShardCache.shard`.
        """
        shard, within = self._find(sample)
        return shard.where(within)

    def _find(self, sample: int) -> tuple[Shard, int]:
        [shard] = self._corpus.shards_of(np.array([sample]))
        return self._cache.shard(int(shard)), sample - int(self._corpus.shard_starts[shard])

    def prefetch(self, samples: Ints, *, in_parts: bool = False) -> None:
        """Start fetching the shards of `samples` (int64 [samples]), in the samples' order.

        With `in_parts`, shards may be read only as far as `samples` need it.
        """
        if in_parts:
            self._cache.prefetch(
                {shard: np.unique(within) for shard, _, within in self._by_shard(samples)}
            )
        else:
            self._cache.prefetch(dict.fromkeys(self._corpus.shards_of(samples).tolist()))

    def _call(self, option: str, function: Any, shard: Shard, sample: int, *more: Any) -> Any:
        """Call the function of an option with a sample and `more`, and explain its failure."""
        with stage(READ_SHARDS):
            values = shard.read(sample)
        try:
            return function(values, *more)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # otherwise, sys.exit() would look like a dead worker
            raise self._explain_failure(error, option, function, shard.where(sample)) from error

    def _encoded(
        self,
        shard: Shard,
        sample: int,
        stream: int,
        number: int,
        tokenizer: DocumentTokenizer | None,
    ) -> Tokens | None:
        """Return the tokens of a sample, whose index in its dataset is `number`."""
        encode = self._sources[stream].encode
        assert encode is not None
        encoder = None if tokenizer is None else tokenizer.encode_one
        context = EncodeContext(self._labels[stream], number, self._seed, encoder)
        made = self._call("encode function", encode, shard, sample, context)
        if made is None:
            return None
        if not isinstance(made, TokenIds):
            raise _bad_result(
                "encode", encode, shard.where(sample), type(made).__name__, "TokenIds"
            )
        ids = np.asarray(made.ids, np.int32)
        if ids.max(initial=0) >= self._vocab_size:
            index = int(np.argmax(ids >= self._vocab_size))
            fault = f"the ID {ids[index]:,} at token {index:,}"
            wanted = f"IDs from 0 to {self._vocab_size - 1:,}"
            raise _bad_result("encode function", encode, shard.where(sample), fault, wanted)
        return ids if made.trained is None else mark_untrained(ids, np.asarray(made.trained))

    def _transformed(self, shard: Shard, sample: int, transform: Any) -> str | None:
        text: str | None = self._call("transform", transform, shard, sample)
        if isinstance(text, Text) and text.trained == ():
            return None  # without trained tokens, it is filtered out
        if text is not None and (fault := _find_fault(text)):
            raise _bad_result("transform", transform, shard.where(sample), fault, "valid text")
        return text

    def _explain_failure(
        self, error: BaseException, option: str, function: Any, where: str
    ) -> DatasetError:
        [*_, what] = traceback.format_exception_only(error)
        summary = f"the {option} {show_function(function)} failed on {where}: {what}"
        message = f"{summary}{traceback.format_exc()}"
        cause = find_foreign_cause(error)
        if cause is None:
            advice = f"Fix the {option}, or return None to filter this sample out"
            return BadDocumentError(f"{message}{advice}. {SKIP_ADVICE}", summary=summary.rstrip())
        advice = f"Fix the {option}, or the cause of the error on this machine"
        if self._skips:
            advice += (
                ". on_error='skip' does not apply, because something other than the document may "
                f"have caused the {type(cause).__name__}. To leave the document out, return None "
                f"from the {option}"
            )
        return DatasetError(f"{message}{advice}")


def _bad_result(
    option: str, function: Any, where: str, fault: str, wanted: str
) -> BadDocumentError:
    """The error that a function returned `fault` for the sample `where`, not what is `wanted`."""
    what = f"the {option} {show_function(function)} returned {fault}"
    summary = f"{what} for {where}"
    return BadDocumentError(
        f"{summary}. Return {wanted}, or None to filter this sample out. {SKIP_ADVICE}",
        summary=summary,
    )


def _render(renderer: Renderer, shard: Shard, sample: int) -> Text | None:
    with stage(READ_SHARDS):
        values = shard.read(sample)
    try:
        return renderer.render(values)
    except ChatError as error:
        summary = f"{shard.where(sample)}: {error}"
        raise BadDocumentError(f"{summary}. {SKIP_ADVICE}", summary=summary) from error


def _find_fault(text: Any) -> str | None:
    """Describe what is wrong with the result of a transform; None if it is valid text."""
    if not isinstance(text, str):
        return type(text).__name__
    try:
        text.encode()
    except UnicodeEncodeError as error:
        surrogate = f"U+{ord(text[error.start]):X}"
        return f"text with a lone surrogate, {surrogate}, at character {error.start:,},"
    return None
