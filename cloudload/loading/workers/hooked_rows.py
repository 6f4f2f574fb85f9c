"""Let a `row_hook` change the rows that were packed, before they leave their reader.

    tokens of a row ─► IDs, trained ─► row_hook ─► checked ─► tokens

Lanes, lengths, and traces know only the rows before it.
"""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np

from cloudload.config import RowContext
from cloudload.errors import DatasetError
from cloudload.loading.workers.bad_documents import find_foreign_cause
from cloudload.rows import PAD_IN_DOCUMENT, ids_of, mark_untrained
from cloudload.run import Recipe
from cloudload.stats import TRANSFORM
from cloudload.system import Flags, Ints, Tokens, activity, stage


def change_rows(recipe: Recipe, tokens: Tokens, lengths: Ints, rows: Ints) -> None:
    """Call the `row_hook` of a run for each row, and change `tokens` (int32 [rows, seq_len]).

    `lengths` and `rows` are int64 [rows]: the number of tokens of each row, and its index in the
    run. Does nothing without a hook. Raises `DatasetError` if the hook fails, or if it makes an ID
    that is not in the vocabulary.
    """
    if recipe.config.row_hook is None:
        return
    with activity.doing(f"running row_hook on {len(rows):,} rows"), stage(TRANSFORM):
        for own, length, row in zip(tokens, lengths.tolist(), rows.tolist(), strict=True):
            if length:
                own[:length] = _change(recipe, own[:length], row)


def _change(recipe: Recipe, tokens: Tokens, row: int) -> Tokens:
    hook, is_pad = recipe.config.row_hook, tokens == PAD_IN_DOCUMENT
    assert hook is not None
    ids, is_trained = ids_of(tokens), tokens >= 0
    ids[is_pad] = 0  # padding within documents has no ID yet
    try:
        made: Any = hook(ids, is_trained, RowContext(row, recipe.config.seed))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # otherwise, sys.exit() would look like a dead worker
        advice = "Fix the function"
        if find_foreign_cause(error) is not None:
            advice = "Fix the function, or the cause of the error on this machine"
        raise DatasetError(
            f"row_hook failed on row {row:,}:\n{traceback.format_exc()}{advice}"
        ) from error
    if made is not None:
        raise DatasetError(
            f"row_hook returned {type(made).__name__} for row {row:,}, but what it returns is not "
            "used. Change the values of the two arrays in place, such as ids[:] = …, and return "
            "nothing"
        )
    _check(recipe, ids, is_trained, row)
    changed = mark_untrained(ids, is_trained)
    return np.where(is_pad, tokens, changed)


def _check(recipe: Recipe, ids: Tokens, is_trained: Flags, row: int) -> None:
    size = recipe.tokenizer.vocab_size
    has_dtypes = ids.dtype == np.int32 and is_trained.dtype == np.bool_
    if not has_dtypes or ids.ndim != 1 or ids.shape != is_trained.shape:
        raise DatasetError(
            f"row_hook changed the dtype or the shape of row {row:,}. Change only values"
        )
    if len(wrong := np.flatnonzero((ids < 0) | (ids >= size))):
        raise DatasetError(
            f"row_hook set token {wrong[0]:,} of row {row:,} to {ids[wrong[0]]:,}, which is not an "
            f"ID from 0 to {size - 1:,}. Use IDs of the vocabulary"
        )
