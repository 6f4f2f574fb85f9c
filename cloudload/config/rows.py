"""The options that control which tokens are read, and in which order. The state saves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple

from cloudload.config import checks
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
from cloudload.config.stream import Stream, name_streams
from cloudload.config.transform import GIVEN_ID, Transform, as_transform, name_function
from cloudload.data import redact
from cloudload.system import divisors, option_help

MAX_LANES = 1 << 22

TEXT_KEY = "text"


class TokensColumn(NamedTuple):
    """A column that holds the documents of a stream as token IDs."""

    key: str
    """The column's name."""
    dtype: str | None
    """The dtype of the IDs, if the column holds bytes."""


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
    """The dtype of the token IDs in a column of bytes, such as `uint16`, because the index does not
    record it. llm-foundry writes `int64`."""
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
    min_tokens: Annotated[int, within(0)] = 0
    """Documents with fewer tokens, bos and eos included, are filtered out."""
    max_tokens: Count | None = None
    """Documents with more tokens, bos and eos included, are filtered out. None means no limit."""
    on_error: OnError = "raise"
    """What to do with a document whose text is not UTF-8, or whose transform raises an error or
    returns no text. `raise` ends the run with an error that names the document. `skip` leaves the
    document out, as a filter does, logs it, and counts it as `failed`. Errors of the machine, the
    store, the shard, or the tokenizer are never skipped, and the option does not apply to token
    IDs. On resume, `raise` may become `skip`."""
    bos: Annotated[str | int | None, checks.as_token] = AUTO
    """Token before each document: a token, its ID, None, or `auto`, which is the bos that the
    tokenizer's template adds, if any."""
    eos: Annotated[str | int | None, checks.as_token] = AUTO
    """Token after each document: a token, its ID, None, or `auto`, which is the tokenizer's eos
    token. It is an error if the tokenizer has none."""
    row_bos: Annotated[str | int | None, checks.as_token] = None
    """Token at the start of each row: a token, its ID, or None. It belongs to no document.
    Documents then have no bos, and fill the other `seq_len` - 1 places of the row."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "streams", name_streams(self.streams))
        if self.schedule is not None:
            object.__setattr__(self, "schedule", _read_schedule(self.schedule, self.streams))
        if not self.streams:
            raise ValueError("data is empty. Pass a URL, a Stream, or a list of them")
        checks.check_tokens_column(self.tokens_key, self.tokens_dtype)
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
        self._check_tokens_columns()
        self._check_transform_id()
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

    def _check_tokens_columns(self) -> None:
        if SAME in (self.tokens_key, self.tokens_dtype):
            raise ValueError(
                f"tokens_key is {self.tokens_key!r} and tokens_dtype is {self.tokens_dtype!r}, but "
                "'same' is valid only for a Stream. Use a column and a dtype, or omit them"
            )
        columns = self.token_columns
        if self.transform is not None and any(columns):
            raise ValueError(
                "transform makes text from samples, but tokens_key says that samples are token "
                "IDs. Omit transform or tokens_key"
            )
        if self.text_key != TEXT_KEY and all(columns):
            raise ValueError(
                f"text_key is {self.text_key!r}, but all documents are token IDs, because "
                "tokens_key is set. Omit text_key or tokens_key"
            )
        if self.on_error != RAISE and all(columns):
            raise ValueError(
                f"on_error is {self.on_error!r}, which does not apply to token IDs. All documents "
                "are token IDs, because tokens_key is set. Omit on_error or tokens_key"
            )

        if self.strip_tokens and not any(columns):
            raise ValueError(
                f"strip_tokens is {list(self.strip_tokens)}, which applies only to token IDs, but "
                "all documents are text. Set tokens_key, or omit strip_tokens"
            )

    @property
    def has_text(self) -> bool:
        """Whether the documents of any stream are text, which must be tokenized."""
        return not all(self.token_columns)

    @property
    def token_columns(self) -> list[TokensColumn | None]:
        """The column of token IDs of each stream, or None for a stream of text."""
        return [self.token_column(stream) for stream in self.streams]

    def token_column(self, stream: Stream) -> TokensColumn | None:
        """The column of token IDs of one stream, or None for a stream of text."""
        key, dtype = stream.tokens_key, stream.tokens_dtype
        key = self.tokens_key if key == SAME else key
        dtype = self.tokens_dtype if dtype == SAME else dtype
        return None if key is None else TokensColumn(key, dtype)

    def _check_transform_id(self) -> None:
        given = self.transform_id
        if given is not None and (
            self.transform is None or not isinstance(given, str) or not given
        ):
            raise ValueError(
                f"transform_id is {given!r}. Use a name, such as 'clean-v2', together with a "
                "transform"
            )
        _ = self.transform_name  # compute it now, because calls may change the values

    def _check_mixing(self) -> None:
        labels = [stream.label for stream in self.streams]
        if repeated := sorted({label for label in labels if labels.count(label) > 1}):
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

    @cached_property
    def transform_name(self) -> str | None:
        """The name that identifies the transform in a state; None if there is no transform."""
        if self.transform is None:
            return None
        given = self.transform_id
        return name_function(self.transform) if given is None else f"{GIVEN_ID}{given}"


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
