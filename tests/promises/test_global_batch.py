"""With `global_batch_size`, a step has the same rows on any number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import CloudLoader, Stream
from cloudload.batch import Batch
from cloudload.config import alone
from cloudload.errors import WorkerError
from cloudload.forecast import plan_run
from cloudload.loading.delivery.run_log import RunLog
from cloudload.segments import IGNORED_LABEL
from cloudload.testing import Leg, assert_same_rows, run_leg
from cloudload.tools.provenance.state_run import start_run
from testkit.corpora import EOS, EOS_ID, byte_tokenizer, random_documents
from testkit.counted import write_counted
from testkit.examples import EXAMPLES
from testkit.loaders import list_settings, make_loader, ranks

WORLDS = st.sampled_from([1, 2, 3, 4, 5, 7, 12])


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 80 documents with token lengths."""
    folder = tmp_path_factory.mktemp("counted") / "mds"
    return write_counted(folder, random_documents(7, 80), shard_bytes=2_000)


def open_world(data: str, size: int, **options: Any) -> list[CloudLoader]:
    """Make the loaders of all ranks of a world."""
    given = {"batch_size": None, "global_batch_size": 10, **options}
    return [make_loader(data, dp_rank=rank, dp_world_size=size, **given) for rank in range(size)]


def rows_of_steps(loaders: Sequence[CloudLoader], steps: int) -> list[dict[int, list[int]]]:
    """The rows of the next steps, by their index in the run, from the batches of all ranks."""
    found: list[dict[int, list[int]]] = [{} for _ in range(steps)]
    for loader in loaders:
        num_batches = loader.micro_batches
        for number, batch in enumerate(loader.take(steps * num_batches)):
            for row, ids in zip(batch.rows.tolist(), batch["input_ids"].tolist(), strict=True):
                if row >= 0:
                    assert row not in found[number // num_batches]
                    found[number // num_batches][row] = ids
    return found


@given(
    global_batch=st.integers(12, 30),
    worlds=st.lists(WORLDS, min_size=1, max_size=3),
    micro_batch=st.none() | st.integers(1, 5),
    steps=st.integers(1, 3),
)
@settings(max_examples=EXAMPLES)
def test_steps_have_the_same_rows_on_every_world(
    counted: str, global_batch: int, worlds: list[int], micro_batch: int | None, steps: int
) -> None:
    """Each world continues from the state of the world before it."""
    total = steps * len(worlds)
    alone = rows_of_steps([make_loader(counted, batch_size=global_batch)], total)
    state, found = None, []
    for size in worlds:
        loaders = open_world(
            counted, size, global_batch_size=global_batch, micro_batch_size=micro_batch
        )
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        found += rows_of_steps(loaders, steps)
        states = [loader.state_dict() for loader in loaders]
        assert all(each == states[0] for each in states)
        state = states[0]
    assert found == alone


@given(
    global_batch=st.integers(7, 40),
    size=st.sampled_from([1, 3, 5, 7]),
    micro_batch=st.integers(1, 6),
    tail=st.sampled_from(["pad", "drop"]),
)
@settings(max_examples=EXAMPLES)
def test_an_epoch_ends_on_the_same_batch_of_every_rank_and_batches_have_one_shape(
    counted: str, global_batch: int, size: int, micro_batch: int, tail: str
) -> None:
    options = {"epochs": 1, "tail": tail, "micro_batch_size": micro_batch, "mask_edges": True}
    options["fields"] = ["flash_attention"]
    whole = make_loader(counted, batch_size=global_batch, epochs=1, tail=tail)
    expected = {row: ids for batch in whole for row, ids in by_row(batch).items()}
    rows: dict[int, list[int]] = {}
    for loader in open_world(counted, size, global_batch_size=global_batch, **options):
        batches = list(loader)
        assert len(batches) == len(loader) == len(whole) * loader.micro_batches
        for batch in batches:
            assert batch["input_ids"].shape == (loader.batch_size, 16)
            assert loader.batch_size <= micro_batch
            assert batch["cu_seq_lens_q"][-1] == batch["input_ids"].numel()
            is_filler = torch.from_numpy(batch.rows < 0)
            assert (batch["labels"][is_filler] == IGNORED_LABEL).all()
            assert not np.isin(batch.spans[:, 0], np.flatnonzero(batch.rows < 0)).any()
            rows |= by_row(batch)
        for step in range(0, len(batches), loader.micro_batches):
            filled = [
                len(np.unique(batch.spans[:, 0]))
                for batch in batches[step : step + loader.micro_batches]
            ]
            assert max(filled) - min(filled) <= 1, "fillers are spread over a step's batches"
    # with micro-batches, rows after the end are filler rows
    real = {row for row, ids in rows.items() if any(ids)}
    assert real == {row for row, ids in expected.items() if any(ids)}
    assert all(rows[row] == expected[row] for row in real)


STEPS = st.builds(
    Leg,
    ranks=st.sampled_from([1, 2, 3, 4, 6]),
    workers=st.integers(0, 2),
    batches=st.integers(1, 3),
    global_batch=st.integers(6, 20),
    micro_batch=st.none() | st.integers(1, 4),
    ranks_per_node=st.sampled_from([None, 1, 2, 3]),
)


@given(
    packing=st.sampled_from(["concat", "best_fit", "one_per_row"]),
    is_mixed=st.booleans(),
    has_lengths=st.booleans(),
    is_balanced=st.booleans(),
    epochs=st.none() | st.just(1),
    legs=st.lists(STEPS, min_size=1, max_size=3),
)
@settings(max_examples=EXAMPLES)
def test_a_chain_of_steps_reads_the_rows_of_one_rank(
    counted: str,
    *,
    packing: str,
    is_mixed: bool,
    has_lengths: bool,
    is_balanced: bool,
    epochs: int | None,
    legs: list[Leg],
) -> None:
    """With lengths, worlds need not divide the lanes. Without them, ranks exchange cursors, and a
    finite run ends when they find that their lanes are dry."""
    has_lengths = has_lengths or (is_mixed and epochs is not None)
    data: Any = counted
    if is_mixed:
        data = [Stream(counted, proportion=share, name=f"{share}") for share in (0.7, 0.3)]
    make = ranks(
        data,
        packing=packing,
        epochs=epochs,
        lengths="require" if has_lengths else "off",
        num_lanes=30 if has_lengths else 12,
        balance="attention" if has_lengths and is_balanced else None,
    )
    state = other = None
    for leg in [*legs, replace(legs[-1], ranks=4, batches=None if epochs else 2)]:
        assert leg.global_batch is not None
        rows, states = run_leg(make, leg, state)
        alone = Leg(batch_size=leg.global_batch, batches=leg.batches)
        expected, expected_states = run_leg(make, alone, other)
        assert_same_rows(
            [row for row in rows if not row.is_padding],
            [row for row in expected if not row.is_padding],
            f"{leg}",
        )
        state, other = states[-1], expected_states[-1]
        assert state == other


def by_row(batch: Batch) -> dict[int, list[int]]:
    """The token IDs of a batch's rows, by their index in the run."""
    rows = zip(batch.rows.tolist(), batch["input_ids"].tolist(), strict=True)
    return {row: ids for row, ids in rows if row >= 0}


@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
@pytest.mark.parametrize("workers", [0, 1])
def test_pad_id_is_the_only_id_of_padding_and_changes_nothing_else(
    counted: str, packing: str, workers: int
) -> None:
    """In rows, in tails, in rows after the end, and in filler rows."""
    options = {"packing": packing, "epochs": 1, "micro_batch_size": 4, "num_workers": workers}
    options["fields"] = ["segment_ids"]
    plain, padded = (
        [batch for loader in open_world(counted, 3, **options, pad_id=pad) for batch in loader]
        for pad in (0, EOS_ID)
    )
    num_padding = 0
    for before, now in zip(plain, padded, strict=True):
        is_padding = now["segment_ids"] == 0
        num_padding += int(is_padding.sum())
        assert (now["input_ids"][is_padding] == EOS_ID).all()
        assert (before["input_ids"][is_padding] == 0).all()
        assert torch.equal(now["input_ids"][~is_padding], before["input_ids"][~is_padding])
        assert torch.equal(now["labels"], before["labels"])
    assert num_padding > 16 * sum(int((batch.rows < 0).sum()) for batch in plain) > 0


def test_pad_id_must_be_in_the_vocabulary_and_may_change_on_resume(counted: str) -> None:
    with pytest.raises(ValueError, match="pad_id is 257, but token IDs are from 0 to 256"):
        make_loader(counted, pad_id=257)
    with pytest.raises(ValueError, match="pad_id is -1"):
        make_loader(counted, pad_id=-1)
    loader = make_loader(counted, packing="one_per_row")
    next(iter(loader))
    resumed = make_loader(counted, packing="one_per_row", pad_id=EOS_ID)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.state_dict() == loader.state_dict()


def test_the_state_within_a_step_is_the_state_before_it(counted: str) -> None:
    [loader] = open_world(counted, 1, micro_batch_size=3)
    assert (loader.batch_size, loader.micro_batches, loader.global_batch_size) == (3, 4, 10)
    batches, states = iter(loader), [loader.state_dict()]
    for _ in range(8):
        next(batches)
        states.append(loader.state_dict())
    assert states[0] == states[1] == states[2] == states[3] != states[4]
    assert states[4] == states[5] == states[6] == states[7] != states[8]
    assert [state["rows"] for state in states] == [0] * 4 + [10] * 4 + [20]
    assert loader.state_dict(lag=1) == states[7]
    resumed = open_world(counted, 1, micro_batch_size=3)[0]
    resumed.load_state_dict(states[6])
    assert rows_of_steps([resumed], 2) == rows_of_steps(open_world(counted, 1), 3)[1:]


def test_a_pass_that_stops_within_a_step_repeats_the_step(counted: str) -> None:
    [loader] = open_world(counted, 1, micro_batch_size=3)
    first = [by_row(batch) for batch in loader.take(2)]
    again = [by_row(batch) for batch in loader.take(4)]
    assert again[:2] == first
    assert loader.rows == 10


def test_skip_and_stop_every_count_steps(counted: str) -> None:
    [loader] = open_world(counted, 1, micro_batch_size=3, stop_every=2)
    assert len(loader) == 8
    loader.skip(1)
    assert loader.rows == 10
    assert len(list(loader)) == 4
    assert loader.is_at_stop
    assert len(list(loader)) == 8


def test_a_skip_within_a_step_skips_the_whole_step(counted: str) -> None:
    [loader] = open_world(counted, 1, micro_batch_size=3)
    batches = iter(loader)
    next(batches)
    loader.skip(2)
    assert loader.rows == 20
    rows = [row for _ in range(4) for row in by_row(next(batches))]
    assert rows == list(range(20, 30))
    assert loader.stats().skipped_rows == 20


def test_ranks_return_to_an_earlier_step_from_any_micro_batch(counted: str) -> None:
    [loader] = open_world(counted, 1, global_batch_size=12, micro_batch_size=2)
    batches = iter(loader)
    for _ in range(4 * loader.micro_batches + 5):
        next(batches)
    loader.set_world(0, 1, rows=12)
    assert loader.rows == 12
    assert next(batches).rows.tolist() == [12, 13]


def test_an_interrupt_before_a_micro_batch_is_recorded_loses_no_row(
    counted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [loader] = open_world(counted, 1, micro_batch_size=3)
    batches = iter(loader)
    next(batches)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunLog, "record", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    assert loader.rows == 0
    with pytest.raises(WorkerError, match="Iterate over the loader again to continue after the la"):
        next(batches)
    rows = [row for batch in loader.take(4) for row in by_row(batch)]
    assert rows == list(range(10))


def test_the_rows_of_a_step_that_was_begun_belong_to_the_next_step(counted: str) -> None:
    loader = make_loader(counted, batch_size=4)
    next(iter(loader))
    [resumed] = open_world(counted, 1, micro_batch_size=3)
    resumed.load_state_dict(loader.state_dict())
    for number, batch in enumerate(resumed.take(9)):
        own = batch.rows[batch.rows >= 0]
        assert set(resumed.steps_of(own).tolist()) == {2 + number // 4}


@pytest.mark.parametrize("move", [lambda loader: loader.seek(30), lambda loader: loader.close()])
def test_a_step_that_was_begun_is_not_continued_elsewhere(
    counted: str, move: Callable[[CloudLoader], None]
) -> None:
    [loader] = open_world(counted, 1, micro_batch_size=3)
    next(iter(loader))
    move(loader)
    first = loader.rows
    rows = [row for batch in loader.take(4) for row in by_row(batch)]
    assert rows == list(range(first, first + 10))


def test_worlds_without_lengths_need_only_share_the_lanes(folder: str) -> None:
    alone = rows_of_steps([make_loader(folder, batch_size=10)], 4)
    for size in (2, 3, 4, 6):
        assert rows_of_steps(open_world(folder, size), 4) == alone


def test_ranks_that_move_keep_the_global_batch(counted: str) -> None:
    [loader] = open_world(counted, 1)
    alone = rows_of_steps([loader], 4)
    loaders = open_world(counted, 4)
    found = rows_of_steps(loaders, 2)
    for rank, each in enumerate(loaders[:3]):
        each.set_world(rank, 3)
    assert found + rows_of_steps(loaders[:3], 2) == alone
    with pytest.raises(ValueError, match="global_batch_size=10, which stays the same in every wo"):
        loaders[0].set_world(0, 2, batch_size=5)
    with pytest.raises(ValueError, match="global_batch_size is 10, but there are 11 ranks"):
        loaders[0].set_world(0, 11)


def test_a_step_must_have_a_row_for_each_rank(counted: str) -> None:
    with pytest.raises(ValueError, match="global_batch_size is 2, but there are 3 ranks"):
        open_world(counted, 3, global_batch_size=2)


def test_the_rows_of_a_rank_are_described(counted: str) -> None:
    settings = list_settings(open_world(counted, 3, micro_batch_size=2)[0])
    assert "batch_size 4 rows per rank, or 1 less, in 2 batches of 2 rows" in settings
    assert "global_batch 10 rows on 3 ranks" in settings


def test_memory_is_checked_for_the_rows_of_a_step(counted: str) -> None:
    [loader] = open_world(counted, 1, micro_batch_size=10**12)
    assert (loader.batch_size, loader.micro_batches) == (10, 1)
    with pytest.raises(ValueError, match="Use a smaller seq_len, global_batch_size, or prefetch"):
        open_world(counted, 1, global_batch_size=10**12, micro_batch_size=1)


@pytest.mark.parametrize("options", [{}, {"batch_size": 4, "global_batch_size": 8}])
def test_one_size_of_a_batch_is_needed(folder: str, options: dict[str, Any]) -> None:
    sizes = {"batch_size": None, **options}
    with pytest.raises(ValueError, match=r"batch_size is .* Set one of them"):
        make_loader(folder, **sizes)


def test_tools_read_a_run_whose_options_have_a_global_batch(counted: str) -> None:
    options = {"tokenizer": byte_tokenizer(), "eos": EOS, "seq_len": 16, "num_lanes": 12}
    sizes = {"global_batch_size": 10, "micro_batch_size": 3}
    run = start_run(10, data=counted, **options, **sizes)
    with run.loader(**alone(10)) as loader:
        assert rows_of_steps([loader], 2) == rows_of_steps(open_world(counted, 1), 2)
    plan = plan_run(counted, **options, **sizes, epochs=1, nodes=1, ranks_per_node=7, measure=False)
    assert plan.steps.value == math.ceil(len(make_loader(counted, batch_size=1, epochs=1)) / 10)


class Model(torch.nn.Module):
    """A small model whose losses depend on every pair of tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Embedding(257, 8, dtype=torch.float64)
        self.out = torch.nn.Linear(8, 257, dtype=torch.float64)

    def forward(self, batch: Batch) -> torch.Tensor:
        """The sum of the losses of all trained tokens."""
        logits = self.out(self.embed(batch["input_ids"][:, :-1]).cumsum(1))
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum"
        )


def train(legs: list[tuple[int, int]], data: str, **options: Any) -> list[float]:
    """Train on legs of (ranks, steps), and return the loss of each step.

    All ranks are simulated in this process: their gradients are added, as an all-reduce does.
    """
    model, losses, state = Model(), list[float](), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for size, steps in legs:
        loaders = open_world(data, size, **options)
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        passes = [iter(loader) for loader in loaders]
        for _ in range(steps):
            total, count = 0.0, 0
            for batches in passes:
                for _ in range(loaders[0].micro_batches):
                    batch = next(batches)
                    loss = model(batch)
                    loss.backward()
                    total += float(loss.detach())
                    count += int((batch["labels"][:, 1:] != IGNORED_LABEL).sum())
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= count
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total / count)
        state = loaders[0].state_dict()
    return losses


def test_losses_on_64_then_63_then_7_ranks_are_those_of_an_uninterrupted_run(
    tmp_path: Path,
) -> None:
    data = write_counted(tmp_path / "mds", random_documents(5, 600))
    options = {"global_batch_size": 100, "num_lanes": 64, "seq_len": 32}
    whole = train([(1, 9)], data, **options)
    found = train([(64, 3), (63, 3), (7, 3)], data, **options, micro_batch_size=2)
    assert max(abs(one - other) for one, other in zip(whole, found, strict=True)) < 1e-9
    assert whole[-1] < whole[0] - 0.1
    assert not any(math.isnan(loss) for loss in found)
