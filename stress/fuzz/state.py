"""Fuzz `load_state_dict` with states whose fields are changed."""

from __future__ import annotations

import base64
import contextlib
import functools
import re
import struct
import tempfile
import zlib
from typing import Any

import numpy as np

from cloudload import CloudLoader, Stream
from stress.fuzz.engine import Choices, Target, expect
from testkit.corpora import EOS, byte_tokenizer, write_mds

State = dict[str, Any]

_NUMBERS = (
    *(0, 1, -1, 2, 5, *(1 << bits for bits in (30, 31, 40, 48, 63, 64))),
    *((1 << 31) - 1, (1 << 62) + 1, (1 << 63) - 1),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 1.5, float("nan"), float("inf"), [], {}, b"", ()),
    *("", "0", "-1", "x", "é", "\0", "\ud800", "1:1", "0:1", "16:4", "1,1", "7,7", "AAAA"),
    *("[]", "[[]]", "null", "[" * 2000, "9" * 5000, "1" * 19, "1e9"),
    *("[[0,0,0,0,0,0]]", "[[0,0,0,0,0,0],[0,0,0,0,0,0]]"),
    '{"names": ["a"], "schedule": [[0, [NaN]]]}',
    '{"names": ["a"], "schedule": [[0, [1e308]]]}',
    '{"names": ["a", "b"], "schedule": [[0, [1, 2]]]}',
    '{"names": ["a", "b"], "schedule": [[0, [1e308, 5e-324]], [3, [0, 1]]]}',
    *_NUMBERS,
)
# loading rejects most changes of other fields immediately, so these are changed more often
_DEEP_FIELDS = (
    *("cursors", "document_sizes", "residues", "rows", "table_rows", "tail", "skipped", "counts"),
    *("seq_len", "mixture", "num_canonical_nodes", "shuffle_block_size"),
)
_PACKED_FIELDS = ("cursors", "document_sizes", "residues")
_CONCAT, _BEST_FIT = {"packing": "concat"}, {"packing": "best_fit", "open_rows": 2}
_RUNS: tuple[tuple[bool, dict[str, Any]], ...] = (
    (False, _CONCAT),
    (False, {**_CONCAT, "epochs": 1}),
    (False, {**_CONCAT, "exchange_every": 3}),
    (False, _BEST_FIT),
    (False, {**_BEST_FIT, "epochs": 2}),
    (False, {"packing": "one_per_row"}),
    (False, {"packing": "one_per_row", "overflow": "rows", "epochs": 1}),
    (False, {**_CONCAT, "shuffle_algo": "seekable"}),
    (True, _BEST_FIT),
    (True, {**_CONCAT, "shuffle_algo": "py1br"}),
)
"""Whether a run is a mixture, and its options."""


@functools.cache
def valid_states() -> list[tuple[CloudLoader, State]]:
    """Return pairs of a loader and one of its states, for every packing, over a tiny corpus.

    The states are early, late, between exchanges, and in a tail.
    """
    folder = tempfile.mkdtemp(prefix="cloudload-fuzz-")
    texts = ["ab" * (number * 7 % 13) for number in range(40)]
    urls = [
        write_mds(f"{folder}/{part}", texts[part::2], shard_samples=[7, 0, 13]) for part in range(2)
    ]
    mixed = [Stream(url, proportion=1.0, name=f"s{number}") for number, url in enumerate(urls)]
    found: list[tuple[CloudLoader, State]] = []
    for is_mixed, settings in _RUNS:
        loader = CloudLoader(
            mixed if is_mixed else urls,
            local=f"{folder}/cache",
            tokenizer=byte_tokenizer(),
            tokenizer_backend="hf",
            eos=EOS,
            seq_len=8,
            batch_size=4,
            num_lanes=4,
            num_workers=0,
            **settings,
        )
        states = [loader.state_dict(), *(loader.state_dict() for _ in loader.take(14))]
        last = len(states) - 1
        found += [(loader, states[batch]) for batch in sorted({0, 1, 4, last - 1, last})]
    return found


def mutate_state(choices: Choices, valid: State) -> State:
    """Return a copy of a valid state in which up to 3 fields are changed."""
    state: dict[Any, Any] = dict(valid)
    names = [*sorted(state), *_DEEP_FIELDS * 3]
    for _ in range(1 + choices.number(3)):
        name, kind = choices.pick(names), choices.number(24)
        value = state.get(name)
        if kind == 0:
            state.pop(name, None)
        elif kind == 1:
            state[choices.pick(["more", name, 7, "", None])] = choices.pick(_VALUES)
        elif kind < 4:
            state[name] = choices.pick(_VALUES)
        elif kind < 7:
            state[name] = choices.pick(valid_states())[1].get(name)
        elif name in _PACKED_FIELDS and isinstance(value, str):
            with contextlib.suppress(ValueError, zlib.error):
                state[name] = _change_packed(choices, name, value)
        elif isinstance(value, bool) or not isinstance(value, int | str):
            state[name] = choices.pick(_VALUES)
        elif isinstance(value, int):
            state[name] = choices.pick([value + 1, value - 1, -value, value * 2, *_NUMBERS])
        else:
            state[name] = _change_text(choices, value)
    return state


def _change_packed(choices: Choices, name: str, value: str) -> str:
    """Change up to 3 of the integers that a base64 field encodes."""
    data = base64.b64decode(value)
    if name == "residues":  # compressed, all first bytes of the integers, then all second bytes, …
        data = np.frombuffer(zlib.decompress(data), "u1").reshape(4, -1).T.tobytes()
    numbers = np.frombuffer(data[: len(data) // 4 * 4], "<i4").tolist()
    is_wide = choices.number(4) == 0 and name == "cursors"
    for _ in range(1 + choices.number(3)):
        at, kind = choices.number(max(1, len(numbers))), choices.number(4)
        if kind == 0 and numbers:
            del numbers[at]
        elif kind == 1:
            numbers.insert(at, choices.number(6))
        elif numbers:
            near = [numbers[at] + 1, numbers[at] - 1, choices.number(30)]
            numbers[at] = choices.pick([*_NUMBERS, *near])
    code, bits = ("q", 63) if is_wide else ("i", 31)
    clipped = [max(-(1 << bits), min((1 << bits) - 1, number)) for number in numbers]
    data = struct.pack(f"<{len(clipped)}{code}", *clipped)
    if name == "residues":
        data = zlib.compress(np.frombuffer(data, "u1").reshape(-1, 4).T.tobytes())
    return base64.b64encode(data).decode()


def _change_text(choices: Choices, text: str) -> str:
    """Change a number in a text, or replace up to 2 characters."""
    numbers = list(re.finditer(r"\d+", text))
    if numbers and choices.number(2):
        found = choices.pick(numbers)
        now = int(found[0]) if len(found[0]) < 30 else 0
        new = choices.pick([now + 1, now - 1, *_NUMBERS])
        return f"{text[: found.start()]}{new}{text[found.end() :]}"
    at = choices.number(len(text) + 1)
    inserted = choices.pick(["", "0", "-", ",", ":", "[", "]", '"', "\0", "\ud800", "1e9", "NaN"])
    return text[:at] + inserted + text[at + choices.number(3) :]


def run_state(data: bytes) -> None:
    """Load a changed state and read two batches."""
    choices = Choices(data)
    loader, valid = choices.pick(valid_states())
    state = mutate_state(choices, valid)
    try:
        loader.load_state_dict(state)
    except ValueError as error:
        expect(str(error).startswith("cannot divide"), f"ValueError: {error}")
        return
    # a resume reads these rows again, so skip states for which that takes too long, and states so
    # close to the last row of any run that the next one could not be saved
    is_last = max(state["rows"], state["batches"]) > (1 << 48) - 100
    if state["rows"] - state["table_rows"] < 2_000 and not is_last:
        for _ in loader.take(2):
            loader.state_dict()
        loader.stats()


STATE = Target(run_state, prepare=valid_states)
