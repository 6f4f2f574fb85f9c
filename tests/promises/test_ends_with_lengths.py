"""Finite runs have the same rows, states, statistics, and errors with and without token lengths."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import CloudLoader
from cloudload.errors import CacheError, CloudloadError
from cloudload.run.lengths import lane_walker
from cloudload.run.state import State
from cloudload.testing import Leg, Row, run_leg
from testkit.corpora import EOS, write_mds
from testkit.counted import count
from testkit.examples import EXAMPLES
from testkit.finite_runs import leave_out, uneven
from testkit.loaders import make_loader

CORPORA = {
    "uneven": uneven(1, 61),
    "very uneven": uneven(2, 40, most=90),
    "few": ["abcdefghij", "", "k"],
    "left out": [("-" if number % 3 else "") + "x" * number for number in range(40)],
    "none left": ["-a", "-bc", "-d"],
    "empty": [""] * 9,
}


@pytest.fixture(scope="module")
def folders(module_folder: Path) -> dict[str, Path]:
    """One dataset per corpus, with token lengths for runs with and without `leave_out`."""
    folders = {name: module_folder / name for name in CORPORA}
    for name, folder in folders.items():
        write_mds(folder, CORPORA[name], shard_bytes=400)
        for transform in (None, leave_out):
            count(folder, transform=transform)
    return folders


@dataclass(frozen=True)
class Part:
    """A part of a run, with the options that the next part may change."""

    leg: Leg
    seq_len: int
    has_lengths: bool


@dataclass(frozen=True)
class End:
    """The rows, states, and statistics of a part."""

    rows: list[Row]
    states: list[State]
    stats: list[dict[str, Any]]


PARTS = st.builds(
    Part,
    leg=st.builds(
        Leg,
        ranks=st.sampled_from([1, 2, 3, 6]),
        workers=st.integers(0, 2),
        batch_size=st.sampled_from([1, 2, 7]),
        batches=st.integers(0, 8),
    ),
    seq_len=st.sampled_from([8, 8, 8, 5, 30]),
    has_lengths=st.booleans(),
)
OPTIONS = st.fixed_dictionaries(
    {
        "packing": st.sampled_from(["concat", "concat", "cut", "rows", "best_fit"]),
        "epochs": st.integers(1, 3),
        "tail": st.sampled_from(["pad", "drop"]),
        "transform": st.sampled_from([None, leave_out]),
        "eos": st.sampled_from([None, EOS]),
        "min_tokens": st.sampled_from([0, 4]),
        "num_lanes": st.sampled_from([6, 12]),
        "shuffle_algo": st.sampled_from(["py1e", "seekable"]),
    }
)


def run_parts(folder: Path, options: dict[str, Any], parts: list[Part]) -> list[End] | str:
    """Run the parts in order until the data ends. If a part fails, return the error's text."""
    ends: list[End] = []
    for part in parts:
        loaders: list[CloudLoader] = []

        def make_rank(loaders: Any = loaders, part: Part = part, **rank: Any) -> CloudLoader:
            lengths = "require" if part.has_lengths else "off"
            own = {"seq_len": part.seq_len, "lengths": lengths}
            loader = make_loader(folder, **{**options, **own, **rank})
            loaders.append(loader)
            return loader

        try:
            rows, states = run_leg(make_rank, part.leg, ends[-1].states[-1] if ends else None)
        except CloudloadError as error:
            return f"{type(error).__name__}: {error}"
        kept = [{**state, "sources": ""} for state in states]
        stats = [{**asdict(loader.stats()), "delivery": None} for loader in loaders]
        ends.append(End(rows, kept, stats))
    return ends


@given(
    corpus=st.sampled_from(list(CORPORA)),
    options=OPTIONS,
    parts=st.lists(PARTS, min_size=1, max_size=3),
    scanned=st.sampled_from([0, 40, lane_walker.SCANNED_WITHOUT]),
)
@settings(max_examples=EXAMPLES)
def test_a_finite_run_ends_alike_with_lengths_and_without(
    folders: dict[str, Path], corpus: str, options: dict[str, Any], parts: list[Part], scanned: int
) -> None:
    options = dict(options)
    if options["packing"] in ("cut", "rows"):
        options |= {"packing": "one_per_row", "overflow": options["packing"]}
    parts[-1] = replace(parts[-1], leg=replace(parts[-1].leg, batches=None))
    plain = [replace(part, has_lengths=False) for part in parts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane_walker, "SCANNED_WITHOUT", scanned)
        patch.setattr(lane_walker, "SCANNED_WITH_TABLE", scanned)
        found = run_parts(folders[corpus], options, parts)
    expected = run_parts(folders[corpus], options, plain)
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
        return
    for number, (one, other) in enumerate(itertools.zip_longest(found, expected)):
        assert one.rows == other.rows, f"the rows of part {number} differ"
        for step, states in enumerate(itertools.zip_longest(one.states, other.states)):
            assert states[0] == states[1], f"the states after step {step} of part {number} differ"
        assert one.stats == other.stats, f"the statistics of part {number} differ"


@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
def test_a_seek_or_skip_into_the_tail_gives_the_state_that_reading_gives(
    folders: dict[str, Path], packing: Any
) -> None:
    def open_loader(lengths: str) -> CloudLoader:
        options = {"seq_len": 8, "num_lanes": 6, "batch_size": 4, "epochs": 2}
        return make_loader(folders["very uneven"], packing=packing, lengths=lengths, **options)

    reader = open_loader("off")
    for number, batch in enumerate(reader, 1):
        skipping, seeking = open_loader("require"), open_loader("require")
        skipping.skip(number)
        assert {**skipping.state_dict(), "skipped": ""} == reader.state_dict()
        seeking.seek(reader.rows)
        of_reading = {"batches": reader.state_dict()["batches"], "global_batch": 4}
        assert {**seeking.state_dict(), **of_reading} == reader.state_dict()
        assert batch.first_row == 4 * number - 4
    assert reader.state_dict()["tail"]


def test_a_seek_past_the_end_says_how_many_rows_the_run_has_with_both_values_of_seq_len(
    folders: dict[str, Path],
) -> None:
    def open_run(seq_len: int) -> CloudLoader:
        return make_loader(str(folders["uneven"]), epochs=1, batch_size=1, seq_len=seq_len)

    with open_run(8) as loader:
        list(loader.take(20))
        state = loader.state_dict()
    with open_run(16) as loader:
        loader.load_state_dict(state)
        list(loader)
        end = loader.rows
        assert end != loader.count_batches()
    with open_run(16) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ValueError, match=f"but the run has {end:,} rows"):
            loader.seek(end + 1)


def test_a_cache_folder_that_cannot_hold_lengths_is_named(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    loader = make_loader(str(folders["few"]), epochs=1, local=tmp_path / "file")
    with pytest.raises(CacheError, match=f"cannot use the cache folder {tmp_path}/file"):
        len(loader)
