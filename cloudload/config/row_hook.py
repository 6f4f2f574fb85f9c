"""`row_hook` functions, which change packed rows: what they receive.

def drop_some(ids, trained, context):
    trained[context.random.random(len(ids)) < 0.1] = False
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from cloudload.config import checks
from cloudload.system import Flags, Tokens

_DOMAIN = 0x503C0DE
"""Separates these random numbers from those of the shuffle and of `encode` functions."""


@final
@dataclass(frozen=True)
class RowContext:
    """What a `row_hook` receives besides the tokens of a row."""

    row: int
    """The index of the row in the run."""
    seed: int
    """The seed of the run."""

    @cached_property
    def random(self) -> np.random.Generator:
        """A generator of random numbers, whose seed is the run's seed and the row's index.

        So a row is the same in each world, and after every resume.
        """
        seed = np.random.SeedSequence((_DOMAIN, self.seed, self.row))
        return np.random.Generator(np.random.PCG64(seed))


RowHook = Callable[[Tokens, Flags, RowContext], None]


def as_row_hook(name: str, value: Any) -> RowHook:
    """Return a function. Raises `ValueError` if the value cannot be called."""
    use = (
        "takes the IDs of a row, which of them are trained, and a context, and that changes "
        "the two arrays in place"
    )
    function: RowHook = checks.as_function(name, value, use)
    return function
