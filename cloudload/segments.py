"""The optional tensors of a batch (`fields=`), which let a model separate the documents of a row.

    spans            rows [0 0 0 1]  lengths [3 1 2 5]      shape (2, 8)
    tokens           a a a b c c . .     d d d d d . . .
    segment_ids      1 1 1 2 3 3 0 0     1 1 1 1 1 0 0 0
    position_ids     0 1 2 0 0 1 0 1     0 1 2 3 4 0 1 2
    stream_ids       0 0 0 0 1 1 - -     1 1 1 1 1 - - -     streams 0 0 1 1 (-: -1)
    document_ids     7 7 7 2 4 4 - -     9 9 9 9 9 - - -     samples 7 2 4 9
    cu_seqlens       0 3 4 6 8 13 16     over both rows; the longest segment is 5
    flash_attention  0 0 0 1 2 2 3 3     4 4 4 4 4 5 5 5     seq_idx; with position_ids and bounds
    masked labels    - a a - - c . .     - d d d d . . .

Every span is a separate segment, and so is the padding at the end of a row. Labels shown as `-` or
`.` are -100. Except for the two masks, the functions take each span's row within the batch and its
number of tokens: `rows` and `lengths`, int64 [spans]. The order is that of `Batch.spans`: `rows`
must ascend, and each row's spans must be contiguous from the row's start. Lengths must be at least
1. `shape` is (num_rows, seq_len). With `row_bos`, pass the lengths through `add_lead`.

An entry of `FIELDS` takes `SpanColumns` and the shape, and returns a dict of named arrays.
`_of_rows` turns a function of rows, lengths, and a shape into such an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cloudload.system import Ints

if TYPE_CHECKING:
    import torch
    from torch.nn.attention.flex_attention import BlockMask

IGNORED_LABEL = -100
NO_DOCUMENT = -1
"""The stream ID and the document ID of padding."""

Array = np.ndarray[Any, np.dtype[Any]]


def segment_ids(rows: Ints, lengths: Ints, shape: tuple[int, int]) -> Ints:
    """Compute the segment ID of each token: int64 [num_rows, seq_len].

    The IDs in each row are 1, 2, 3, …, and 0 on padding. Raises `ValueError` if the spans of a row
    have more than seq_len tokens, or if a row index is out of range.
    """
    padded = pad_lengths(rows, lengths, shape)
    numbers = np.zeros(len(rows) + shape[0], np.int64)
    numbers[_flat_indices(rows)] = np.arange(1, len(rows) + 1) - np.searchsorted(rows, rows)
    return np.repeat(numbers, padded).reshape(shape)


def position_ids(rows: Ints, lengths: Ints, shape: tuple[int, int]) -> Ints:
    """Compute the position of each token within its segment, from 0: int64 [num_rows, seq_len].

    Positions in the padding also start at 0. Raises `ValueError` if the spans of a row have more
    than seq_len tokens, or if a row index is out of range.
    """
    padded = pad_lengths(rows, lengths, shape)
    starts = np.repeat((np.cumsum(padded) - padded) % shape[1], padded).reshape(shape)
    return np.subtract(np.arange(shape[1]), starts, out=starts)


def spread(values: Ints, rows: Ints, lengths: Ints, shape: tuple[int, int]) -> Ints:
    """Assign each token its span's value, such as the stream's ID: int64 [num_rows, seq_len].

    `values` is int64 [spans]. Padding gets -1. Raises `ValueError` if the spans of a row have more
    than seq_len tokens, or if a row index is out of range.
    """
    padded = pad_lengths(rows, lengths, shape)
    of_segments = np.full(len(padded), NO_DOCUMENT, np.int64)
    of_segments[_flat_indices(rows)] = values
    return np.repeat(of_segments, padded).reshape(shape)


def cu_seqlens(
    rows: Ints, lengths: Ints, shape: tuple[int, int]
) -> tuple[np.ndarray[Any, np.dtype[np.int32]], int]:
    """Compute the bounds of the segments in the flattened batch, and the longest segment's length.

    Pass them to `flash_attn_varlen_func` as `cu_seqlens_q` (a tensor) and `max_seqlen_q`, and as
    their `_k` counterparts. The bounds are int32 [segments + 1]. The last one is
    `num_rows * seq_len`. Raises `ValueError` if the spans of a row have more than seq_len tokens,
    or if a row index is out of range.
    """
    padded = pad_lengths(rows, lengths, shape)
    padded = padded[padded > 0]
    ends = np.zeros(len(padded) + 1, np.int32)
    np.cumsum(padded, out=ends[1:])
    return ends, int(padded.max(initial=0))


def seq_idx(
    rows: Ints, lengths: Ints, shape: tuple[int, int]
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Compute the index of each token's segment in the batch, from 0: int32 [num_rows, seq_len].

    State-space layers and causal convolutions use it to reset their state at each segment. Raises
    `ValueError` if the spans of a row have more than seq_len tokens, or if a row index is out of
    range.
    """
    padded = pad_lengths(rows, lengths, shape)
    padded = padded[padded > 0]
    return np.repeat(np.arange(len(padded), dtype=np.int32), padded).reshape(shape)


def row_bounds(
    rows: Ints, lengths: Ints, shape: tuple[int, int]
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Compute the bounds of the segments in each row: int32 [num_rows, seq_len + 1].

    Each row starts at 0, and is filled with seq_len after its last bound, as in Megatron-Core's
    datasets. Raises `ValueError` if the spans of a row have more than seq_len tokens, or if a row
    index is out of range.
    """
    pad_lengths(rows, lengths, shape)  # refuses spans of another batch
    bounds = np.full((shape[0], shape[1] + 1), shape[1], np.int32)
    bounds[:, 0] = 0
    ends, first = np.cumsum(lengths), np.searchsorted(rows, rows)
    before = np.concatenate([[0], ends])[first]
    bounds[rows, np.arange(1, len(rows) + 1) - first] = ends - before
    return bounds


def mask_document_edges(labels: Ints, rows: Ints, lengths: Ints) -> None:
    """Set `labels` (int64 [num_rows, seq_len]) to -100 at the first token of each span, in place.

    Models shift labels by one. Without the mask, the last token of one document would have to
    predict the first token of the next. Raises `ValueError` for a row that `labels` does not have.
    """
    _check_rows(rows, len(labels))
    before = np.cumsum(lengths) - lengths
    labels[rows, before - before[np.searchsorted(rows, rows)]] = IGNORED_LABEL


def document_attention_mask(segment_ids: torch.Tensor) -> torch.Tensor:
    """Compute a causal attention mask for SDPA: bool [num_rows, 1, seq_len, seq_len].

    `segment_ids` is an integer tensor [num_rows, seq_len]. The mask is on the same device. True
    allows a query (third axis) to attend to a key (fourth axis). A token attends to itself and to
    earlier tokens of its segment. So does padding, which avoids NaN in softmax. Use the mask only
    with SDPA, because "eager" attention adds masks to the scores, and a bool mask would mask
    nothing.
    """
    return (segment_ids[:, None, :, None] == segment_ids[:, None, None, :]).tril_()


def document_block_mask(segment_ids: torch.Tensor) -> BlockMask:
    """Compute a causal block mask for FlexAttention, of [num_rows, 1, seq_len, seq_len].

    `segment_ids` is an integer tensor [num_rows, seq_len]. The mask is on the same device. A token
    attends to itself and to earlier tokens of its segment. So does padding. It takes much less
    memory than `document_attention_mask`.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    def attends(row: Any, _: Any, query: Any, key: Any) -> Any:
        return (query >= key) & (segment_ids[row, query] == segment_ids[row, key])

    num_rows, seq_len = segment_ids.shape
    return create_block_mask(attends, num_rows, None, seq_len, seq_len, device=segment_ids.device)


def add_lead(rows: Ints, lengths: Ints, num_lead: int) -> Ints:
    """Add the first `num_lead` tokens of each row, which belong to no document, to its first span.

    Returns the lengths: int64 [spans].
    """
    if not num_lead:
        return lengths
    is_first = np.diff(rows, prepend=-1) > 0
    return lengths + num_lead * is_first


def pad_lengths(rows: Ints, lengths: Ints, shape: tuple[int, int]) -> Ints:
    """List the lengths of all segments in the flattened batch: int64 [spans + num_rows].

    Each row's last segment is its padding, which may have length 0. Example: rows 0 0 0 1, lengths
    3 1 2 5 and shape (2, 8) return 3 1 2 2 5 3.
    """
    num_rows, seq_len = shape
    _check_rows(rows, num_rows)
    bounds = np.searchsorted(rows, np.arange(num_rows + 1))
    ends = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    filled = np.diff(ends[bounds])
    if (filled > seq_len).any():
        row = int(filled.argmax())
        raise ValueError(
            f"the spans of row {row} have {filled[row]} tokens, but a row has only {seq_len}. Pass "
            "the spans and the shape of the same batch"
        )
    padded = np.empty(len(rows) + num_rows, np.int64)
    padded[_flat_indices(rows)] = lengths
    padded[bounds[1:] + np.arange(num_rows)] = seq_len - filled
    return padded


def _check_rows(rows: Ints, num_rows: int) -> None:
    """Raise `ValueError` if a span is in a row that the batch does not have. `rows` must ascend."""
    if len(rows) and not 0 <= rows[0] <= rows[-1] < num_rows:
        raise ValueError(
            f"the spans are in rows {rows[0]} to {rows[-1]}, but the batch has {num_rows} rows. "
            "Pass the spans and the shape of the same batch"
        )


def _flat_indices(rows: Ints) -> Ints:
    """Return the index of each span in the result of `pad_lengths`: int64 [spans]."""
    return np.arange(len(rows)) + rows


class SpanColumns(NamedTuple):
    """The spans of a batch, one array for each column: int64 [spans]."""

    rows: Ints
    lengths: Ints
    streams: Ints
    samples: Ints


Arrays = dict[str, Array]
Field = Callable[[SpanColumns, tuple[int, int]], Arrays]


def _bounds(spans: SpanColumns, shape: tuple[int, int]) -> Arrays:
    ends, longest = cu_seqlens(spans.rows, spans.lengths, shape)
    return {"cu_seqlens": ends, "max_seqlen": np.array(longest, np.int32)}


def _flash_attention(spans: SpanColumns, shape: tuple[int, int]) -> Arrays:
    ends, longest = cu_seqlens(spans.rows, spans.lengths, shape)
    return {
        "position_ids": position_ids(spans.rows, spans.lengths, shape),
        "seq_idx": seq_idx(spans.rows, spans.lengths, shape),
        **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), ends),
        **dict.fromkeys(INTEGERS, np.array(longest)),
    }


def _of_rows(name: str, compute: Callable[[Ints, Ints, tuple[int, int]], Ints]) -> Field:
    return lambda spans, shape: {name: compute(spans.rows, spans.lengths, shape)}


def _stream_ids(spans: SpanColumns, shape: tuple[int, int]) -> Arrays:
    return {"stream_ids": spread(spans.streams, spans.rows, spans.lengths, shape)}


def _document_ids(spans: SpanColumns, shape: tuple[int, int]) -> Arrays:
    return {"document_ids": spread(spans.samples, spans.rows, spans.lengths, shape)}


FIELDS: dict[str, Field] = {
    "position_ids": _of_rows("position_ids", position_ids),
    "segment_ids": _of_rows("segment_ids", segment_ids),
    "stream_ids": _stream_ids,
    "document_ids": _document_ids,
    "cu_seqlens": _bounds,
    "flash_attention": _flash_attention,
}
"""The choices for `CloudLoader(fields=…)`. Each function computes one or more named arrays from the
spans."""

BOUNDS = {
    "cu_seqlens": "max_seqlen",
    "cu_seq_lens_q": "max_length_q",
    "cu_seq_lens_k": "max_length_k",
}
"""The arrays that bound the segments of a batch, each with the name of the longest length."""
OF_BATCH = frozenset({*BOUNDS, *BOUNDS.values()})
"""The arrays that describe a whole batch. The first axis of all other arrays is the row."""
OF_DOCUMENTS = frozenset({"stream_ids", "document_ids"})
"""The arrays that name the document of each token, or `NO_DOCUMENT`."""
INTEGERS = ("max_length_q", "max_length_k")
"""The arrays that a batch has as Python integers."""
BATCH_FIELDS = ("cu_seqlens", "flash_attention")
"""The fields with arrays that describe a whole batch."""
