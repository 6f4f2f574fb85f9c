"""`Fim`: which documents of a stream have their middle moved to the end, and by which tokens.

Stream(url, fim=Fim())                        half of the documents, the tokenizer's own tokens
Stream(url, fim=Fim(rate=0.9, spm_rate=0))    more of them, prefix first
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cloudload.config import checks
from cloudload.system import option_help


@option_help.suggests_fields
@option_help.explained
@dataclass(frozen=True)
class Fim:
    """How a model learns to fill in the middle of documents.

    Three tokens mark the prefix, the suffix, and the middle of a document that is cut. Set all
    three, or none if the tokenizer has those of a known model. Raises `ValueError` if an option is
    invalid.
    """

    rate: float = 0.5
    """Share of the documents that are cut at two random places."""
    spm_rate: float = 0.5
    """Share of these in which the suffix comes first, then the prefix, joined with the middle. In
    the others, the order is prefix, suffix, middle."""
    prefix: str | int | None = None
    """Token before the prefix, or its ID. By default, that of StarCoder, Qwen, DeepSeek, or Code
    Llama, whichever the tokenizer has."""
    middle: str | int | None = None
    """Token before the middle, or its ID."""
    suffix: str | int | None = None
    """Token before the suffix, or its ID."""

    def __post_init__(self) -> None:
        for name in ("rate", "spm_rate"):
            value = getattr(self, name)
            if not checks.is_number(value) or not 0 <= value <= 1:
                raise ValueError(f"{name} of Fim is {value!r}. Use a number from 0 to 1")
            object.__setattr__(self, name, float(value))
        for name in ("prefix", "middle", "suffix"):
            token = checks.as_token(f"{name} of Fim", getattr(self, name))
            object.__setattr__(self, name, token)
        given = [self.prefix, self.middle, self.suffix]
        if None in given and given != [None] * 3:
            raise ValueError(
                f"Fim has prefix={self.prefix!r}, middle={self.middle!r}, and "
                f"suffix={self.suffix!r}. Set all three of them, or none"
            )


def as_fim(name: str, value: Any) -> Fim:
    """Return the options of fill in the middle. Raises `ValueError` for another value."""
    if not isinstance(value, Fim):
        raise ValueError(f"{name} is {value!r}. Use Fim(), or None")
    return value
