"""The state of a run: a small, flat dict of its position and recipe.

    version, cloudload      version of the format, and of the library that wrote the state
    rows                    number of rows of the run that were delivered or skipped
    table_rows              number of rows that the cursors include; before the tail, a resume reads
                            the rows from there to `rows` again and drops them
    cursors                 base64 of [components, num_lanes, 2]: ordinal and offset of each lane's
                            next token; little-endian int32, or int64 if one of them needs it
    document_sizes          base64 of [components, num_lanes]: number of tokens of the document that
                            each cursor is in, or 0, so a resume detects changed text;
                            little-endian uint16, or wider if one of them needs it; "" if no cursor
                            is in a document; older states have no such key
    residues                base64 of the compressed residues (`rows.packing.residue`), in chunks
                            of 16 lanes that are joined by "."; older states have a single chunk;
                            "" if the packing has no residue
    tail                    "" before the tail of a finite run, which begins at row table_rows; then
                            `rows.packing.tail.Stages` (seq_len:rows), as "512:100,1024:3"
    counts, skipped         statistics by stream; and the ranges of rows skipped, as "100:164,…"
    batches, global_batch   number of global batches delivered or skipped, and of rows in the last
                            one; a trace uses them to count steps
    stream_tails            the tails of streams that ended in a mixture, by stream, as
                            "512:100,1024:3;;512:0"; "512:0" for a stream whose last row was not in
                            a tail. There is no such key before the first stream has a tail
    max_epochs, stopping    the options that determine where the streams of a mixture, and the
                            mixture itself, end; left out if they have their default values
    origin                  "epoch:num_read" if the run continues a StreamingDataset's: it started
                            after `num_read` documents of `epoch`; otherwise there is no such key
    fair_start              "sqrt" if at most √n of the first n documents of a `best_fit` lane wait
                            in open rows; older states, and those of other packings, have no such
                            key, and a resume continues without the rule
    token_ids               hash of the IDs of fixed texts, so a resume detects a version of
                            tokenizers that encodes differently; older states, and states of
                            pre-tokenized data alone, have no such key
    order_ids               hash of the order of fixed shards, so a resume detects a version of
                            NumPy that shuffles differently; there is no such key if NumPy shuffles
                            as all versions so far do
    max_tokens              the limit of a document's tokens; if there is none, there is no such key
    on_error                "skip" if bad documents are left out; otherwise there is no such key
    mixture                 names and weights of the streams, and the rows from which they apply
    tokens_key              column and dtype of the token IDs of pre-tokenized streams; if all
                            streams are text, there is no such key
    strip_tokens            IDs that are removed from the ends of documents, as "0,2"; if there are
                            none, there is no such key
    chat, encode, fim       the chat templates, functions that make tokens, and shares and IDs of
                            fill in the middle, by stream; left out if no stream has any
    select                  digest of the documents that are selected, by stream; "" for a stream
                            of which all are; absent if all documents are selected
    row_bos                 ID at the start of each row; if there is none, there is no such key
    pad_documents_to        a multiple of it is the size of each document; absent if it is 1
    row_hook                the name of the function that changes rows; absent if there is none
    samples                 like data, but without the shards' headers, so that it stays the same if
                            the samples are written with a different compression; "" for a stream or
                            corpus whose index has no hashes of its samples; if no index has them,
                            there is no such key
    stream_shards           number of shards of each stream, so that a resume after an append finds
                            the original shards; only if several streams are read as one corpus,
                            because the fingerprint of a single stream is enough; older states have
                            no such key
    data, bos_eos, …        fingerprints and config that determine the rows; values by stream or
                            component are joined by commas
    sources                 locations of data and tokenizer, for `cloudload.provenance`; may differ
                            on resume, because copies of the data may be elsewhere
    tokenizer_backend       the versions of the backend's libraries; may differ on resume, because
                            all backends produce the same token IDs

A state has a fixed set of keys, and its values are plain JSON types. `json`, `torch.load` with
`weights_only=True`, and DCP all preserve it. Loading a state executes and unpickles nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloudload._version import __version__
from cloudload.errors import StreamChangedError
from cloudload.rows import Stages
from cloudload.run.lane_texts import LaneTexts
from cloudload.run.position import LaneArrays, Position
from cloudload.run.recipe import Recipe
from cloudload.run.saved import VERSION, check_keys
from cloudload.run.state_fields import show
from cloudload.stats import FAILED
from cloudload.system import Ints

State = dict[str, Any]


def build_state(recipe: Recipe, position: Position, tokenizer_backend: str) -> State:
    """Build the state of a position.

    `tokenizer_backend` is `Choice.versions`. Raises `ValueError` for a state that could not be
    loaded.
    """
    origin = position.origin
    state = {
        "version": VERSION,
        "cloudload": __version__,
        "rows": position.rows,
        "table_rows": position.lanes_row,
        "batches": position.batches,
        "global_batch": position.global_batch,
        "seq_len": recipe.config.seq_len,
        **recipe.saved_fields,
        "mixture": recipe.mixture.to_json(),
        "sources": recipe.sources,
        "tokenizer_backend": tokenizer_backend,
        "tail": "",
        "skipped": join_pairs(position.skipped),
        **_encode_lanes(position.lanes.arrays, position.lanes.texts),
        **({"origin": join_pairs([origin])} if any(origin) else {}),
    }
    _check_saved(state)
    return state


def _check_saved(state: State) -> None:
    """Raise `ValueError` for a state that `check_keys` would refuse, or `torch.load` would."""
    for name, value in state.items():
        if type(value) not in (str, int, bool, type(None)):
            fault = f"{show(value)}, a {type(value).__name__}"
            raise ValueError(f"this state cannot be saved, because {name} is {fault}")
    try:
        check_keys(state)
    except StreamChangedError as error:
        raise ValueError(f"this state could not be loaded: {error}") from error


def _encode_lanes(arrays: LaneArrays, texts: LaneTexts) -> dict[str, str]:
    """Encode the cursors, residues and statistics of lanes as fields of a state."""
    return {
        "counts": encode_counts(arrays.counts),
        **texts.encode(arrays.cursors, arrays.residues),
        **encode_tails(arrays.tails),
    }


def encode_counts(counts: Ints) -> str:
    rows, last = counts.tolist(), counts.shape[1]
    # the last counts are newer than the first states
    while last > FAILED and not any(row[last - 1] for row in rows):
        last -= 1
    rows = [row[:last] for row in rows]
    return str(rows).replace(" ", "")  # the same text as `json` writes, several times faster


def encode_tails(tails: tuple[Stages, ...]) -> dict[str, str]:
    """Encode the stages of each component's tail as fields of a state.

    `tail` has the stages of an only component, and `stream_tails` those of several, if any.
    """
    if len(tails) == 1:
        return {"tail": join_pairs(tails[0])}
    return {"stream_tails": ";".join(map(join_pairs, tails))} if any(tails) else {}


def join_pairs(pairs: Sequence[tuple[int, int]]) -> str:
    return ",".join(f"{one}:{other}" for one, other in pairs)
