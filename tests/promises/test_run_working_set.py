"""The working set computed from token lengths equals the one measured by reading the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload import CloudLoader
from cloudload.loading.delivery.working_set import measure_run
from cloudload.rows.packing.tables import CURSOR_OFFSET
from testkit.corpora import random_documents
from testkit.counted import write_counted
from testkit.loaders import ids_of, make_loader


@pytest.fixture(scope="module")
def zipped(module_folder: Path) -> str:
    """A dataset with token lengths and compressed shards, which a run must decompress into a
    cache."""
    documents = random_documents(5, 400, max_words=60)
    return write_counted(module_folder, documents, shard_bytes=3_000, compression="zstd")


def peak_of_reading(loader: CloudLoader, lanes: list[int], epochs: int) -> tuple[int, int]:
    """Measure, from the spans of all rows, the peak number of bytes of shards that the lanes use
    at one row. Returns the peak and the first row that has it."""
    corpus, uses = loader.recipe.corpus, dict[int, dict[int, list[int]]]()
    for batch in loader.take(loader.count_batches(epochs + 2)):
        for place, _, epoch, sample, *_ in batch.spans.tolist():
            lane_row, lane = divmod(int(batch.rows[place]), loader.num_lanes)
            if lane in lanes and epoch < epochs:
                [shard] = corpus.shards_of(np.array([sample])).tolist()
                uses.setdefault(shard, {}).setdefault(epoch, []).append(lane_row)
    in_use: dict[int, int] = {}
    for shard, by_epoch in uses.items():
        rows = {row for used in by_epoch.values() for row in range(min(used), max(used) + 1)}
        for row in rows:
            size = corpus.datasets[0].shards[shard].raw.bytes
            in_use[row] = in_use.get(row, 0) + size
    peak = max(in_use.values())
    return peak, min(row for row, size in in_use.items() if size == peak)


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 1},
        {"epochs": 3, "shuffle_algo": "seekable", "num_canonical_nodes": 4},
        {"epochs": 2, "packing": "one_per_row", "overflow": "rows", "num_canonical_nodes": 2},
        {"epochs": 2, "num_canonical_nodes": 12, "shuffle_block_size": 20},
    ],
    ids=["concat", "seekable", "one_per_row", "narrow"],
)
@pytest.mark.parametrize("lanes", [list(range(12)), [1, 5, 9]], ids=["all", "some"])
def test_the_working_set_from_lengths_is_that_of_reading(
    zipped: str, tmp_path: Path, options: dict[str, Any], lanes: list[int]
) -> None:
    options = dict(options)
    epochs = options.pop("epochs")
    loader = make_loader(zipped, local=tmp_path, seq_len=64, **options)
    lengths = loader._run.lengths
    assert lengths is not None
    found = measure_run(lengths, loader.worker_plan().position, np.array(lanes), epochs - 1)
    peak, lane_row = peak_of_reading(loader, lanes, epochs)
    assert (found.bytes, found.row) == (peak, lane_row * loader.num_lanes)


def test_it_counts_rows_from_the_middle_of_a_document_of_several_rows(
    zipped: str, tmp_path: Path
) -> None:
    options = {"seq_len": 16, "packing": "one_per_row", "overflow": "rows"}
    loader = make_loader(zipped, local=tmp_path, batch_size=12, **options)
    while not (cursors := loader.worker_plan().position.cursors)[0, :, CURSOR_OFFSET].all():
        loader.skip(1)
    lengths = loader._run.lengths
    assert lengths is not None
    found = measure_run(lengths, loader.worker_plan().position, np.arange(12), 0)
    rows = loader.rows
    peak, lane_row = peak_of_reading(loader, list(range(12)), 1)
    assert cursors[0, 0, CURSOR_OFFSET] % 16 == 0
    assert (found.bytes, found.row) == (peak, lane_row * 12)
    assert lane_row * 12 >= rows


def test_a_limit_below_the_later_working_set_is_warned_of_and_changes_nothing(
    zipped: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"num_workers": 1, "download_threads": 1, "num_canonical_nodes": 12}
    options |= {"shuffle_block_size": 20, "epochs": 3, "seq_len": 64}
    start = make_loader(zipped, local=tmp_path / "a", **options)
    needed = start.describe()["working_set_bytes"]
    rows = ids_of(start)
    for limit, is_warned in ((needed, True), (10 * needed, False)):
        caplog.clear()
        local = tmp_path / f"{limit}"
        with make_loader(zipped, local=local, cache_limit=limit, **options) as loader:
            assert ids_of(loader) == rows
        found = [each for each in caplog.messages if "lanes with short documents" in each]
        assert len(found) == is_warned
        if is_warned:
            assert f"cache_limit {needed:,} is below the" in found[0]
