"""The state: small, plain, the same everywhere, and refused where it does not belong."""

from __future__ import annotations

import base64
import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloudload import CloudLoader, convert_to_mds, merge_state_dicts, testing
from cloudload.errors import DatasetError, RanksDisagreeError, StreamChangedError, WorkerError
from tests.support.awkward import EOS, byte_tokenizer
from tests.support.corpora import random_documents, write_mds


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_mds(tmp_path_factory.mktemp("mds"), random_documents(5, 300), shard_bytes=4_000)


def make_loader(folder: str, **settings: Any) -> CloudLoader:
    defaults = {
        "tokenizer": byte_tokenizer(),
        "eos": EOS,
        "seq_len": 16,
        "batch_size": 4,
        "num_workers": 0,
        "num_lanes": 12,
    }
    return CloudLoader(folder, **{**defaults, **settings})


def test_a_state_is_plain_flat_json_with_the_same_keys_at_all_times(folder: str) -> None:
    loader = make_loader(folder)
    before = loader.state_dict()
    batches = iter(loader)
    started = loader.state_dict()
    next(batches)
    after = loader.state_dict()
    assert before == started
    assert before.keys() == after.keys()
    assert all(isinstance(value, str | int | bool | None) for value in after.values())
    assert json.loads(json.dumps(after)) == after
    buffer = io.BytesIO()
    torch.save(after, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True) == after


@pytest.mark.parametrize("num_lanes", [64, 960, 8192])
def test_a_state_takes_at_most_32_bytes_a_lane_and_2_kb(folder: str, num_lanes: int) -> None:
    loader = make_loader(folder, num_lanes=num_lanes, batch_size=256)
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) <= 32 * num_lanes + 2048


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("place", ["join_blocks", "report_batch", "Position"])
def test_an_interrupted_iteration_neither_shifts_the_run_nor_looks_like_its_end(
    folder: str, monkeypatch: pytest.MonkeyPatch, place: str, num_workers: int
) -> None:
    expected = [batch["input_ids"] for batch in make_loader(folder).take(6)]

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with make_loader(folder, num_workers=num_workers) as loader:
        batches = iter(loader)
        seen = [next(batches)["input_ids"] for _ in range(3)]
        with monkeypatch.context() as patched:
            patched.setattr(f"cloudload.delivery.iteration.{place}", interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(batches)
        with pytest.raises(WorkerError, match="interrupted"):
            next(batches)
        assert loader.rows == 12
        seen += [batch["input_ids"] for batch in loader.take(3)]
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))


def test_a_rank_on_its_own_does_not_know_the_whole_state_after_a_seek_either(folder: str) -> None:
    loaders = [make_loader(folder, dp_rank=rank, dp_world_size=2) for rank in range(2)]
    for loader in loaders:
        list(loader.take(2))
        loader.seek(loader.rows)
        with pytest.raises(RanksDisagreeError):
            loader.state_dict()
    single = make_loader(folder, batch_size=8)
    list(single.take(2))
    whole = merge_state_dicts([loader.local_state_dict() for loader in loaders])
    assert {**whole, "batches": 2, "global_batch": 8} == {
        **single.state_dict(),
        "batches": 2,
        "global_batch": 8,
    }


def test_asking_for_the_state_changes_nothing_and_gives_a_copy(folder: str) -> None:
    loader = make_loader(folder)
    next(iter(loader))
    first = loader.state_dict()
    first["rows"] = -1
    assert loader.state_dict() == loader.state_dict()
    assert loader.state_dict()["rows"] == 4


def test_right_after_a_load_the_state_is_the_one_loaded(folder: str) -> None:
    loader = make_loader(folder)
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    state = loader.state_dict()
    other = make_loader(folder, batch_size=3, num_workers=1)
    other.load_state_dict(state)
    assert other.state_dict() == state
    iter(other)
    assert other.state_dict() == state
    assert other.rows == 28


def test_lag_gives_the_state_of_earlier_batches(folder: str) -> None:
    loader = make_loader(folder)
    states = [loader.state_dict()]
    for _ in zip(range(5), loader, strict=False):
        states.append(loader.state_dict())
        assert loader.state_dict(lag=1) == states[-2]
    assert loader.state_dict(lag=3) == states[-4]
    with pytest.raises(ValueError, match="lag is 4; it must be from 0 to 3"):
        loader.state_dict(lag=4)
    with pytest.raises(ValueError, match="only 0 batches were handed out"):
        make_loader(folder).state_dict(lag=1)


def test_what_the_user_left_open_comes_from_the_state(folder: str) -> None:
    loader = make_loader(folder, num_lanes=24, num_canonical_nodes=2, shuffle_block_size=33)
    next(iter(loader))
    other = make_loader(folder, num_lanes=None)
    other.load_state_dict(loader.state_dict())
    assert other.num_lanes == 24
    assert next(iter(other))["input_ids"].tolist() == next(iter(loader))["input_ids"].tolist()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seed": 5}, "seed: saved 17, found 5"),
        ({"shuffle": False}, "shuffle: saved True, found False"),
        ({"shuffle_algo": "py1br"}, "shuffle_algo: saved 'py1e', found 'py1br'"),
        ({"shuffle_block_size": 99}, "shuffle_block_size: saved "),
        ({"num_canonical_nodes": 3}, "num_canonical_nodes: saved "),
        ({"num_lanes": 24}, "num_lanes: saved 12, found 24"),
        ({"epochs": 2}, "epochs: saved None, found 2"),
        (
            {"eos": None},
            "bos_eos (the ids put before and after documents, by stream): saved "
            "'None/256', found 'None/None'",
        ),
        (
            {"seed": 5, "eos": None},
            "bos_eos (the ids put before and after documents, by stream): saved "
            "'None/256', found 'None/None'",
        ),
    ],
)
def test_another_stream_of_rows_is_refused_with_each_field_and_both_values(
    folder: str, changed: dict[str, Any], named: str
) -> None:
    state = make_loader(folder).state_dict()
    other = make_loader(folder, **changed)
    with pytest.raises(StreamChangedError) as refusal:
        other.load_state_dict(state)
    assert named in str(refusal.value)
    assert all(name in str(refusal.value) or name == "eos" for name in changed)


def test_other_data_is_refused_but_the_same_data_elsewhere_is_not(
    folder: str, tmp_path: Path
) -> None:
    state = make_loader(folder).state_dict()
    moved = write_mds(tmp_path / "moved", random_documents(5, 300), shard_bytes=4_000)
    make_loader(moved).load_state_dict(state)
    other = write_mds(tmp_path / "other", random_documents(6, 300), shard_bytes=4_000)
    with pytest.raises(StreamChangedError, match=r"data .*: saved"):
        make_loader(other).load_state_dict(state)


def table(*cursors: tuple[int, int]) -> str:
    return base64.b64encode(np.array(cursors, "<i4").tobytes()).decode()


def wide(*cursors: tuple[int, int]) -> str:
    return base64.b64encode(np.array(cursors, "<i8").tobytes()).decode()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"version": 1}, "version: the state has 1"),
        ({"cursors": "%%%"}, "cursors: not base64"),
        ({"cursors": "AAAA"}, "cursors: 3 bytes, but 12 lanes need 96"),
        ({"cursors": table(*[(-1, 0)] * 12)}, "cursors: lane 0 has no cursor"),
        ({"cursors": table(*[(0, -5)] * 12)}, "cursors: lane 0 has no cursor"),
        ({"cursors": 5}, "cursors: not base64"),
        ({"rows": -4}, "rows: -4 is not a count"),
        ({"rows": "4"}, "rows: '4' is not a count"),
        ({"rows": 3, "table_rows": 4}, "table_rows: 4 is past rows 3"),
        ({"num_lanes": True}, "num_lanes"),
        ({"more": 1}, r"unknown fields \['more'\]"),
        ({"seed": None}, "seed: saved None, found 17"),
        ({"part": "0/2"}, "this is the local state of rank 0/2"),
        (
            {"version": 4, "cloudload": "9.0"},
            "version: the state has 4, but this cloudload reads 3. Use the "
            "cloudload that wrote it .*9.0",
        ),
        ({"version": "3"}, "version: the state has '3'"),
        ({"rows": 1 << 63}, "rows: 9223372036854775808 is not a count"),
        ({"rows": 4.0}, "rows: float is neither text nor a whole number"),
        ({"batches": 10**400}, "batches: 1000.*… is not a count"),
        ({"seq_len": 1 << 40}, "seq_len: 1099511627776 is not a count"),
        ({"seed": float("nan")}, "seed: float"),
        ({"data": ["x"]}, "data: list"),
        ({"cursors": table(*[(1 << 30, 0)] * 12)}, None),
        (
            {"cursors": wide(*[(1 << 39, 0)] * 12)},
            r"cursors: lane 0 is at \[549755813888, 0\], beyond any real run",
        ),
        (
            {"cursors": wide(*[(0, 1 << 62)] * 12)},
            "cursors: lane 0 is at .*, beyond any real run",
        ),
        ({"num_canonical_nodes": "0"}, r"num_canonical_nodes: \(0,\) do not divide num_lanes 12"),
        ({"num_canonical_nodes": "5"}, r"num_canonical_nodes: \(5,\) do not divide num_lanes 12"),
        (
            {"num_canonical_nodes": "9" * 5_000},
            "num_canonical_nodes: '9999.*… is not a list of numbers",
        ),
        ({"num_canonical_nodes": "\u0661"}, "num_canonical_nodes: .* is not a list of numbers"),
        ({"shuffle_block_size": "1"}, "shuffle_block_size: "),
        ({"shuffle_block_size": "8,8"}, "shuffle_block_size: "),
        ({"shuffle_block_size": "-8"}, "shuffle_block_size: '-8' is not a list of numbers"),
        ({"counts": "[" * 5_000}, "counts: maximum recursion depth"),
        ({"counts": "[[0,0,0,0,0,-1]]"}, "counts: .* are not all counts"),
        ({"counts": "[[0,0,0,0,0,1.5]]"}, "counts: .* are not all counts"),
        ({"counts": "[[0,0,0,0,0,NaN]]"}, "counts: .* are not all counts"),
        ({"counts": f"[[0,0,0,0,0,{1 << 80}]]"}, "counts: .* are not all counts"),
        ({"counts": f"[[0,0,0,0,0,{(1 << 63) - 1}]]"}, "counts: .* are not all counts"),
        ({"counts": '[["a",0,0,0,0,0]]'}, "counts: .* are not all counts"),
        ({"counts": "[[0,0,0,0,0,0],[]]"}, "counts: "),
        ({"residues": "AAAA"}, "residues: packing 'concat' has no residues"),
        ({"skipped": "4:2"}, "skipped: '4:2' are not rows before 0, in order"),
        ({"skipped": "0:9"}, "skipped: '0:9' are not rows before 0, in order"),
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
    folder: str, damage: dict[str, Any], message: str | None
) -> None:
    loader = make_loader(folder)
    damaged = {**loader.state_dict(), **damage}
    if message is None:
        loader.load_state_dict(damaged)
        assert len(list(loader.take(2))) == 2
        return
    with pytest.raises(StreamChangedError, match=message) as refusal:
        loader.load_state_dict(damaged)
    assert len(str(refusal.value)) < 1_500


def residues(*parts: list[int], sizes: list[int] | None = None) -> str:
    """The residues of 12 lanes; those that are not given are of no bytes."""
    lanes = [np.array(part, "<i4").tobytes() for part in (*parts, *[[]] * (12 - len(parts)))]
    numbers = np.array(sizes or [len(lane) for lane in lanes], "<i4").tobytes() + b"".join(lanes)
    return base64.b64encode(
        zlib.compress(np.frombuffer(numbers, np.uint8).reshape(-1, 4).T.tobytes())
    ).decode()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"residues": ""}, "residues: "),
        ({"residues": "AAAA"}, "residues: "),
        ({"residues": base64.b64encode(zlib.compress(b"12345")).decode()}, "residues: "),
        (
            {"residues": base64.b64encode(zlib.compress(bytes(1 << 26))).decode()},
            "residues: more than the 1,056 bytes that the cursors",
        ),
        (
            {"residues": base64.b64encode(zlib.compress(bytes(48))[:-1]).decode()},
            "residues: not one whole zlib stream",
        ),
        (
            {"residues": base64.b64encode(zlib.compress(bytes(48)) + b"x").decode()},
            "residues: not one whole zlib stream",
        ),
        ({"cursors": table(*[((1 << 30) + 1, 0)] * 12)}, "cursors: lane 0 is at"),
        ({"residues": residues(sizes=[4] * 12)}, "residues: sizes that do not add up"),
        ({"residues": residues(sizes=[-4] + [0] * 11)}, "residues: sizes that do not add up"),
        ({"residues": residues([0, 1, 1, 0])}, "residues: lane 0 has spans outside"),
        ({"residues": residues([0, 1, 9, 0, 4])}, "residues: lane 0 has spans outside"),
        ({"residues": residues([0, 1, 1, 4, 4])}, "residues: lane 0 has spans outside"),
        ({"residues": residues([], [-1])}, "residues: lane 1 has spans outside"),
        ({"residues": residues([0, 0])}, "residues: lane 0 has an open row without a span"),
        (
            {"residues": residues([0, 1, 1, 0, 4, 1, 1, 4, 8])},
            "residues: lane 0 has two spans of one document",
        ),
        ({"tail": "16:0"}, "tail: an endless run has no tail"),
        ({"tail": "16"}, "tail: '16' is not a list of pairs of numbers"),
        ({"skipped": "x:y"}, "skipped: 'x:y' is not a list of pairs of numbers"),
        ({"counts": "[[1]]"}, r"counts: shape \(1, 1\), but each stream has 6 numbers"),
        ({"counts": "[]"}, "counts: "),
        (
            {"counts": "[[0,0,0,0,0,0],[0,0,0,0,0,0]]"},
            "counts: the state has 2 streams, but the loader 1",
        ),
        ({"mixture": "{}"}, "mixture"),
        ({"num_canonical_nodes": "x"}, "num_canonical_nodes: 'x' is not a list of numbers"),
        ({"num_canonical_nodes": "4,4"}, "cursors: "),
    ],
)
def test_a_damaged_part_of_a_packed_state_is_refused(
    folder: str, damage: dict[str, Any], message: str
) -> None:
    loader = make_loader(folder, packing="best_fit")
    state = {**loader.state_dict(), "cursors": table(*[(5, 0)] * 12), "rows": 12, "table_rows": 12}
    loader.load_state_dict(state)
    with pytest.raises(StreamChangedError, match=message):
        loader.load_state_dict({**state, **damage})


def test_open_rows_that_do_not_fit_are_an_error_when_their_lane_runs(folder: str) -> None:
    loader = make_loader(folder, packing="best_fit")
    too_long = residues(*[[0, 1, 1, 0, 99]] * 12)
    loader.load_state_dict(
        {**loader.state_dict(), "cursors": table(*[(5, 0)] * 12), "residues": too_long}
    )
    with pytest.raises(
        StreamChangedError, match="residues: lane 0 has open rows that do not fit 16 tokens"
    ):
        next(iter(loader))


@pytest.mark.parametrize("state", [{}, {"version": 2}, {"rows": 4}])
def test_what_is_no_state_is_refused(folder: str, state: dict[str, Any]) -> None:
    with pytest.raises(StreamChangedError):
        make_loader(folder).load_state_dict(state)


def test_a_refused_state_leaves_the_loader_as_it_was(folder: str) -> None:
    loader = make_loader(folder)
    batches = iter(loader)
    next(batches)
    before = loader.state_dict()
    with pytest.raises(StreamChangedError):
        loader.load_state_dict({**before, "seed": 3})
    assert loader.state_dict() == before
    next(batches)


def test_a_cursor_past_its_document_is_an_error_not_a_silent_skip(folder: str) -> None:
    loader = make_loader(folder)
    loader.load_state_dict(
        {**loader.state_dict(), "rows": 12, "table_rows": 12, "cursors": table(*[(0, 10**6)] * 12)}
    )
    with pytest.raises(StreamChangedError, match="the cursor is at token 1000000 of document 0"):
        next(iter(loader))


def test_a_state_between_exchanges_refuses_another_seq_len(folder: str) -> None:
    loader = make_loader(folder, exchange_every=3)
    for _ in zip(range(4), loader, strict=False):
        state = loader.state_dict()
    assert (state["table_rows"], state["rows"]) == (12, 16)
    with pytest.raises(StreamChangedError, match="seq_len: saved 16, found 8"):
        make_loader(folder, seq_len=8).load_state_dict(state)


def test_runs_shorter_than_a_window_still_get_on(folder: str) -> None:
    state = make_loader(folder, exchange_every=4).state_dict()
    for _ in range(5):
        loader = make_loader(folder, exchange_every=4)
        loader.load_state_dict(state)
        for _ in zip(range(3), loader, strict=False):
            pass
        state = loader.state_dict()
        assert state["rows"] - state["table_rows"] < 4 * 4
    assert state["rows"] == 15 * 4


def test_a_text_column_that_is_not_there_is_an_error_before_anything_else(folder: str) -> None:
    with pytest.raises(
        DatasetError, match=r"has no column 'body'\. Set text_key to one of its text columns: text"
    ):
        make_loader(folder, text_key="body")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": -1}, "seed is -1"),
        ({"shuffle": "no"}, "shuffle is 'no'"),
        ({"predownload": 0}, "predownload is 0"),
        ({"start_method": "thread"}, "start_method is 'thread'; use one of None, fork"),
        ({"retry": 5}, "retry is 5"),
        ({"eos": 0}, "eos is 0"),
        ({"num_workers": True}, "num_workers is True"),
        ({"exchange_timeout_s": 0}, "exchange_timeout_s is 0"),
        (
            {"device_mesh": object(), "dp_rank": 0, "dp_world_size": 1},
            "device_mesh sets dp_rank and dp_world_size",
        ),
    ],
)
def test_an_argument_that_makes_no_sense_is_a_value_error_that_names_it(
    folder: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_loader(folder, **settings)


@pytest.mark.parametrize(
    "url", ["", " ", "s3://", "s3:///folder", "s3:/bucket/folder", "gs:bucket"]
)
def test_a_broken_location_is_refused_not_taken_for_a_folder(url: str) -> None:
    with pytest.raises(ValueError, match=r"empty|names no bucket|neither a path nor a URL"):
        make_loader(url)
    with pytest.raises(ValueError, match=r"empty|names no bucket|neither a path nor a URL"):
        convert_to_mds(iter(["a"]), url, processes=1)


def test_local_states_of_all_ranks_merge_and_others_do_not(folder: str) -> None:
    loaders = [make_loader(folder, dp_rank=rank, dp_world_size=3) for rank in range(3)]
    for loader in loaders:
        next(iter(loader))
    parts = [loader.local_state_dict() for loader in loaders]
    whole = merge_state_dicts(parts)
    assert merge_state_dicts(list(reversed(parts))) == whole
    single = make_loader(folder, batch_size=12)
    next(iter(single))
    assert whole == single.state_dict()
    with pytest.raises(StreamChangedError, match="leave lanes without a cursor"):
        merge_state_dicts(parts[:2])
    with pytest.raises(StreamChangedError, match="there are no local states"):
        merge_state_dicts([])
    next(iter(loaders[0]))
    with pytest.raises(StreamChangedError, match="rows differs among the local states"):
        merge_state_dicts([loaders[0].local_state_dict(), *parts[1:]])


def test_parts_of_ranks_that_communicate_merge_to_the_state_that_all_have(folder: str) -> None:
    leg = testing.Leg(ranks=3, batch_size=2)
    with testing._Ranks(lambda **rank: make_loader(folder, **rank), leg) as ranks:
        loaders = ranks.loaders
        ranks.start()
        assert len(ranks.next_batches()) == 3
        parts = [loader.local_state_dict() for loader in loaders]
        assert merge_state_dicts(parts) == loaders[0].state_dict() == loaders[2].state_dict()


def test_keys_that_are_no_text_are_refused(folder: str) -> None:
    loader = make_loader(folder)
    with pytest.raises(StreamChangedError, match=r"unknown fields \['x', 7, None\]"):
        loader.load_state_dict({**loader.state_dict(), 7: 0, None: 1, "x": 2})


def test_a_cursor_within_a_document_that_is_not_there_is_refused(tmp_path: Path) -> None:
    loader = make_loader(
        write_mds(tmp_path / "mds", random_documents(5, 13)), num_canonical_nodes=1
    )
    holes = [(1, 0)] + [(1, 3)] * 11
    with pytest.raises(
        StreamChangedError, match="cursors: lane 1 is within document 1, which does not exist"
    ):
        loader.load_state_dict({**loader.state_dict(), "cursors": table(*holes)})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"part": "1/2"}, None),
        ({"counts": "[["}, "counts: "),
        (
            {"cursors": table(*[(0, 0)] * 12)},
            "part: '1/2' has lanes that another local state also has",
        ),
        (
            {"cursors": table(*[(-7, 0)] * 12)},
            "leave lanes without a cursor|has lanes that another local state also has",
        ),
        ({"rows": 1 << 70}, "rows: "),
        ({"sources": []}, "sources: list"),
        ({"mixture": "other"}, "mixture differs among the local states"),
    ],
)
def test_damaged_parts_do_not_merge(
    folder: str, damage: dict[str, Any], message: str | None
) -> None:
    parts = [
        make_loader(folder, dp_rank=rank, dp_world_size=2).local_state_dict() for rank in range(2)
    ]
    parts[1] = {**parts[1], **damage}
    if message is None:
        assert merge_state_dicts(parts)["part"] == ""
        return
    with pytest.raises(StreamChangedError, match=message):
        merge_state_dicts(parts)


def test_a_part_given_twice_is_refused_for_it_would_count_twice(folder: str) -> None:
    parts = [
        make_loader(folder, dp_rank=rank, dp_world_size=2).local_state_dict() for rank in (0, 1, 1)
    ]
    with pytest.raises(
        StreamChangedError,
        match=r"part: '1/2' has lanes that another local state also has\. Give each rank's state once",
    ):
        merge_state_dicts(parts)


def test_rows_without_end_to_read_again_take_no_memory(folder: str) -> None:
    loader = make_loader(folder)
    loader.load_state_dict({**loader.state_dict(), "rows": 1 << 48})
    assert next(iter(loader.plan().replays())) == (0, 2_048)
