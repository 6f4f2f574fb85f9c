"""The rows on the page are the rows that the model was trained on."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from cloudload import CloudLoader
from cloudload.provenance import render_rows, start_run, view_rows
from testkit.corpora import EOS, EOS_ID, byte_tokenizer, write_mds
from testkit.loaders import rows_of
from testkit.traced_runs import BATCH, SAVED, TEXTS, TracedRuns

RUNS = [
    {"packing": "concat"},
    {"packing": "concat", "mask_edges": True},
    {"packing": "concat", "row_bos": 7},
    {"packing": "best_fit", "open_rows": 3},
    {"packing": "one_per_row", "overflow": "rows", "mask_edges": True},
    {"packing": "best_fit", "open_rows": 3, "epochs": 1},
]


def joined(texts: tuple[str, ...]) -> str:
    return "".join(texts).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


@pytest.mark.parametrize("settings", RUNS)
def test_the_rows_of_later_steps_are_shown_as_they_were_consumed(
    traced: TracedRuns, settings: dict[str, Any]
) -> None:
    read = traced.consume(**settings, fields=["position_ids"])
    steps = range(SAVED + 1, min(SAVED + 6, len(read.batches) + 1))
    mask_edges = settings.get("mask_edges", False)
    viewed = list(view_rows(read.run, steps, mask_edges=mask_edges, **read.delivery))
    assert [(each.step, each.row) for each in viewed] == [
        (step, row) for step in steps for row in range(BATCH)
    ]
    for each in viewed:
        batch, spans = read.batches[each.step - 1], read.spans[each.step - 1]
        assert each.run_row == batch.rows[each.row]
        for name in ("input_ids", "labels", "position_ids"):
            assert np.array_equal(getattr(each, name), batch[name][each.row].numpy()), name
        own_spans = [span for span in spans if span.row == each.run_row]
        assert [span.span for span in each.spans] == own_spans
        assert each.num_tokens == sum(span.stop - span.start for span in own_spans)
        for span in each.spans:
            text = TEXTS[span.span.stream][span.span.sample]
            assert span.document.text == text
            own = each.texts[span.row_start : span.row_start + span.span.stop - span.span.start]
            if len(own) == span.document.num_tokens:
                assert joined(own) == text + "<|endoftext|>"


@pytest.mark.parametrize("settings", RUNS[2:])
def test_some_rows_of_a_step_are_those_among_all(
    traced: TracedRuns, settings: dict[str, Any]
) -> None:
    read, steps = traced.consume(**settings), range(SAVED + 1, SAVED + 3)
    all_rows = [each.as_dict() for each in view_rows(read.run, steps, **read.delivery)]
    for rows in ([2], [1, 3], range(4, 6)):
        expected = [each for each in all_rows if each["row"] in rows]
        found = view_rows(read.run, steps, rows, **read.delivery)
        assert [each.as_dict() for each in found] == expected


def test_a_row_names_special_tokens_masked_labels_and_padding(tmp_path: Path) -> None:
    write_mds(tmp_path / "mds", ["ab", "cde"])
    options: dict[str, Any] = {"packing": "one_per_row", "overflow": "cut", "shuffle": False}
    options |= {"tokenizer": byte_tokenizer(), "eos": EOS, "seq_len": 6, "num_lanes": 2}
    run = start_run(2, data=str(tmp_path / "mds"), **options)
    rows = view_rows(run, range(1, 2), mask_edges=True, local=tmp_path / "cache", num_workers=0)
    first, second = sorted(rows, key=lambda row: row.num_tokens)
    assert first.texts[:3] == ("a", "b", EOS)
    assert (first.num_tokens, second.num_tokens) == (3, 4)
    assert first.labels.tolist() == [-100, int(first.input_ids[1]), EOS_ID, -100, -100, -100]
    assert first._repr_html_().count("opacity") == 4
    assert "3 tokens, 2 trained" in first._repr_html_()
    assert first.position_ids.tolist() == [0, 1, 2, 0, 1, 2]
    assert first.special == (2,)
    [span] = second.spans
    assert (span.row_start, span.document.num_tokens, span.document.text) == (0, 4, "cde")


def test_a_run_that_has_not_begun_shows_the_rows_that_a_loader_will_read(
    traced: TracedRuns, tokenizer_folder: Path
) -> None:
    options: dict[str, Any] = {"data": str(traced.folder / "web"), "seq_len": 64, "num_lanes": 8}
    options |= {"tokenizer": str(tokenizer_folder), "packing": "best_fit"}
    delivery: dict[str, Any] = {"local": traced.folder / "cache", "num_workers": 0}
    # the batch size and delivery options change no row
    run = start_run(4, **options, prefetch_batches=7, batch_size=99)
    viewed = [each.input_ids.tolist() for each in view_rows(run, range(2, 4), **delivery)]
    with CloudLoader(**options, **delivery, batch_size=4) as loader:
        assert viewed == rows_of(loader.take(3))[4:]


def test_rows_of_pretokenized_data_have_the_text_of_their_tokens(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    ids = [np.array(tokenizer.encode(text).ids, np.uint16) for text in ("one two", "three")]
    write_mds(tmp_path / "mds", ids, column="tokens", encoding="ndarray:uint16")
    data: dict[str, Any] = {"data": str(tmp_path / "mds"), "tokens_key": "tokens", "seq_len": 12}
    options: dict[str, Any] = {"local": tmp_path / "cache", "num_workers": 0}
    run = start_run(1, **data, tokenizer=tokenizer, num_lanes=1, eos=None)
    viewed = [*view_rows(run, range(1, 3), **options)]
    texts = {span.document.text for row in viewed for span in row.spans}
    assert texts == {"one two", "three"}
    run = start_run(1, **data, tokenizer=None, num_lanes=1, eos=None)
    [row] = view_rows(run, range(1, 2), **options)
    assert row.texts == tuple(f"{id} " for id in row.input_ids.tolist())


def test_a_row_that_a_step_does_not_have_is_an_error(traced: TracedRuns) -> None:
    for rows in ([6], [0, -1]):
        with pytest.raises(ValueError, match="Use a row of the step, from 0 to 5"):
            next(view_rows(traced.consume().run, range(20, 21), rows))


# ---------------------------------------------------------------- the command


def test_the_command_prints_the_values_of_the_library(
    traced: TracedRuns, tmp_path: Path, cli: Any
) -> None:
    read, page = traced.consume(), tmp_path / "page.html"
    command = ["rows", read.write(tmp_path / "state.json"), "--steps", "9:11", "--row", "2:4"]
    command += [*read.flags, "--quiet"]
    rows = view_rows(read.run, range(9, 11), range(2, 4), **read.delivery)
    assert parse(cli(*command, "--json").out) == [row.as_dict() for row in rows]
    assert cli(*command, "--out", page).out == f"{page} has 4 rows\n"
    assert "<title>Rows of steps 9 to 10</title>" in page.read_text("utf-8")


def parse(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


def test_the_command_starts_a_run_from_options_or_a_yaml(
    traced: TracedRuns, tokenizer_folder: Path, tmp_path: Path, cli: Any
) -> None:
    web, delivery = traced.folder / "web", traced.consume().delivery
    flags = ["--steps", "2", "--global-batch", "3", *traced.consume().flags, "--quiet", "--json"]
    data = ["--data", web, "--tokenizer", tokenizer_folder]
    printed = cli("rows", *data, "--seq-len", "64", "--seed", "7", *flags).out
    run = start_run(3, data=str(web), tokenizer=str(tokenizer_folder), seq_len=64, seed=7)
    rows = view_rows(run, range(2, 3), **delivery)
    assert parse(printed) == [row.as_dict() for row in rows]
    (tmp_path / "train.yaml").write_text(
        f"max_seq_len: 64\ntokenizer: {{name: {tokenizer_folder}}}\n"
        "train_loader: {name: text, dataset: {shuffle: true, shuffle_seed: 7, streams: "
        f"{{web: {{local: /nowhere, remote: {web}}}}}}}}}\n"
    )
    lines = parse(cli("rows", "--yaml", tmp_path / "train.yaml", *flags).out)
    assert [(row["step"], row["row"], len(row["input_ids"])) for row in lines] == [
        (2, row, 64) for row in range(3)
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "1"], "--data is missing, and no state was given. Pass --data"),
        (
            ["--steps", "1", "--data", "x"],
            "--seq-len is missing, and no state was given. Pass --seq-len 2048",
        ),
        (
            ["--steps", "1", "--data", "x", "--seq-len", "8", "--option", "sed=1"],
            "--option: CloudLoader has no argument 'sed'. Did you mean seed?",
        ),
        (
            ["--steps", "1", "--out", "/no/such/page.html"],
            "the folder /no/such does not exist. Create",
        ),
        (["--steps", "1", "--option", "seq_len"], "'seq_len'. Use NAME=VALUE, such as seed=4"),
        (["--steps", "1", "--option", "seq_len=["], "line 1 is not valid YAML: "),
        (
            ["state", "--steps", "1", "--option", "seq_len=1"],
            "these options have no effect: --option",
        ),
        (
            ["state", "--steps", "1", "--seq-len", "1", "--seed", "2"],
            "these options have no effect: --seq-len, --seed. Omit them, or omit the state",
        ),
    ],
)
def test_the_command_says_what_is_missing(arguments: list[str], message: str, cli: Any) -> None:
    assert message in cli("rows", *arguments, status=1).err


def test_a_page_that_would_be_too_large_is_refused(
    traced: TracedRuns, tmp_path: Path, cli: Any
) -> None:
    path = traced.consume().write(tmp_path / "state.json")
    error = cli("rows", path, "--steps", "9:999", "--quiet", status=1).err
    assert "a page of 5,940 rows would be too large" in error


def test_the_command_says_where_the_data_ends(traced: TracedRuns, tmp_path: Path, cli: Any) -> None:
    read = traced.consume(epochs=1)
    last = len(read.batches)
    command = ["rows", read.write(tmp_path / "state.json"), "--steps", f"{last}:{last + 3}"]
    printed = cli(*command, *read.flags, "--quiet", "--json")
    assert {row["step"] for row in parse(printed.out)} == {last}
    assert f"the data ends before step {last + 1}" in printed.err


# ---------------------------------------------------------------- the page


def values_of(page: str) -> dict[str, Any]:
    """Return the values that the page's script reads."""
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert text.isascii()
    assert not set("<>&") & set(text)
    values: dict[str, Any] = json.loads(text)
    return values


@pytest.mark.parametrize("settings", RUNS)
def test_the_page_holds_the_values_of_the_rows(
    traced: TracedRuns, settings: dict[str, Any]
) -> None:
    read = traced.consume(**settings)
    last = len(read.batches)
    steps = range(max(SAVED + 1, last - 2), last + 1)  # the last has padding
    viewed = list(view_rows(read.run, steps, mask_edges=True, **read.delivery))
    values = values_of(render_rows(viewed, "title"))
    for row, found in zip(viewed, values["rows"], strict=True):
        tokens = np.frombuffer(base64.b64decode(found["tokens"]), "<u4")
        assert np.array_equal(np.array(values["ids"])[tokens], row.input_ids)
        assert [values["texts"][token] for token in tokens] == list(row.texts)
        masked = np.zeros(len(row.labels), np.bool_)
        for start, stop in found["masked"]:
            masked[start:stop] = True
        assert np.array_equal(masked, row.labels == -100)
        starts = np.array([start for start, _ in found["positions"]])
        runs = np.searchsorted(starts, np.arange(len(tokens)), side="right") - 1
        firsts = np.array([first for _, first in found["positions"]])
        positions = firsts[runs] + np.arange(len(tokens)) - starts[runs]
        assert np.array_equal(positions, row.position_ids)
        assert found["length"] == row.length == row.num_tokens + settings.get("row_bos", 0) // 7
        for span, shown in zip(row.spans, found["spans"], strict=True):
            document = values["documents"][shown["document"]]
            assert (document["id"], document["text"]) == (span.span.id, span.document.text)
            assert document["shard"] == span.span.shard
            assert (shown["start"], shown["stop"]) == (span.span.start, span.span.stop)


@pytest.mark.parametrize("size", [199_999, 200_000, 200_001, 1_000_000])
def test_a_long_document_is_cut_around_its_span_and_says_so(tmp_path: Path, size: int) -> None:
    write_mds(tmp_path / "mds", ["".join(map(str, range(size)))[:size]])
    options: dict[str, Any] = {"tokenizer": byte_tokenizer(), "eos": None, "seq_len": 50}
    run = start_run(1, data=str(tmp_path / "mds"), num_lanes=1, **options)
    step = size // 50 // 2
    [row] = view_rows(run, range(step, step + 1), local=tmp_path / "cache", num_workers=0)
    [document] = values_of(render_rows([row], "title"))["documents"]
    text = row.spans[0].document.text
    before, after = document["before"], document["after"]
    assert document["text"] == text[before : size - after]
    assert len(document["text"]) == min(size, 200_000)
    assert "".join(row.texts) in document["text"]


def test_a_page_without_rows_is_an_error() -> None:
    with pytest.raises(ValueError, match="there are no rows to render"):
        render_rows([], "title")
