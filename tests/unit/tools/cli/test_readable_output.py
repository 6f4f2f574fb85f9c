"""Numbers and lists that commands print fit a terminal, and say what they mean."""

from __future__ import annotations

import re

import pytest

from cloudload.provenance import describe_state
from cloudload.tools.cli.convert_command import _describe_time
from cloudload.tools.cli.count_command import _describe_lengths
from cloudload.tools.cli.state_command import list_lines
from cloudload.tools.convert.dry_run import Outline
from cloudload.tools.count.length_report import LengthBin, LengthStats
from testkit.loaders import make_loader


@pytest.mark.parametrize(
    ("seconds", "largest", "segments", "text"),
    [
        (0.2, 0.1, 2, "less than a second"),
        (40.0, 40.0, 1, "about 40 s on one core, because a segment is converted by one core"),
        (3.2, 0.3, 12, "about 3 s on one core"),
        (
            *(4_000.0, 61.0, 100),
            "about 4,000 s on one core; at least 61 s on many cores, because of the largest "
            "segment",
        ),
    ],
)
def test_the_plan_of_a_conversion_has_no_time_of_zero_seconds(
    seconds: float, largest: float, segments: int, text: str
) -> None:
    assert _describe_time(Outline((), 1, 1, segments, 1, seconds, largest)) == text


def test_the_percentiles_of_long_documents_fit_in_80_columns() -> None:
    names = ("1", "5", "25", "50", "75", "90", "95", "99", "99.9")
    percentiles = dict.fromkeys(names, 1_234_567)
    lines = _describe_lengths(
        LengthStats(123_456.7, 1_234_567, percentiles, (LengthBin(1, 2, 1, 1),), ())
    )
    assert max(map(len, lines)) <= 80
    shown = dict(re.findall(r"p([\d.]+) ([\d,]+)", "\n".join(lines)))
    assert shown == dict.fromkeys(names, "1,234,567")


def test_a_state_is_shown_with_the_meaning_of_its_fields(folder: str) -> None:
    with make_loader(folder, num_workers=0) as loader:
        lines = list(list_lines(describe_state(loader.state_dict())))
    [chosen] = [line for line in lines if line.startswith("  choose ")]
    [frames] = [line for line in lines if line.startswith("  bos_eos ")]
    assert chosen.endswith("  (samples in an epoch, by stream or corpus)")
    assert frames.endswith("  (IDs before and after a document, by stream)")
    assert max(map(len, lines[: lines.index("read from")])) <= 80
