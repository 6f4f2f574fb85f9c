"""One sentence says how long the training loop waited for the latest batches, and why."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from cloudload import CloudLoader
from cloudload.stats import STAGES, DeliveryMeter, RecentDelivery
from cloudload.testing import Leg, run_leg
from testkit.loaders import make_loader

TOO_FEW = "too few batches were delivered to say how long the training loop waited for data"


def spent(**seconds: float) -> tuple[float, ...]:
    return tuple(seconds.get(name, 0.0) for name in STAGES)


@pytest.mark.parametrize(
    ("recent", "sentence"),
    [
        (RecentDelivery(), TOO_FEW),
        (
            RecentDelivery(100, 42.0, 0.126, 0.1, spent(tokenize=9.0)),
            "the training loop waited for data for 0.3% of the last 100 batches "
            "(42.00 s in total); the rest is yours",
        ),
        (
            RecentDelivery(1, 2.0, 1.0, 0.2, spent(tokenize=3.0, fetch=0.5, idle=0.5)),
            "the training loop waited for data for 50.0% of the last batch (2.00 s in total), "
            "because its workers spent 75% of their time tokenizing; the rest is yours",
        ),
        (
            RecentDelivery(3, 2.0, 1.0, 0.6, spent(tokenize=3.0)),
            "the training loop waited for data for 50.0% of the last 3 batches (2.00 s in total), "
            "mostly for other ranks while the rows of this rank were ready; the rest is yours",
        ),
        (
            RecentDelivery(3, 2.0, 1.0, 0.0, spent(pack=0.5, idle=1.5)),
            "the training loop waited for data for 50.0% of the last 3 batches (2.00 s in total), "
            "although its workers mostly waited for it; the rest is yours",
        ),
        (
            RecentDelivery(3, 0.02, 0.01),
            "the training loop waited for data for 50.0% of the last 3 batches (0.02 s in total); "
            "the rest is yours",
        ),
        (RecentDelivery(2, 0.0, 0.0), "the training loop waited for data for 0.0% of the last 2"),
    ],
)
def test_the_sentence(recent: RecentDelivery, sentence: str) -> None:
    assert recent.describe().startswith(sentence)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that advances the meter's clock."""
    now = [1_000.0]
    monkeypatch.setattr("cloudload.stats.time.perf_counter", lambda: now[0])
    return lambda seconds: now.append(now.pop() + seconds)


def deliver(meter: DeliveryMeter, clock: Any, wait_s: float, step_s: float) -> None:
    meter.begin_wait()
    clock(wait_s)
    meter.end_wait()
    meter.arrive()
    clock(step_s)


def test_the_wait_for_the_first_batch_does_not_count(clock: Any) -> None:
    meter = DeliveryMeter()
    deliver(meter, clock, 30.0, 1.0)
    assert meter.stats().describe() == TOO_FEW
    deliver(meter, clock, 1.0, 50.0)
    recent = meter.stats().recent
    assert (recent.batches, recent.total_s, recent.stall_s) == (1, 2.0, 1.0)


def test_only_the_last_100_batches_count(clock: Any) -> None:
    meter = DeliveryMeter()
    for _ in range(50):
        deliver(meter, clock, 9.0, 1.0)
    for _ in range(99):
        deliver(meter, clock, 0.0, 1.0)
    recent = meter.stats().recent
    assert (recent.batches, recent.total_s, recent.stall_s) == (100, 109.0, 9.0)
    deliver(meter, clock, 0.0, 1.0)
    assert meter.stats().recent.stall_s == 0.0
    meter.forget_arrivals()
    assert meter.stats().describe() == TOO_FEW


def sleep_a_little(sample: dict[str, Any]) -> str:
    time.sleep(0.005)
    return str(sample["text"])


def read_text(sample: dict[str, Any]) -> str:
    return str(sample["text"])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_slow_transform_is_named(folder: str, num_workers: int) -> None:
    options: dict[str, Any] = {"transform": sleep_a_little, "seq_len": 256}
    with make_loader(folder, num_workers=num_workers, **options) as loader:
        for _ in loader.take(12):
            pass
        sentence = loader.stats().delivery.describe()
    assert re.search(
        r" (9\d|100)\.\d% of the last 11 batches .* time running the transform;", sentence
    )
    assert sentence in " ".join(str(loader.stats()).split())


def test_a_slow_loop_has_the_rest(folder: str) -> None:
    with make_loader(folder, num_workers=1) as loader:
        for _ in loader.take(30):
            time.sleep(0.05)
        recent = loader.stats().delivery.recent
    assert recent.batches == 29
    assert recent.stall_s < 0.4 * recent.total_s


def test_skipped_batches_and_new_passes_are_left_out(folder: str) -> None:
    with make_loader(folder, transform=sleep_a_little) as loader:
        list(loader.take(5))
        assert loader.stats().delivery.recent.batches == 4
        loader.skip(2)
        assert loader.stats().delivery.describe() == TOO_FEW
        list(loader.take(3))
        assert loader.stats().delivery.recent.batches == 2


def test_each_rank_has_its_own(folder: str) -> None:
    loaders: list[CloudLoader] = []

    def open_rank(**rank: Any) -> CloudLoader:
        loaders.append(make_loader(folder, **rank))
        return loaders[-1]

    run_leg(open_rank, Leg(ranks=3, batches=6))
    assert [loader.stats().delivery.recent.batches for loader in loaders] == [5, 5, 5]


def test_a_late_rank_is_the_reason_of_the_others(folder: str) -> None:
    loaders: list[CloudLoader] = []

    def open_rank(*, dp_rank: int, **rank: Any) -> CloudLoader:
        transform = sleep_a_little if dp_rank else read_text
        options: dict[str, Any] = {"transform": transform, "transform_id": "text", "seq_len": 256}
        loaders.append(make_loader(folder, **options, dp_rank=dp_rank, **rank))
        return loaders[-1]

    run_leg(open_rank, Leg(ranks=2, batches=12, batch_size=4))
    on_time, late = (loader.stats().delivery.describe() for loader in loaders)
    assert "mostly for other ranks while the rows of this rank were ready; the rest" in on_time
    assert "because its workers spent" in late


def test_frameworks_get_the_same_brief_numbers(folder: str) -> None:
    with make_loader(folder) as loader:
        list(loader.take(3))
        names = loader.stats().as_dict(brief=True)
    assert [*names][:3] == ["rows", "tokens", "delivery/stall_s"]
    assert not [name for name in loader.stats().as_dict() if "recent" in name]
