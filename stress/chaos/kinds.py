"""The kinds of runs that campaigns cycle through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NONE, COUNTED = "no lengths", "counted"
"""Whether a campaign's datasets have token lengths."""

_ROWS = {"packing": "one_per_row", "overflow": "rows"}
_BEST_FIT = {"packing": "best_fit", "open_rows": 4}


@dataclass(frozen=True)
class Kind:
    """A kind of run, with the options that determine its rows."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    proportions: tuple[float, ...] | None = None

    @property
    def lengths(self) -> tuple[str, ...]:
        """The values of `Campaign.lengths` that are allowed. A finite mixture needs lengths."""
        is_finite_mixture = self.proportions is not None and "epochs" in self.settings
        return (COUNTED,) if is_finite_mixture else (NONE, COUNTED)


KINDS = (
    Kind("concat"),
    Kind("best_fit, finite mixture", {**_BEST_FIT, "epochs": 1}, (0.7, 0.3)),
    Kind("best_fit, mixed", _BEST_FIT, (0.7, 0.3)),
    Kind("best_fit, finite", {**_BEST_FIT, "epochs": 1}),
    Kind("one_per_row, seekable", {**_ROWS, "shuffle_algo": "seekable"}),
    Kind(
        "best_fit, finite mixture, first",
        {**_BEST_FIT, "epochs": 2, "stopping": "first"},
        (0.5, 0.5),
    ),
    Kind("concat, mixed, py1br", {"shuffle_algo": "py1br"}, (0.5, 0.5)),
    Kind("concat, finite", {"epochs": 2}),
    Kind("one_per_row, finite", {**_ROWS, "epochs": 1}),
    Kind("concat, finite mixture", {"epochs": 1}, (0.6, 0.4)),
)
