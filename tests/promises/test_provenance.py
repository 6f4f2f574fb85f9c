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

from cloudload import CloudLoader, Stream
from cloudload.cli import main
from cloudload.loading.workers.trace import Tracer
from cloudload.provenance import find_document, load_state, open_run, trace_steps
from cloudload.rows.packing.tables import SPAN_SAMPLE
from testkit.corpora import EOS, byte_tokenizer, write_mds
from testkit.examples import EXAMPLES
from testkit.loaders import make_loader as small_loader
from testkit.traced_runs import (
    BATCH,
    SAVED,
    STEPS,
    TEXTS,
    MakeLoader,
    consume,
    loaders_of,
    write_streams,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_streams(tmp_path_factory.mktemp("provenance"))


@pytest.fixture
def make_loader(folder: Path, tokenizer_folder: Path) -> MakeLoader:
    return loaders_of(folder, tokenizer_folder)


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
    make_loader: MakeLoader, settings: dict[str, Any]
) -> None:
    with make_loader(**settings) as loader:
        batches, state = consume(loader)
        expected = [loader.trace(batch) for batch in batches]
    run = open_run(state)
    for steps in (range(SAVED + 1, SAVED + 3), range(len(batches) - 1, len(batches) + 1)):
        traced = list(trace_steps(run, steps, num_workers=2, local=loader.worker_plan().cache_root))
        assert [step for step, _ in traced] == list(steps)
        assert [spans for _, spans in traced] == [expected[step - 1] for step in steps]
        for row in (0, BATCH - 1):
            of_row = list(
                trace_steps(run, steps, row, num_workers=0, local=loader.worker_plan().cache_root)
            )
            wanted = [
                [s for s in expected[step - 1] if s.row == (step - 1) * BATCH + row]
                for step in steps
            ]
            assert [spans for _, spans in of_row] == wanted
        of_rows = trace_steps(run, steps, range(1, 3), local=loader.worker_plan().cache_root)
        assert [spans for _, spans in of_rows] == [
            [
                s
                for s in expected[step - 1]
                if (step - 1) * BATCH + 1 <= s.row < (step - 1) * BATCH + 3
            ]
            for step in steps
        ]
    with pytest.raises(
        ValueError, match="step 7 is too early, because the state was saved after step 7"
    ):
        list(trace_steps(run, range(SAVED, SAVED + 1)))


@pytest.mark.parametrize("settings", RUNS[:5])
def test_a_trace_names_documents_and_gives_their_text(
    make_loader: MakeLoader, settings: dict[str, Any]
) -> None:
    with make_loader(**settings) as loader:
        texts: dict[tuple[str, int, int], list[str]] = {}
        for batch in loader.take(STEPS):
            spans = loader.trace(batch)
            assert [(span.epoch, span.sample, span.start, span.stop) for span in spans] == [
                tuple(span) for span in batch.spans[:, 2:].tolist()
            ]
            for span in spans:
                assert span.id == f"{span.stream}/{span.sample}"
                assert span.shard.startswith("shard.")
                if span.start == 0:
                    texts[span.stream, span.epoch, span.sample] = []
                if (span.stream, span.epoch, span.sample) in texts:
                    texts[span.stream, span.epoch, span.sample].append(span.text)
    whole = {
        key: "".join(parts) for key, parts in texts.items() if parts[-1].endswith("<|endoftext|>")
    }
    assert len(whole) > 50
    for (stream, _, sample), text in whole.items():
        if "�" not in text:
            assert text == TEXTS[stream][sample] + "<|endoftext|>"


@pytest.mark.parametrize("settings", RUNS[:5])
def test_the_steps_of_a_document_are_found(
    make_loader: MakeLoader, settings: dict[str, Any]
) -> None:
    with make_loader(**settings) as loader:
        batches, state = consume(loader)
    run = open_run(state)
    for stream, sample in [(0, 17), (0, 150), (1, 4), (1, 29)]:
        expected = [
            (step, row, epoch, start, stop)
            for step, batch in enumerate(batches, 1)
            for row, of_stream, epoch, of_sample, start, stop in batch.spans.tolist()
            if (of_stream, of_sample) == (stream, sample) and step > SAVED
        ]
        found = find_document(
            run, stream, sample, len(batches), local=loader.worker_plan().cache_root, num_workers=0
        )
        assert sorted((o.step, o.row, o.epoch, o.start, o.stop) for o in found) == expected


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
    folder: Path, tokenizer_folder: Path, stream: dict[str, Any], settings: dict[str, Any]
) -> None:
    with CloudLoader(
        Stream(str(folder / "books"), **stream),
        tokenizer=tokenizer_folder,
        seq_len=48,
        batch_size=BATCH,
        num_workers=0,
        local=folder / "cache",
        **settings,
    ) as loader:
        batches, state = consume(loader, steps=120)
    run = open_run(state)
    for sample in (0, 4, 17, 29):
        expected = [
            (step, row, epoch, start, stop)
            for step, batch in enumerate(batches, 1)
            for row, _, epoch, of_sample, start, stop in batch.spans.tolist()
            if of_sample == sample and step > SAVED
        ]
        for quick in (False, True):
            found = find_document(
                run, 0, sample, len(batches), quick=quick, local=folder / "cache", num_workers=0
            )
            assert sorted((o.step, o.row, o.epoch, o.start, o.stop) for o in found) == expected
        assert expected


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
    tokenizer = byte_tokenizer()
    delivery: dict[str, Any] = {"local": folder / "cache", "num_workers": 0}
    with CloudLoader(
        data,
        tokenizer=tokenizer,
        eos=EOS,
        seq_len=16,
        batch_size=6,
        shuffle_algo="seekable",  # avoids a file for each of many epochs
        **options,
        **delivery,
    ) as loader:
        for _ in loader.take(saved):
            pass
        state, batches = loader.state_dict(), list(loader.take(20))
    places = Counter(
        (stream, sample, step, row, epoch, start, stop)
        for step, batch in enumerate(batches, saved + 1)
        for row, stream, epoch, sample, start, stop in batch.spans.tolist()
    )
    stream = chosen.randrange(len(streams))
    sample = chosen.randrange(len(streams[stream]))
    found = find_document(
        open_run(state, tokenizer=tokenizer), stream, sample, saved + 20, **delivery
    )
    assert Counter(
        (stream, sample, one.step, one.row, one.epoch, one.start, one.stop) for one in found
    ) == Counter(place for place in places if place[:2] == (stream, sample))


def test_a_document_is_found_in_lanes_that_run_far_ahead(tmp_path: Path) -> None:
    """Four large documents slow down the lanes that a quick search reads, so it misses occurrences
    in the lanes that run ahead."""
    texts = ["x" * 3_000] * 4 + ["a"] * 796
    delivery: dict[str, Any] = {"local": tmp_path / "cache", "num_workers": 0}
    with CloudLoader(
        write_mds(tmp_path / "mds", texts),
        tokenizer=byte_tokenizer(),
        eos=EOS,
        seq_len=16,
        batch_size=12,
        num_lanes=12,
        seed=0,
        **delivery,
    ) as loader:
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


@pytest.mark.parametrize("epochs", [None, 9])
def test_a_document_that_does_not_exist_is_an_error(
    make_loader: MakeLoader, epochs: int | None
) -> None:
    with make_loader(epochs=epochs) as loader:
        _, state = consume(loader)
        cache = loader.worker_plan().cache_root
    run = open_run(state)
    for stream, sample, message in [
        (0, 9999, "no sample 9999. Use a sample from 0 to 199"),
        (7, 1, "no stream 7. Use a stream from 0 to 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            next(find_document(run, stream, sample, SAVED + 9, local=cache, num_workers=0))


def test_a_sample_without_an_id_has_none_that_could_be_found(tmp_path: Path) -> None:
    ids = {"id": ("json", ["x", None, "None"])}
    written = [
        write_mds(tmp_path / "without", ["a b"] * 4),
        write_mds(tmp_path / "null", ["a b"] * 3, extra=ids),
    ]
    with small_loader([Stream(url) for url in written], local=tmp_path / "cache") as loader:
        tracer = Tracer(loader.worker_plan())
        assert tracer.find_id("None") == [(1, 2)]
        assert tracer.find_id("x") == [(1, 0)]
        with tracer._readers.lend() as reader:
            null, named = (reader.samples.where(sample) for sample in (5, 6))
        tracer.close()
    assert "(id " not in null
    assert named.endswith("(id 'None')")


def test_the_command_line_traces_a_checkpoint(
    make_loader: MakeLoader, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with make_loader() as loader:
        batches, state = consume(loader)
        spans = loader.trace(batches[19], 2)
    checkpoint = tmp_path / "checkpoint.pt"
    torch.save({"step": SAVED, "trainer": [{"loader": state}]}, checkpoint)
    assert load_state(checkpoint) == state
    options = ["--local", str(loader.worker_plan().cache_root), "--workers", "0"]
    assert (
        main(["trace", str(checkpoint), "--steps", "20:21", "--row", "2", "--json", *options]) == 0
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [{"step": 20, **span.as_dict(), "row": 2} for span in spans]
    assert main(["trace", str(checkpoint), "--steps", "20", "--row", "2", "--full", *options]) == 0
    printed = capsys.readouterr().out
    assert f"step 20  row 2  {spans[0].stream}  epoch {spans[0].epoch}  id {spans[0].id}" in printed
    assert spans[0].text in printed
    assert main(["where", str(checkpoint), "--id", "books/4", "--until", "40", *options]) == 0
    printed = capsys.readouterr().out
    assert main(["where", str(checkpoint), "--sample", "1:4", "--until", "40", *options]) == 0
    assert capsys.readouterr().out == printed
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
    make_loader: MakeLoader,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    command: list[str],
) -> None:
    with make_loader() as loader:
        _, state = consume(loader)
    (tmp_path / "state").write_text(json.dumps(state))
    local = ["--local", str(loader.worker_plan().cache_root), "--workers", "0"]
    caplog.clear()
    caplog.set_level(logging.INFO)
    assert main([*command, *local, str(tmp_path / "state")]) == 0
    assert caplog.messages == []
    caplog.clear()
    with make_loader() as loader:
        loader.take(1)
    assert any("tokenizer ready" in message for message in caplog.messages)


@pytest.mark.parametrize("options", [[], ["--quick"], ["--json"]], ids=str)
def test_where_finds_no_step_and_says_so_by_the_exit_status(
    make_loader: MakeLoader,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
) -> None:
    with make_loader() as loader:
        _, state = consume(loader)
    (tmp_path / "state").write_text(json.dumps(state))
    local = ["--local", str(loader.worker_plan().cache_root), "--workers", "0"]
    # the state was saved after step 7, so only step 8 is searched
    search = ["where", str(tmp_path / "state"), "--sample", "1:4", "--until", "8"]
    assert main([*search, *options, *local]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "no step after the state, up to step 8, " in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["trace", "{state}", "--steps", "3"],
            "step 3 is too early, because the state was saved after step 7",
        ),
        (
            ["trace", "{state}", "--steps", "9", "--row", "6"],
            "row is 6. Use a row of the step, from 0 to 5",
        ),
        (["trace", "{empty}", "--steps", "9"], "has no cloudload state"),
        (["trace", "{text}", "--steps", "9"], "is neither JSON nor a torch checkpoint"),
        (["trace", "{none}", "--steps", "9"], "the checkpoint {none} does not exist"),
        (["where", "{none}", "--id", "a", "--until", "9"], "the checkpoint {none} does not exist"),
        (["rows", "{none}", "--steps", "9"], "the checkpoint {none} does not exist"),
        (["rows", "--yaml", "{none}", "--steps", "9"], "no such file or directory: "),
        (["export", "{none}", "out", "--steps", "9"], "the checkpoint {none} does not exist"),
        (
            ["where", "{state}", "--id", "nothing", "--until", "9"],
            "no sample has 'nothing' in its column 'id'",
        ),
        (
            ["where", "{state}", "--sample", "0:9999", "--until", "9"],
            "has no sample 9999. Use a sample from 0 to 199",
        ),
        (
            ["where", "{state}", "--sample", "7:1", "--until", "9"],
            "no stream 7. Use a stream from 0 to 1",
        ),
        (
            ["trace", "{state}", "--steps", "9", "--data", "one"],
            "data has 1 locations, but the state has 2 streams",
        ),
        (
            ["trace", "{state}", "--steps", "9", "--tokenizer", "/no/such"],
            "the tokenizer /no/such does not exist",
        ),
    ],
)
def test_the_command_line_says_what_is_wrong(
    make_loader: MakeLoader,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    with make_loader() as loader:
        _, state = consume(loader)
    (tmp_path / "state").write_text(json.dumps(state))
    (tmp_path / "empty").write_text("{}")
    (tmp_path / "text").write_text("no state")
    names = {name: str(tmp_path / name) for name in ("state", "empty", "text", "none")}
    local = ["--local", str(loader.worker_plan().cache_root), "--workers", "0"]
    assert main([argument.format(**names) for argument in arguments] + local) == 1
    error = capsys.readouterr().err
    assert message.format(**names) in error
    assert "Errno" not in error


def test_skipped_batches_are_passed_over_recorded_and_survive_a_resume(
    make_loader: MakeLoader,
) -> None:
    with make_loader() as loader:
        straight = [batch["input_ids"] for batch in loader.take(20)]
    with make_loader() as loader:
        taken = [batch["input_ids"] for batch in loader.take(4)]
        loader.skip(3)
        loader.skip(2)
        taken += [batch["input_ids"] for batch in loader.take(3)]
        state = loader.state_dict()
        assert loader.stats().skipped_rows == 5 * BATCH
        assert (state["skipped"], state["batches"]) == ("24:54", 12)
    with make_loader() as loader:
        loader.load_state_dict(state)
        loader.skip(1)
        taken += [batch["input_ids"] for batch in loader.take(2)]
        assert loader.state_dict()["skipped"] == "24:54,72:78"
        assert loader.stats().skipped_rows == 6 * BATCH
    kept = [*range(4), *range(9, 12), 13, 14]
    assert all(torch.equal(one, straight[step]) for one, step in zip(taken, kept, strict=True))


def test_a_skip_past_the_end_stops_there(make_loader: MakeLoader) -> None:
    with make_loader(epochs=1) as loader:
        loader.skip(10_000)
        assert list(loader) == []
        assert loader.stats().skipped_rows == loader.rows


def test_a_batch_goes_to_a_model_as_it_is(make_loader: MakeLoader) -> None:
    with make_loader(
        fields=["position_ids", "segment_ids", "cu_seqlens"], mask_edges=True
    ) as loader:
        batch = next(iter(loader))
    assert set(batch) == {
        "input_ids",
        "labels",
        "position_ids",
        "segment_ids",
        "cu_seqlens",
        "max_seqlen",
    }
    assert all(isinstance(value, torch.Tensor) for value in batch.values())
    starts = batch["position_ids"] == 0
    assert (batch["labels"][starts] == -100).all()
    assert batch["labels"][~starts & (batch["segment_ids"] > 0)].equal(
        batch["input_ids"][~starts & (batch["segment_ids"] > 0)]
    )
    assert batch["cu_seqlens"].dtype == batch["max_seqlen"].dtype == torch.int32
    assert int(batch["cu_seqlens"][-1]) == batch["input_ids"].numel()
