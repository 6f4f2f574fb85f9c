"""A job that is killed in the tail of a finite run finishes on another world with the same rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cloudload.testing import Leg, run_leg
from testkit.corpora import write_mds
from testkit.finite_runs import trimmed
from testkit.torchrun import Corpus, Run, launch


def test_ranks_killed_in_the_tail_end_on_another_world_with_the_rows_of_one_process(
    tmp_path: Path,
) -> None:
    """One lane has only eos tokens and runs dry early, so most of the run is its tail.

    A rank then exchanges the sizes of 1,284 documents, for which the exchange must grow."""
    texts = ["" if number % 12 == 0 else str(number + 1_000) for number in range(4_800)]
    url = write_mds(tmp_path / "mds", texts, shard_bytes=20_000, compression="zstd")
    corpus = Corpus(url, url, tmp_path / "cache")
    chosen: dict[str, Any] = {"packing": "best_fit", "open_rows": 2, "shuffle": False}

    expected, states = run_leg(corpus.ranks(epochs=1, **chosen), Leg(batch_size=30, batches=None))
    killed_after = next(number for number, state in enumerate(states) if state["tail"]) + 4
    assert 2 < killed_after < len(states) - 5, "the kill must be in the middle of the tail"

    expected = trimmed(expected)
    killed = Run(3, 10, 2, killed_after, killed=True)
    found = launch(corpus, tmp_path, 0, killed, epochs=1, settings=chosen)
    state = json.loads((tmp_path / "state.json").read_text())
    assert state == {**states[killed_after - 1], "sources": state["sources"]}
    again = launch(corpus, tmp_path, 1, Run(2, 16, 2, 10_000), epochs=1, settings=chosen)
    assert all(again.get(row, ids) == ids for row, ids in found.items()), (
        "a row that is read again must not change"
    )
    found |= again
    assert min(again) == state["rows"] == 30 * (killed_after - 1)
    assert [found[row] for row in range(len(expected))] == [list(row.input_ids) for row in expected]
    assert len(found) - len(expected) < 32
    steps = {
        len((tmp_path / f"run-1-rank-{rank}.jsonl").read_text().splitlines()) for rank in range(2)
    }
    assert steps == {len(again) // 32}, "both ranks must end on the same step"
