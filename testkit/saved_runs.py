"""Small runs of every kind. A release saves their states, and all later releases resume from them.

This module imports only public names of cloudload, so that any release can save states. To do so,
write the data with `write_data` of `tests/promises/test_old_states.py`. Then run this command in a
checkout of the release:

    PYTHONPATH=. python …/testkit/saved_runs.py DATA > …/tests/data/states_COMMIT.json
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudload import CloudLoader, Stream
from cloudload.testing import Leg, MakeLoader, Row, run_leg

EOS = "<eos>"
AFTER = 24
"""Number of rows that are read after each state, and whose hashes are saved with the state."""


def shout(sample: dict[str, Any]) -> str | None:
    """The transform of a run. Do not change it, because states identify it by its source code."""
    text = str(sample["text"])
    return None if "fox" in text else text.upper()


shout.__module__ = "saved_runs"  # the same name whether this file is imported or run


@dataclass(frozen=True)
class SavedRun:
    """A run whose state is saved once: after `leg`, or at batch `in_tail` (from 0) of its tail."""

    leg: Leg
    options: Mapping[str, Any] = field(default_factory=dict)
    streams: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"web": {}})
    in_tail: int | None = None

    def opener(self, data: str, cache: str) -> MakeLoader:
        streams = [
            Stream(f"{data}/{name}", name=name, **options) for name, options in self.streams.items()
        ]
        return functools.partial(
            CloudLoader,
            streams,
            local=cache,
            tokenizer=f"{data}/tokenizer.json",
            **{"eos": EOS, "seq_len": 32, "num_lanes": 12, **self.options},
        )


MIXED: dict[str, dict[str, Any]] = {"web": {"proportion": 0.7}, "books": {"proportion": 0.3}}
SCHEDULE = [(0, {"web": 1}), (30, {"web": 1, "books": 2})]
BEST_FIT = {"packing": "best_fit", "open_rows": 3}

RUNS = {
    "concat": SavedRun(Leg(batch_size=7, batches=5)),
    "between exchanges": SavedRun(Leg(2, workers=3, batch_size=5, batches=5, exchange_every=3)),
    "best_fit": SavedRun(Leg(3, workers=2, batch_size=4, batches=4), BEST_FIT),
    "best_fit between exchanges": SavedRun(
        Leg(2, workers=1, batch_size=4, batches=6, exchange_every=4), BEST_FIT
    ),
    "one_per_row": SavedRun(
        Leg(2, batch_size=5, batches=4),
        {"packing": "one_per_row", "overflow": "rows", "bos": EOS, "eos": None},
    ),
    "mixture": SavedRun(Leg(4, workers=2, batch_size=3, batches=5), streams=MIXED),
    "best_fit mixture with a schedule": SavedRun(
        Leg(2, batch_size=9, batches=4),
        {**BEST_FIT, "schedule": SCHEDULE},
        {"web": {}, "books": {"eos": None}},
    ),
    "choose and repeat": SavedRun(
        Leg(batch_size=13, batches=6),
        {"shuffle_algo": "py1br", "num_canonical_nodes": 3, "shuffle_block_size": 40},
        {"web": {"choose": 25}, "books": {"repeat": 2.5}},
    ),
    "seekable shuffle": SavedRun(
        Leg(2, batch_size=6, batches=30), {"shuffle_algo": "seekable", "seed": 5}
    ),
    "transform and min_tokens": SavedRun(
        Leg(3, batch_size=3, batches=5), {"transform": shout, "min_tokens": 40}
    ),
    "before the tail": SavedRun(Leg(2, batch_size=5, batches=9), {"epochs": 2}),
    "in the tail": SavedRun(
        Leg(2, workers=2, batch_size=3, batches=None), {"epochs": 1}, in_tail=1
    ),
    "in the tail of best_fit": SavedRun(
        Leg(batch_size=4, batches=None), {**BEST_FIT, "epochs": 2}, in_tail=2
    ),
}


def hash_rows(rows: list[Row]) -> str:
    """For each row, the first 8 hex digits of the SHA-256 of its IDs, labels and spans."""
    texts = (json.dumps([row.input_ids, row.labels, row.spans]) for row in rows)
    return " ".join(hashlib.sha256(text.encode()).hexdigest()[:8] for text in texts)


def save(run: SavedRun, make_loader: MakeLoader) -> dict[str, Any]:
    """The state of a run, and the hashes of the next `AFTER` rows."""
    _, states = run_leg(make_loader, run.leg)
    state = states[-1]
    if run.in_tail is not None:
        state = [state for state in states if state["tail"]][run.in_tail]
    rows, _ = run_leg(make_loader, Leg(batches=AFTER), state)
    return {"state": {**state, "sources": ""}, "rows": hash_rows(rows)}


if __name__ == "__main__":
    [data] = sys.argv[1:]
    written: dict[str, Any] = {
        name: save(run, run.opener(data, f"{data}/cache")) for name, run in RUNS.items()
    }
    json.dump({"runs": written}, sys.stdout)
