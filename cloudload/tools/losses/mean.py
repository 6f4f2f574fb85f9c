"""The mean loss of a source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MeanLoss:
    """The mean loss of a source over some steps."""

    tokens: int
    """Number of tokens that have a loss."""
    sum: float
    """The sum of the tokens' losses."""

    @property
    def mean(self) -> float:
        """The mean loss; NaN without tokens."""
        return self.sum / self.tokens if self.tokens else float("nan")
