"""The stage that takes workers the most time is named, with advice that fits the options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudload.loading import find_bottleneck
from cloudload.stats import DeliveryStats
from testkit.loaders import make_loader

IDLE = "The workers are fast enough. If batches arrive unevenly, use a larger prefetch_batches "
IDLE += "(now 4). Otherwise, steps are so short that assembling a batch takes this share of them"


def explain(folder: str, cache: Path, options: dict[str, Any], **spent: Any) -> Any:
    with make_loader(folder, local=cache, **{"num_workers": 2, **options}) as loader:
        plan = loader.worker_plan()
    before = DeliveryStats(0.0, 0, 0, 1_000_000, 0, pack_s=5.0)
    after = DeliveryStats(
        9.0, 0, 0, 21_000_000, 0, **{"pack_s": 5.0 + spent.pop("pack_s", 0.0), **spent}
    )
    return find_bottleneck(plan, before, after, 10.0)


@pytest.mark.parametrize(
    ("stage", "work", "advice"),
    [
        (
            "fetch",
            "90% waiting for shards (2.0 MB/s downloaded)",
            "The store is slower than training, so use more download_threads (now 4), a larger "
            "predownload, or data that is closer or compressed",
        ),
        ("read", "90% reading shards", "Reading shards is slower than training, so set local to a"),
        ("tokenize", "90% tokenizing", "Tokenization is slower than training, so use"),
        ("pack", "90% packing", "Packing is slower than training, so use more workers (num_work"),
        ("idle", "90% waiting for the training loop", IDLE),
    ],
)
def test_every_stage_has_advice(
    folder: str, tmp_path: Path, stage: str, work: str, advice: str
) -> None:
    spent = {f"{stage}_s": 18.0, "transform_s": 1.6, "unpack_s": 50.0}
    other = "pack_s" if stage != "pack" else "read_s"
    found = explain(folder, tmp_path, {}, **{**spent, other: 0.4})
    assert found.stage == stage
    assert found.work == f"The 2 workers spent {work}, 8% running the transform"
    assert found.advice.startswith(advice)
    assert found.remedy in found.advice


def test_only_the_time_between_the_statistics_counts(folder: str, tmp_path: Path) -> None:
    found = explain(folder, tmp_path, {"num_workers": 0}, tokenize_s=1.0)
    assert found.work == "The training process (num_workers=0) spent 100% tokenizing"
    assert "use num_workers=1 or more, so that rows are packed while the model" in found.remedy


def test_a_limited_cache_may_be_too_small(folder: str, tmp_path: Path) -> None:
    found = explain(folder, tmp_path, {"cache_limit": "1gb"}, fetch_s=1.0)
    assert ", a larger predownload, or a larger cache_limit, or data" in found.remedy
