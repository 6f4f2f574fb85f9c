"""A state and the data suffice to find the rows of any step, and the steps of any document."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import Stream
from cloudload.cli import main
from cloudload.provenance import find_document, load_state, open_run, trace_steps
from cloudload.rows.packing.tables import SPAN_SAMPLE
from testkit.corpora import byte_tokenizer, write_mds
from testkit.examples import EXAMPLES
from testkit.loaders import ids_of, make_loader
from testkit.traced_runs import BATCH, SAVED, TEXTS, Consumed, TracedRuns, places_in, places_of

RUNS = [
    {"packing": "concat"},
    {"packing": "concat", "num_lanes": 24},
    {"packing": "best_fit", "open_rows": 3},
    {"packing": "one_per_row", "overflow": "rows"},
    {"packing": "best_fit", "open_rows": 3, "epochs": 1},
    {"packing": "concat", "exchange_every": 3},
]


@pytest.mark.parametrize("settings", RUNS)
def test_later_steps_are_traced_from_a_state_as_they_were_consumed(
    traced: TracedRuns, settings: dict[str, Any]
) -> None:
    read = traced.consume(**settings)
    last = len(read.batches)
    for steps in (range(SAVED + 1, SAVED + 3), range(last - 1, last + 1)):
        for rows, wanted, workers in (
            (None, range(BATCH), {"num_workers": 2}),
            (0, [0], {"num_workers": 0}),
            (BATCH - 1, [BATCH - 1], {"num_workers": 0}),
            (range(1, 3), [1, 2], {}),
        ):
            assert list(trace_steps(read.run, steps, rows, local=read.local, **workers)) == [
                (step, [s for s in read.spans[step - 1] if s.row - (step - 1) * BATCH in wanted])
                for step in steps
            ]
    refused = "step 7 is too early, because the state was saved after step 7"
    with pytest.raises(ValueError, match=refused):
        list(trace_steps(read.run, range(SAVED, SAVED + 1)))


@pytest.mark.parametrize("settings", RUNS[:5])
def test_a_trace_names_documents_and_gives_their_text(
    traced: TracedRuns, settings: dict[str, Any]
) -> None:
    read = traced.consume(**settings)
    texts: dict[tuple[str, int, int], list[str]] = {}
    for batch, spans in zip(read.batches, read.spans, strict=True):
        assert [(span.epoch, span.sample, span.start, span.stop) for span in spans] == [
            tuple(span) for span in batch.spans[:, 2:].tolist()
        ]
        for span in spans:
            assert span.id == f"{span.stream}/{span.sample}"
            assert span.shard.startswith("shard.")
            key = span.stream, span.epoch, span.sample
            if span.start == 0:
                texts[key] = []
            if key in texts:
                texts[key].append(span.text)
    whole = {
        key: "".join(parts) for key, parts in texts.items() if parts[-1].endswith("<|endoftext|>")
    }
    assert len(whole) > 50
    for (stream, _, sample), text in whole.items():
        if "�" not in text:
            assert text == TEXTS[stream][sample] + "<|endoftext|>"


@pytest.mark.parametrize("settings", RUNS[:5])
def test_the_steps_of_a_document_are_found(traced: TracedRuns, settings: dict[str, Any]) -> None:
    read = traced.consume(**settings)
    for stream, sample in [(0, 17), (0, 150), (1, 4), (1, 29)]:
        found = find_document(read.run, stream, sample, len(read.batches), **read.delivery)
        assert places_of(found) == read.places(stream, sample)


@pytest.mark.parametrize(
    ("stream", "settings"),
    [
        ({"choose": 6}, {"num_lanes": 12}),  # an epoch has fewer documents than lanes
        ({"choose": 6}, {"num_lanes": 2}),
        ({"repeat": 0.4}, {"num_lanes": 12, "shuffle": False}),
        ({"repeat": 2.3}, {"num_lanes": 24, "packing": "best_fit"}),
        ({}, {"num_lanes": 12, "packing": "best_fit"}),  # open rows have older epochs
    ],
)
def test_a_document_is_found_however_many_epochs_are_without_it(
    traced: TracedRuns, stream: dict[str, Any], settings: dict[str, Any]
) -> None:
    books = Stream(str(traced.folder / "books"), **stream)
    read = Consumed.of(traced.make(books, **settings), steps=120)
    for sample in (0, 4, 17, 29):
        for quick in (False, True):
            found = find_document(
                read.run, 0, sample, len(read.batches), quick=quick, **read.delivery
            )
            assert places_of(found) == read.places(0, sample)
        assert read.places(0, sample)


DOCUMENT = st.sampled_from(["a", "bc " * 4, "def " * 30, "g" * 700])


@settings(max_examples=EXAMPLES // 2)
@given(
    streams=st.lists(st.lists(DOCUMENT, min_size=2, max_size=40), min_size=1, max_size=2),
    share=st.sampled_from([0.0, 0.02, 0.5]),
    options=st.sampled_from(
        [
            {"packing": "concat", "num_lanes": 6},
            {"packing": "concat", "num_lanes": 24},
            {"packing": "best_fit", "num_lanes": 12},
            {"packing": "one_per_row", "num_lanes": 12, "shuffle": False},
        ]
    ),
    saved=st.integers(1, 10),
    chosen=st.randoms(),
)
def test_every_place_of_a_document_is_found(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    streams: list[list[str]],
    share: float,
    options: dict[str, Any],
    saved: int,
    chosen: random.Random,
) -> None:
    """The data is one stream, two streams in one order, or a mixture of two. Streams are tiny or
    larger, so lanes advance at different rates."""
    folder = tmp_path_factory.mktemp("places")
    shares = [None] * len(streams) if not share else [1 - share, share][: len(streams)]
    data = [
        Stream(write_mds(folder / str(number), texts, shard_bytes=500), proportion=one)
        for number, (texts, one) in enumerate(zip(streams, shares, strict=True))
    ]
    delivery: dict[str, Any] = {"local": folder / "cache", "num_workers": 0}
    # a seekable order avoids a file for each of many epochs
    options = {"shuffle_algo": "seekable", "batch_size": 6, **options, **delivery}
    with make_loader(data, **options) as loader:
        list(loader.take(saved))
        state, batches = loader.state_dict(), list(loader.take(20))
    stream = chosen.randrange(len(streams))
    sample = chosen.randrange(len(streams[stream]))
    run = open_run(state, tokenizer=byte_tokenizer())
    found = find_document(run, stream, sample, saved + 20, **delivery)
    assert Counter(places_of(found)) == Counter(
        place for document, place in places_in(batches, saved + 1) if document == (stream, sample)
    )


def test_a_document_is_found_in_lanes_that_run_far_ahead(tmp_path: Path) -> None:
    """Four large documents slow down the lanes that a quick search reads, so it misses occurrences
    in the lanes that run ahead."""
    texts = ["x" * 3_000] * 4 + ["a"] * 796
    delivery: dict[str, Any] = {"local": tmp_path / "cache", "num_workers": 0}
    data = write_mds(tmp_path / "mds", texts)
    with make_loader(data, batch_size=12, seed=0, **delivery) as loader:
        first = next(iter(loader))
        state, batches = loader.state_dict(), list(loader.take(80))
    run = open_run(state, tokenizer=byte_tokenizer())
    for sample in (28, 60):
        assert not (first.spans[:, SPAN_SAMPLE] == sample).any()
        number = sum(int((batch.spans[:, SPAN_SAMPLE] == sample).sum()) for batch in batches)
        found, quick = (
            list(find_document(run, 0, sample, 81, quick=quick, **delivery))
            for quick in (False, True)
        )
        assert len(found) == number > len(quick)
        assert set(quick) <= set(found)


def test_a_sample_without_an_id_has_none_that_could_be_found(tmp_path: Path) -> None:
    ids = {"id": ("json", ["x", None, "None"])}
    without = write_mds(tmp_path / "without", ["a b"] * 4)
    null = write_mds(tmp_path / "null", ["a b"] * 3, extra=ids)
    with make_loader([Stream(without), Stream(null)], local=tmp_path / "cache") as loader:
        tracer = loader.open_tracer()
        assert tracer.find_id("None") == [(1, 2)]
        assert tracer.find_id("x") == [(1, 0)]
        with tracer._readers.lend() as reader:
            unnamed, named = (reader.samples.where(sample) for sample in (5, 6))
    assert "(id " not in unnamed
    assert named.endswith("(id 'None')")


# ---------------------------------------------------------------- the commands


def test_the_command_line_traces_a_checkpoint(traced: TracedRuns, tmp_path: Path, cli: Any) -> None:
    read, checkpoint = traced.consume(), tmp_path / "checkpoint.pt"
    spans = [span for span in read.spans[19] if span.row == 19 * BATCH + 2]
    torch.save({"step": SAVED, "trainer": [{"loader": read.state}]}, checkpoint)
    assert load_state(checkpoint) == read.state
    of_row = ["trace", checkpoint, "--row", "2", *read.flags]
    lines = cli(*of_row, "--steps", "20:21", "--json").out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 20, **span.as_dict(), "row": 2} for span in spans
    ]
    printed = cli(*of_row, "--steps", "20", "--full").out
    assert f"step 20  row 2  {spans[0].stream}  epoch {spans[0].epoch}  id {spans[0].id}" in printed
    assert spans[0].text in printed
    where = ["where", checkpoint, "--until", "40", *read.flags]
    printed = cli(*where, "--id", "books/4").out
    assert cli(*where, "--sample", "1:4").out == printed
    assert "books  epoch 1  sample 4" in printed


@pytest.mark.parametrize(
    "command",
    [
        ["trace", "--steps", "9", "--row", "1"],
        ["where", "--sample", "1:4", "--until", "40"],
        ["rows", "--steps", "9", "--json"],
    ],
    ids=["trace", "where", "rows"],
)
def test_the_log_of_an_answer_does_not_say_how_the_loader_started(
    traced: TracedRuns, tmp_path: Path, caplog: pytest.LogCaptureFixture, command: list[str]
) -> None:
    read = traced.consume()
    path = read.write(tmp_path / "state")
    caplog.set_level(logging.INFO)
    assert main([*command, *read.flags, str(path)]) == 0
    assert caplog.messages == []
    with traced.make() as loader:
        loader.take(1)
    assert any("tokenizer ready" in message for message in caplog.messages)


@pytest.mark.parametrize("options", [[], ["--quick"], ["--json"]], ids=str)
def test_where_finds_no_step_and_says_so_by_the_exit_status(
    traced: TracedRuns, tmp_path: Path, cli: Any, options: list[str]
) -> None:
    read = traced.consume()
    # the state was saved after step 7, so only step 8 is searched
    search = ["where", read.write(tmp_path / "state"), "--sample", "1:4", "--until", "8"]
    printed = cli(*search, *options, *read.flags, status=1)
    assert printed.out == ""
    assert "no step after the state, up to step 8, " in printed.err


MISSING = "the checkpoint {none} does not exist"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "trace {state} --steps 3",
            "step 3 is too early, because the state was saved after step 7",
        ),
        ("trace {state} --steps 9 --row 6", "row is 6. Use a row of the step, from 0 to 5"),
        ("trace {empty} --steps 9", "has no cloudload state"),
        ("trace {text} --steps 9", "is neither JSON nor a torch checkpoint"),
        ("trace {none} --steps 9", MISSING),
        ("where {none} --id a --until 9", MISSING),
        ("rows {none} --steps 9", MISSING),
        ("rows --yaml {none} --steps 9", "no such file or directory: "),
        ("export {none} out --steps 9", MISSING),
        ("where {state} --id nothing --until 9", "no sample has 'nothing' in its column 'id'"),
        (
            "where {state} --sample 0:9999 --until 9",
            "has no sample 9999. Use a sample from 0 to 199",
        ),
        ("where {state} --sample 7:1 --until 9", "no stream 7. Use a stream from 0 to 1"),
        ("trace {state} --steps 9 --data one", "data has 1 locations, but the state has 2 streams"),
        ("trace {state} --steps 9 --tokenizer /no/such", "the tokenizer /no/such does not exist"),
    ],
)
def test_the_command_line_says_what_is_wrong(
    traced: TracedRuns, tmp_path: Path, cli: Any, command: str, message: str
) -> None:
    read = traced.consume()
    read.write(tmp_path / "state")
    (tmp_path / "empty").write_text("{}")
    (tmp_path / "text").write_text("no state")
    names = {name: str(tmp_path / name) for name in ("state", "empty", "text", "none")}
    error = cli(*command.format(**names).split(), *read.flags, status=1).err
    assert message.format(**names) in error
    assert "Errno" not in error


# ---------------------------------------------------------------- skipped batches, and a model


def test_skipped_batches_are_passed_over_recorded_and_survive_a_resume(traced: TracedRuns) -> None:
    straight = ids_of(traced.consume().batches)
    with traced.make() as loader:
        taken = ids_of(loader.take(4))
        loader.skip(3)
        loader.skip(2)
        taken += ids_of(loader.take(3))
        state = loader.state_dict()
        assert loader.stats().skipped_rows == 5 * BATCH
        assert (state["skipped"], state["batches"]) == ("24:54", 12)
    with traced.make() as loader:
        loader.load_state_dict(state)
        loader.skip(1)
        taken += ids_of(loader.take(2))
        assert loader.state_dict()["skipped"] == "24:54,72:78"
        assert loader.stats().skipped_rows == 6 * BATCH
    assert taken == [straight[step] for step in [*range(4), *range(9, 12), 13, 14]]


def test_a_skip_past_the_end_stops_there(traced: TracedRuns) -> None:
    with traced.make(epochs=1) as loader:
        loader.skip(10_000)
        assert list(loader) == []
        assert loader.stats().skipped_rows == loader.rows


def test_a_batch_goes_to_a_model_as_it_is(traced: TracedRuns) -> None:
    fields = ["position_ids", "segment_ids", "cu_seqlens"]
    with traced.make(fields=fields, mask_edges=True) as loader:
        batch = next(iter(loader))
    assert set(batch) == {"input_ids", "labels", *fields, "max_seqlen"}
    assert all(isinstance(value, torch.Tensor) for value in batch.values())
    starts = batch["position_ids"] == 0
    inside = ~starts & (batch["segment_ids"] > 0)
    assert (batch["labels"][starts] == -100).all()
    assert batch["labels"][inside].equal(batch["input_ids"][inside])
    assert batch["cu_seqlens"].dtype == batch["max_seqlen"].dtype == torch.int32
    assert int(batch["cu_seqlens"][-1]) == batch["input_ids"].numel()
