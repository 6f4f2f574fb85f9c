"""A damaged state is refused with an error that names the field."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload.errors import StreamChangedError
from cloudload.run.position import DATA_START, LaneLog, Origin, Position
from cloudload.run.recipe import Recipe
from cloudload.run.resumed import resume_run
from cloudload.run.saved import read_state
from cloudload.run.state import State, build_state
from testkit.state_fields import residues, table
from testkit.tiny_runs import tiny_recipe

RECIPE = tiny_recipe([100] * 3, num_lanes=12, num_canonical_nodes=None)


def state_of(recipe: Recipe) -> State:
    return build_state(recipe, Position.start(recipe), "")


def load(state: dict[str, Any], recipe: Recipe) -> Position:
    """Read a state, and compute the position at which a run continues from it."""
    saved = read_state(state)
    return resume_run(saved, recipe, {}, Path("no-cache"))[1]


def wide(*cursors: tuple[int, int]) -> str:
    return base64.b64encode(np.array(cursors, "<i8").tobytes()).decode()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"version": 1}, "version: the state has format version 1"),
        ({"cursors": "%%%"}, "cursors: they are not base64"),
        ({"cursors": "AAAA"}, "cursors: they have 3 bytes, but 12 cursors need 96 or 192"),
        ({"cursors": table(*[(-1, 0)] * 12)}, "cursors: lane 0 has no cursor"),
        ({"cursors": table(*[(0, -5)] * 12)}, "cursors: lane 0 has no cursor"),
        ({"cursors": 5}, "cursors: they are not base64"),
        ({"rows": -4}, "rows: -4 is not a whole number from 0 to 562,949,953,421,312"),
        ({"rows": "4"}, "rows: '4' is not a whole number from 0"),
        ({"rows": 3, "table_rows": 4}, "table_rows: 4 is greater than rows, which is 3"),
        ({"rows": 3, "batches": 1 << 48}, "batches: 281474976710656 is greater than rows, whi"),
        ({"num_lanes": True}, "num_lanes"),
        ({"more": 1}, r"unknown \['more'\]"),
        ({"seed": None}, "seed: saved None, found 17"),
        ({"part": "0/2"}, r"part: this state has only the lanes of one rank \('0/2'\)"),
        (
            {"version": 4, "cloudload": "9.0"},
            "version: the state has format version 4, but this version of cloudload reads only 3. "
            "Use the version of cloudload that wrote the state .*9.0",
        ),
        ({"version": "3"}, "version: the state has format version '3'"),
        ({"rows": 1 << 63}, "rows: 9223372036854775808 is not a whole number from 0"),
        ({"rows": 4.0}, "rows: float is neither text nor a whole number"),
        ({"batches": 10**400}, "batches: 1000.*… is not a whole number from 0"),
        ({"seq_len": 1 << 40}, "seq_len: 1099511627776 is not a whole number from 1"),
        ({"seed": float("nan")}, "seed: float"),
        ({"data": ["x"]}, "data: list"),
        ({"cursors": table(*[(1 << 30, 0)] * 12)}, None),
        (
            {"cursors": wide(*[(1 << 39, 0)] * 12)},
            r"cursors: lane 0 is at \[549755813888, 0\], which is beyond any real run",
        ),
        (
            {"cursors": wide(*[(0, 1 << 62)] * 12)},
            "cursors: lane 0 is at .*, which is beyond any real run",
        ),
        ({"num_canonical_nodes": "0"}, r"num_canonical_nodes: \(0,\) do not divide num_lanes 12"),
        ({"num_canonical_nodes": "5"}, r"num_canonical_nodes: \(5,\) do not divide num_lanes 12"),
        (
            {"num_canonical_nodes": "9" * 5_000},
            "num_canonical_nodes: '9999.*… is not a list of whole numbers",
        ),
        (
            {"num_canonical_nodes": "\u0661"},
            "num_canonical_nodes: .* is not a list of whole numbers",
        ),
        ({"shuffle_block_size": "1"}, "shuffle_block_size: "),
        ({"shuffle_block_size": "8,8"}, "shuffle_block_size: "),
        ({"shuffle_block_size": "-8"}, "shuffle_block_size: '-8' is not a list of whole numbers"),
        ({"counts": "[" * 100_000}, "counts: .*The state is damaged"),  # nested too deeply to parse
        ({"counts": "[[0,0,0,0,0,-1]]"}, "counts: .* values .* not whole numbers"),
        ({"counts": "[[0,0,0,0,0,1.5]]"}, "counts: .* values .* not whole numbers"),
        ({"counts": "[[0,0,0,0,0,NaN]]"}, "counts: .* values .* not whole numbers"),
        ({"counts": f"[[0,0,0,0,0,{1 << 80}]]"}, "counts: .* values .* not whole numbers"),
        ({"counts": f"[[0,0,0,0,0,{(1 << 63) - 1}]]"}, "counts: .* values .* not whole numbers"),
        ({"counts": '[["a",0,0,0,0,0]]'}, "counts: .* values .* not whole numbers"),
        ({"counts": "[[0,0,0,0,0,0],[]]"}, "counts: "),
        ({"residues": "AAAA"}, "residues: packing 'concat' has no residues"),
        ({"skipped": "4:2"}, "skipped: '4:2' are not ascending ranges of rows before 0"),
        ({"skipped": "0:9"}, "skipped: '0:9' are not ascending ranges of rows before 0"),
        ({"mixture": '{"names": ["a"], "schedule": [[0, [NaN]]]}'}, "mixture: .*weight nan"),
        ({"mixture": '{"names": ["a"], "schedule": [[0, [Infinity]]]}'}, "mixture: .*weight inf"),
        ({"mixture": '{"names": ["a"], "schedule": [[0, [-1]]]}'}, "mixture: .*weight -1"),
        (
            {"mixture": '{"names": ["a", "b"], "schedule": [[0, [1, 1]]]}'},
            "mixture: it has 2 streams",
        ),
        ({"mixture": "[" * 5_000}, "mixture: cannot read"),
    ],
)
def test_a_damaged_state_is_refused_with_the_field_named(
    damage: dict[str, Any], message: str | None
) -> None:
    damaged = {**state_of(RECIPE), **damage}
    if message is None:
        assert load(damaged, RECIPE).cursors[0, 0, 0] == 1 << 30
        return
    with pytest.raises(StreamChangedError, match=message) as refusal:
        load(damaged, RECIPE)
    assert len(str(refusal.value)) < 1_500


def test_the_smallest_shuffle_block_has_two_documents() -> None:
    recipe = tiny_recipe([1, 0, 0, 0, 0], num_lanes=1)
    assert state_of(recipe)["shuffle_block_size"] == "2"
    assert load(state_of(recipe), recipe).rows == 0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"residues": ""}, "residues: "),
        ({"residues": "AAAA"}, "residues: "),
        (
            {"residues": base64.b64encode(zlib.compress(bytes(50))).decode()},
            "residues: they unpack to 50 bytes, which is not a multiple of 4",
        ),
        (
            {"residues": base64.b64encode(zlib.compress(bytes(44))).decode()},
            "residues: they unpack to 44 bytes, .* less than 4 for each of 12 lanes",
        ),
        (
            {"residues": residues([0], sizes=[2] + [0] * 10 + [2])},
            "residues: lane 0 has a residue of 2",
        ),
        (
            {"residues": base64.b64encode(zlib.compress(bytes(1 << 26))).decode()},
            "residues: they unpack to more than 1,056 bytes, the most that is allowed",
        ),
        (
            {"residues": base64.b64encode(zlib.compress(bytes(48))[:-1]).decode()},
            "residues: they are not one complete zlib stream",
        ),
        (
            {"residues": base64.b64encode(zlib.compress(bytes(48)) + b"x").decode()},
            "residues: they are not one complete zlib stream",
        ),
        ({"cursors": table(*[((1 << 30) + 1, 0)] * 12)}, "cursors: lane 0 is at"),
        ({"residues": residues(sizes=[4] * 12)}, "residues: their sizes do not add up"),
        ({"residues": residues(sizes=[-4] + [0] * 11)}, "residues: their sizes do not add up"),
        ({"residues": residues([0, 1, 1, 0])}, "residues: lane 0 has spans outside"),
        ({"residues": residues([0, 1, 9, 0, 4])}, "residues: lane 0 has spans outside"),
        ({"residues": residues([0, 1, 1, 4, 4])}, "residues: lane 0 has spans outside"),
        ({"residues": residues([], [-1])}, "residues: lane 1 has spans outside"),
        ({"residues": residues([0, 0])}, "residues: lane 0 has an open row without a span"),
        (
            {"residues": residues([0, 1, 1, 0, 4, 1, 1, 4, 8])},
            "residues: lane 0 has two spans of one document",
        ),
        ({"tail": "16:0"}, r"tail: .* is not a tail of a run with epochs=None"),
        ({"tail": "16"}, "tail: '16' is not a list of pairs of whole numbers"),
        ({"skipped": "x:y"}, "skipped: 'x:y' is not a list of pairs of whole numbers"),
        ({"counts": "[[1]]"}, r"counts: their shape is \(1, 1\), but each stream has 6 to 8 numb"),
        ({"counts": "[]"}, "counts: "),
        (
            {"counts": "[[0,0,0,0,0,0],[0,0,0,0,0,0]]"},
            "counts: the state has 2 streams, but the loader has 1",
        ),
        ({"mixture": "{}"}, "mixture"),
        ({"num_canonical_nodes": "x"}, "num_canonical_nodes: 'x' is not a list of whole numbers"),
        ({"num_canonical_nodes": "4,4"}, r"shuffle_block_size: \(400,\) are not 2 block sizes"),
    ],
)
def test_a_damaged_part_of_a_packed_state_is_refused(damage: dict[str, Any], message: str) -> None:
    recipe = replace(RECIPE, config=replace(RECIPE.config, packing="best_fit"))
    state = {**state_of(recipe), "cursors": table(*[(5, 0)] * 12), "rows": 12, "table_rows": 12}
    load(state, recipe)
    with pytest.raises(StreamChangedError, match=message):
        load({**state, **damage}, recipe)


@pytest.mark.parametrize("state", [{}, {"version": 2}, {"rows": 4}])
def test_what_is_no_state_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(StreamChangedError):
        load(state, RECIPE)


def test_keys_that_are_no_text_are_refused() -> None:
    strange: dict[Any, Any] = {7: 0, None: 1, "x": 2}
    with pytest.raises(StreamChangedError, match=r"unknown \['x', 7, None\]"):
        load({**state_of(RECIPE), **strange}, RECIPE)


def test_a_cursor_within_a_document_that_is_not_there_is_refused() -> None:
    recipe = tiny_recipe([13], num_lanes=12)
    holes = [(1, 0)] + [(1, 3)] * 11
    with pytest.raises(
        StreamChangedError, match="cursors: lane 1 is within document 1, which does not exist"
    ):
        load({**state_of(recipe), "cursors": table(*holes)}, recipe)


def test_a_state_is_read_as_it_was_built() -> None:
    recipe = tiny_recipe([30], [40], num_lanes=12, proportions=[1, 1], packing="best_fit", epochs=9)
    arrays = Position.start(recipe).lanes.arrays.copy()
    arrays.cursors[1, 3] = (5, 2, 9)
    arrays.counts[0] = range(8)
    assert arrays.residues is not None
    arrays.residues[0, 2] = bytes(16)
    before = Position(
        *(24, 24, LaneLog(replace(arrays, tails=((), ((5, 2), (7, 1)))))),
        skipped=((4, 8),),
        batches=3,
        global_batch=8,
        origin=Origin(1, 5),
    )
    saved = read_state(build_state(recipe, before, "backend"))
    after = saved.position
    assert replace(after, lanes=before.lanes) == before
    found = after.lanes.arrays
    assert found.residues is not None
    assert found.cursors.tolist() == arrays.cursors.tolist()
    assert found.counts.tolist() == arrays.counts.tolist()
    assert found.residues.tolist() == arrays.residues.tolist()
    assert found.tails == ((), ((5, 2), (7, 1)))
    assert saved.layout == recipe.layout
    assert saved.mixture == recipe.mixture
    assert (saved.seq_len, saved.tokenizer_backend, saved.is_fair) == (5, "backend", True)


def test_a_tail_without_rows_yet_is_kept_apart_from_no_tail() -> None:
    recipe = tiny_recipe([30], num_lanes=12, epochs=1)
    for tails in ((), (((5, 0),),), (((7, 2), (5, 1)),)):
        position = replace(Position.start(recipe), rows=24, table_rows=24).with_lanes(tails=tails)
        state = build_state(recipe, position, "")
        assert state["table_rows"] == 24 - sum(rows for stages in tails for _, rows in stages)
        assert read_state(state).position.lanes.arrays.tails == tails


def test_optional_keys_are_left_out_while_they_say_nothing() -> None:
    state = state_of(tiny_recipe([30], num_lanes=12))
    assert not {"origin", "stream_tails", "on_error", "tokens_key", "max_epochs"} & {*state}
    older = {name: value for name, value in state.items() if name != "document_sizes"}
    saved = read_state(older)
    assert saved.position.origin == DATA_START
    assert saved.fields["on_error"] == "raise"
    assert saved.fields["tokens_key"] == saved.fields["max_epochs"] == ""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"origin": "1:2,3:4"}, "origin: '1:2,3:4' is not a single pair"),
        ({"origin": f"{10**18 - 1}:0"}, "origin: '9{18}:0' is beyond any real run"),
        ({"origin": f"{(1 << 20) + 1}:0"}, "origin: '1048577:0' is beyond any real run"),
        ({"on_error": "stop"}, "on_error: 'stop' is not one of"),
        ({"stopping": "never"}, "stopping: 'never' is not one of"),
        ({"fair_start": "log"}, "fair_start: 'log' is not one of"),
        ({"stream_shards": "1,x"}, "stream_shards: '1,x' is not a list of whole numbers"),
        ({"shuffle_block_size": f"{(1 << 48) + 1}"}, "shuffle_block_size: "),
        ({"rows": (1 << 49) + 1}, "rows: 562949953421313 is not a whole number"),
        ({"global_batch": (1 << 31) + 1}, "global_batch: "),
        ({"seq_len": 0}, "seq_len: 0 is not a whole number from 1"),
        ({"num_lanes": 0}, "num_lanes: 0 is not a whole number from 1 to 4,194,304"),
    ],
)
def test_a_damaged_optional_key_or_bound_is_named(more: dict[str, Any], message: str) -> None:
    with pytest.raises(StreamChangedError, match=message):
        read_state({**state_of(RECIPE), **more})


def test_a_state_that_could_not_be_loaded_is_not_built() -> None:
    odd = replace(Position.start(RECIPE), rows=np.int64(4))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"cannot be saved, because rows is .*int64"):
        build_state(RECIPE, odd, "")
    with pytest.raises(ValueError, match="this state could not be loaded: batches: -1"):
        build_state(RECIPE, replace(Position.start(RECIPE), batches=-1), "")
