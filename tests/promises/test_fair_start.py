"""The first rows of `best_fit` are as fair a sample of the documents as later rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload import CloudLoader, Stream
from cloudload.errors import StreamChangedError
from cloudload.provenance import compare_states, compare_with_loader, describe_state
from cloudload.run.lengths import lane_tables
from cloudload.run.saved import read_state
from cloudload.testing import Leg, Row, check_resume, check_worlds, run_leg
from testkit.corpora import random_documents, write_mds
from testkit.counted import count
from testkit.loaders import ranks
from testkit.state_fields import without

SEQ_LEN, NUM_LANES, NUM_DOCUMENTS = 64, 60, 4_000
MakeLoader = Callable[..., CloudLoader]


@pytest.fixture(scope="module")
def sizes() -> Any:
    """Sizes of documents in tokens: half of the tokens are in documents longer than a row."""
    drawn = np.random.default_rng(0).lognormal(3.3, 1, NUM_DOCUMENTS)
    return np.maximum(1, drawn.round()).astype(int)


@pytest.fixture(scope="module")
def data(module_folder: Path, sizes: Any) -> str:
    return write_mds(module_folder / "data", ["x" * size for size in sizes], shard_bytes=20_000)


PACKED: dict[str, Any] = {"packing": "best_fit", "seq_len": SEQ_LEN, "eos": None}


@pytest.fixture
def open_packed(data: str, tmp_path: Path) -> MakeLoader:
    size: dict[str, Any] = {"num_lanes": NUM_LANES, "batch_size": NUM_LANES}
    make: MakeLoader = ranks(data, **PACKED, **size, local=tmp_path / "cache")
    return make


def without_fair_start(state: dict[str, Any]) -> dict[str, Any]:
    """The state as a version before the rule saved it."""
    return without(state, "fair_start")


def measure(rows: list[Row], sizes: Any) -> list[float]:
    """Documents per row, share of tokens from long documents, mean size of documents that begin."""
    spans = np.array([span for row in rows for span in row.spans])
    whole, tokens = sizes[spans[:, 2]], spans[:, 4] - spans[:, 3]
    return [
        len(spans) / len(rows),
        tokens[whole > SEQ_LEN].sum() / tokens.sum(),
        whole[spans[:, 3] == 0].mean(),
    ]


def read_rows(open_packed: MakeLoader, state: dict[str, Any] | None, steps: int) -> list[Row]:
    return run_leg(open_packed, Leg(batch_size=NUM_LANES, batches=steps), state)[0]


def test_the_first_rows_are_as_fair_a_sample_as_later_ones(
    open_packed: MakeLoader, sizes: Any
) -> None:
    of_run = np.array([0, sizes[sizes > SEQ_LEN].sum() / sizes.sum(), sizes.mean()])
    of_run[0] = np.ceil(sizes / SEQ_LEN).sum() / (sizes.sum() / SEQ_LEN)
    ratios = measure(read_rows(open_packed, None, 10), sizes) / of_run
    # four standard errors of 1,300 random documents are 12 % of their mean size
    assert (np.abs(ratios - 1) < 0.12).all()
    old = without_fair_start(open_packed().state_dict())
    per_row, share, mean = measure(read_rows(open_packed, old, 10), sizes) / of_run
    assert (per_row < 0.8, share > 1.4, mean > 1.4) == (True, True, True)


def test_a_fair_start_resumes_at_every_row_on_every_world(open_packed: MakeLoader) -> None:
    make_small = partial(open_packed, num_lanes=6)
    check_resume(make_small, global_batch=5, num_batches=12)
    check_worlds(make_small, [Leg(2, 2, 5, 9), Leg(3, 1, 4, 7), Leg(6, 1, 1, 8), Leg(1, 0, 9, 9)])


def test_a_run_keeps_the_rule_that_it_began_with(open_packed: MakeLoader) -> None:
    new = open_packed().state_dict()
    old = without_fair_start(new)
    for start, rule in ((new, "sqrt"), (old, None)):
        whole, states = run_leg(open_packed, Leg(batch_size=NUM_LANES, batches=5), start)
        assert [state.get("fair_start") for state in states] == [rule] * 6
        assert read_rows(open_packed, states[2], 3) == whole[2 * NUM_LANES :]
    assert read_rows(open_packed, old, 5) != read_rows(open_packed, new, 5)


def test_other_packings_have_no_fair_start(open_packed: MakeLoader) -> None:
    for packing in ("concat", "one_per_row"):
        assert "fair_start" not in open_packed(packing=packing).state_dict()


def test_runs_with_and_without_a_fair_start_share_a_cache_and_jump_to_their_own_rows(
    open_packed: MakeLoader, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_tables, "KEPT_FROM_POSITIONS", 0)
    lengths = str(tmp_path / "lengths")
    count(data, out=lengths)
    make_known = partial(open_packed, num_lanes=2, lengths=lengths, batch_size=500)
    new = make_known().state_dict()
    found: list[Any] = []
    for start in (new, without_fair_start(new), new):
        expected = run_leg(make_known, Leg(batch_size=500, batches=4), start)[1][4]
        with make_known() as loader:
            loader.load_state_dict(start)
            loader.seek(2_000)
            state = loader.state_dict()
        found.append([state[name] for name in ("cursors", "residues", "counts")])
        assert found[-1] == [expected[name] for name in ("cursors", "residues", "counts")]
    assert found[0] == found[2] != found[1]
    assert len(list(tmp_path.glob("cache/**/lane-0.marks"))) == 2


def test_each_stream_of_a_mixture_starts_fairly_also_one_that_is_added_later(
    data: str, tmp_path: Path
) -> None:
    other = write_mds(tmp_path / "other", random_documents(3, 300), shard_bytes=4_000)

    streams = [Stream(url, name=name, proportion=1) for url, name in ((data, "a"), (other, "b"))]
    settings: dict[str, Any] = {**PACKED, "num_lanes": 6, "local": tmp_path / "cache"}
    make_mixed = ranks(streams, **settings)
    check_worlds(make_mixed, [Leg(2, 1, 5, 6), Leg(3, 2, 4, 5)])
    with ranks(streams[:1], **settings)(batch_size=60) as loader:
        list(loader.take(30))
        state = loader.state_dict()
    states = run_leg(make_mixed, Leg(batch_size=12, batches=2), state)[1]
    position = read_state(states[-1]).position
    waiting = [[len(residue) // 12 for residue in lanes] for lanes in position.residues]  # type: ignore[union-attr]
    assert min(waiting[0]) > 10
    assert max(waiting[1]) ** 2 <= position.cursors[1, :, 0].max()


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_run_that_continues_streaming_starts_fairly_where_it_starts(
    open_packed: MakeLoader, sizes: Any, epoch: int
) -> None:
    streaming = {"epoch": epoch, "sample_in_epoch": 960, "num_canonical_nodes": 1}

    def make_continued(**options: Any) -> CloudLoader:
        loader = open_packed(**options)
        loader.load_streaming_state({**streaming, "shuffle_seed": 17})
        return loader

    rows, states = run_leg(make_continued, Leg(batch_size=NUM_LANES, batches=10))
    assert measure(rows, sizes)[0] > 0.85 * measure(read_rows(open_packed, None, 10), sizes)[0]
    assert states[4]["fair_start"] == "sqrt"
    assert read_rows(open_packed, states[4], 6) == rows[4 * NUM_LANES :]


def test_a_rule_that_this_version_does_not_know_is_refused(open_packed: MakeLoader) -> None:
    state = {**open_packed().state_dict(), "fair_start": "cubic"}
    with pytest.raises(StreamChangedError, match="fair_start: 'cubic' is not one of"):
        open_packed().load_state_dict(state)


def test_a_difference_of_the_rule_is_shown_and_does_not_prevent_a_resume(
    open_packed: MakeLoader,
) -> None:
    state = open_packed().state_dict()
    [changed] = compare_states(without_fair_start(state), state)
    assert (changed.name, changed.before, changed.after) == ("fair_start", None, "sqrt")
    assert changed.rule == "may change: a resume keeps the rule that the run began with"
    for each, shown in ((state, "sqrt"), (without_fair_start(state), "none")):
        lines = [line.split() for line in describe_state(each).describe()]
        assert ["fair_start", shown] in lines
        with open_packed() as loader:
            loader.load_state_dict(each)
            next(iter(loader))
            assert loader.describe()["fair_start"] == each.get("fair_start")
    differences, refusal = compare_with_loader(without_fair_start(state), open_packed())
    assert ([each.name for each in differences], refusal) == (["fair_start"], None)
