"""A stream: a dataset of a run, its short name, and how much of it to read.

    s3://bucket/corpora/web/train      web
    gs://other/corpora/web/train       web-2, if both are in one loader
    s3://bucket/code/v2/mds            code

Metrics, schedules and traces use the names. A default name does not depend on the bucket, so it
stays the same when the data moves. It does not depend on later streams either, so it stays the same
when streams are appended.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, fields, replace
from typing import Any

from cloudload.config import checks, choices
from cloudload.config.chat import Chat, as_chat
from cloudload.config.encode import Encode, as_encode
from cloudload.config.fim import Fim, as_fim
from cloudload.config.source import check_given_id
from cloudload.config.transform import Transform, as_transform
from cloudload.data import Location, Retry, redact, synthetic, urls
from cloudload.system import option_help

# folder names that do not identify a dataset, because many datasets have them
_SHARED_FOLDER = re.compile(
    r"(train(ing)?|val(id(ation)?)?|dev|test|eval(uation)?|mds|data(set)?|shards|raw|text|"
    r"v?\d[\d.\-_]*)",
    re.IGNORECASE,
)


@option_help.suggests_fields
@option_help.explained
@dataclass(frozen=True)
class Stream:
    """A dataset: its location, and how much of it to read.

    Raises `ValueError` if an option other than `repeat` is invalid. The loader checks `repeat`, and
    that a stream with `max_epochs` is in a mixture.
    """

    remote: str
    """URL or folder that contains `index.json`, or that contains the folder `split`. A glob of such
    folders, like `s3://bucket/corpus/*`, is a stream for each of them. A file, a folder, or a glob
    of Parquet files is read where it is. `synthetic:` is a dataset of random token IDs, for tests
    of shapes and speed."""
    split: str | None = None
    """Subfolder to read, such as `train`."""
    proportion: float | None = None
    """Share of the rows, relative to the other streams' proportions; ignored with a `schedule`.
    With proportions, each stream has its own shuffle order and epochs. The datasets of a glob
    divide its proportion by their tokens, which needs token lengths."""
    repeat: float | None = None
    """How many times an epoch over all streams reads this stream's samples, as in StreamingDataset.
    With 0.5, each epoch reads half of them, drawn at random."""
    choose: int | None = None
    """Number of this stream's samples that an epoch over all streams reads, as an alternative to
    `repeat`."""
    max_epochs: int | None = None
    """Number of times that a mixture reads this stream; overrides the loader's `epochs`. After
    that, the stream ends, and the other streams share its rows. Needs token lengths."""
    name: str | None = None
    """The stream's name in schedules, statistics and traces. By default, the last folder of its
    location that has no common name such as `train` or `v2`, plus a number if an earlier stream has
    the same name. A dataset of a glob has the name of its folder, after `NAME/` if the glob has a
    name."""
    bos: str | int | None = choices.SAME
    """Token before each document of this stream: a token, its ID, None, `auto`, or `same`, which is
    the loader's `bos`, or `auto` if the stream has its own `tokens_key`."""
    eos: str | int | None = choices.SAME
    """Token after each document of this stream: a token, its ID, None, `auto`, or `same`, which is
    the loader's `eos`, or `auto` if the stream has its own `tokens_key`."""
    tokens_key: str | None = choices.SAME
    """The column that holds this stream's documents as token IDs, None if they are text, or `same`,
    which is the loader's `tokens_key`."""
    tokens_dtype: str | None = choices.SAME
    """The dtype of the IDs in a column of bytes, or `same`, which is the loader's
    `tokens_dtype`."""
    labels_key: str | None = choices.SAME
    """The column that says which tokens of this stream are trained, None if all are, or `same`,
    which is the loader's `labels_key`."""
    text_key: str = choices.SAME
    """The column that holds this stream's documents as text, or `same`, which is the loader's
    `text_key`. If it is set, the loader's `tokens_key`, `transform`, `chat` and `encode` do not
    apply."""
    transform: Transform | str | None = choices.SAME
    """A function that returns the text of a sample of this stream, None for no function, or `same`,
    which is the loader's `transform`."""
    transform_id: str | None = None
    """Name that identifies this stream's own transform on resume, like the loader's
    `transform_id`."""
    chat: Chat | str | None = choices.SAME
    """How this stream's samples, if they are conversations, become documents; None if they are not,
    or `same`, which is the loader's `chat`."""
    encode: Encode | str | None = choices.SAME
    """A function that returns the tokens of a sample of this stream, None for no function, or
    `same`, which is the loader's `encode`."""
    encode_id: str | None = None
    """Name that identifies this stream's own `encode` on resume, like the loader's `encode_id`."""
    fim: Fim | str | None = choices.SAME
    """Which of this stream's documents have their middle moved to the end, None for none, or
    `same`, which is the loader's `fim`."""
    select: str | None = None
    """Which documents to read: the name of a selection that `cloudload select` compiled, the URL of
    its folder, or a Parquet, JSON Lines or CSV file with the columns `shard` and `index`. The other
    documents keep their places in the order, but are not read."""
    drop: str | None = None
    """A Parquet, JSON Lines or CSV file with the columns `shard` and `index` of documents to leave
    out, also of those that `select` selects."""

    def __post_init__(self) -> None:
        if not isinstance(self.remote, str):
            raise ValueError(
                f"a stream's remote is {self.remote!r}. Use the URL or folder of a dataset"
            )
        if synthetic.is_synthetic(self.remote):
            self._settle_synthetic()
        else:
            urls.check_location(self.remote)
        share = self.proportion
        if share is not None and (not checks.is_number(share) or not 0 <= share < math.inf):
            raise ValueError(
                f"the proportion of {self.label} is {share!r}. Use a finite number of at least 0"
            )
        if self.proportion is not None and (self.repeat is not None or self.choose is not None):
            raise ValueError(
                f"{self.label} has a proportion, which cannot be combined with repeat or choose. "
                "Remove the proportion, or remove repeat and choose"
            )
        for name in ("choose", "max_epochs"):
            if (value := getattr(self, name)) is not None:
                count = checks.as_integer(f"{name} of {self.label}", value, 1)
                object.__setattr__(self, name, count)
        for name in ("bos", "eos"):
            token = checks.as_token(f"{name} of {self.label}", getattr(self, name))
            object.__setattr__(self, name, token)
        self._check_source(f" of {self.label}")
        for name in ("select", "drop"):
            self._check_selection(name)

    def _check_selection(self, name: str) -> None:
        value = getattr(self, name)
        if value is None:
            return
        if not isinstance(value, str | os.PathLike) or not os.fspath(value):
            raise ValueError(
                f"{name} of {self.label} is {value!r}. Use the name of a selection, or a file"
            )
        object.__setattr__(self, name, os.fspath(value))
        if synthetic.is_synthetic(self.remote):
            raise ValueError(
                f"{self.label} has {name}, but all synthetic data is read. Omit {name}"
            )
        if self.choose is not None:
            raise ValueError(
                f"{self.label} has both {name} and choose, which counts documents of the whole "
                "dataset. Use repeat instead of choose"
            )

    def _check_source(self, where: str) -> None:
        checks.check_tokens_column(self.tokens_key, self.tokens_dtype, self.labels_key, where)
        checks.as_text(f"text_key{where}", self.text_key)
        own: dict[str, Any] = {}
        for name, check in (("transform", as_transform), ("encode", as_encode)):
            given = getattr(self, name)
            if given not in (choices.SAME, None):
                own[name] = check(f"{name}{where}", given)
            check_given_id(name, own.get(name), getattr(self, f"{name}_id"), where)
        if self.chat not in (choices.SAME, None):
            as_chat(f"chat{where}", self.chat)
        if self.fim not in (choices.SAME, None):
            as_fim(f"fim{where}", self.fim)
            if isinstance(self.chat, Chat):
                raise ValueError(
                    f"{self.label} has both chat and fim, but conversations are not cut. Omit fim"
                )
        kinds = {"tokens_key": self.tokens_key, **own, "chat": self.chat}
        kinds["text_key"] = self.text_key
        names = [name for name, value in kinds.items() if value not in (choices.SAME, None)]
        if "text_key" in names and len(names) > 1:
            raise ValueError(
                f"{self.label} has both {names[0]} and text_key. Omit text_key, which is not read"
            )
        if len(names) > 1:
            raise ValueError(f"{self.label} has both {names[0]} and {names[1]}. Omit one of them")

    def _settle_synthetic(self) -> None:
        """Check the location of synthetic data, and read its column of token IDs by default."""
        synthetic.parse_synthetic(self.remote)
        for name, value in (("tokens_key", synthetic.TOKENS_KEY), ("tokens_dtype", None)):
            if getattr(self, name) == choices.SAME:
                object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        shown = {
            **vars(self),
            **self.shown_urls,
        }
        given = [
            f"{each.name}={shown[each.name]!r}"
            for each in fields(self)
            if shown[each.name] != each.default
        ]
        return f"Stream({', '.join(given)})"

    @property
    def shown_urls(self) -> dict[str, str]:
        """The options that may be URLs, without secrets."""
        urls = {"remote": self.remote, "select": self.select, "drop": self.drop}
        return {name: redact(url) for name, url in urls.items() if url is not None}

    @property
    def label(self) -> str:
        """The stream's name, or its URL without secrets if it has no name."""
        return self.name or redact(self.url)

    @property
    def url(self) -> str:
        """The URL of the folder that contains `index.json`."""
        return urls.join_url(self.remote, self.split or "").rstrip("/")

    def locate_remote(self, retry: Retry) -> Location:
        """The location of the stream's `remote`, which may be a glob of datasets."""
        return Location(self.remote, retry)

    def locate(self, retry: Retry) -> Location:
        """The location of the stream's dataset, whose requests are retried as `retry` says."""
        return Location(self.url, retry, self.split)


def name_streams(streams: Sequence[Stream]) -> tuple[Stream, ...]:
    """Give a unique name to each stream that has none.

    Streams with the same location get no name. Listing a location twice is a mistake, and the error
    about it then shows the URL.
    """
    paths = Counter(stream.url for stream in streams if stream.name is None)
    taken = {stream.name for stream in streams}
    names = []
    for stream in streams:
        name = stream.name
        if name is None and paths[stream.url] == 1:
            name = _choose(_shorten(stream.url), taken)
            taken.add(name)
        names.append(name)
    pairs = zip(streams, names, strict=True)
    return tuple(replace(stream, name=name) for stream, name in pairs)


def _choose(base: str, taken: Set[str | None]) -> str:
    if base not in taken:
        return base
    return next(name for n in itertools.count(2) if (name := f"{base}-{n}") not in taken)


def _shorten(url: str) -> str:
    """The last folder without a common name such as "train", or else the last folder or bucket."""
    if synthetic.is_synthetic(url):
        bucket, path = urls.SYNTHETIC, ""
    elif urls.is_local(url):
        bucket, path = "", urls.local_path(url).as_posix()
    else:
        bucket, path = urls.split_url(redact(url))
    folders = [folder for folder in path.split("/") if folder not in ("", ".", "..")]
    telling = [folder for folder in folders if not _SHARED_FOLDER.fullmatch(folder)]
    return (telling or folders or [bucket])[-1] or "data"


def as_streams(data: Any) -> tuple[Stream, ...]:
    """Convert a loader's `data` to streams. Raises `ValueError` if it has an unsupported type."""
    items: list[Any] = list(data) if isinstance(data, list | tuple) else [data]
    if wrong := [item for item in items if not isinstance(item, str | os.PathLike | Stream)]:
        if type(wrong[0]).__module__.partition(".")[0] == "datasets":
            raise ValueError(
                f"data is a datasets.{type(wrong[0]).__name__}. Convert it with "
                "cloudload.convert_to_mds(data, 'corpus-mds'), and pass 'corpus-mds'"
            )
        raise ValueError(
            f"data is {wrong[0]!r}. Pass the URL or folder of a dataset, a Stream, or a list of "
            "them"
        )
    return tuple(item if isinstance(item, Stream) else Stream(os.fspath(item)) for item in items)
