"""The pages for users of other libraries are short, and their scripts convert what they say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from testkit import ROOT
from testkit.conversions import read_dataset
from tests.docs.test_blocks import blocks_of

PAGES = [
    f"docs/guides/from-{name}.md"
    for name in ["datasets", "torchdata", "litdata", "megatron", "webdataset"]
]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_both_loops_the_counterparts_and_what_the_other_does_better(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert len(text.splitlines()) <= 120
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings[0] == "## The same job"
    assert headings[-3:-1] == ["## What you write, and here", "## What a resume does"]
    assert headings[-1].endswith(" has, and cloudload does not")


class Samples:
    """A stand-in for LitData's `StreamingDataset`, which is not installed here."""

    def __init__(self, location: str, *, shuffle: bool) -> None:
        assert not shuffle
        self.location = location

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from ({"text": f"{self.location} {number}", "n": number} for number in range(30))


def test_the_script_for_litdata_converts_the_text_of_its_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    litdata: Any = ModuleType("litdata")
    litdata.StreamingDataset = Samples
    monkeypatch.setitem(sys.modules, "litdata", litdata)
    [script] = [code for _, code in blocks_of(PAGES[2]) if "import StreamingDataset" in code]
    exec(script.replace("s3://my-bucket", str(tmp_path)), {})
    found = read_dataset(str(tmp_path / "from-chunks"), tmp_path / "cache")
    assert [each["text"] for each in found] == [f"{tmp_path}/chunks {n}" for n in range(30)]
