"""The bit of a token that says whether a model is trained to predict it: the sign of its int32.

    ID 17, trained         17
    ID 17, not trained     17 - 2^31, which is negative
    padding in a document  -1

IDs are below 2^31, so their sign is free. The bit travels with the ID, from the document to the
batch, where it becomes the label -100. Only streams with masks have tokens that are not trained.
"""

from __future__ import annotations

import numpy as np

from cloudload.segments import IGNORED_LABEL
from cloudload.system import Flags, Ints, Tokens

MOST_ID = (1 << 31) - 1
"""No token has this ID, because it stands for padding within a document."""
PAD_IN_DOCUMENT = -1
"""The token after the end of a document that is padded to a multiple of a number of tokens."""
_UNTRAINED = np.int32(-1 - MOST_ID)


def mark_untrained(ids: Tokens, is_trained: Flags) -> Tokens:
    """Return IDs (int32 [tokens]) as tokens, of which those with `is_trained` are trained."""
    return np.where(is_trained, ids, ids | _UNTRAINED)


def ids_of(tokens: Tokens) -> Tokens:
    """Return the IDs of tokens, whether they are trained or not: int32, of the same shape."""
    ids: Tokens = tokens & np.int32(MOST_ID)
    return ids


def hide_untrained(ids: Ints, labels: Ints, pad_id: int) -> Flags:
    """Turn tokens into IDs, and set the labels of tokens that are not trained to -100.

    Both arrays are int64 [rows, seq_len], and change in place. `ids` are tokens at first. Padding
    in documents becomes `pad_id`. Returns where it is: bool [rows, seq_len].
    """
    if ids.min(initial=0) >= 0:  # all are trained, and documents have no padding
        return np.zeros(ids.shape, np.bool_)
    is_pad: Flags = ids == PAD_IN_DOCUMENT
    labels[ids < 0] = IGNORED_LABEL
    np.bitwise_and(ids, MOST_ID, out=ids)
    ids[is_pad] = pad_id
    return is_pad
