"""The converter writes the same bytes as commit 38a3700, also if it is interrupted and resumed.

It refuses to resume a conversion that was interrupted at that commit. Only the hashes of shards'
samples, which that commit did not write, are left out of the comparison.

For each kind of input, `tests/data/conversion_38a3700.json` has the hash of the dataset, and the
journal of a conversion that was interrupted after three shards.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudload.convert import convert_to_mds
from cloudload.errors import ConvertError
from testkit import ROOT
from testkit.conversions import (
    FORMS,
    SETTINGS,
    convert_until,
    digest,
    documents,
    leave_out_samples_hashes,
    make_input,
)

DATA = ROOT / "tests" / "data"
GOLDEN: dict[str, dict[str, Any]] = json.loads((DATA / "conversion_38a3700.json").read_text())
STORED = DATA / "conversion_38a3700"
"""Inputs whose bytes depend on the versions of other libraries."""


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    """The name of an input format."""
    return str(request.param)


@pytest.fixture
def convert(form: str, tmp_path: Path) -> Callable[..., int]:
    """A function that converts the input to a folder, and returns the number of shards that the
    folder already had."""
    source, options = make_input(tmp_path / "in", form, documents(120))
    for path in (tmp_path / "in").iterdir():
        if (STORED / path.name).exists():
            shutil.copy(STORED / path.name, path)

    def convert(out: Path, stop: int = 0) -> int:
        settings = {**SETTINGS, **options, "compression": None}
        if stop:
            convert_until(stop, source(), out, **settings)
        return convert_to_mds(source(), out, **settings).resumed_shards

    return convert


def test_every_input_gives_the_same_bytes_also_when_an_interrupted_conversion_is_resumed(
    form: str, convert: Callable[..., int], tmp_path: Path
) -> None:
    for name, stored in (("whole", 0), ("out", 3)):
        assert convert(tmp_path / name, stored) == stored
        leave_out_samples_hashes(tmp_path / name)
        assert digest(tmp_path / name) == GOLDEN[form]["dataset"]


def test_a_conversion_that_was_interrupted_at_that_commit_is_refused(
    form: str, convert: Callable[..., int], tmp_path: Path
) -> None:
    convert(tmp_path / "whole")
    out = tmp_path / "out"
    (out / ".convert").mkdir(parents=True)
    for name, entry in GOLDEN[form]["journal"].items():
        (out / ".convert" / name).write_text(json.dumps(entry))
        if "shard" in entry:
            shard = entry["shard"]["raw_data"]["basename"]
            shutil.copy(tmp_path / "whole" / shard, out / shard)
    with pytest.raises(ConvertError, match=r"an earlier version .* \(--overwrite\)"):
        convert(out)
