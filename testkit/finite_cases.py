"""Hypothesis strategies for tiny finite runs, and for the worlds that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from cloudload.testing import Leg
from testkit.corpora import EOS
from testkit.finite_runs import PACKINGS, Packing, leave_out


@dataclass(frozen=True)
class Case:
    """A corpus in which some documents are left out, and the legs of a run that reads it."""

    documents: tuple[str, ...]
    settings: dict[str, Any]
    legs: tuple[Leg, ...]


@st.composite
def cases(draw: st.DrawFn, packings: Sequence[Packing] = PACKINGS) -> Case:
    """Corpora of 1 to 25 documents of 10 kinds, so that full rows and dry lanes are likely."""
    texts = st.sampled_from(
        ["", "-", "a", "bb", "cccc", "d" * 7, "e" * 8, "f" * 9, "-" * 9, "g" * 40]
    )
    lanes = draw(st.sampled_from([1, 2, 3, 4, 6, 12]))
    chosen = {
        "eos": draw(st.sampled_from([EOS, None])),
        "seq_len": draw(st.sampled_from([1, 3, 8, 9, 16])),
        "num_lanes": lanes,
        "epochs": draw(st.integers(1, 3)),
        "shuffle": draw(st.booleans()),
        **draw(st.sampled_from(packings)),
        "open_rows": draw(st.integers(1, 3)),
        "min_tokens": draw(st.sampled_from([0, 0, 1, 3])),
        "transform": leave_out,
    }
    legs = [
        Leg(
            draw(st.sampled_from([ranks for ranks in (1, 2, 3, 4, 6) if lanes % ranks == 0])),
            draw(st.integers(0, 3)),
            draw(st.integers(1, 4)),
            draw(st.integers(1, 4)),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    return Case(
        tuple(draw(st.lists(texts, min_size=1, max_size=25))),
        chosen,
        (*legs[:-1], replace(legs[-1], batches=None)),
    )
