"""When a loader starts, the first process logs one line for each step."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from cloudload import CloudLoader, Stream
from cloudload.loading.delivery import start_log
from cloudload.loading.delivery.world import is_first_process
from cloudload.testing import Leg, run_leg
from testkit.corpora import random_documents, write_mds
from testkit.loaders import list_settings, make_loader
from tests.unit.rows.tokenization.test_framing import write_files

OPENED = [
    "index read in",
    "tokenizer ready in",
    "tokenizer backend:",
]
STARTED = ["order ready in", "first shard fetched in", "first batch, from row"]


@pytest.fixture
def compressed(tmp_path: Path) -> str:
    """A local dataset whose shards are fetched into the cache, because they are compressed."""
    texts = random_documents(7, 60)
    return write_mds(tmp_path / "zstd", texts, shard_bytes=2_000, compression="zstd")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "cloudload")
    return caplog


def find_line(log: pytest.LogCaptureFixture, begins: str) -> str:
    [line] = [line for line in log.messages if line.startswith(begins)]
    return line


def test_each_step_of_a_start_is_one_line_in_order(
    compressed: str, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    loader = make_loader(compressed, local=tmp_path / "cache")
    assert len(log.messages) == len(OPENED)
    list(loader.take(2))
    loader.load_state_dict(loader.state_dict())
    list(loader.take(2))
    for line, begins in zip(log.messages, OPENED + STARTED, strict=True):
        assert line.startswith(begins)

    index = json.loads((Path(compressed) / "index.json").read_text())["shards"]
    stored = sum(entry["zip_data"]["bytes"] for entry in index)
    said = f"60 samples, {len(index)} shards, {stored:,} bytes, 1 stream ({compressed})"
    assert find_line(log, "index").endswith(said)
    assert "; documents get no bos (" in find_line(log, "tokenizer ready")
    assert ": 12 lanes on 1 canonical node, shuffled by py1e" in find_line(log, "order")
    assert "from row 0:" in find_line(log, "first batch")
    url, size = re.findall(r": (.*), ([\d,]+) bytes$", find_line(log, "first shard"))[0]
    assert Path(url).stat().st_size == int(size.replace(",", ""))


def test_a_resumed_run_says_at_which_row_it_starts(
    compressed: str, log: pytest.LogCaptureFixture
) -> None:
    with make_loader(compressed) as loader:
        list(loader.take(3))
    log.clear()
    resumed = make_loader(compressed)
    resumed.load_state_dict(loader.state_dict())
    next(iter(resumed))
    assert "from row 12:" in find_line(log, "first batch")


def test_without_a_fetch_the_log_says_why(
    folder: str, compressed: str, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        log.clear()
        next(iter(make_loader(compressed, local=tmp_path / "cache")))
    # the first loader has already put these shards in the cache
    cached = f"no shard fetched yet, because the first shards are in {tmp_path / 'cache'}"
    assert cached in log.messages
    log.clear()
    next(iter(make_loader(folder)))
    assert "no shard fetched, because the data is local and read in place" in log.messages


def test_several_streams_are_one_line_and_the_first_three_are_named(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    names = ["web", "code", "books", "wiki", "news"]
    streams = [Stream(write_mds(tmp_path / name, random_documents(1, 20))) for name in names]
    make_loader(streams)
    said = ", ".join(str(tmp_path / name) for name in names[:3])
    line = find_line(log, "index")
    assert "100 samples, 5 shards, " in line
    assert line.endswith(f", 5 streams ({said}, 2 more)")


def test_token_ids_have_no_tokenizer_backend_or_framing_to_tell_of(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    tokens = [np.arange(20, dtype=np.uint16)] * 30
    data = write_mds(tmp_path / "ids", tokens, column="tokens", encoding="ndarray:uint16")
    loader = CloudLoader(data, seq_len=8, batch_size=2, num_workers=0, tokens_key="tokens")
    assert ": none, because all data is pre-tokenized;" in find_line(log, "tokenizer ready")
    assert find_line(log, "tokenizer backend") == (
        "tokenizer backend: none, because there is no text to tokenize"
    )
    assert "because there is no text to tokenize" in list_settings(loader)
    assert "(none" not in list_settings(loader)


@pytest.mark.parametrize("ranks", [2, 4])
def test_one_rank_logs_for_all(
    compressed: str, tmp_path: Path, log: pytest.LogCaptureFixture, ranks: int
) -> None:
    def make_rank(**place: Any) -> CloudLoader:
        return make_loader(compressed, **{**place, "local": tmp_path / "cache"})

    run_leg(make_rank, Leg(ranks=ranks, batches=2))
    begins = [*OPENED, "order ready in", "first batch"]
    assert [sum(line.startswith(each) for line in log.messages) for each in begins] == [1] * 5


@pytest.mark.parametrize(
    ("process", "dp_rank", "expected"),
    [
        (0, None, True),
        (5, None, False),
        (1, 0, False),  # process 1 shares rank 0 with process 0, as in tensor parallelism
        (0, 0, True),
        (0, 3, True),  # ranks may be numbered in a different order than processes
    ],
)
@pytest.mark.parametrize("is_initialized", [False, True])
def test_the_first_process_of_a_job_speaks_whatever_its_data_parallel_rank(
    monkeypatch: pytest.MonkeyPatch,
    process: int,
    dp_rank: int | None,
    expected: bool,
    is_initialized: bool,
) -> None:
    if is_initialized:
        dist.init_process_group("fake", store=FakeStore(), rank=process, world_size=8)
    else:
        monkeypatch.setenv("RANK", str(process))
        monkeypatch.setenv("WORLD_SIZE", "8")
    try:
        assert is_first_process(dp_rank) is expected
    finally:
        if is_initialized:
            dist.destroy_process_group()


@pytest.mark.parametrize(("dp_rank", "expected"), [(None, True), (0, True), (2, False)])
def test_without_a_launcher_data_parallel_rank_0_speaks(
    monkeypatch: pytest.MonkeyPatch, dp_rank: int | None, expected: bool
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert is_first_process(dp_rank) is expected


# ---------------------------------------------------------------- repeated downloads


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
    monkeypatch.setattr(start_log, "NOTABLE_BYTES", 1)
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
    monkeypatch.setattr(start_log, "NOTABLE_BYTES", 1)
    assert not find_warning(folder, caplog, monkeypatch, machines=4, num_canonical_nodes=1)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_rank_logs_the_framing_when_a_loader_is_created(
    folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, rank: int
) -> None:
    write_files(tmp_path, {"eos_token": "<|return|>"})
    with caplog.at_level(logging.INFO, "cloudload"):
        make_loader(folder, tokenizer=tmp_path, eos="auto", dp_rank=rank, dp_world_size=2).close()
    levels = [each.levelname for each in caplog.records if "<|return|>" in each.getMessage()]
    assert levels == ([] if rank else ["INFO", "WARNING"])
