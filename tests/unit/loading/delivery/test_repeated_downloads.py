"""A warning says how many machines download each shard when machines share canonical nodes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from cloudload.loading.delivery import start_log
from testkit.corpora import random_documents, write_mds
from testkit.loaders import make_loader


@pytest.fixture
def compressed(tmp_path: Path) -> str:
    """A local dataset whose shards are fetched into the cache, because they are compressed."""
    texts = random_documents(7, 60)
    return write_mds(tmp_path / "zstd", texts, shard_bytes=2_000, compression="zstd")


def find_warning(
    data: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    machines: int,
    num_canonical_nodes: int,
) -> str | None:
    """Return the warning that a loader of 12 lanes logs on the first of `machines`, or None."""
    for name, value in {"RANK": 0, "WORLD_SIZE": machines, "LOCAL_WORLD_SIZE": 1}.items():
        monkeypatch.setenv(name, str(value))
    caplog.set_level(logging.WARNING, "cloudload.start")
    make_loader(data, num_lanes=12, num_canonical_nodes=num_canonical_nodes).worker_plan()
    found = [text for text in caplog.messages if "canonical nodes" in text]
    return found[0] if found else None


@pytest.mark.parametrize(
    "run",  # number of machines, of canonical nodes, and of machines that download each shard
    [
        (4, 1, "4.0"),  # all machines read from the only canonical node
        (4, 2, "2.0"),
        (3, 4, "3.0"),  # each canonical node has 3 lanes, one per machine
        (4, 4, None),
        (2, 4, None),
        (1, 1, None),
    ],
)
def test_the_warning_says_how_many_machines_download_each_shard(
    compressed: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    run: tuple[int, int, str | None],
) -> None:
    machines, nodes, times = run
    monkeypatch.setattr(start_log, "_NOTABLE_BYTES", 1)
    warning = find_warning(
        compressed, caplog, monkeypatch, machines=machines, num_canonical_nodes=nodes
    )
    if times is None:
        assert warning is None
    else:
        assert warning is not None
        assert f"{machines} machines read the same canonical nodes" in warning
        assert f"downloaded by {times} machines on average" in warning
        assert warning.endswith(f"set num_canonical_nodes={machines}")


def test_small_datasets_and_local_shards_cause_no_warning(
    compressed: str, folder: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not find_warning(compressed, caplog, monkeypatch, machines=4, num_canonical_nodes=1)
    monkeypatch.setattr(start_log, "_NOTABLE_BYTES", 1)
    assert not find_warning(folder, caplog, monkeypatch, machines=4, num_canonical_nodes=1)
