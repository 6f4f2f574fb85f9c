"""Comparisons of a plan with its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.plan import RealRun, compare
from cloudload.forecast import RunPlan
from cloudload.forecast.figure import Figure


def check_figures(
    found: RunPlan, real: RealRun, settings: Mapping[str, Any]
) -> list[tuple[str, Figure, float]]:
    """Check that exact figures equal the run's, and that others are in range.

    Returns (name, figure, value) for each."""
    figures = list(compare(found, real))
    if "min_tokens" in settings:  # a run does not show where it reads documents that it filters
        figures = [each for each in figures if "working set" not in each[0]]
    wrong = [name for name, each, value in figures if each.is_exact and each.value != value]
    assert not wrong
    assert not [name for name, each, value in figures if not each.low <= value <= each.high]
    return figures
