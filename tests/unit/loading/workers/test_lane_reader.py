"""A lane reads about as many documents as its next rows need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload.loading.workers.documents import open_cache, open_documents
from cloudload.loading.workers.lane_reader import LaneReader
from testkit.corpora import random_documents, write_mds
from testkit.loaders import make_loader


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"packing": "one_per_row", "seq_len": 1024}, 3),
        ({"packing": "one_per_row", "seq_len": 16}, 3),
        ({"packing": "one_per_row", "seq_len": 1024, "overflow": "rows"}, 3),
        ({"packing": "one_per_row", "seq_len": 16, "overflow": "rows"}, 3),
        ({"packing": "concat", "seq_len": 16}, 3),
        ({"packing": "concat", "seq_len": 1024}, 64),
    ],
)
def test_three_rows_of_each_lane_need_no_more_documents_than(
    tmp_path: Path, settings: dict[str, Any], most: int
) -> None:
    data = write_mds(tmp_path / "data", random_documents(1, 2_000))
    lanes = np.arange(12)
    with make_loader(data, local=tmp_path / "cache", **settings) as loader:
        plan = loader.worker_plan()
        cache = open_cache(plan)
        reader = LaneReader(plan, 0, open_documents(plan, cache))
        cut = reader.cut(lanes, np.full(12, 3), num_batches=1, is_awaited=False)
        cache.close()
    assert cut.num_rows.tolist() == [3] * 12
    assert reader.next_ordinals.max() <= most


def test_many_rounds_of_reading_do_not_overflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudload.loading.workers.lane_reader._MOST_DOCUMENTS_OF_LANE", 1)
    data = write_mds(tmp_path / "data", ["a"] * 4)
    options = {"seq_len": 2_200, "num_lanes": 1, "batch_size": 1}
    with make_loader(data, local=tmp_path / "cache", **options) as loader:
        batch = next(iter(loader.take(1)))
    assert batch["input_ids"].shape == (1, 2_200)
