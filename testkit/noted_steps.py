"""Checks of the logs of a job whose ranks change. Each process writes a file of JSON Lines:

before it computes a step                    {"world": 3, "rank": 0, "rows": 36, "ids": [[…]]}
after the gradients of all ranks arrived     {"committed": 36}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cloudload import CloudLoader
from testkit import ROOT

TOKENIZER = str(ROOT / "examples" / "tokenizer")
Step = tuple[int, int, list[list[int]]]
"""A step's first row, the row after its last one, and its rows' token IDs from all ranks."""


def read_steps(notes: Path) -> list[Step]:
    """The committed steps, in order. Checks that each one starts where the previous one stopped."""
    tried: dict[tuple[int, int], dict[int, list[list[int]]]] = {}
    committed: dict[int, int] = {}
    for file in notes.glob("*.jsonl"):
        last: dict[str, Any] = {}
        for line in map(json.loads, file.read_text().splitlines()):
            if "committed" in line:
                assert committed.setdefault(last["rows"], last["world"]) == last["world"]
            else:
                last = line
                ranks = tried.setdefault((last["world"], last["rows"]), {})
                assert ranks.setdefault(last["rank"], last["ids"]) == last["ids"]
    begin, steps = 0, []
    for stop, world in sorted(committed.items()):
        ids = [row for _, rows in sorted(tried[world, stop].items()) for row in rows]
        assert stop - len(ids) == begin, f"the step from row {begin} to {stop} has {len(ids)} rows"
        steps.append((begin, stop, ids))
        begin = stop
    return steps


def check_steps(steps: list[Step], data: str, cache: Path, *, seq_len: int) -> None:
    """Check that the steps have the rows of a run on one rank without lengths."""
    with CloudLoader(
        data,
        tokenizer=TOKENIZER,
        seq_len=seq_len,
        batch_size=steps[-1][1],
        num_workers=0,
        lengths="off",
        local=cache,
    ) as loader:
        expected = next(iter(loader))["input_ids"].tolist()
    for begin, stop, ids in steps:
        assert sorted(ids) == sorted(expected[begin:stop]), f"rows {begin} to {stop} differ"
