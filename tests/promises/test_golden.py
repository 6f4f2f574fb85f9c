"""A run has the same rows in every release. Hashes pin the first 1,000 rows of each packing.

If a hash changes, runs that resume from an earlier release's state read different rows. Do not
change one without a new state version.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, Stream
from testkit import loaders
from testkit.corpora import random_documents, write_mds
from testkit.counted import count

TWO = {"num_canonical_nodes": 2}
GOLDEN: dict[str, tuple[dict[str, Any], str]] = {
    "concat": ({"packing": "concat", **TWO}, "66f5e4efbca4de0c"),
    "best_fit": ({"packing": "best_fit", **TWO}, "b518032290120ea6"),
    "one_per_row": ({"packing": "one_per_row", **TWO}, "b0b576655adfb1b0"),
    "one_per_row, overflow": (
        {"packing": "one_per_row", "overflow": "rows", **TWO},
        "741481d97a34d04c",
    ),
    "mixed": ({"packing": "best_fit", "mixed": True}, "990ac19b98896131"),
    "repeated": ({"repeat": 1.5, **TWO}, "57769374aa8851d3"),
    "to the end": ({"packing": "best_fit", "epochs": 1, **TWO}, "b518032290120ea6"),
    "many lanes to the end": (
        {"packing": "best_fit", "epochs": 1, "num_lanes": 300, **TWO},
        "6d3ccc94eb52f7d5",
    ),
    "mixed to the end": ({"mixed": True, "epochs": 1}, "1933d7afc2ce716f"),
    "one canonical node": ({}, "6057e9eccbc0784f"),
}
OLD_GOLDEN = {
    "best_fit": "19db67c29bcc95a3",
    "mixed": "c85ffe07db1dc00a",
    "to the end": "72f84a6ccdcc4563",
}
"""The hashes of runs of `GOLDEN` that began with a version whose states have no `fair_start`."""


@pytest.fixture(scope="module")
def folders(module_folder: Path) -> list[str]:
    return [
        write_mds(
            module_folder / f"{seed}",
            random_documents(seed, size, max_words=60),
            shard_bytes=20_000,
        )
        for seed, size in ((1, 1_500), (2, 200))
    ]


def open_golden(folders: list[str], tmp_path: Path, name: str) -> CloudLoader:
    settings = dict(GOLDEN[name][0])
    streams = [Stream(folders[0], repeat=settings.pop("repeat", None))]
    if settings.pop("mixed", False):
        shares = zip(folders, (2, 1), "ab", strict=True)
        streams = [Stream(url, proportion=share, name=name) for url, share, name in shares]
        if "epochs" in settings:
            settings["lengths"] = place = str(tmp_path / "lengths")
            for folder in folders:
                count(folder, out=place)
    settings = {"seq_len": 128, "batch_size": 100, "num_lanes": None, **settings}
    return loaders.make_loader(streams, local=tmp_path, **settings)


def hash_rows(loader: CloudLoader) -> str:
    digest = hashlib.sha256()
    for batch in loader.take(10):
        digest.update(batch["input_ids"].numpy().astype("<i8").tobytes())
        digest.update(batch["labels"].numpy().astype("<i8").tobytes())
        digest.update(batch.spans.astype("<i8").tobytes())
    assert loader.rows == 1_000
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("name", GOLDEN)
def test_the_first_thousand_rows_are_what_they_always_were(
    folders: list[str], tmp_path: Path, name: str
) -> None:
    assert hash_rows(open_golden(folders, tmp_path, name)) == GOLDEN[name][1]


@pytest.mark.parametrize("name", OLD_GOLDEN)
def test_a_run_that_began_without_a_fair_start_keeps_its_rows(
    folders: list[str], tmp_path: Path, name: str
) -> None:
    loader = open_golden(folders, tmp_path, name)
    state = loader.state_dict()
    assert state.pop("fair_start") == "sqrt"
    loader.load_state_dict(state)
    assert hash_rows(loader) == OLD_GOLDEN[name]
    assert "fair_start" not in loader.state_dict()
