"""With `balance`, the ranks of a machine divide their rows of a step by work, and nothing else
changes: not the rows of a step, not the state."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import CloudLoader, Rows, Stream
from cloudload.batch import Batch
from cloudload.errors import DatasetError
from cloudload.forecast import plan_run
from cloudload.loading.delivery.rank_checks import list_facts
from cloudload.loading.preparation import _warn_once
from cloudload.order.ranks import StepShape
from cloudload.testing import Leg, check_worlds
from cloudload.tools.forecast.plan_report import describe_plan
from testkit.awkward import legs
from testkit.corpora import EOS, byte_tokenizer, random_documents, write_mds
from testkit.counted import write_counted
from testkit.examples import EXAMPLES
from testkit.loaders import list_settings, make_loader, ranks

SEQ_LEN = 64


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 300 documents, from a few tokens to several rows, with token lengths."""
    folder = tmp_path_factory.mktemp("counted") / "mds"
    documents = [
        text * (1 + 9 * (not number % 7))
        for number, text in enumerate(random_documents(7, 300, max_words=12))
    ]
    return write_counted(folder, documents, shard_bytes=4_000)


def open_world(data: Any, size: int, ranks_per_node: int, **options: Any) -> list[CloudLoader]:
    """Make the loaders of all ranks of a world, which cannot communicate."""
    given = {"seq_len": SEQ_LEN, "balance": "attention", "num_lanes": 24, **options}
    loaders = [make_loader(data, dp_rank=rank, dp_world_size=size, **given) for rank in range(size)]
    for rank, loader in enumerate(loaders):
        loader.set_world(rank, size, ranks_per_node=ranks_per_node)
    return loaders


def work_of(batch: Batch) -> np.ndarray[Any, Any]:
    """The sum of the squares of each row's segments."""
    work, padding = np.zeros(len(batch.rows), np.int64), np.full(len(batch.rows), SEQ_LEN)
    for row, *_, start, stop in batch.spans.tolist():
        work[row] += (stop - start) ** 2
        padding[row] -= stop - start
    return work + padding**2


@given(
    size=st.integers(1, 8),
    ranks_per_node=st.integers(1, 8),
    rows=st.integers(8, 40),
    micro_batch=st.none() | st.integers(1, 5),
    packing=st.sampled_from(["concat", "best_fit", "one_per_row"]),
)
@settings(max_examples=EXAMPLES)
def test_the_ranks_of_a_machine_differ_by_at_most_one_row(
    counted: str,
    *,
    size: int,
    ranks_per_node: int,
    rows: int,
    micro_batch: int | None,
    packing: str,
) -> None:
    """More precisely, by at most two rows of the machine that are in the same micro-batch."""
    steps = 3
    options = {"packing": packing, "batch_size": None, "global_batch_size": rows}
    loaders = open_world(counted, size, ranks_per_node, micro_batch_size=micro_batch, **options)
    machines: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
    found: dict[int, list[int]] = defaultdict(list)
    for rank, loader in enumerate(loaders):
        batches = list(loader.take(steps * loader.micro_batches))
        for step in range(steps):
            own = batches[step * loader.micro_batches : (step + 1) * loader.micro_batches]
            of_rank: list[int] = []
            for batch in own:
                real = batch.rows[batch.rows >= 0]
                assert (np.diff(real) > 0).all()
                found[step] += real.tolist()
                of_rank += work_of(batch).tolist()
            machines[step, host_of(rank, size, ranks_per_node)].append(of_rank)
    assert all(
        sorted(found[step]) == list(range(step * rows, (step + 1) * rows)) for step in range(steps)
    )
    shape = StepShape(rows, size, micro_batch)
    fillers = shape.num_batches * shape.batch_rows - shape.rank_rows
    for of_ranks in machines.values():
        sums = [sum(each) for each in of_ranks]
        # each rank also has as many fillers as its micro-batches need
        ordered = sorted((work for each in of_ranks for work in each), reverse=True)
        ordered = ordered[fillers * len(of_ranks) :]
        bounds = [len(of_ranks) * row for row in shape.divide(shape.rank_rows)]
        parts = [ordered[start:stop] for start, stop in pairwise(bounds)]
        assert max(sums) - min(sums) <= max(part[0] - part[-1] for part in parts)


def host_of(rank: int, size: int, ranks_per_node: int) -> int:
    return rank // min(size, ranks_per_node)


@given(
    chain=st.lists(legs(batches=st.integers(1, 3), nodes=(None, 2, 3)), min_size=2, max_size=4),
    packing=st.sampled_from(["concat", "best_fit"]),
)
@settings(max_examples=EXAMPLES)
def test_balanced_ranks_change_their_world_between_steps(
    counted: str, chain: list[Leg], packing: str
) -> None:
    make = ranks(counted, seq_len=SEQ_LEN, packing=packing, balance="attention", num_lanes=24)
    check_worlds(make, chain, restarts=False)


def test_a_balanced_batch_has_more_even_work_and_its_rows_can_be_traced(counted: str) -> None:
    sums: dict[str | None, list[int]] = {}
    for balance in (None, "attention"):
        loaders = open_world(counted, 4, 4, batch_size=8, balance=balance)
        batches = [next(iter(loader)) for loader in loaders]
        sums[balance] = [int(work_of(batch).sum()) for batch in batches]
    assert np.ptp(sums["attention"]) < 0.2 * np.ptp(sums[None])
    batch, loader = batches[1], loaders[1]
    assert batch.row_step == -1
    assert batch.rows.tolist() != list(range(1, 32, 4))
    for index, row in enumerate(batch.rows.tolist()):
        spans = loader.trace(batch, row=index)
        assert {span.row for span in spans} == {row}
    assert "balance attention among the 4 ranks of this node" in list_settings(loader)


def test_seeks_and_skips_keep_the_rows_of_a_step(counted: str) -> None:
    loaders = open_world(counted, 4, 2, batch_size=3)
    for loader in loaders:
        loader.seek(24)
        loader.skip(2)
    rows = [row for loader in loaders for row in next(iter(loader)).rows.tolist()]
    assert sorted(rows) == list(range(48, 60))
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)


def test_weights_of_a_mixture_change_between_balanced_steps(counted: str) -> None:
    streams = [Stream(counted, proportion=share, name=f"{share}") for share in (0.7, 0.3)]
    make = ranks(streams, seq_len=SEQ_LEN, num_lanes=24)
    whole = make(dp_rank=0, dp_world_size=1, batch_size=12, num_workers=0, exchange_every=1)
    loaders = open_world(streams, 4, 4, batch_size=3)
    found = []
    for loader in [whole, *loaders]:
        next(iter(loader))
        loader.set_weights({"0.7": 1, "0.3": 1})
        batch = next(iter(loader))
        found.append(dict(zip(batch.rows.tolist(), batch["input_ids"].tolist(), strict=True)))
    expected, *others = found
    assert {row: ids for each in others for row, ids in each.items()} == expected


def test_balance_needs_token_lengths(tmp_path: Path, counted: str) -> None:
    uncounted = write_mds(tmp_path / "mds", ["aaa", "bb"])
    options = {"balance": "attention", "batch_size": 2}
    with pytest.raises(
        DatasetError, match="balance needs token lengths to know the work of each"
    ) as no:
        make_loader(uncounted, **options)
    assert f"Run: cloudload count {uncounted} --tokenizer NAME" in str(no.value)
    assert "can also read the data without balance" in str(no.value)
    with pytest.raises(ValueError, match="lengths is 'off', but balance needs token lengths"):
        make_loader(counted, **options, lengths="off")
    with pytest.raises(ValueError, match=r"balance is 'tokens'\. Use one of None, attention"):
        make_loader(counted, balance="tokens")
    with pytest.raises(ValueError, match="Rows has no option balance"):
        Rows(counted, tokenizer="gpt2", seq_len=8, balance="attention")


@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(1, 4), (2, 2), (2, 3), (1, 7)])
def test_a_plan_knows_the_work_of_the_slowest_rank(
    counted: str, nodes: int, ranks_per_node: int
) -> None:
    steps, size = 5, nodes * ranks_per_node
    options = {"batch_size": None, "global_batch_size": 30, "packing": "best_fit"}
    plan = plan_run(
        counted,
        **dict[str, Any](tokenizer=byte_tokenizer(), eos=EOS, seq_len=SEQ_LEN, num_lanes=24),
        **dict[str, Any](options),
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        steps=steps,
        measure=False,
        balance="attention",
    )
    assert plan.balance is not None
    assert plan.balance.steps == steps
    work = {
        balance: np.array(
            [
                [int(work_of(batch).sum()) for batch in loader.take(steps)]
                for loader in open_world(counted, size, ranks_per_node, **options, balance=balance)
            ]
        )
        for balance in (None, "attention")
    }
    for balance, figure in ((None, plan.balance.dealt), ("attention", plan.balance.balanced)):
        assert figure.is_exact
        slowest = work[balance].max(axis=0) / work[None].mean()
        assert figure.value == pytest.approx(slowest.mean())
    shown = "\n".join(describe_plan(plan))
    assert "slowest rank     1." in shown
    assert "based on         5 steps" in shown


def test_a_plan_warns_that_balance_has_no_effect(counted: str) -> None:
    plan = plan_run(
        counted,
        **dict[str, Any](tokenizer=byte_tokenizer(), eos=EOS, seq_len=SEQ_LEN, batch_size=2),
        nodes=3,
        steps=2,
        measure=False,
        balance="attention",
    )
    assert plan.balance is None
    assert "balance has no effect with one rank on each node" in plan.warnings[0]


def test_a_balance_without_effect_is_logged(counted: str, caplog: pytest.LogCaptureFixture) -> None:
    for ranks_per_node, rows, why in (
        (1, 4, "each node has a single rank, and rows do not move between nodes"),
        (2, 1, "each rank has one row per step. Use a larger batch"),
        (2, 2, None),
    ):
        caplog.clear()
        _warn_once.cache_clear()
        first, *_ = open_world(counted, 4, ranks_per_node, batch_size=rows)
        with first:
            first.worker_plan()
        logged = [each for each in caplog.messages if "balance has no effect" in each]
        assert logged == ([f"balance has no effect, because {why}"] if why else [])


def test_all_ranks_must_balance(counted: str) -> None:
    facts = []
    for balance in (None, "attention"):
        with make_loader(counted, balance=balance) as loader:
            plan = loader.worker_plan()
        facts.append(list_facts(plan.inputs, plan.delivery, plan.share.world, plan.position))
    differing = {name for name in facts[0] if facts[0][name] != facts[1][name]}
    assert differing == {"balance"}
