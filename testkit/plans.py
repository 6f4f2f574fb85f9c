"""Comparison of the forecast of a run with the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.plan import RealRun, compare
from cloudload.forecast import RunPlan
from cloudload.tools.forecast.result import Figure


def check_figures(
    found: RunPlan, real: RealRun, settings: Mapping[str, Any]
) -> list[tuple[str, Figure, float]]:
    """Check that the plan's exact figures equal the run's, and that its estimates are in range.

    Returns (name, planned figure, value in the run) for each figure.
    """
    figures = list(compare(found, real))
    if "min_tokens" in settings:  # a run does not record where it reads filtered documents
        figures = [each for each in figures if "working set" not in each[0]]
    wrong = [each for each in figures if each[1].is_exact and each[1].value != each[2]]
    assert not wrong, wrong
    outside = [each for each in figures if not each[1].low <= each[2] <= each[1].high]
    assert not outside, outside
    return figures
