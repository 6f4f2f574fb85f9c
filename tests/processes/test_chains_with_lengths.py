"""Real ranks, killed and resumed with or without token lengths, read the same stream as one process
without lengths."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testkit.counted import count
from testkit.torchrun import Corpus, Run, continue_run, read_ends

ON, OFF = "require", "off"
PACKINGS: dict[str, dict[str, Any]] = {
    "concat": {},
    "rows": {"packing": "one_per_row", "overflow": "rows"},
    "cut": {"packing": "one_per_row"},
    "mixed": {"mixed": True},
    "mixed rows, first": {
        "mixed": True,
        "stopping": "first",
        "packing": "one_per_row",
        "overflow": "rows",
    },
    "best_fit": {"packing": "best_fit", "open_rows": 4},
    "mixed best_fit": {"mixed": True, "packing": "best_fit", "open_rows": 4},
    "mixed best_fit, first": {
        "mixed": True,
        "stopping": "first",
        "packing": "best_fit",
        "open_rows": 4,
    },
}
TO_THE_END = 10_000


@dataclass(frozen=True)
class Part:
    """A part of a chain. Its ranks run with or without lengths, cannot communicate if they are
    `alone`, and exchange rows with `balance`."""

    run: Run
    lengths: str = ON
    alone: bool = False
    balance: str | None = None


@dataclass(frozen=True)
class Chain:
    """The consecutive parts of a run, and its options. Every part before the last is killed."""

    parts: list[Part]
    packing: str = "concat"
    epochs: int | None = None


def part(ranks: int, batch_size: int, batches: int, lengths: str = ON, **more: Any) -> Part:
    """Make a part that is killed unless it runs to the end. Pass `killed` to override this."""
    alone, balance = more.pop("alone", False), more.pop("balance", None)
    more = {"workers": 1, "killed": batches < TO_THE_END, **more}
    return Part(Run(ranks, batch_size, batches=batches, **more), lengths, alone, balance)


CHAINS = {
    "on": Chain([part(2, 3, 5), part(3, 2, 4), part(1, 4, 3, killed=False)]),
    "on, then off": Chain([part(2, 3, 5, ON), part(3, 2, 4, OFF, killed=False)]),
    "off, then on": Chain([part(3, 2, 4, OFF), part(2, 3, 5, ON), part(1, 4, 3, killed=False)]),
    "switched twice, mixed": Chain(
        [part(2, 3, 6, ON), part(4, 1, 5, OFF), part(3, 2, 4, ON, killed=False)], "mixed"
    ),
    "one row per document": Chain([part(2, 3, 6), part(3, 2, 4, OFF, killed=False)], "rows"),
    "with best_fit": Chain([part(2, 3, 6), part(5, 2, 4), part(3, 2, 4, OFF)], "best_fit"),
    "an exchange every third batch": Chain(
        [
            part(2, 2, 5, ON, exchange_every=3),
            part(2, 2, 5, OFF, exchange_every=3),
            part(4, 1, 5, ON, killed=False),
        ]
    ),
    "on two nodes": Chain([part(4, 2, 4, nodes=2), part(2, 2, 3, OFF, nodes=2, killed=False)]),
    "without communication": Chain(
        [
            part(3, 2, 5, alone=True),
            part(2, 3, 4, OFF),
            part(4, 1, 5, alone=True),
            part(1, 5, 3, OFF, killed=False),
        ]
    ),
    "to the end": Chain([part(2, 6, 30), part(3, 4, TO_THE_END)], epochs=1),
    "to the end, switched": Chain(
        [part(2, 6, 60, OFF), part(3, 4, 20, ON), part(2, 5, TO_THE_END, OFF)], "rows", 1
    ),
    "to the end without communication": Chain(
        [
            part(2, 6, 40, alone=True),
            part(3, 4, 20, OFF),
            part(4, 3, 20, ON),
            part(6, 2, TO_THE_END, alone=True),
        ],
        epochs=1,
    ),
    "killed in the tail": Chain(
        [part(3, 4, 87, ON), part(2, 6, 3, OFF), part(2, 5, 2, ON), part(3, 2, TO_THE_END)],
        epochs=1,
    ),
    "killed in the tail without communication": Chain(
        [part(3, 4, 102, alone=True), part(2, 2, TO_THE_END, OFF)], "rows", 1
    ),
    "a mixture to its end": Chain(
        [part(2, 6, 25), part(5, 3, 12, alone=True), part(3, 4, 12), part(4, 5, TO_THE_END)],
        "mixed",
        1,
    ),
    "a mixture to its first end": Chain(
        [part(3, 4, 9), part(7, 2, 8, alone=True), part(2, 5, 7), part(5, 3, TO_THE_END)],
        "mixed rows, first",
        2,
    ),
    "a mixture of best_fit to its end": Chain(
        [part(3, 4, 12), part(7, 2, 8), part(5, 3, 7), part(4, 5, TO_THE_END)], "mixed best_fit", 1
    ),
    "a mixture of best_fit to its first end": Chain(
        [part(5, 3, 9), part(2, 4, 7, alone=True), part(7, 2, 8), part(3, 5, TO_THE_END)],
        "mixed best_fit, first",
        2,
    ),
    "cut rows": Chain([part(3, 4, 30, alone=True), part(2, 2, TO_THE_END, OFF)], "cut", 1),
    "balanced to the end": Chain(
        [
            part(2, 6, 20, balance="attention"),
            part(3, 4, 10, OFF),
            part(4, 3, 20, nodes=2, balance="attention"),
            part(2, 6, TO_THE_END, workers=2, balance="attention"),
        ],
        epochs=1,
    ),
    "balanced with best_fit": Chain(
        [part(4, 2, 5, balance="attention"), part(3, 2, 4), part(2, 3, 4, OFF)], "best_fit"
    ),
}
UNEVEN = {
    "1, 3, 7, 5, 4": Chain(
        [part(1, 4, 3), part(3, 2, 4), part(7, 1, 4), part(5, 3, 3), part(4, 2, 3)]
    ),
    "mixed on 5, 7, 2": Chain([part(5, 2, 4), part(7, 2, 3), part(2, 3, 3, killed=False)], "mixed"),
    "several rows of a document on 7, 1, 8": Chain(
        [part(7, 2, 3), part(1, 5, 2, OFF), part(8, 1, 4)], "rows"
    ),
    "cut rows on 5, 9": Chain([part(5, 2, 4), part(9, 1, 3, killed=False)], "cut"),
    "more ranks than lanes": Chain([part(13, 1, 3), part(5, 2, 3), part(14, 1, 2, workers=0)]),
    "uneven without communication": Chain(
        [part(3, 2, 3), part(7, 2, 3, alone=True), part(5, 3, 3, alone=True), part(1, 4, 2, OFF)]
    ),
    "10 on two nodes, 8 on four": Chain([part(10, 1, 3, nodes=2), part(8, 2, 3, nodes=4)]),
    "an exchange every third batch of 5, 7": Chain(
        [part(5, 2, 4, exchange_every=3), part(7, 1, 5, exchange_every=3), part(4, 1, 3, OFF)]
    ),
    "workers 0, 3, 2 of 5, 7, 5": Chain(
        [part(5, 4, 3, workers=0), part(7, 3, 3, workers=3), part(5, 1, 4, workers=2)]
    ),
    "to the end on 5, 7": Chain([part(5, 4, 20), part(7, 3, TO_THE_END)], epochs=1),
    "to the end on 7, 5 without communication": Chain(
        [part(7, 3, 20, alone=True), part(5, 4, TO_THE_END, alone=True)], "rows", 1
    ),
    "killed in the tail on 7 and 5": Chain(
        [part(7, 3, 50), part(5, 2, 2), part(3, 2, 2, OFF), part(7, 1, TO_THE_END)], epochs=1
    ),
}
CHAINS |= UNEVEN
# chains that run with the short tests; `make test-long` runs all chains
SHORT = (
    *("without communication", "to the end", "a mixture to its end"),
    *("to the end on 7, 5 without communication", "balanced to the end"),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    corpus = Corpus.write(tmp_path_factory.mktemp("corpus"))
    for folder in (corpus.folder, corpus.other_folder):
        count(folder)
    return corpus


def find_expected(corpus: Corpus, chain: Chain, number: int) -> list[list[int]]:
    """Read the first `number` rows of a run, or all rows if it is finite, in this process.

    Uses no lengths, except for a mixture whose streams end, because such a mixture needs them.
    """
    is_finite_mixture = chain.epochs is not None and "mixed" in PACKINGS[chain.packing]
    settings = {**PACKINGS[chain.packing], "lengths": ON if is_finite_mixture else OFF}
    if chain.epochs is None:
        return corpus.expected_rows(number, **settings)
    with corpus.open(batch_size=1, num_workers=0, epochs=chain.epochs, **settings) as loader:
        return [ids for batch in loader for ids in batch["input_ids"].tolist()]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SHORT else pytest.mark.long) for name in CHAINS]
)
def test_ranks_killed_and_resumed_with_and_without_lengths_read_one_stream(
    corpus: Corpus, tmp_path: Path, name: str
) -> None:
    chain = CHAINS[name]
    found: dict[int, list[int]] = {}
    for number, each in enumerate(chain.parts):
        settings = {**PACKINGS[chain.packing], "lengths": each.lengths, "balance": each.balance}
        options = {"epochs": chain.epochs, "alone": each.alone, "settings": settings}
        save_on = number % each.run.ranks
        continue_run(corpus, tmp_path, number, each.run, found, save_on=save_on, **options)
    expected = find_expected(corpus, chain, len(found))
    assert sorted(found) == list(range(len(found)))
    assert [found[row] for row in range(len(expected))] == expected
    if "in the tail" in name:
        assert json.loads((tmp_path / "state.json").read_text())["tail"]
    if "a mixture" in name:
        assert json.loads((tmp_path / "state.json").read_text())["stream_tails"]
    last = chain.parts[-1].run
    assert len(found) - len(expected) < last.ranks * last.batch_size
    if not last.killed:
        states = [end["state"] for end in read_ends(tmp_path)[: last.ranks]]
        assert states == [states[0]] * last.ranks, "every rank must have the whole state"
