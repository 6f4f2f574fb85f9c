"""`Rows` returns the rows of a loader with the same arguments, in any order of access."""

from __future__ import annotations

import gc
import json
import os
import pickle
import shutil
import threading
import time
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from cloudload import Rows
from cloudload.errors import CloudloadError, DatasetError
from testkit.corpora import EOS, byte_tokenizer, random_documents
from testkit.counted import write_counted
from testkit.counted_runs import CASES, SHARES, Shares, options_of, raise_unexpected, streams_of
from testkit.examples import EXAMPLES
from testkit.loaders import make_loader, rows_of

SETTINGS: dict[str, Any] = {"tokenizer": byte_tokenizer(), "eos": EOS, "num_lanes": 12}


def open_rows(data: Any, **options: Any) -> Rows:
    return Rows(data, **{**SETTINGS, "seq_len": 16, **options})


def first_rows(loader: Any, number: int) -> list[dict[str, list[int]]]:
    """Return the first `number` rows of a loader, as plain lists."""
    rows: list[dict[str, list[int]]] = []
    with loader:
        for batch in loader:
            lists = {name: tensor.tolist() for name, tensor in batch.items()}
            rows += [
                {name: values[row] for name, values in lists.items()}
                for row in range(len(batch.rows))
            ]
            if len(rows) >= number:
                break
    return rows[:number]


def plain(item: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: tensor.tolist() for name, tensor in item.items()}


def limit(access: Any, end: int) -> Any:
    """Keep only the requested rows that are before row `end`."""
    if isinstance(access, range):
        return range(access.start, min(access.stop, end), access.step)
    return [row for row in access if row < end]


@given(
    case=CASES,
    shares=SHARES,
    look=st.fixed_dictionaries(
        {
            "seq_len": st.sampled_from([7, 50, 120]),
            "mask_edges": st.booleans(),
            "pad_id": st.sampled_from([0, 255]),
        }
    ),
    accesses=st.lists(
        st.one_of(
            st.lists(st.integers(0, 299), min_size=1, max_size=9),
            st.builds(range, st.integers(0, 150), st.just(300), st.integers(1, 40)),
        ),
        min_size=1,
        max_size=6,
    ),
)
@settings(max_examples=EXAMPLES)
def test_any_access_gives_the_rows_that_a_loader_hands_out(
    corpora: list[Path],
    case: dict[str, Any],
    shares: Shares,
    look: dict[str, Any],
    accesses: list[Any],
) -> None:
    fields = ["segment_ids", "position_ids"]
    options = {**options_of(case, shares), **look, "fields": fields}
    data = streams_of(corpora, shares, case)
    try:
        expected = first_rows(make_loader(data, batch_size=case["num_lanes"], **options), 300)
    except DatasetError as error:
        if "no tokens" in str(error):
            return  # a lane has no tokens in a whole epoch
        raise
    rows = open_rows(data, **options)
    if options["epochs"] is not None:
        assert len(rows) == len(make_loader(data, batch_size=1, **options))
        accesses = [limit(access, len(rows)) for access in accesses]
    for access in accesses:
        if isinstance(access, range):
            found = [rows[row] for row in access]  # regular steps trigger read-ahead
        else:
            found = rows.__getitems__(access)
        assert [plain(item) for item in found] == [expected[row] for row in access]


def test_a_row_that_is_only_read_ahead_raises_no_error(counted_folder: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(counted_folder, broken)
    (broken / "shard.00003.mds").unlink()
    options: dict[str, Any] = {"packing": "one_per_row", "num_lanes": 1, "shuffle": False}
    rows = open_rows(str(broken), seq_len=50, **options)
    found: list[Any] = []
    with pytest.raises(CloudloadError, match=r"shard\.00003\.mds"):
        deque(map(found.append, rows))
    shards = json.loads((broken / "index.json").read_text())["shards"]
    before = sum(shard["samples"] for shard in shards[:3])
    assert before - 5 <= len(found) <= before  # empty documents have no row


@pytest.mark.parametrize(
    ("shuffle", "context"),
    [
        (False, "fork"),
        (True, "fork"),
        (True, "spawn"),
        pytest.param(False, "spawn", marks=pytest.mark.long),
    ],
)
def test_workers_of_a_data_loader_read_the_same_rows(
    counted_folder: str, shuffle: bool, context: str
) -> None:
    rows = open_rows(counted_folder, num_rows=90)
    first = rows[0]  # opens a reader, which a forked worker must not use
    expected = first_rows(make_loader(counted_folder), 90)
    assert plain(first) == expected[0]
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(
        rows, 6, shuffle, num_workers=2, multiprocessing_context=context, generator=generator
    )
    found = rows_of(loader)
    assert len(found) == 90
    wanted = [row["input_ids"] for row in expected]
    assert (found == wanted) != shuffle
    assert sorted(found) == sorted(wanted)


def test_rows_in_order_tokenize_each_document_once(
    counted_folder: str, samples_read: list[int]
) -> None:
    rows = open_rows(counted_folder, num_rows=300)
    tokens = sum(int((item["labels"] >= 0).sum()) for item in islice(rows, 300))
    assert tokens == 300 * 16
    first_epoch = samples_read[:150]
    assert len(set(first_epoch)) == len(first_epoch)


def test_a_row_far_into_the_run_reads_a_few_documents(
    counted_folder: str, samples_read: list[int]
) -> None:
    rows = open_rows(counted_folder)
    item = rows[1_000_000]
    assert len(samples_read) <= 17
    with make_loader(counted_folder, lengths="require") as loader:
        loader.seek(1_000_000)
        assert next(iter(loader))["input_ids"][0].tolist() == item["input_ids"].tolist()


def test_a_row_is_traced_to_its_documents(counted_folder: str) -> None:
    rows = open_rows(counted_folder)
    with make_loader(counted_folder) as loader:
        batch = next(iter(loader))
        assert rows.trace(2) == loader.trace(batch, row=2)


def test_what_belongs_to_the_training_loop_is_refused(counted_folder: str) -> None:
    for options, message in (
        ({"batch_size": 4}, "Rows has no option batch_size"),
        ({"fields": ["cu_seqlens"]}, "describe a whole batch, such as cu_seqlens"),
        ({"lengths": "off"}, "lengths is 'off', but Rows needs token lengths"),
        ({"lengths": "off", "epochs": 1}, "lengths is 'off', but Rows needs token lengths"),
        ({"num_rows": -1}, "num_rows is -1"),
    ):
        with pytest.raises(ValueError, match=message):
            open_rows(counted_folder, **options)
    with pytest.raises(TypeError, match="Use seq_len"):
        Rows(counted_folder, sequence_length=16, **SETTINGS)


def test_data_without_lengths_is_refused_with_the_command_that_counts_them(
    tmp_path: Path, counted_folder: str
) -> None:
    for name in os.listdir(counted_folder):
        if name != "lengths":
            (tmp_path / name).symlink_to(Path(counted_folder, name))
    for options in ({}, {"lengths": "auto"}):
        with pytest.raises(DatasetError, match="Run: cloudload count") as error:
            open_rows(str(tmp_path), **options)
        assert "off" not in str(error.value)
    with pytest.raises(DatasetError, match=r"lengths='auto', but Rows needs the lengths$"):
        open_rows(str(tmp_path))


def test_the_number_of_rows(counted_folder: str) -> None:
    rows = open_rows(counted_folder, num_rows=40)
    assert len(rows) == 40
    assert plain(rows[-1]) == plain(rows[39])
    assert len(list(rows)) == 40
    for row in (40, -41):
        with pytest.raises(IndexError, match="40 rows"):
            rows[row]
    with pytest.raises(TypeError):
        rows["first"]  # type: ignore[index]
    endless = open_rows(counted_folder)
    with pytest.raises(TypeError, match="num_rows"):
        len(endless)
    with pytest.raises(IndexError, match="endless"):
        endless[-1]


def test_rows_can_be_pickled_and_closed(counted_folder: str) -> None:
    rows = open_rows(counted_folder, num_rows=40)
    item = plain(rows[7])
    assert plain(pickle.loads(pickle.dumps(rows))[7]) == item
    rows.close()
    rows.close()
    assert plain(rows[7]) == item


@given(
    case=CASES.filter(lambda case: case["packing"] != "best_fit"),
    shares=st.sampled_from([(None,), (1.0, 3.0)]),
    seq_lens=st.sampled_from([(16, 16), (16, 50), (90, 33)]),
    moves=st.tuples(st.integers(0, 60), st.integers(0, 40)),
)
@settings(max_examples=EXAMPLES)
def test_rows_from_a_state_are_those_of_its_run_and_a_loader_continues_from_them(
    corpora: list[Path],
    case: dict[str, Any],
    shares: Shares,
    seq_lens: tuple[int, int],
    moves: tuple[int, int],
) -> None:
    """A run changes from a loader to `Rows` with another `seq_len` and weights, and back again."""
    options = options_of(case, shares)
    changed = [None if share is None else 2 / share for share in shares]
    first = make_loader(
        streams_of(corpora, shares, case), seq_len=seq_lens[0], batch_size=7, **options
    )
    try:
        list(first.take(moves[0]))
        state, data = first.state_dict(), streams_of(corpora, tuple(changed), case)
        loader = make_loader(data, seq_len=seq_lens[1], batch_size=1, **options)
        loader.load_state_dict(state)
        expected = rows_of(loader.take(moves[1] + 30))
        rows = open_rows(data, **options, seq_len=seq_lens[1], state=state)
    except CloudloadError as error:
        raise_unexpected(error)
        return
    assert rows.first_row == state["rows"]
    numbers = range(rows.first_row, rows.first_row + len(expected))
    found = [row["input_ids"].tolist() for row in rows.__getitems__(numbers)]
    assert found == expected
    if options["epochs"] is not None and len(expected) < moves[1] + 30:
        assert len(rows) == max(numbers.stop, rows.first_row)
    for row in {rows.first_row - 1} & {*range(rows.first_row)}:
        with pytest.raises(IndexError, match=f"the state, which is at row {rows.first_row}"):
            rows[row]
    middle = min(rows.first_row + moves[1], numbers.stop)
    last = make_loader(data, seq_len=seq_lens[1], batch_size=1, **options)
    last.load_state_dict(rows.state_dict(middle))
    rest = rows_of(last.take(numbers.stop - middle))
    assert rest == expected[middle - rows.first_row :]
    assert last.state_dict()["counts"] == loader.state_dict()["counts"]


def test_a_state_is_one_of_the_rows(counted_folder: str) -> None:
    rows = open_rows(counted_folder, num_rows=40)
    assert rows.state_dict(40)["rows"] == 40
    for row in (-41, 41):
        with pytest.raises(IndexError, match="40 rows"):
            rows.state_dict(row)
    with pytest.raises(ValueError, match="num_rows is 40, but the state is at row 40"):
        open_rows(counted_folder, num_rows=40, state=rows.state_dict(40))


def test_rows_that_are_forgotten_leave_no_thread(tmp_path: Path) -> None:
    data = write_counted(tmp_path / "mds", random_documents(1, 200), compression="zstd")
    before = set(threading.enumerate())
    for number in range(3):
        rows = open_rows(data, num_rows=400, local=tmp_path / str(number))
        for row in range(0, 400, 50):  # regular steps, which prefetch shards
            assert len(rows[row]["input_ids"]) == 16
        assert number or set(threading.enumerate()) - before
        del rows
        gc.collect()
    deadline = time.monotonic() + 60
    while [each for each in threading.enumerate() if each.name == "cloudload-fetch"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
