"""A figure of a forecast: exact, or an estimate with its range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Student's t for a two-sided 95% interval, by degrees of freedom (0 to 10); 1.96 beyond 10
_STUDENT = (math.nan, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
_NORMAL = 1.96


@dataclass(frozen=True)
class Figure:
    """A number with its range at 95% confidence."""

    value: float
    low: float
    high: float
    """The bounds `low` and `high` are NaN if the range is unknown."""
    is_exact: bool = False
    """Whether a run has exactly this value, because it follows from the data and the options."""

    @staticmethod
    def exact(value: float) -> Figure:
        """Create an exact figure, whose range is a single value."""
        return Figure(value, value, value, is_exact=True)

    @staticmethod
    def around(value: float, error: float) -> Figure:
        """Create an estimate with a relative error of at most `error`, which is NaN if unknown."""
        return Figure(value, value * (1 - error), value * (1 + error))

    @staticmethod
    def measured(values: Sequence[float]) -> Figure:
        """Return the mean of measurements and its 95% interval (NaN for a single measurement)."""
        return Figure._summarize(values, 1 / max(1, len(values)), 0.0)

    @staticmethod
    def predicted(values: Sequence[float], error: float = 0.0) -> Figure:
        """Return the mean of values and a 95% interval for another value (NaN for a single value).

        `error` is a relative error that all values share.
        """
        return Figure._summarize(values, 1 + 1 / max(1, len(values)), error)

    @staticmethod
    def _summarize(values: Sequence[float], variance: float, error: float) -> Figure:
        """Return the mean with Student's interval. `variance` scales the values' variance."""
        mean, freedom = float(np.mean(values)), len(values) - 1
        if not freedom:
            return Figure.around(mean, math.nan)
        student = _STUDENT[freedom] if freedom < len(_STUDENT) else _NORMAL
        spread = student * float(np.std(values, ddof=1)) * math.sqrt(variance)
        return Figure.around(mean, math.hypot(spread / mean if mean else 0.0, error))

    @property
    def error(self) -> float:
        """The larger side of the range, relative to the value; NaN if the range is unknown."""
        if self.is_exact or self.low == self.high:
            return 0.0
        return max(self.high - self.value, self.value - self.low) / max(1e-300, abs(self.value))

    def scale(self, factor: float) -> Figure:
        """Return the figure multiplied by a positive factor."""
        return Figure(
            self.value * factor, self.low * factor, self.high * factor, is_exact=self.is_exact
        )

    def __str__(self) -> str:
        return self.with_unit("")

    def with_unit(self, unit: str, singular: str | None = None) -> str:
        """Format the figure and its range, such as `about 5 rows (± 1.2%)`."""
        shown = f"{self.value:,.4g}" if abs(self.value) < 100 else f"{self.value:,.0f}"
        if float(self.value).is_integer():
            shown = f"{self.value:,.0f}"
        if unit:
            shown += f" {singular if singular and self.value == 1 else unit}"
        return shown if self.is_exact else f"about {shown} ({self.describe_error()})"

    def describe_error(self) -> str:
        """Format the range relative to the value, such as `± 1.2%`."""
        if self.is_exact:
            return "exact"
        if math.isnan(self.error):
            return "error unknown"
        above, below = self.high - self.value, self.value - self.low
        whole = max(1e-300, abs(self.value))
        if abs(above - below) <= 1e-9 * whole:
            return f"± {self.error:.1%}"
        if not below:
            return f"up to +{above / whole:.1%}"
        if not above:
            return f"down to -{below / whole:.1%}"
        return f"-{below / whole:.1%} to +{above / whole:.1%}"
