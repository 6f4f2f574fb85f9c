"""Integers of other libraries mean the same as Python's, in every option and in every method.

`batch.rows` is an int64 array, so `loader.seek(batch.rows[-1] + 1)` passes a NumPy integer. A state
must not keep it: `torch.load(weights_only=True)` and JSON refuse it.
"""

from __future__ import annotations

import enum
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloudload import CloudLoader, Documents, FromStart, Rows, Stream
from cloudload.integrations.metrics import Monitor
from cloudload.losses import LossLog
from cloudload.run.state import State
from testkit.corpora import EOS, byte_tokenizer, random_documents
from testkit.counted import write_counted
from testkit.loaders import make_loader

INTEGERS = [np.int64, np.int32, np.uint8, torch.tensor]
Cast = Callable[[int], Any]


@pytest.fixture(scope="module")
def counted(module_folder: Path) -> str:
    """A dataset of 60 documents with token lengths."""
    return write_counted(module_folder, random_documents(7, 60), shard_bytes=2_000)


def check_plain(state: State) -> None:
    """Check that a state is saved by `torch` and JSON, and can be loaded from both."""
    assert {type(value) for value in state.values()} <= {str, int, bool, type(None)}
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == json.loads(json.dumps(state)) == state


def make_rows(counted: str, **options: Any) -> Rows:
    return Rows(counted, tokenizer=byte_tokenizer(), eos=EOS, seq_len=16, **options)


def seek(loader: CloudLoader, cast: Cast) -> State:
    loader.seek(cast(12))
    return loader.state_dict()


def skip(loader: CloudLoader, cast: Cast) -> State:
    loader.skip(cast(3))
    return loader.state_dict(cast(1))


def take(loader: CloudLoader, cast: Cast) -> State:
    assert len(list(loader.take(cast(3)))) == 3
    return loader.state_dict(cast(2))


def move(loader: CloudLoader, cast: Cast) -> State:
    list(loader.take(2))
    loader.set_world(cast(1), cast(2), rows=cast(8), batch_size=cast(3), ranks_per_node=cast(1))
    list(loader.take(1))
    return loader.state_dict()


def trace(loader: CloudLoader, cast: Cast) -> State:
    batch = next(iter(loader))
    assert loader.trace(batch, cast(1)) == loader.trace(batch, 1)
    return {"steps": loader.count_batches(cast(1))}


@pytest.mark.parametrize("cast", INTEGERS)
@pytest.mark.parametrize("use", [seek, skip, take, move, trace])
def test_a_method_takes_integers_of_other_libraries_and_the_state_is_that_of_plain_ones(
    counted: str, use: Callable[[CloudLoader, Cast], State], cast: Cast
) -> None:
    found, expected = (use(make_loader(counted), each) for each in (cast, int))
    assert found == expected
    check_plain(found)


@pytest.mark.parametrize("cast", INTEGERS)
def test_options_take_integers_of_other_libraries_and_the_state_is_that_of_plain_ones(
    counted: str, cast: Cast
) -> None:
    def run(cast: Cast) -> State:
        plain = {"seq_len": 16, "seed": 5, "open_rows": 4, "num_lanes": 6, "batch_size": 2}
        plain |= {"num_canonical_nodes": 2, "shuffle_block_size": 8, "min_tokens": 2, "epochs": 1}
        plain |= {"stop_every": 2, "dp_world_size": 2, "dp_rank": 1, "num_workers": 0}
        options = {name: cast(number) for name, number in plain.items()}
        streams = [Stream(counted, choose=cast(50), eos=cast(0))]
        loader = make_loader(streams, **options)
        assert sum(1 for _ in FromStart(loader)) == 2
        return loader.state_dict()

    assert run(cast) == run(int)
    check_plain(run(cast))


class Name(str, enum.Enum):
    """A name that `torch.load(weights_only=True)` refuses."""

    PACKING = "best_fit"
    COLUMN = "text"


def test_options_of_subclasses_of_text_and_bool_are_saved_as_plain_ones(counted: str) -> None:
    options = {"packing": Name.PACKING, "text_key": np.str_("text"), "shuffle": np.False_}
    loader = make_loader(counted, **options)
    list(loader.take(2))
    plain = make_loader(counted, packing="best_fit", shuffle=False)
    list(plain.take(2))
    assert loader.state_dict() == plain.state_dict()
    check_plain(loader.state_dict())


@pytest.mark.parametrize("cast", INTEGERS)
def test_rows_take_integers_of_other_libraries(counted: str, cast: Cast) -> None:
    rows = make_rows(counted, num_rows=cast(40))
    for row in (12, len(rows)):
        assert rows.state_dict(cast(row)) == rows.state_dict(row)
        check_plain(rows.state_dict(cast(row)))
    assert rows.trace(cast(3)) == rows.trace(3)
    assert rows[cast(3)]["input_ids"].tolist() == rows[3]["input_ids"].tolist()


WRONG = [True, np.True_, 16.0, "3", torch.tensor(True), np.array([1, 2])]


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_an_argument_that_is_not_an_integer_is_refused_by_its_name(
    counted: str, value: Any
) -> None:
    loader = make_loader(counted)
    list(loader.take(2))
    state = loader.state_dict()
    for name, call in (
        ("rows", lambda: loader.seek(value)),
        ("number", lambda: loader.skip(value)),
        ("number", lambda: loader.take(value)),
        ("lag", lambda: loader.state_dict(value)),
        ("epochs", lambda: loader.count_batches(value)),
        ("rank", lambda: loader.set_world(value, 2)),
        ("size", lambda: loader.set_world(0, value)),
        ("rows", lambda: loader.set_world(0, 2, rows=value)),
        ("batch_size", lambda: loader.set_world(0, 2, batch_size=value)),
        ("ranks_per_node", lambda: loader.set_world(0, 2, ranks_per_node=value)),
        ("dp_rank", lambda: make_loader(counted, dp_rank=value, dp_world_size=2)),
        ("dp_world_size", lambda: make_loader(counted, dp_rank=0, dp_world_size=value)),
        ("seed", lambda: make_loader(counted, seed=value)),
        ("stop_every", lambda: make_loader(counted, stop_every=value)),
        ("max_epochs", lambda: Stream(counted, max_epochs=value)),
        ("choose", lambda: Stream(counted, choose=value)),
        ("num_rows", lambda: make_rows(counted, num_rows=value)),
        ("flush_every", lambda: LossLog(loader, flush_every=value)),
        ("every", lambda: Monitor(loader, every=value)),
    ):
        with pytest.raises(ValueError, match=f"^{name}.* is .*Use a"):
            call()
    assert loader.state_dict() == state
    rows = make_rows(counted, num_rows=9)
    for read in (rows.state_dict, rows.trace, rows.__getitem__):
        with pytest.raises(TypeError, match=r"^row is .*Use an integer"):
            read(value)


def test_an_integer_out_of_bounds_is_refused_by_its_name(counted: str) -> None:
    loader = make_loader(counted)
    for name, call in (
        ("rows", lambda: loader.seek(-1)),
        ("rows", lambda: loader.seek(1 << 60)),
        ("number", lambda: loader.skip(-1)),
        ("number", lambda: loader.skip(1 << 60)),
        ("number", lambda: loader.take(-1)),
        ("lag", lambda: loader.state_dict(-1)),
        ("epochs", lambda: loader.count_batches(0)),
        ("every", lambda: Monitor(loader, every=0)),
    ):
        with pytest.raises(ValueError, match=f"^{name} is .*Use an integer"):
            call()
    assert loader.rows == 0


@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
def test_a_seek_past_the_end_of_the_run_is_refused_and_one_to_the_end_gives_its_state(
    counted: str, packing: str
) -> None:
    options: dict[str, Any] = {"packing": packing, "epochs": 1, "batch_size": 13}
    reader = make_loader(counted, **options)
    list(reader)
    end = reader.state_dict()
    rows = len(make_loader(counted, **{**options, "batch_size": 1}))
    assert reader.rows - 13 < rows < reader.rows
    moves: list[Callable[[CloudLoader, int], None]] = [
        lambda loader, row: loader.seek(row),
        lambda loader, row: loader.set_world(0, 1, rows=row),
    ]
    for move in moves:
        loader = make_loader(counted, **options)
        with pytest.raises(ValueError, match=f"rows is 1,000,000, but the run has {rows} rows"):
            move(loader, 1_000_000)
        assert loader.rows == 0
        move(loader, reader.rows)
        found = loader.state_dict()
        assert {**found, **{name: end[name] for name in ("batches", "global_batch")}} == end
        assert loader.stats().tokens == reader.stats().tokens > 0
        assert list(loader) == []


@pytest.mark.parametrize("number", [1 << 48, sys.maxsize, 10**30])
def test_more_documents_than_a_run_can_count_are_refused(
    counted: str, tmp_path: Path, number: int
) -> None:
    message = f"is {number:,}, and an epoch has 60 documents. Use at most 4,691,249,611,844"
    mixed = Stream(counted, proportion=1, max_epochs=number)
    for data, epochs in ((counted, number), (mixed, None)):
        with pytest.raises(ValueError, match=message):
            make_loader(data, epochs=epochs, local=tmp_path)
    with pytest.raises(ValueError, match=message):
        Documents(counted, epochs=number, local=tmp_path)
    loader = make_loader(counted, local=tmp_path)
    with pytest.raises(ValueError, match=message):
        loader.count_batches(number)
