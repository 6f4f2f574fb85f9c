"""Compare the rows that the three pieces trained on with those of the reference run."""

from __future__ import annotations

import hashlib
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

from examples.demo.plan import GLOBAL_BATCH, SEQ_LEN, Length, Run


def compare(reference: Run, pieces: list[Run], length: Length) -> dict[str, Any]:
    """Compare the rows of the pieces, in order, with those of the reference.

    Returns the content of summary.json, without the size of the state and the duration.
    """
    for piece, following in itertools.pairwise(pieces):
        piece.last = following.first - 1
    expected = rows_of(reference, reference.counted)
    found = [row for piece in pieces for row in rows_of(piece, piece.counted)]
    whole = list(range(length.steps * GLOBAL_BATCH))
    # steps that the kill discarded do not count, but they must have read the same rows too
    discarded = [
        row
        for piece in pieces
        for row in rows_of(piece, [step for step in piece.steps if step > piece.last])
    ]
    repeated_alike = set(discarded) <= set(expected)
    losses = {step: piece.steps[step]["loss"] for piece in pieces for step in piece.counted}
    ends = [
        statistics.mean(losses[step] for step in steps)
        for steps in (sorted(losses)[:10], sorted(losses)[-10:])
    ]
    return {
        "identical": [number for number, _ in expected] == whole
        and found == expected
        and repeated_alike,
        "rows": len(found),
        "tokens": len(found) * SEQ_LEN,
        "hash_of_reference": hash_rows(expected),
        "hash_of_pieces": hash_rows(found),
        "rows_done_again": len(discarded),
        "loss_of_first_10_steps": round(ends[0], 4),
        "loss_of_last_10_steps": round(ends[1], 4),
        "most_difference_of_loss": max(
            abs(loss - reference.steps[step]["loss"]) for step, loss in losses.items()
        ),
        "runs": [summarize(run, expected) for run in (reference, *pieces)],
    }


def rows_of(run: Run, steps: list[int]) -> list[tuple[int, str]]:
    """Return the index and hash of each row of the given steps, in the order of training."""
    return [row for step in steps for row in run.steps[step]["rows"]]


def hash_rows(rows: list[tuple[int, str]]) -> str:
    """Return one hash of all rows, which depends on their order."""
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def summarize(run: Run, expected: list[tuple[int, str]]) -> dict[str, Any]:
    rows = rows_of(run, run.counted)
    start = (run.first - 1) * GLOBAL_BATCH
    return {
        "name": run.name,
        "ranks": run.ranks,
        "steps": [run.first, run.last],
        "rows": [start, start + len(rows)],
        "identical": rows == expected[start : start + len(rows)]
        and len(rows) == (run.last - run.first + 1) * GLOBAL_BATCH,
        "tokens_per_s": round(run.tokens_per_s),
        "wait_share": round(run.wait_share, 4),
        "seconds": round(run.seconds, 1),
    }


def measure_state(checkpoints: Path) -> int:
    """Return the size of the loader's state in the last checkpoint, in bytes of JSON."""
    import torch

    checkpoint = torch.load(max(checkpoints.glob("step-*.pt")), weights_only=True)
    return len(json.dumps(checkpoint["loader"]))
