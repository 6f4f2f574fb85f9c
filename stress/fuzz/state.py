"""Fuzz `load_state_dict` and `merge_state_dicts` with states whose fields are changed."""

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

from cloudload import CloudLoader, Stream, merge_state_dicts
from stress.fuzz.target import Choices, Target, expect, random_seeds
from testkit.corpora import EOS, byte_tokenizer, write_mds

State = dict[str, Any]

_NUMBERS = (
    0,
    1,
    -1,
    2,
    5,
    1 << 30,
    (1 << 31) - 1,
    1 << 31,
    1 << 40,
    1 << 48,
    (1 << 62) + 1,
    (1 << 63) - 1,
    1 << 63,
    1 << 64,
)
_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        "",
        "0",
        "-1",
        "x",
        1.5,
        float("nan"),
        float("inf"),
        [],
        {},
        b"",
        (),
        "é",
        "\0",
        "\ud800",
    ),
    *(
        "1:1",
        "0:1",
        "16:4",
        "1,1",
        "0",
        "7,7",
        "AAAA",
        "[]",
        "[[]]",
        "null",
        "[" * 2000,
        "9" * 5000,
        "1" * 19,
        "1e9",
    ),
    "[[0,0,0,0,0,0]]",
    "[[0,0,0,0,0,0],[0,0,0,0,0,0]]",
    '{"names": ["a"], "schedule": [[0, [NaN]]]}',
    '{"names": ["a"], "schedule": [[0, [1e308]]]}',
    '{"names": ["a", "b"], "schedule": [[0, [1, 2]]]}',
    '{"names": ["a", "b"], "schedule": [[0, [1e308, 5e-324]], [3, [0, 1]]]}',
    *_NUMBERS,
)


@functools.cache
def sound_states() -> list[tuple[CloudLoader, State]]:
    """Return pairs of a loader and one of its states, for every packing, over a tiny corpus.

    The states are early, late, between exchanges, and in a tail.
    """
    folder = tempfile.mkdtemp(prefix="cloudload-fuzz-")
    texts = ["ab" * (number * 7 % 13) for number in range(40)]
    urls = [
        write_mds(f"{folder}/{part}", texts[part::2], shard_samples=[7, 0, 13]) for part in range(2)
    ]
    mixed = [Stream(url, proportion=1.0, name=f"s{number}") for number, url in enumerate(urls)]
    cases: list[tuple[Any, dict[str, Any]]] = [
        (urls, {"packing": "concat"}),
        (urls, {"packing": "concat", "epochs": 1}),
        (urls, {"packing": "concat", "exchange_every": 3}),
        (urls, {"packing": "best_fit", "open_rows": 2}),
        (urls, {"packing": "best_fit", "open_rows": 2, "epochs": 2}),
        (urls, {"packing": "one_per_row"}),
        (urls, {"packing": "one_per_row", "overflow": "rows", "epochs": 1}),
        (urls, {"packing": "concat", "shuffle_algo": "seekable"}),
        (mixed, {"packing": "best_fit", "open_rows": 2}),
        (mixed, {"packing": "concat", "shuffle_algo": "py1br"}),
    ]
    found: list[tuple[CloudLoader, State]] = []
    for data, settings in cases:
        options: dict[str, Any] = {
            "tokenizer": byte_tokenizer(),
            "eos": EOS,
            "seq_len": 8,
            "num_lanes": 4,
            "num_workers": 0,
        }
        loader = CloudLoader(
            data,
            local=f"{folder}/cache",
            batch_size=4,
            tokenizer_backend="hf",
            **options,
            **settings,
        )
        states = [loader.state_dict(), *(loader.state_dict() for _ in loader.take(14))]
        found += [
            (loader, states[place]) for place in sorted({0, 1, 4, len(states) - 2, len(states) - 1})
        ]
    return found


# these fields are changed more often, because loading rejects most changes of others immediately
_WEIGHTY_FIELDS = [
    "cursors",
    "document_sizes",
    "residues",
    "rows",
    "table_rows",
    "tail",
    "skipped",
    "counts",
    "seq_len",
    "mixture",
]
_WEIGHTY_FIELDS += ["num_canonical_nodes", "shuffle_block_size"]


def mutate_state(choices: Choices, sound: State) -> State:
    """Return a copy of a valid state in which up to 3 fields are changed."""
    state: dict[Any, Any] = dict(sound)
    names = [*sorted(state), *_WEIGHTY_FIELDS * 3]
    for _ in range(1 + choices.number(3)):
        name = choices.pick(names)
        kind = choices.number(24)
        value = state.get(name)
        if kind == 0:
            state.pop(name, None)
        elif kind == 1:
            state[choices.pick(["more", name, 7, "", None])] = choices.pick(_VALUES)
        elif kind < 4:
            state[name] = choices.pick(_VALUES)
        elif kind < 7:
            other = choices.pick(sound_states())[1]
            state[name] = other.get(name)
        elif name in ("cursors", "document_sizes", "residues") and isinstance(value, str):
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
    if name == "residues":
        planes = zlib.decompress(data)
        data = bytes(
            planes[start + plane * (len(planes) // 4)]
            for start in range(len(planes) // 4)
            for plane in range(4)
        )
    numbers = [number for (number,) in struct.iter_unpack("<i", data[: len(data) // 4 * 4])]
    wide = choices.number(4) == 0 and name == "cursors"
    for _ in range(1 + choices.number(3)):
        place = choices.number(max(1, len(numbers)))
        kind = choices.number(4)
        if kind == 0 and numbers:
            del numbers[place]
        elif kind == 1:
            numbers.insert(place, choices.number(6))
        elif numbers:
            numbers[place] = choices.pick(
                [*_NUMBERS, numbers[place] + 1, numbers[place] - 1, choices.number(30)]
            )
    code, bits = ("q", 63) if wide else ("i", 31)
    clipped = [max(-(1 << bits), min((1 << bits) - 1, number)) for number in numbers]
    data = struct.pack(f"<{len(clipped)}{code}", *clipped)
    if name == "residues":
        data = zlib.compress(
            bytes(data[start + plane] for plane in range(4) for start in range(0, len(data), 4))
        )
    return base64.b64encode(data).decode()


def _change_text(choices: Choices, text: str) -> str:
    """Change a number in a text, or replace up to 2 characters."""
    numbers = list(re.finditer(r"\d+", text))
    if numbers and choices.number(2):
        found = choices.pick(numbers)
        now = int(found[0]) if len(found[0]) < 30 else 0
        return (
            text[: found.start()]
            + str(choices.pick([now + 1, now - 1, *_NUMBERS]))
            + text[found.end() :]
        )
    place = choices.number(len(text) + 1)
    inserted = choices.pick(["", "0", "-", ",", ":", "[", "]", '"', "\0", "\ud800", "1e9", "NaN"])
    return text[:place] + inserted + text[place + choices.number(3) :]


def run_state(data: bytes) -> None:
    """Load a changed state and read two batches, or merge changed parts and load the result."""
    choices = Choices(data)
    loader, sound = choices.pick(sound_states())
    if choices.number(5) == 0:
        parts = [_part_of(sound, choices.number(3) or rank, 2) for rank in range(2)]
        merged = merge_state_dicts(
            [mutate_state(choices, part) if choices.number(2) else part for part in parts]
        )
        loader.load_state_dict(merged)
        return
    state = mutate_state(choices, sound)
    try:
        loader.load_state_dict(state)
    except ValueError as error:
        expect(str(error).startswith("cannot divide"), f"ValueError: {error}")
        return
    # a resume reads these rows again, so skip states for which that takes too long
    if state["rows"] - state["table_rows"] < 2_000:
        for _ in loader.take(2):
            loader.state_dict()
        loader.stats()


def _part_of(state: State, rank: int, size: int) -> State:
    """Return the part that rank `rank` of `size` would save of a state with four lanes."""
    cursors = np.frombuffer(base64.b64decode(state["cursors"]), "<i4").reshape(-1, 4, 2).copy()
    cursors[:, [lane for lane in range(4) if lane % size != rank % size]] = -1
    return {
        **state,
        "part": f"{rank}/{size}",
        "cursors": base64.b64encode(cursors.tobytes()).decode(),
    }


STATE = Target(run_state, random_seeds, sound_states)
