"""At the end of a finite run, every document has been counted once, even if it was left out."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given

from cloudload.errors import DatasetError
from cloudload.run.state import State
from cloudload.testing import Leg, Row
from testkit.corpora import EOS
from testkit.finite_cases import Case, cases
from testkit.finite_runs import (
    THOROUGH,
    Packing,
    Write,
    every_packing,
    leave_out,
    tokens_in,
    write_corpus,
)

# with these settings, the last document is left out, so no row follows it
BARREN = {"eos": EOS, "seq_len": 8, "num_lanes": 1, "epochs": 1, "transform": leave_out}


@THOROUGH
@given(case=cases())
@example(case=Case(("d" * 7, "-"), BARREN, (Leg(batches=None),)))
@example(case=Case(("d" * 7, "-"), BARREN, (Leg(batch_size=2, batches=None),)))
def test_at_the_end_every_document_was_counted_once_whatever_became_of_it(
    scratch: Path, case: Case
) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        corpus = write_corpus(Path(folder), case.documents, **case.settings)
        if not corpus.expected:
            with pytest.raises(DatasetError, match="has any tokens"):
                corpus.run(replace(case.legs[0], batches=None))
            return
        rows: list[Row] = []
        state: State | None = None
        for leg in case.legs:
            more, states = corpus.run(leg, state)
            rows, state = rows + more, states[-1]
    assert tokens_in(rows) == corpus.expected
    for stats in corpus.stats:
        assert {
            name: getattr(stats, name) for name in corpus.expected_counts
        } == corpus.expected_counts


@every_packing
def test_documents_left_out_after_the_last_row_are_counted_wherever_the_batches_end(
    write: Write, packing: Packing
) -> None:
    for last, batch_size in itertools.product(("ccc", "c"), (1, 2, 3, 4)):
        documents = ["a" * 7, "b" * 7, last, "-", "-", "c"]
        corpus = write(
            documents, **packing, num_lanes=1, shuffle=False, min_tokens=3, transform=leave_out
        )
        wanted = corpus.expected_counts["documents"], corpus.expected_counts["filtered"], 1.0
        _, states = corpus.run(Leg(batch_size=batch_size, batches=None))
        for seq_len in (8, 5):
            corpus.run(Leg(batches=None), states[-1], seq_len=seq_len)
            [stats] = corpus.stats
            [stream] = stats.streams.values()
            assert (stats.documents, stats.filtered, stream.epoch) == wanted, (
                f"{documents} documents, batch_size={batch_size}, then seq_len={seq_len}"
            )
