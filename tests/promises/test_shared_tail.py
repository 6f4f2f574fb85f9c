"""Nodes share the documents of a tail. Each document is read once, and the rows are the same."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from cloudload.loading.delivery import tail_sharing
from cloudload.loading.delivery.exchange import Exchange
from cloudload.loading.workers import held_documents
from cloudload.loading.workers.document_reader import DocumentReader
from cloudload.testing import Leg, assert_same_rows
from testkit.counted import count
from testkit.finite_runs import (
    Corpus,
    Packing,
    counts_of,
    every_packing,
    leave_out,
    tokens_in,
    trimmed,
    uneven,
    write_corpus,
)
from testkit.noted_calls import note_calls

NODES = [
    Leg(6, workers=2, batch_size=1, batches=None, ranks_per_node=3),
    Leg(3, workers=2, batch_size=4, batches=None, ranks_per_node=1, exchange_every=3),
    Leg(2, workers=3, batch_size=3, batches=None, ranks_per_node=1),
]
EVERY_LENGTHS = pytest.mark.parametrize("lengths", ["off", "require"])


def write(folder: Path, packing: Packing, lengths: str, **settings: Any) -> Corpus:
    """Write a corpus and its token lengths."""
    options = {"min_tokens": 2, "lengths": lengths, **packing, **settings}
    corpus = write_corpus(folder, uneven(23, 40), **options)
    count(folder / "mds", transform=options.get("transform"))
    return corpus


def note_readers(monkeypatch: pytest.MonkeyPatch) -> defaultdict[int, set[int]]:
    """Record which readers read each sample from now on."""
    readers: defaultdict[int, set[int]] = defaultdict(set)

    def note(reader: DocumentReader, samples: Any) -> None:
        for sample in samples.tolist():
            readers[sample].add(id(reader))

    note_calls(monkeypatch, DocumentReader, "read_texts", note)
    return readers


@every_packing
@EVERY_LENGTHS
def test_each_document_is_read_by_one_worker_of_all_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: Packing, lengths: str
) -> None:
    corpus = write(tmp_path, packing, lengths)
    whole, _ = corpus.run(Leg(batches=None))
    readers = note_readers(monkeypatch)
    for leg in NODES:
        readers.clear()
        rows, states = corpus.run(leg)
        assert_same_rows(trimmed(rows), whole, f"{leg}")
        assert states[-1]["tail"], "the run must have a tail"
        assert {len(each) for each in readers.values()} == {1}
        assert {sample for _, sample in corpus.expected} <= readers.keys()


@every_packing
@EVERY_LENGTHS
def test_a_tail_too_large_to_share_has_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: Packing, lengths: str
) -> None:
    """With low limits, some documents are exchanged in many rounds, and others are read by each
    rank that needs them."""
    corpus = write(tmp_path, packing, lengths, transform=leave_out)
    whole, states = corpus.run(Leg(batches=None))
    limits = {"MOST_EXCHANGED_TOKENS": 60, "_MOST_LOCAL_TOKENS": 30}
    for name, limit in {**limits, "_TOKENS_OF_BLOCK": 16, "_WORDS_OF_ROUND": 9}.items():
        monkeypatch.setattr(tail_sharing, name, limit)
    monkeypatch.setattr(held_documents, "MOST_KEPT_BYTES", 3_000)
    first = next(taken for taken, state in enumerate(states) if state["tail"])
    for number, taken in enumerate(range(first - 2, len(states) - 1, 2)):
        leg = NODES[number % 3]
        rest, after = corpus.run(leg, states[taken])
        assert_same_rows(trimmed(rest), whole[taken:], f"saved after row {taken}, {leg}")
        assert {**counts_of(after[-1]), "padding": 0} == {**counts_of(states[-1]), "padding": 0}
    assert tokens_in(whole) == corpus.expected


@every_packing
def test_rows_that_are_dropped_share_no_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: Packing
) -> None:
    corpus = write(tmp_path, packing, "require", tail="drop")
    readers = note_readers(monkeypatch)
    for leg in NODES:
        rows, states = corpus.run(leg)
        assert states[-1]["tail"]
        assert len(rows) % (leg.ranks * leg.batch_size) == 0
        readers.clear()
        assert corpus.run(leg, states[-1])[0] == []
        assert not readers


def test_a_long_document_is_not_padded_for_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are padded to the longest one, so each rank gets only a share of the limit."""
    corpus = write_corpus(tmp_path, [*uneven(23, 40), "b" * 299, *uneven(5, 40)])
    whole, _ = corpus.run(Leg(batches=None))
    most_words: list[int] = []
    note_calls(
        monkeypatch, Exchange, "start_equal", lambda _, message: most_words.append(len(message) - 1)
    )
    monkeypatch.setattr(tail_sharing, "MOST_EXCHANGED_TOKENS", 600)
    for leg in NODES:
        most_words.clear()
        rows, _ = corpus.run(leg)
        assert_same_rows(trimmed(rows), whole, f"{leg}")
        assert 0 < 2 * sum(most_words) <= 600 + 2 * len(most_words)
