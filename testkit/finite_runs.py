"""Finite runs over tiny corpora with their expected rows and statistics, and strategies of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from cloudload import CloudLoader
from cloudload.run.saved import read_counts
from cloudload.run.state import State
from cloudload.stats import COUNTS, Stats
from cloudload.testing import Leg, Row, check_worlds, real_tokens, run_leg
from testkit.awkward import tokenize
from testkit.corpora import EOS, EOS_ID, write_mds
from testkit.examples import EXAMPLES
from testkit.loaders import make_loader

THOROUGH = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
Packing = dict[str, str]
PACKINGS: list[Packing] = [
    {"packing": "concat"},
    {"packing": "best_fit"},
    {"packing": "one_per_row", "overflow": "cut"},
    {"packing": "one_per_row", "overflow": "rows"},
]
every_packing = pytest.mark.parametrize(
    "packing", PACKINGS, ids=["-".join(each.values()) for each in PACKINGS]
)
LANES = 6
TO_THE_END = [
    Leg(6, batch_size=1, batches=None),
    Leg(3, workers=2, batch_size=4, batches=None, exchange_every=3),
    Leg(batch_size=7, batches=None),
]
"""Legs with global batches of 6, 12, and 7 rows. 7 is not a multiple of the 6 lanes."""


@dataclass
class Corpus:
    """A corpus as an MDS dataset, its loaders, and their expected results.

    The transform filters documents that begin with `-`.
    """

    folder: Path
    documents: Sequence[str]
    settings: dict[str, Any]
    stats: list[Stats] = field(default_factory=list)
    """The statistics of each rank at the end of the last leg."""

    def open(self, **settings: Any) -> CloudLoader:
        options = {"local": self.folder / "cache", **self.settings, **settings}
        loader = make_loader(self.folder / "mds", **options)

        def close() -> None:
            self.stats.append(loader.stats())
            CloudLoader.close(loader)

        vars(loader)["close"] = close
        return loader

    def loaders(self, **changes: Any) -> Callable[..., CloudLoader]:
        return lambda **rank: self.open(**changes, **rank)

    def run(
        self, leg: Leg, state: State | None = None, **changes: Any
    ) -> tuple[list[Row], list[State]]:
        self.stats.clear()
        return run_leg(self.loaders(**changes), leg, state)

    def check_worlds(self, legs: Sequence[Leg], **changes: Any) -> list[Row]:
        return check_worlds(self.loaders(**changes), legs)

    def tokens(self, document: str) -> tuple[int, ...]:
        """The tokens of a document, or none if it is left out."""
        ids = tokenize(document) + (EOS_ID,) * (self.settings["eos"] is not None)
        most = self.settings.get("max_tokens") or len(ids)
        is_kept = self.settings.get("min_tokens", 0) <= len(ids) <= most
        return ids if is_kept and not document.startswith("-") else ()

    @property
    def cut_at(self) -> int | None:
        is_cut = (self.settings.get("packing"), self.settings.get("overflow", "cut")) == (
            "one_per_row",
            "cut",
        )
        return self.settings["seq_len"] if is_cut else None

    @property
    def expected(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """The expected tokens of each document (epoch, sample) that has tokens in a row."""
        ids = {
            sample: self.tokens(text)[: self.cut_at] for sample, text in enumerate(self.documents)
        }
        return {
            (epoch, sample): kept
            for epoch in range(self.settings["epochs"])
            for sample, kept in ids.items()
            if kept
        }

    @property
    def expected_counts(self) -> dict[str, int]:
        """The expected statistics of the whole run, computed document by document."""
        frame = self.settings["eos"] is not None
        empty = [
            not text.startswith("-") and not tokenize(text) and not frame for text in self.documents
        ]
        # with `min_tokens`, an empty document counts as filtered
        empty = [is_empty and not self.settings.get("min_tokens", 0) for is_empty in empty]
        sizes = [len(self.tokens(text)) for text in self.documents]
        once = {
            "tokens": sum(len(self.tokens(text)[: self.cut_at]) for text in self.documents),
            "documents": sum(size > 0 for size in sizes),
            "filtered": sum(
                not size and not is_empty for size, is_empty in zip(sizes, empty, strict=True)
            ),
            "empty": sum(empty),
            "truncated": sum(max(0, size - (self.cut_at or size)) for size in sizes),
        }
        return {name: self.settings["epochs"] * number for name, number in once.items()}


def leave_out(sample: dict[str, Any]) -> str | None:
    text = str(sample["text"])
    return None if text.startswith("-") else text


Write = Callable[..., Corpus]


def write_corpus(folder: Path, documents: Sequence[str], **settings: Any) -> Corpus:
    write_mds(folder / "mds", documents, shard_bytes=400)
    return Corpus(
        folder, documents, {"eos": EOS, "seq_len": 8, "num_lanes": LANES, "epochs": 1, **settings}
    )


def uneven(seed: int, count: int, *, most: int = 20) -> list[str]:
    """Documents of 0 to `most` bytes, in an uneven pattern.

    When the first lane runs dry, other lanes still have many documents.
    """
    sizes = random.Random(seed)
    return [
        chr(97 + number % 26) * (sizes.randint(0, most) if number % 5 else sizes.randint(0, 3))
        for number in range(count)
    ]


def tokens_in(rows: Sequence[Row]) -> dict[tuple[int, int], tuple[int, ...]]:
    """The tokens of each document (epoch, sample). `best_fit` may emit its spans out of order."""
    parts: dict[tuple[int, int], list[tuple[int, tuple[int, ...]]]] = {}
    for row in rows:
        ids = iter(row.input_ids)
        for _, epoch, sample, start, stop in row.spans:
            parts.setdefault((epoch, sample), []).append(
                (start, tuple(next(ids) for _ in range(stop - start)))
            )
    joined = {}
    for document, pieces in parts.items():
        found: tuple[int, ...] = ()
        for start, piece in sorted(pieces):
            assert start == len(found), (
                f"document {document} has a gap or repeated tokens at token {start}"
            )
            found += piece
        joined[document] = found
    assert len(real_tokens(rows)) == sum(map(len, joined.values())), (
        "every real token must be in a span"
    )
    return joined


def trimmed(rows: Sequence[Row]) -> list[Row]:
    """The rows without the padding rows at the end."""
    number = len(rows)
    while number and rows[number - 1].is_padding:
        number -= 1
    return list(rows[:number])


def length(row: Row) -> int:
    return sum(stop - start for *_, start, stop in row.spans)


def counts_of(state: State) -> dict[str, int]:
    return dict(zip(COUNTS, read_counts(state["counts"]).sum(axis=0).tolist(), strict=True))


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
        "max_tokens": draw(st.sampled_from([None, None, 8, 30])),
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
