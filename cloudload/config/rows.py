"""The options that control which tokens are read, and in which order. The state saves them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from cloudload.config import checks
from cloudload.config.chat import Chat, as_chat
from cloudload.config.checks import Count, within
from cloudload.config.choices import (
    AUTO,
    FIRST,
    RAISE,
    SAME,
    OnError,
    Overflow,
    PackingName,
    ShuffleAlgorithm,
    Stopping,
    TokenDtype,
)
from cloudload.config.encode import Encode, as_encode
from cloudload.config.fim import Fim, as_fim
from cloudload.config.row_hook import RowHook, as_row_hook
from cloudload.config.source import (
    DocumentSource,
    TokensColumn,
    check_given_id,
    name_given,
)
from cloudload.config.stream import Stream, name_streams
from cloudload.config.transform import Transform, as_transform
from cloudload.data import redact
from cloudload.system import divisors, option_help

MAX_LANES = 1 << 22
_FUNCTIONS = ("transform", "encode")
_KINDS = ("encode", "chat", "transform", "tokens_key")
"""The options that say what documents are made of, of which only one may be set."""

TEXT_KEY = "text"


@option_help.explained
@dataclass(frozen=True)
class RowsConfig:
    """The options that control which tokens are read, and in which order. The state saves them.

    A resume compares the saved options with the loader's, except for `seq_len`, `schedule`, and the
    locations, names and proportions of streams, which may change. If `num_lanes`,
    `num_canonical_nodes` or `shuffle_block_size` is None, it is chosen from the data, or taken from
    the state on resume. `describe()` shows the result.

    Raises `ValueError` if an option is invalid. The loader checks the entries of `schedule`, and
    whether options fit the data and the tokenizer.
    """

    streams: tuple[Stream, ...]
    """The datasets. Without proportions or a schedule, they form one corpus, in this order."""
    seq_len: Count
    """Tokens per row. This may change on resume."""
    packing: PackingName = "concat"
    """How documents fill rows. `concat`: documents continue in the next row. `best_fit`: a document
    that fits in a row is never split. `one_per_row`: each row has tokens of one document."""
    open_rows: Count = 16
    """Maximum number of rows that `best_fit` keeps open in each lane. A run starts with fewer open
    rows, so that its first rows are a fair sample of the documents."""
    overflow: Overflow = "cut"
    """How `one_per_row` handles a document that is longer than a row: `cut` truncates it, `rows`
    continues it in the next rows."""
    shuffle: bool = True
    """Whether each epoch is shuffled."""
    shuffle_algo: ShuffleAlgorithm = "py1e"
    """The shuffle algorithm: one of StreamingDataset's, or `seekable`, which is like py1br but
    computes the document at a position on demand. Use `seekable` for 10^8 or more documents."""
    shuffle_block_size: Count | None = None
    """Approximate number of documents that are shuffled with each other in each canonical node, for
    py1e, py1br and seekable. By default, the documents of about four shards."""
    num_canonical_nodes: Count | None = None
    """Number of parts into which the shuffled epoch is divided. If the number of machines divides
    it, each machine reads whole parts, so only shards at the borders of parts are downloaded more
    than once. This does not hold for the naive shuffle, or if an epoch repeats samples. The default
    is at most 64, and each part has at least 32 shards unless there is only one part. With more
    parts, more machines can share the downloads of a small dataset, but the first batch needs more
    shards."""
    seed: Annotated[int, within(0, (1 << 32) - 1)] = 17
    """Seed of the shuffle, from 0 to 2^32 - 1. Each epoch is shuffled differently."""
    num_lanes: Annotated[int, within(1, MAX_LANES)] | None = None
    """Number of logical shards that are packed separately. Without token lengths, every world
    size must divide it. By default, 12 to 3,840, depending on the number of documents. If
    `num_canonical_nodes` is set, the default is a multiple of it, which may be larger. 3,840 is
    divisible by every power of two up to 256, and by 3, 5 and 15 times these. For 512 or 1,024
    ranks, count token lengths, or set `num_lanes`, for example to 4,096, when the run starts."""
    epochs: Count | None = None
    """Number of passes over the data. None repeats the data forever. In a mixture, each stream ends
    after this many passes over its data, and all streams need token lengths; see `stopping`."""
    stopping: Stopping = "all"
    """When a mixture with `epochs` or `max_epochs` ends: when the `first` of its streams ends, or
    when `all` of them have ended. It may change on resume."""
    schedule: Sequence[tuple[int, Mapping[str, float]]] | None = None
    """Pairs (row, weights). The weights, by name or URL of a stream, apply from that row on. The
    first row must be 0. Streams that are not named have weight 0. None means to use the streams'
    proportions."""
    text_key: Annotated[str, checks.as_text] = TEXT_KEY
    """The column that holds the document."""
    tokens_key: str | None = None
    """The column that holds the documents as token IDs, if the data is pre-tokenized. Its encoding
    is `bytes`, `ndarray` with or without an integer dtype and a shape, or `json` with a list. If it
    is set, `auto` adds no bos and no eos, because the writer of the data chose where they are, and
    the loader needs no tokenizer. A `Stream` can set its own, to mix text with token IDs."""
    tokens_dtype: TokenDtype | None = None
    """The dtype of token IDs and labels in columns of bytes, such as `uint16`, because the index
    does not record it. llm-foundry writes `int64`."""
    labels_key: str | None = None
    """The column that says which tokens of pre-tokenized data are trained: labels, which are the
    IDs or -100, or 0 and 1. The label of a token that is not trained is -100, and a document
    without trained tokens is filtered out. None means that all tokens are trained."""
    strip_tokens: Annotated[Sequence[int], checks.as_token_ids] = ()
    """Token IDs to remove from both ends of documents that are token IDs, such as the bos, eos, or
    padding that the writer of the data added. `bos`, `eos`, and `min_tokens` apply to the rest."""
    transform: Annotated[Transform, as_transform] | None = None
    """A function that returns the text of a sample (a dict), or None to filter it out. It replaces
    `text_key`. It must be deterministic. It must be picklable if worker processes are not
    forked."""
    transform_id: str | None = None
    """Name that identifies the transform on resume. Change it whenever the transform's output
    changes. By default, a hash of the transform's code and of the values that it uses, as they are
    when the loader is created."""
    chat: Annotated[Chat, as_chat] | None = None
    """How samples that are conversations become documents, and which of their tokens are trained.
    It replaces `text_key`. `auto` adds no bos and no eos to them, because chat templates write
    them. A `Stream` can set its own, to mix conversations with text."""
    encode: Annotated[Encode, as_encode] | None = None
    """A function that returns the tokens of a sample as `TokenIds`, or None to filter it out. It
    receives the sample (a dict) and an `EncodeContext`, which has random numbers and the tokenizer.
    It replaces `text_key`. `auto` adds no bos and no eos to its documents. If all documents have
    such functions, the loader needs no tokenizer. It must be deterministic, apart from the
    context's random numbers, and picklable if worker processes are not forked."""
    encode_id: str | None = None
    """Name that identifies `encode` on resume, like `transform_id`."""
    fim: Annotated[Fim, as_fim] | None = None
    """Which documents have their middle moved to the end, so that a model learns to fill in the
    middle. It does not apply to conversations. A document is cut in the same way in each epoch."""
    min_tokens: Annotated[int, within(0)] = 0
    """Documents with fewer tokens, bos and eos included, are filtered out."""
    max_tokens: Count | None = None
    """Documents with more tokens, bos and eos included, are filtered out. None means no limit."""
    on_error: OnError = "raise"
    """What to do with a document whose text is not UTF-8, whose transform or `encode` raises an
    error or returns something else, or that `chat` cannot render. `raise` ends the run with an
    error that names the document. `skip` leaves the document out, as a filter does, logs it, and
    counts it as `failed`. Errors of the machine, the store, the shard, or the tokenizer are never
    skipped, and the option does not apply to columns of token IDs. On resume, `raise` may become
    `skip`."""
    bos: Annotated[str | int | None, checks.as_token] = AUTO
    """Token before each document: a token, its ID, None, or `auto`, which is the bos that the
    tokenizer's template adds, if any."""
    eos: Annotated[str | int | None, checks.as_token] = AUTO
    """Token after each document: a token, its ID, None, or `auto`, which is the tokenizer's eos
    token. It is an error if the tokenizer has none."""
    pad_documents_to: Count = 1
    """Documents are padded to a multiple of this number of tokens within their rows, bos and eos
    included. It must divide `seq_len`. Context parallelism with zigzag shards needs twice its size,
    such as `2 * cp_size`. The padding has the ID `pad_id` and the label -100, and counts as tokens
    of the document."""
    row_hook: Annotated[RowHook, as_row_hook] | None = None
    """A function that changes packed rows, for what belongs to rows and not to documents. It gets
    the IDs of a row (int32 [tokens]), whether each is trained (bool [tokens]), and a `RowContext`,
    and changes the two arrays in place. Its random numbers are those of `context.random`, so a row
    is the same on each world and after every resume. Traces show the rows before it."""
    row_hook_id: str | None = None
    """Name that identifies `row_hook` on resume, like `transform_id`."""
    row_bos: Annotated[str | int | None, checks.as_token] = None
    """Token at the start of each row: a token, its ID, or None. It belongs to no document.
    Documents then have no bos, and fill the other `seq_len` - 1 places of the row."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "streams", name_streams(self.streams))
        if self.schedule is not None:
            object.__setattr__(self, "schedule", _read_schedule(self.schedule, self.streams))
        if not self.streams:
            raise ValueError("data is empty. Pass a URL, a Stream, or a list of them")
        checks.check_tokens_column(self.tokens_key, self.tokens_dtype, self.labels_key)
        checks.check_fields(self)
        self._check_order()
        if self.max_tokens is not None and self.max_tokens < self.min_tokens:
            raise ValueError(
                f"max_tokens is {self.max_tokens:,}, but min_tokens is {self.min_tokens:,}, so all "
                "documents would be filtered out. Use a larger max_tokens or a smaller min_tokens"
            )
        if self.row_bos in (AUTO, SAME):
            raise ValueError(f"row_bos is {self.row_bos!r}. Use a token, its ID, or None")
        if self.seq_len <= self.num_lead:
            raise ValueError(
                f"seq_len is {self.seq_len}, but row_bos is {self.row_bos!r}, which leaves no "
                "place for the tokens of documents. Use a larger seq_len"
            )
        if self.pad_documents_to > 1 and (self.num_lead or self.seq_len % self.pad_documents_to):
            why = "row_bos is set" if self.num_lead else f"seq_len is {self.seq_len}"
            raise ValueError(
                f"pad_documents_to is {self.pad_documents_to}, but {why}. Use a seq_len that is a "
                "multiple of pad_documents_to, and no row_bos"
            )
        self._check_sources()
        self._check_mixing()

    def _check_order(self) -> None:
        if self.shuffle_block_size == 1:
            raise ValueError(
                "shuffle_block_size is 1. Use at least 2. To keep the order of the data, use "
                "shuffle=False"
            )
        lanes, nodes = self.num_lanes, self.num_canonical_nodes
        if lanes and nodes and lanes % nodes:
            raise ValueError(
                f"num_canonical_nodes {nodes} does not divide num_lanes {lanes}. Use one of "
                f"{divisors(lanes)}, or a different num_lanes"
            )

    def _check_sources(self) -> None:
        columns = {"tokens_key": self.tokens_key, "tokens_dtype": self.tokens_dtype}
        columns["labels_key"] = self.labels_key
        if same := [name for name, value in columns.items() if value == SAME]:
            raise ValueError(
                f"{same[0]} is 'same', but 'same' is valid only for a Stream. Use a column or a "
                "dtype, or omit it"
            )
        kinds = [each for each in _KINDS if getattr(self, each) is not None]
        if len(kinds) > 1:
            raise ValueError(
                f"{kinds[0]} and {kinds[1]} are both set. Omit one of them, or set them for single "
                f"streams: Stream(url, {kinds[0]}=...)"
            )
        sources = self.sources  # named now, because calls may change a function's values
        for name in _FUNCTIONS:
            check_given_id(name, getattr(self, name), getattr(self, f"{name}_id"))
            if getattr(self, name) and not any(getattr(each, name) for each in sources):
                raise ValueError(
                    f"{name} applies to no stream, because each has its own source of documents, "
                    f"such as tokens_key. Omit {name}"
                )
        check_given_id("row_hook", self.row_hook, self.row_hook_id)
        _ = self.row_hook_name
        if self.fim is not None and not any(map(self.fim_of, self.streams)):
            raise ValueError(
                "fim applies to no stream, because each has its own, or conversations. Omit fim"
            )
        if any(each.tokens is None for each in sources):
            if self.strip_tokens and all(each.tokens is None for each in sources):
                raise ValueError(
                    f"strip_tokens is {list(self.strip_tokens)}, which applies only to token IDs, "
                    "but all documents are text or made by encode. Set tokens_key, or omit "
                    "strip_tokens"
                )
            return
        if self.text_key != TEXT_KEY:
            raise ValueError(
                f"text_key is {self.text_key!r}, but all documents are token IDs, because "
                "tokens_key is set. Omit text_key or tokens_key"
            )
        if self.on_error != RAISE:
            raise ValueError(
                f"on_error is {self.on_error!r}, which does not apply to token IDs. All documents "
                "are token IDs, because tokens_key is set. Omit on_error or tokens_key"
            )

    @cached_property
    def row_hook_name(self) -> str | None:
        """The name that identifies `row_hook` in a state; None if there is no such function."""
        return name_given("row_hook", self.row_hook, self.row_hook_id)

    @property
    def has_text(self) -> bool:
        """Whether the documents of any stream are text, which must be tokenized."""
        return any(source.is_text for source in self.sources)

    @property
    def may_tokenize(self) -> bool:
        """Whether a tokenizer is used if there is one: for text, or by an `encode` function."""
        return any(source.is_text or source.encode for source in self.sources)

    @property
    def token_columns(self) -> list[TokensColumn | None]:
        """The column of token IDs of each stream, or None for a stream of text."""
        return [source.tokens for source in self.sources]

    @cached_property
    def sources(self) -> tuple[DocumentSource, ...]:
        """What the documents of each stream are made of."""
        return tuple(map(self.source_of, self.streams))

    def source_of(self, stream: Stream) -> DocumentSource:
        """What the documents of one stream are made of: what it sets, or what the loader sets."""
        text_key = self.text_key if stream.text_key == SAME else stream.text_key
        for kind in _KINDS:
            if getattr(stream, kind) not in (SAME, None):
                return self._source_by(kind, stream, text_key, stream)
        for kind in _KINDS if stream.text_key == SAME else ():
            if getattr(stream, kind) == SAME and getattr(self, kind) is not None:
                return self._source_by(kind, self, text_key, stream)
        return DocumentSource(text_key)

    def fim_of(self, stream: Stream) -> Fim | None:
        """How the middles of a stream's documents are moved, if they are."""
        fim = self.fim if stream.fim == SAME else stream.fim
        return fim if isinstance(fim, Fim) and self.source_of(stream).chat is None else None

    def _source_by(
        self, kind: str, setter: RowsConfig | Stream, text_key: str, stream: Stream
    ) -> DocumentSource:
        """The source of a stream by the option `kind`, which the loader or the stream sets."""
        if kind == "tokens_key":
            return DocumentSource(text_key, self._tokens_column(stream))
        made: dict[str, Any] = {kind: getattr(setter, kind)}
        if kind in _FUNCTIONS:
            is_own = isinstance(setter, Stream)
            made[f"{kind}_name"] = _name(setter, kind) if is_own else self._names[kind]
        return DocumentSource(text_key, **made)

    @cached_property
    def _names(self) -> dict[str, str | None]:
        return {kind: _name(self, kind) for kind in _FUNCTIONS}

    def _tokens_column(self, stream: Stream) -> TokensColumn:
        """The column of token IDs of a stream that has one."""
        given = stream.tokens_key, stream.tokens_dtype, stream.labels_key
        of_loader = self.tokens_key, self.tokens_dtype, self.labels_key
        pairs = zip(given, of_loader, strict=True)
        key, dtype, labels_key = (other if own == SAME else own for own, other in pairs)
        assert key is not None
        return TokensColumn(key, dtype, labels_key)

    def _check_mixing(self) -> None:
        labels = Counter(stream.label for stream in self.streams)
        if repeated := sorted(label for label, times in labels.items() if times > 1):
            raise ValueError(
                f"several streams have the name {repeated[0]!r}. Set a unique name for each with "
                "Stream(..., name=...)"
            )
        if not self.is_mixed:
            self._check_no_mixing()
            return
        if self.stopping == FIRST and not self.has_ends:
            raise ValueError(
                "stopping is 'first', but no stream ends. Set epochs, or set max_epochs for a "
                "stream"
            )
        if without := [
            stream.label
            for stream in self.streams
            if stream.proportion is None and self.schedule is None
        ]:
            raise ValueError(
                f"{without[0]} has no proportion, but other streams have one. Set a proportion for "
                "every stream, or for none"
            )
        if part := [
            stream.label
            for stream in self.streams
            if stream.repeat is not None or stream.choose is not None
        ]:
            raise ValueError(
                f"{part[0]} has repeat or choose, which cannot be combined with a schedule or "
                "proportions. Remove repeat and choose, or remove the schedule and proportions"
            )

    def _check_no_mixing(self) -> None:
        """Raise `ValueError` for options that only mixtures have."""
        capped = [stream.label for stream in self.streams if stream.max_epochs is not None]
        if capped:
            raise ValueError(
                f"{capped[0]} has max_epochs, which requires a mixture. Set proportions or a "
                "schedule. Otherwise, replace max_epochs with the loader's epochs and the stream's "
                "repeat or choose"
            )
        if self.stopping == FIRST:
            raise ValueError(
                "stopping is 'first', but without proportions or a schedule, all streams end "
                "together. Set proportions or a schedule, or omit stopping"
            )

    @property
    def num_lead(self) -> int:
        """Number of tokens at the start of each row that belong to no document: 1 or 0."""
        return int(self.row_bos is not None)

    def epochs_of(self, streams: range) -> int | None:
        """The number of epochs of streams that share an order, given their indices."""
        own = self.streams[streams.start].max_epochs
        return self.epochs if own is None else own

    @property
    def has_ends(self) -> bool:
        """Whether the run or any of its streams ends, due to `epochs` or `max_epochs`."""
        return self.epochs is not None or any(
            stream.max_epochs is not None for stream in self.streams
        )

    @property
    def is_mixed(self) -> bool:
        """Whether each stream has its own order and epochs, due to proportions or a schedule."""
        return self.schedule is not None or any(
            stream.proportion is not None for stream in self.streams
        )


def _name(setter: RowsConfig | Stream, kind: str) -> str | None:
    """The name in a state of the function that the loader or a stream sets."""
    return name_given(kind, getattr(setter, kind), getattr(setter, f"{kind}_id"))


def _read_schedule(
    schedule: Any, streams: Sequence[Stream]
) -> tuple[tuple[int, Mapping[str, float]], ...]:
    """Check the entries of a schedule, and replace the URLs of streams with their names."""
    entries = list(schedule) if isinstance(schedule, Sequence) else [schedule]
    for entry in entries:
        is_pair = isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) == 2
        if not is_pair or not isinstance(entry[1], Mapping):
            raise ValueError(
                f"schedule has the entry {entry!r}. Use pairs of a row and the weights that apply "
                "from that row on, such as [(0, {'web': 1.0})]"
            )
    names = {redact(stream.url): stream.label for stream in streams}
    return tuple(
        (row, {names.get(name, name): weight for name, weight in weights.items()})
        for row, weights in entries
    )
