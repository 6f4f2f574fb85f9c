"""Divide a run among several of its states, because options may change at a resume.

    states after steps     100, seq_len 512    200, seq_len 1024
    steps 101 to 200       from the first state, with the options of the second
    steps 201 and later    from the second state, with its options

A state records the options in effect when it was saved. It therefore shows a change made at the
resume from the previous state, but no later change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cloudload.run.changes import ACCEPTABLE_FIELDS
from cloudload.run.state import read_state
from cloudload.tools.provenance.state_run import Run, open_run


def open_runs(states: Sequence[Mapping[str, Any]], **options: Any) -> list[Run]:
    """Open the parts of a run between its `states`, which may be in any order, and after the last.

    Pass every state from which the run was resumed with other options, and at least one that was
    saved after each such resume. `options` takes the options of `open_run`; `global_batch` applies
    after the last state. Raises the errors of `open_run`, and `ValueError` if there are no states,
    or if the rows per step changed more than once between two states.
    """
    if not states:
        raise ValueError("no states were passed. Pass at least one state")
    global_batch = options.pop("global_batch", None)
    runs: list[Run] = []
    for number, state in enumerate(ordered := sorted(states, key=_num_batches)):
        is_last = number == len(ordered) - 1
        has_own_batch = _num_batches(state) > 0 and not (is_last and global_batch)
        run = open_run(state, global_batch=None if has_own_batch else global_batch, **options)
        if runs:
            runs[-1] = _end_at(runs[-1], run)
        runs.append(run)
    return runs


def split_steps(runs: Sequence[Run], steps: range) -> Iterator[tuple[Run, range]]:
    """Yield each part of a run that contains some of `steps`, and these steps as a range.

    Steps before the first state are yielded with the first part, whose methods refuse them.
    """
    start = steps.start
    for run in runs:
        stop = steps.stop if run.last_step is None else min(steps.stop, run.last_step + 1)
        if start < stop:
            yield run, range(start, stop)
            start = stop


def _num_batches(state: Mapping[str, Any]) -> int:
    return read_state(state).position.batches


def _end_at(run: Run, later: Run) -> Run:
    """Return the part of a run from its state to that of `later`, with the options of `later`."""
    start, end = run.saved.position, later.saved.position
    steps, rows = end.batches - start.batches, end.rows - start.rows
    if rows != steps * end.global_batch:
        raise ValueError(
            f"the states after steps {start.batches:,} and {end.batches:,} are {rows:,} rows "
            f"apart, but {steps:,} steps of {end.global_batch:,} rows have "
            f"{steps * end.global_batch:,} rows. Either the number of rows per step changed more "
            "than once between the states, or seek moved the loader. Also pass the states that "
            "were saved between them, or leave out the earlier state"
        )
    changed = [name for name in ACCEPTABLE_FIELDS if run.state.get(name) != later.state.get(name)]
    return replace(
        later,
        state=run.state,
        global_batch=end.global_batch,
        last_step=end.batches,
        on_change=dict.fromkeys(changed, "accept"),
    )
