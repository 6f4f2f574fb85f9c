"""Token lengths suffice to find a document's rows, which match the rows found by reading the
data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import Stream
from cloudload.errors import DatasetError
from cloudload.loading.workers.document_reader import DocumentReader
from cloudload.order.order_cache import EpochOrders
from cloudload.provenance import find_document, open_run, trace_steps
from cloudload.run.lengths import rows_of_document
from testkit.corpora import byte_tokenizer, random_documents
from testkit.counted import write_counted
from testkit.examples import EXAMPLES
from testkit.loaders import make_loader
from testkit.noted_calls import note_calls

SIZES = (60, 9)
LAST_STEP = 40


@pytest.fixture(scope="module")
def folders(module_folder: Path) -> list[str]:
    """Two datasets with lengths. In each, one document is empty, and one fills many rows."""
    found = []
    for number, size in enumerate(SIZES):
        documents = random_documents(number, size)
        documents[3], documents[5] = "", "long " * 90
        found.append(write_counted(module_folder / str(number), documents, shard_bytes=3_000))
    return found


@given(
    packing=st.sampled_from(["concat", "best_fit", "best_fit", "cut", "rows"]),
    shares=st.sampled_from([(None,), (None, None), (0.7, 0.3), (0.02, 0.98)]),
    epochs=st.sampled_from([None, 1, 3]),
    num_lanes=st.sampled_from([4, 12]),
    limits=st.sampled_from([(0, None), (30, None), (0, 90)]),
    saved=st.integers(1, 9),
    chosen=st.integers(0, 1_000),
    rows_at_once=st.sampled_from([3, 1 << 22]),
)
@settings(max_examples=EXAMPLES // 2)
def test_where_finds_the_rows_that_reading_finds(
    folders: list[str],
    *,
    packing: Any,
    shares: tuple[float | None, ...],
    epochs: int | None,
    num_lanes: int,
    limits: tuple[int, int | None],
    saved: int,
    chosen: int,
    rows_at_once: int,
) -> None:
    data = [Stream(url, proportion=share) for url, share in zip(folders, shares, strict=False)]
    options = {"packing": packing}
    if packing in ("cut", "rows"):
        options = {"packing": "one_per_row", "overflow": packing}
    options |= {"num_lanes": num_lanes, "min_tokens": limits[0], "max_tokens": limits[1]}
    options["epochs"] = None if shares[0] else epochs
    with make_loader(data, **options, seq_len=32, batch_size=5) as loader:
        list(loader.take(saved))
        state = loader.state_dict()
    if state["tail"]:
        return
    run = open_run(state, tokenizer=byte_tokenizer())
    stream = chosen % len(data)
    sample = chosen // 2 % SIZES[stream]
    with pytest.MonkeyPatch.context() as patch:
        expected = list(find_document(run, stream, sample, LAST_STEP, lengths="off", num_workers=0))
        patch.setattr(rows_of_document, "ROWS_AT_ONCE", rows_at_once)
        read: list[int] = []
        note_calls(patch, DocumentReader, "read_texts", lambda _, samples: read.extend(samples))
        found = list(find_document(run, stream, sample, LAST_STEP, lengths="require"))
    assert (found, read) == (expected, [])


def test_where_and_trace_of_a_distant_step_agree_and_read_a_few_documents(
    folders: list[str], samples_read: list[int]
) -> None:
    with make_loader(folders[0], seq_len=32, batch_size=5) as loader:
        next(iter(loader))
        run = open_run(loader.state_dict(), tokenizer=byte_tokenizer())
    samples_read.clear()
    steps = range(20_000, 20_010)
    [(step, spans), *_] = list(trace_steps(run, steps, lengths="require", num_workers=0))
    assert len(samples_read) < 1_000
    span = spans[0]
    found = find_document(run, 0, span.sample, step, lengths="require")
    places = [(each.step, each.epoch, each.start, each.stop) for each in found]
    assert (step, span.epoch, span.start, span.stop) in places


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
@pytest.mark.parametrize("caps", [None, 1], ids=["corpus", "mixture"])
def test_a_run_with_a_lane_without_tokens_is_refused_with_advice(
    tmp_path: Path, packing: Any, caps: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised after a few epochs, however far away the last step is."""
    streams, epochs = [], set[int]()
    for name, texts, cap in (("full", ["a" * 50] * 8, caps), ("bare", ["a" * 50, *[""] * 7], None)):
        url = write_counted(tmp_path / name, texts)
        streams.append(Stream(url, proportion=caps and 0.5, max_epochs=cap))
    options = {"eos": None, "num_lanes": 4, "num_canonical_nodes": 1, "shuffle": False}
    with make_loader(streams if caps else streams[1], packing=packing, **options) as loader:
        run = open_run(loader.state_dict(), tokenizer=byte_tokenizer(), global_batch=4)
    note_calls(monkeypatch, EpochOrders, "__call__", lambda _, epoch: epochs.add(epoch))
    with pytest.raises(DatasetError, match="because a lane has no tokens"):
        list(find_document(run, 0, 0, 1_000_000, lengths="require"))
    assert len(epochs) < 100
