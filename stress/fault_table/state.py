"""The faults of the section `state`, which are damaged states."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from stress.fault_table.reads import OTHERS, Case, Outcome, State, Workspace


def changed_state(edit: Callable[[State], State], **settings: Any) -> Case:
    """Return a fault that loads a state with changed fields. `settings` are loader options."""

    def act(work: Workspace) -> Outcome:
        data = work.data()
        state = work.state(data, **settings)
        return work.read(data, state={**state, **edit(state)}, **settings)

    return act


def other_dataset(work: Workspace) -> Outcome:
    """Load the state of a run over a different dataset."""
    return work.read(work.data(), state=work.state(work.data(OTHERS)))


def _cursors(ordinal: int, offset: int, width: str = "<i4") -> str:
    return base64.b64encode(np.array([(ordinal, offset)] * 12, width).tobytes()).decode()


CASES: dict[str, Case] = {
    "truncated base64": changed_state(lambda state: {"cursors": state["cursors"][:-3]}),
    "truncated to valid base64": changed_state(lambda state: {"cursors": state["cursors"][:-32]}),
    "edited field (seed)": changed_state(lambda _: {"seed": 18}),
    "edited field (rows: -4)": changed_state(lambda _: {"rows": -4}),
    "field missing": lambda work: work.read(
        data := work.data(), state={"version": work.state(data)["version"]}
    ),
    "newer version": changed_state(
        lambda state: {"version": state["version"] + 1, "cloudload": "9.0"}
    ),
    "another dataset": other_dataset,
    "cursor beyond any run": changed_state(lambda _: {"cursors": _cursors(1 << 39, 0, "<i8")}),
    "cursor beyond its document": changed_state(lambda _: {"cursors": _cursors(0, 10**6)}),
    "zlib bomb in residues": changed_state(
        lambda _: {"residues": base64.b64encode(zlib.compress(bytes(1 << 26))).decode()},
        packing="best_fit",
    ),
}
