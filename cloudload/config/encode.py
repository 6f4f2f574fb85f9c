"""`encode` functions, which make the tokens of a sample: what they receive, and what they return.

def encode(sample, context):
    ids = context.tokenize(sample["text"])
    return TokenIds(ids[: context.random.integers(1, 1 + len(ids))])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import numpy as np

from cloudload.config import checks, choices
from cloudload.config.transform import Text
from cloudload.errors import TokenizerError
from cloudload.system import Flags, Ids, Tokens

_DOMAIN = 0xE2C0DE
"""Separates these random numbers from those of the shuffle, which has the same seed."""


@final
@dataclass(frozen=True, eq=False)
class TokenIds:
    """The tokens of a document, which an `encode` function returns.

        TokenIds([17, 4, 4])
        TokenIds([*prompt, *answer], trained=[False] * len(prompt) + [True] * len(answer))

    Raises `ValueError` if the IDs are not integers from 0 to 2^31 - 2, or if `trained` does not
    have one value for each of them.
    """

    ids: Sequence[int] | Ids
    """The IDs: a list or a one-dimensional array, which becomes int32 [tokens]."""
    trained: Sequence[bool] | Flags | None = None
    """Whether a model learns to predict each token: a list or an array, which becomes bool
    [tokens]. A token that is not trained has the label -100. None means that all are trained."""

    def __post_init__(self) -> None:
        ids = np.asarray(self.ids)
        if ids.ndim != 1 or (ids.dtype.kind not in "iu" and len(ids)):
            raise ValueError(
                f"ids has the dtype {ids.dtype} and {ids.ndim} axes. Use a list or an array of "
                "integers with one axis"
            )
        if len(wrong := np.flatnonzero((ids < 0) | (ids >= choices.MOST_IDS))):
            raise ValueError(
                f"ids has {ids[wrong[0]]} at index {wrong[0]:,}. Token IDs are from 0 to "
                f"{choices.MOST_IDS - 1:,}"
            )
        object.__setattr__(self, "ids", ids.astype(np.int32))
        if self.trained is not None:
            object.__setattr__(self, "trained", _as_flags(np.asarray(self.trained), len(ids)))


def _as_flags(trained: np.ndarray[Any, Any], count: int) -> Flags:
    if trained.shape != (count,):
        raise ValueError(
            f"trained has the shape {list(trained.shape)}, but there are {count:,} token IDs. Use "
            "one value for each token"
        )
    if (is_wrong := (trained != 0) & (trained != 1)).any():
        raise ValueError(f"trained has {trained[is_wrong][0]!r}. Use True and False")
    return trained.astype(bool)


@final
@dataclass(frozen=True)
class EncodeContext:
    """What an `encode` function receives besides the sample."""

    stream: str
    """The name of the stream."""
    sample: int
    """The index of the sample in its dataset."""
    seed: int
    """The seed of the run."""
    encoder: Callable[[Text], Tokens] | None = field(default=None, repr=False, compare=False)
    """Encodes a text with the run's tokenizer. None if there is no tokenizer."""

    @cached_property
    def random(self) -> np.random.Generator:
        """A generator of random numbers, whose seed is the run's seed and the sample's index.

        So a sample has the same tokens in each world, epoch and run, after every resume, and if
        streams are added, removed, renamed, or reordered. Samples of two streams with the same
        index receive the same numbers.
        """
        seed = np.random.SeedSequence((_DOMAIN, self.seed, self.sample))
        return np.random.Generator(np.random.PCG64(seed))

    def tokenize(self, text: str, special_tokens: bool = False) -> Tokens:
        """Encode a text to IDs: int32 [tokens], without bos and eos.

        The names of special tokens in the text stay text, unless `special_tokens` is True. Raises
        `ValueError` if the text has a lone surrogate, and `TokenizerError` if the loader has no
        tokenizer, or if the tokenizer cannot encode the text.
        """
        text.encode()  # raises for a lone surrogate, which is the document's fault
        if self.encoder is None:
            raise TokenizerError(
                "context.tokenize needs a tokenizer, but the loader has none. Pass tokenizer"
            )
        return self.encoder(Text(text, special_tokens=special_tokens))


Encode = Callable[[dict[str, Any], EncodeContext], TokenIds | None]


def as_encode(name: str, value: Any) -> Encode:
    """Return a function. Raises `ValueError` if the value cannot be called."""
    use = "takes a sample (a dict) and a context, and returns TokenIds or None"
    function: Encode = checks.as_function(name, value, use)
    return function
