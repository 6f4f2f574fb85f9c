"""A state is small, consists of plain JSON types, is the same on all ranks, and is a copy."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest
import torch

from cloudload.errors import RanksDisagreeError, StreamChangedError
from cloudload.run.position import MOST_ROWS
from testkit.corpora import random_documents, write_mds
from testkit.loaders import make_loader, open_ranks
from testkit.state_fields import residues, table


def test_a_state_is_plain_flat_json_with_the_same_keys_at_all_times(larger_folder: str) -> None:
    loader = make_loader(larger_folder)
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


def test_a_loader_continues_at_document_2_to_the_30_of_every_lane(larger_folder: str) -> None:
    loader = make_loader(larger_folder)
    loader.load_state_dict({**loader.state_dict(), "cursors": table(*[(1 << 30, 0)] * 12)})
    assert len(list(loader.take(2))) == 2


@pytest.mark.parametrize("num_lanes", [64, 960, 8192])
def test_a_state_takes_at_most_32_bytes_a_lane_and_2_kb(larger_folder: str, num_lanes: int) -> None:
    loader = make_loader(larger_folder, num_lanes=num_lanes, batch_size=256)
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) <= 32 * num_lanes + 2048


def test_asking_for_the_state_changes_nothing_and_gives_a_copy(larger_folder: str) -> None:
    loader = make_loader(larger_folder)
    next(iter(loader))
    first = loader.state_dict()
    first["rows"] = -1
    assert loader.state_dict() == loader.state_dict()
    assert loader.state_dict()["rows"] == 4


def test_right_after_a_load_the_state_is_the_one_loaded(larger_folder: str) -> None:
    loader = make_loader(larger_folder)
    list(loader.take(7))
    state = loader.state_dict()
    other = make_loader(larger_folder, batch_size=3, num_workers=1)
    other.load_state_dict(state)
    assert other.state_dict() == state
    iter(other)
    assert other.state_dict() == state
    assert other.rows == 28


def test_lag_gives_the_state_of_earlier_batches(larger_folder: str) -> None:
    loader = make_loader(larger_folder)
    states = [loader.state_dict()]
    for _ in zip(range(5), loader, strict=False):
        states.append(loader.state_dict())
        assert loader.state_dict(lag=1) == states[-2]
    assert loader.state_dict(lag=3) == states[-4]
    with pytest.raises(ValueError, match=r"lag is 4\. Use an integer from 0 to 3"):
        loader.state_dict(lag=4)
    with pytest.raises(ValueError, match="only 0 batches were delivered"):
        make_loader(larger_folder).state_dict(lag=1)


def test_what_the_user_left_open_comes_from_the_state(larger_folder: str) -> None:
    loader = make_loader(larger_folder, num_lanes=24, num_canonical_nodes=2, shuffle_block_size=33)
    next(iter(loader))
    other = make_loader(larger_folder, num_lanes=None)
    other.load_state_dict(loader.state_dict())
    assert other.num_lanes == 24
    assert next(iter(other))["input_ids"].tolist() == next(iter(loader))["input_ids"].tolist()


def test_other_data_is_refused_but_the_same_data_elsewhere_is_not(
    larger_folder: str, tmp_path: Path
) -> None:
    state = make_loader(larger_folder).state_dict()
    moved = write_mds(tmp_path / "moved", random_documents(5, 300), shard_bytes=4_000)
    make_loader(moved).load_state_dict(state)
    other = write_mds(tmp_path / "other", random_documents(6, 300), shard_bytes=4_000)
    with pytest.raises(StreamChangedError, match=r"data .*: saved"):
        make_loader(other).load_state_dict(state)


def test_open_rows_that_do_not_fit_are_an_error_when_their_lane_runs(larger_folder: str) -> None:
    loader = make_loader(larger_folder, packing="best_fit")
    too_long = residues(*[[0, 1, 1, 0, 99]] * 12)
    cursors = table(*[(5, 0)] * 12)
    loader.load_state_dict({**loader.state_dict(), "cursors": cursors, "residues": too_long})
    refused = "residues: lane 0 has open rows that do not fit 16 tokens"
    with pytest.raises(StreamChangedError, match=refused):
        next(iter(loader))


def test_a_refused_state_leaves_the_loader_as_it_was(larger_folder: str) -> None:
    loader = make_loader(larger_folder)
    batches = iter(loader)
    next(batches)
    before = loader.state_dict()
    with pytest.raises(StreamChangedError):
        loader.load_state_dict({**before, "seed": 3})
    assert loader.state_dict() == before
    next(batches)


def test_a_cursor_past_its_document_is_an_error_not_a_silent_skip(larger_folder: str) -> None:
    loader = make_loader(larger_folder)
    cursors = table(*[(0, 10**6)] * 12)
    moved = {"rows": 12, "table_rows": 12, "cursors": cursors}
    loader.load_state_dict({**loader.state_dict(), **moved})
    with pytest.raises(StreamChangedError, match="the cursor is at token 1000000 of document 0"):
        next(iter(loader))


def test_runs_shorter_than_a_window_still_get_on(larger_folder: str) -> None:
    state = make_loader(larger_folder, exchange_every=4).state_dict()
    for _ in range(5):
        loader = make_loader(larger_folder, exchange_every=4)
        loader.load_state_dict(state)
        list(loader.take(3))
        state = loader.state_dict()
        assert state["rows"] - state["table_rows"] < 4 * 4
    assert state["rows"] == 15 * 4


def test_rows_without_end_to_read_again_take_no_memory(larger_folder: str) -> None:
    loader = make_loader(larger_folder)
    loader.load_state_dict({**loader.state_dict(), "rows": 1 << 49})
    assert next(iter(loader.worker_plan().replays())) == (0, 2_048)


def test_a_run_at_the_highest_row_to_seek_can_be_saved_and_resumed(larger_folder: str) -> None:
    loader, resumed = make_loader(larger_folder), make_loader(larger_folder)
    highest = {"rows": MOST_ROWS, "table_rows": MOST_ROWS}
    loader.load_state_dict({**loader.state_dict(), **highest})
    with pytest.raises(ValueError, match="number is 1"):
        loader.skip(1)
    batches = iter(loader)
    next(batches)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.rows == MOST_ROWS + 4
    assert torch.equal(next(iter(resumed))["input_ids"], next(batches)["input_ids"])
    assert resumed.state_dict() == loader.state_dict()


# ---------------------------------------------------------------- ranks that cannot communicate


def test_a_rank_on_its_own_does_not_know_the_whole_state_after_a_seek_either(
    larger_folder: str,
) -> None:
    loaders = open_ranks(larger_folder, 2)
    for loader in loaders:
        list(loader.take(2))
        loader.seek(loader.rows)
        with pytest.raises(RanksDisagreeError, match=r"Run cloudload count once .* or initialize"):
            loader.state_dict()


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_of_a_launcher_that_cannot_communicate_hear_so_before_the_first_batch(
    larger_folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    for name, value in {"RANK": 1, "WORLD_SIZE": size}.items():
        monkeypatch.setenv(name, str(value))
    caplog.set_level(logging.WARNING)
    with make_loader(larger_folder) as loader:
        caplog.clear()
        batches = iter(loader)
        assert caplog.messages == []  # the script may still initialize torch.distributed
        next(batches)
        [warning] = caplog.messages
        assert f"so the {size} ranks of WORLD_SIZE cannot exchange cursors" in warning
        assert "Run cloudload count once, or call init_process_group" in warning
        next(batches)
        next(iter(loader))
        with pytest.raises(RanksDisagreeError, match="the ranks cannot communicate"):
            loader.state_dict()
    with make_loader(larger_folder, dp_rank=1, dp_world_size=size) as loader:
        next(iter(loader))
    [_, explicit] = caplog.messages
    assert explicit == warning.replace("WORLD_SIZE", "dp_world_size")
