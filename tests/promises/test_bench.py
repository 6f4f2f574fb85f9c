"""A loader alone is measured as a run would use it, and the report says what limits it."""

from __future__ import annotations

import json
import multiprocessing
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload.bench import LoaderSpeed, measure_loader
from cloudload.system import machine
from cloudload.tools import bench
from cloudload.tools.bench import Period, Reading, reading_alone
from testkit import ROOT
from testkit.corpora import EOS, byte_tokenizer

SYNTHETIC = "synthetic:?vocab_size=100&documents=500&mean_tokens=50"
OPTIONS: dict[str, Any] = {"tokenizer": byte_tokenizer(), "eos": EOS, "num_lanes": 12}


@pytest.fixture(autouse=True)
def short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_WARM_UP_S", 0.05)


def measure(data: Any, **options: Any) -> LoaderSpeed:
    return measure_loader(data, **{"seq_len": 16, "batch_size": 4, "seconds": 0.2, **options})


@pytest.fixture
def reading(folder: str, tmp_path: Path) -> Iterator[Reading]:
    options = {**OPTIONS, "data": folder, "seq_len": 16, "batch_size": 4, "local": tmp_path}
    with reading_alone({**options, "num_workers": 0, "epochs": 2}) as found:
        yield found


def sleep_a_little(sample: dict[str, Any]) -> str:
    time.sleep(0.001)
    return str(sample["text"])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_figures_agree(num_workers: int, tmp_path: Path) -> None:
    found = measure(SYNTHETIC, num_workers=num_workers, local=tmp_path)
    assert found.tokens == found.batches * 4 * 16
    assert found.seconds >= 0.2
    assert found.tokens_per_s == found.tokens / found.seconds
    assert found.batch_ms == pytest.approx(1_000 * found.seconds / found.batches)
    assert found.batch_ms_median <= found.batch_ms_p99
    assert found.first_batch_s > 0
    assert found.first_batch_bytes > 25_000
    assert found.num_workers == num_workers
    assert sum(found.stages.values()) == pytest.approx(1)
    assert 0 <= found.queue <= 1
    assert 0 < found.cores < 16


def test_a_slow_transform_is_the_bottleneck(folder: str, tmp_path: Path) -> None:
    options = {**OPTIONS, "transform": sleep_a_little, "local": tmp_path, "seq_len": 256}
    found = measure(folder, **options, num_workers=1, seconds=0.5)
    assert max(found.stages, key=found.stages.__getitem__) == "transform"
    assert re.match(
        r"The worker spent \d+% running the transform.*\. To read faster, make it faster, apply it "
        r"once with cloudload convert, or use more workers \(num_workers is 1; this process may ",
        found.bottleneck,
    )


def test_workers_that_wait_are_fast_enough(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    period, before = reading.read(), reading.loader.stats().delivery
    meter = reading.loader._reader.run.log.meter
    idle = meter._work._replace(past_ns=[0, 0, 0, 0, 0, 10**12])
    monkeypatch.setattr(meter, "_work", idle)
    found = bench._summarize(reading, period, before)
    assert found.bottleneck.endswith(
        "The workers are fast enough, and assembling batches takes the rest of the time"
    )


def test_a_number_of_steps_is_read_in_whole_blocks(tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": None, "global_batch_size": 8, "micro_batch_size": 2}
    found = measure(SYNTHETIC, **options, seconds=None, steps=3, local=tmp_path, num_workers=0)
    assert found.batches >= 3 * 4
    assert found.tokens == found.batches * 2 * 16


def test_only_the_first_of_several_ranks_is_measured(tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": None, "global_batch_size": 12, "num_workers": 0}
    found = measure(SYNTHETIC, **options, ranks=4, local=tmp_path)
    assert found.tokens == found.batches * 3 * 16
    assert "batches of 3 rows of 16 tokens" in found.description


def test_the_warm_up_is_not_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    periods: list[Period] = []
    read = Reading.read

    def note(reading: Reading, **least: Any) -> Period:
        periods.append(read(reading, **least))
        return periods[-1]

    monkeypatch.setattr(Reading, "read", note)
    found = measure(SYNTHETIC, num_workers=2, local=tmp_path)
    *warm_up, measured = periods
    assert sum(each.seconds for each in warm_up) >= 0.04
    assert (found.batches, found.seconds) == (len(measured.batch_s), measured.seconds)


def test_the_warm_up_takes_what_the_workers_have_read_ahead(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = iter([0.9, 0.5, 0.2, 0.0])

    def read_full_queues(_: Reading) -> Period:
        return Period(100, np.full(reading._block, 0.001), 0.1, next(queues))

    monkeypatch.setattr(Reading, "read", read_full_queues)
    monkeypatch.setattr(reading, "_blocks_ahead", 3)
    reading.warm_up(0.0)
    assert next(queues) == 0.0


def test_a_reading_ends_with_the_data(reading: Reading) -> None:
    assert not np.isnan(reading.first_batch_s)
    read = reading.read(least_s=60.0)
    assert read.tokens + reading.loader.batch_size * 16 >= reading.loader.stats().tokens
    assert 0 < read.seconds < 60
    assert len(reading.read().batch_s) == 0


def test_a_run_that_ends_is_measured_up_to_its_end(folder: str, tmp_path: Path) -> None:
    options = {**OPTIONS, "seq_len": 16, "local": tmp_path, "num_workers": 0, "epochs": 120}
    found = measure(folder, **options, seconds=60)
    assert found.seconds < 60
    assert found.batches > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": 1, "steps": 5}, "seconds is 1 and steps is 5. Set only one of them"),
        ({"seconds": 0}, "seconds is 0. Use a number of seconds above 0"),
        ({"seconds": None, "steps": 0}, "steps is 0"),
        ({"ranks": 0}, "ranks is 0"),
        ({"epochs": 1, "seq_len": 8_192}, "the data ends in the warm-up.* Omit epochs"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        measure(SYNTHETIC, **{"local": tmp_path, "num_workers": 0, **options})


def burn(seconds: float) -> None:
    while time.process_time() < seconds:
        pass
    time.sleep(600)


def wait_until(is_over: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_over():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_clock_counts_only_children_that_start_later() -> None:
    context = multiprocessing.get_context("fork")
    other, child = (context.Process(target=burn, args=(0.5,), daemon=True) for _ in range(2))
    other.start()
    wait_until(lambda: machine.cpu_seconds(other.pid or 0) > 0.3)
    clock = bench._CpuClock()
    assert clock.seconds() < time.process_time()
    child.start()
    wait_until(lambda: clock.seconds() > time.process_time() + 0.3)
    for each in (other, child):
        each.kill()
        each.join()
    assert clock.seconds() < time.process_time()


def test_the_command_has_the_loaders_options(folder: str, tokenizer_file: str, cli: Any) -> None:
    arguments = ["--data", folder, "--tokenizer", tokenizer_file, "--eos", EOS, "--seq-len", "32"]
    arguments += ["--batch-size", "2", "--packing", "best_fit", "--num-workers", "0"]
    lines = cli("bench", *arguments, "--seconds", "0.1").out.splitlines()
    assert lines[0] == f"{folder}: best_fit, batches of 2 rows of 32 tokens"
    names = ["first batch", "measured", "speed", "a batch", "CPU", "workers", "bottleneck"]
    assert [line[2:15].strip() for line in lines[1:8]] == names
    assert "The training process (num_workers=0) spent" in lines[7]
    assert max(map(len, lines[1:])) <= 80
    assert (
        "--seconds is 1.0 and steps is 1. Set only one of them"
        in cli("bench", *arguments, "--seconds", "1", "--steps", "1", status=1).err
    )


def test_the_command_in_a_shell(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cloudload", "bench", "--data", SYNTHETIC, "--seq-len", "16"]
    command += ["--batch-size", "4", "--steps", "50", "--local", str(tmp_path), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    found = json.loads(done.stdout)
    assert not done.stderr
    assert found["tokens"] == found["batches"] * 64 >= 50 * 64
    assert found["tokens_per_s"] == pytest.approx(found["tokens"] / found["seconds"])
    assert found["num_workers"] == 1
    assert {*found["stages"]} == {"fetch", "read", "transform", "tokenize", "pack", "idle"}
