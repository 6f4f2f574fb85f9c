"""What the documents of a stream are made of: a column of text or of token IDs, or whole samples.

    Stream(url)                              what the loader's options say
    Stream(url, tokens_key="input_ids")      its own, instead of the loader's
    Stream(url, transform=join_turns)        its own, instead of the loader's
    Stream(url, chat=Chat())                 its own, instead of the loader's
    Stream(url, encode=tokenize_code)        its own, instead of the loader's

These options exclude each other. A stream that sets one of them ignores the others of the loader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from cloudload.config.chat import Chat
from cloudload.config.encode import Encode
from cloudload.config.transform import Transform, name_function
from cloudload.data import Dataset, document_columns


class TokensColumn(NamedTuple):
    """A column that holds the documents of a stream as token IDs."""

    key: str
    """The column's name."""
    dtype: str | None
    """The dtype of the integers of columns that hold bytes."""
    labels_key: str | None = None
    """The column that says which tokens are trained: labels with -100, or 0 and 1. None if all
    are."""


@dataclass(frozen=True)
class DocumentSource:
    """What the documents of one stream are made of."""

    text_key: str
    """The column of text; not used if the documents are made of something else."""
    tokens: TokensColumn | None = None
    """The column of token IDs, if there is one."""
    transform: Transform | None = None
    """The function from a sample to its text, if there is one."""
    transform_name: str | None = None
    """The name that identifies the transform in a state."""
    chat: Chat | None = None
    """How samples, which are conversations, become text, if they are."""
    encode: Encode | None = None
    """The function from a sample to its tokens, if there is one."""
    encode_name: str | None = None
    """The name that identifies `encode` in a state."""

    @property
    def is_text(self) -> bool:
        """Whether the documents are text, which must be tokenized."""
        return self.tokens is None and self.encode is None

    @property
    def is_column(self) -> bool:
        """Whether the documents are the texts of a column, as they are."""
        return self.tokens is None and self.is_fast

    @property
    def may_mask(self) -> bool:
        """Whether some of the documents' tokens may not be trained."""
        return not self.is_fast or bool(self.tokens and self.tokens.labels_key)

    @property
    def is_fast(self) -> bool:
        """Whether no code of Python runs for each document."""
        return self.transform is None and self.chat is None and self.encode is None

    def check_columns(self, dataset: Dataset) -> None:
        """Raise `DatasetError` unless each shard has the columns of the documents."""
        if self.tokens is not None:
            document_columns.check_token_columns(dataset, *self.tokens)
        elif self.is_column:
            document_columns.check_text_column(dataset, self.text_key)


def name_given(option: str, function: Callable[..., Any] | None, given: str | None) -> str | None:
    """The name that identifies the function of an option in a state; None if there is no function.

    `given` is the user's name for it, such as `transform_id`.
    """
    if function is None:
        return None
    return name_function(function, option) if given is None else f"{option}_id={given}"


def read_given_id(option: str, name: str | None) -> str | None:
    """Return the user's name in the result of `name_given`, or None if the user gave none."""
    prefix = f"{option}_id="
    return name.removeprefix(prefix) if name and name.startswith(prefix) else None


def check_given_id(option: str, function: Any, given: str | None, where: str = "") -> None:
    """Raise `ValueError` unless `given`, such as a transform's `transform_id`, is a name or None.

    The error puts `where` after the option's name.
    """
    if given is not None and (function is None or not isinstance(given, str) or not given):
        raise ValueError(
            f"{option}_id{where} is {given!r}. Use a name, such as 'clean-v2', together with "
            f"{option}"
        )
