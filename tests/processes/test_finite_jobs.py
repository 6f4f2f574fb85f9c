"""Real ranks end a finite run with the rows of one process. Two nodes together download its shards
about once, and a job that is killed in its tail finishes on another world."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cloudload.testing import Leg, run_leg
from testkit.corpora import random_documents, write_mds
from testkit.counted import count
from testkit.fault_proxy import FaultProxy
from testkit.finite_runs import trimmed
from testkit.torchrun import Corpus, Run, launch

DOCUMENTS, SHARD_BYTES = 1_600, 4_000
SETTINGS: dict[str, Any] = {"num_canonical_nodes": 2, "shuffle_block_size": 100}


@pytest.mark.parametrize("lengths", ["off", "require"])
@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_two_nodes_download_the_shards_of_a_finite_epoch_about_once(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, lengths: str, packing: str
) -> None:
    """A row of the tail has documents from the shards of both nodes, so the nodes must exchange
    tokens."""
    documents = random_documents(11, DOCUMENTS)
    write_mds(s3_url, documents, shard_bytes=SHARD_BYTES, compression="zstd")
    if lengths == "require":
        count(s3_url)
    corpus = Corpus(s3_url, s3_url, tmp_path / "cache-{node}")
    settings = {**SETTINGS, "packing": packing, "lengths": lengths}

    rows, _ = run_leg(corpus.ranks(epochs=1, **settings), Leg(batch_size=8, batches=None))
    expected = [list(row.input_ids) for row in rows]
    s3_proxy.set_faults([])
    found = launch(corpus, tmp_path, 0, Run(2, 4, 2, 10_000, nodes=2), epochs=1, settings=settings)
    assert [found[row] for row in range(len(expected))] == expected
    state = json.loads((tmp_path / "end-0.json").read_text())["state"]
    assert state["tail"], "the run must have a tail"

    shards = Counter(
        request.line.split()[1] for request in s3_proxy.requests(r"^GET .*shard\.\d+\.mds")
    )
    assert len(shards) > 20, "more than 20 shards must be downloaded"
    again = [url for url, number in shards.items() if number > 1]
    assert len(again) <= 1, (
        "only the shard at the border of the canonical nodes may be downloaded twice"
    )


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
