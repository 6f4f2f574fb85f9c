"""Two nodes together download a finite epoch's shards about once, and tokenize its tail once."""

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
