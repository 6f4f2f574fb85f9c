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
from cloudload.cli import main
from cloudload.provenance import open_run, render_rows, start_run, view_rows
from testkit.corpora import EOS, EOS_ID, byte_tokenizer, write_mds
from testkit.traced_runs import (
    BATCH,
    SAVED,
    TEXTS,
    MakeLoader,
    consume,
    loaders_of,
    write_streams,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_streams(tmp_path_factory.mktemp("viewed"))


@pytest.fixture
def make_loader(folder: Path, tokenizer_folder: Path) -> MakeLoader:
    return loaders_of(folder, tokenizer_folder)


RUNS = [
    {"packing": "concat"},
    {"packing": "concat", "mask_edges": True},
    {"packing": "best_fit", "open_rows": 3},
    {"packing": "one_per_row", "overflow": "rows", "mask_edges": True},
    {"packing": "best_fit", "open_rows": 3, "epochs": 1},
]


def joined(texts: tuple[str, ...]) -> str:
    return "".join(texts).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


@pytest.mark.parametrize("settings", RUNS)
def test_the_rows_of_later_steps_are_shown_as_they_were_consumed(
    make_loader: MakeLoader, folder: Path, settings: dict[str, Any]
) -> None:
    with make_loader(**settings, fields=["position_ids"]) as loader:
        batches, state = consume(loader)
        traced = [loader.trace(batch) for batch in batches]
    steps = range(SAVED + 1, min(SAVED + 6, len(batches) + 1))
    viewed = list(
        view_rows(
            open_run(state),
            steps,
            mask_edges=settings.get("mask_edges", False),
            local=folder / "cache",
            num_workers=0,
        )
    )
    assert [(each.step, each.row) for each in viewed] == [
        (step, row) for step in steps for row in range(BATCH)
    ]
    for each in viewed:
        batch, spans = batches[each.step - 1], traced[each.step - 1]
        assert each.run_row == batch.rows[each.row]
        for name in ("input_ids", "labels", "position_ids"):
            assert np.array_equal(getattr(each, name), batch[name][each.row].numpy()), name
        assert [span.span for span in each.spans] == [
            span for span in spans if span.row == each.run_row
        ]
        assert each.num_tokens == sum(
            stop - start for row, *_, start, stop in batch.spans.tolist() if row == each.row
        )
        for span in each.spans:
            text = TEXTS[span.span.stream][span.span.sample]
            assert span.document.text == text
            own = each.texts[span.row_start : span.row_start + span.span.stop - span.span.start]
            if len(own) == span.document.num_tokens:
                assert joined(own) == text + "<|endoftext|>"


@pytest.mark.parametrize("settings", RUNS[2:])
def test_some_rows_of_a_step_are_those_among_all(
    make_loader: MakeLoader, folder: Path, settings: dict[str, Any]
) -> None:
    with make_loader(**settings) as loader:
        _, state = consume(loader)
    run, steps = open_run(state), range(SAVED + 1, SAVED + 3)
    options: dict[str, Any] = {"local": folder / "cache", "num_workers": 0}
    all_rows = [each.as_dict() for each in view_rows(run, steps, **options)]
    for rows in ([2], [1, 3], range(4, 6)):
        expected = [each for each in all_rows if each["row"] in rows]
        assert [each.as_dict() for each in view_rows(run, steps, rows, **options)] == expected


def test_a_row_names_special_tokens_masked_labels_and_padding(tmp_path: Path) -> None:
    write_mds(tmp_path / "mds", ["ab", "cde"])
    run = start_run(
        2,
        data=str(tmp_path / "mds"),
        tokenizer=byte_tokenizer(),
        eos=EOS,
        seq_len=6,
        num_lanes=2,
        packing="one_per_row",
        overflow="cut",
        shuffle=False,
    )
    options: dict[str, Any] = {"local": tmp_path / "cache", "num_workers": 0}
    rows = view_rows(run, range(1, 2), mask_edges=True, **options)
    first, second = sorted(rows, key=lambda row: row.num_tokens)
    assert first.texts[:3] == ("a", "b", EOS)
    assert (first.num_tokens, second.num_tokens) == (3, 4)
    assert first.labels.tolist() == [-100, int(first.input_ids[1]), EOS_ID, -100, -100, -100]
    assert first.position_ids.tolist() == [0, 1, 2, 0, 1, 2]
    assert first.special == (2,)
    [span] = second.spans
    assert (span.row_start, span.document.num_tokens, span.document.text) == (0, 4, "cde")


def test_a_run_that_has_not_begun_shows_the_rows_that_a_loader_will_read(
    folder: Path, tokenizer_folder: Path
) -> None:
    options: dict[str, Any] = {
        "data": str(folder / "web"),
        "tokenizer": str(tokenizer_folder),
        "seq_len": 64,
        "num_lanes": 8,
        "packing": "best_fit",
    }
    delivery: dict[str, Any] = {"local": folder / "cache", "num_workers": 0}
    # the batch size and delivery options change no row
    run = start_run(4, **options, prefetch_batches=7, batch_size=99)
    viewed = [each.input_ids for each in view_rows(run, range(2, 4), **delivery)]
    with CloudLoader(**options, **delivery, batch_size=4) as loader:
        batches = list(loader.take(3))
    expected = [row.numpy() for batch in batches[1:] for row in batch["input_ids"]]
    assert all(np.array_equal(one, other) for one, other in zip(viewed, expected, strict=True))


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


def test_a_row_that_a_step_does_not_have_is_an_error(make_loader: MakeLoader) -> None:
    with make_loader() as loader:
        _, state = consume(loader)
    for rows in ([6], [0, -1]):
        with pytest.raises(ValueError, match="Use a row of the step, from 0 to 5"):
            next(view_rows(open_run(state), range(20, 21), rows))


# ---------------------------------------------------------------- the command


def test_the_command_prints_the_values_of_the_library(
    make_loader: MakeLoader, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with make_loader() as loader:
        _, state = consume(loader)
    (tmp_path / "state.json").write_text(json.dumps(state))
    local = ["--local", str(folder / "cache"), "--workers", "0", "--quiet"]
    command = ["rows", str(tmp_path / "state.json"), "--steps", "9:11", "--row", "2:4", *local]
    assert main([*command, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rows = view_rows(
        open_run(state), range(9, 11), range(2, 4), local=folder / "cache", num_workers=0
    )
    assert lines == [row.as_dict() for row in rows]
    assert main([*command, "--out", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'} has 4 rows\n"
    assert "<title>Rows of steps 9 to 10</title>" in (tmp_path / "page.html").read_text("utf-8")


def test_the_command_starts_a_run_from_options_or_a_yaml(
    folder: Path, tokenizer_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = ["--local", str(folder / "cache"), "--workers", "0", "--quiet", "--json"]
    steps = ["--steps", "2", "--global-batch", "3"]
    data = ["--data", str(folder / "web"), "--tokenizer", str(tokenizer_folder)]
    options = ["--option", "seq_len=64", "--option", "seed=7"]
    assert main(["rows", *data, *options, *steps, *local]) == 0
    printed = capsys.readouterr().out
    run = start_run(
        3, data=str(folder / "web"), tokenizer=str(tokenizer_folder), seq_len=64, seed=7
    )
    rows = view_rows(run, range(2, 3), local=folder / "cache", num_workers=0)
    assert [json.loads(line) for line in printed.splitlines()] == [row.as_dict() for row in rows]
    (tmp_path / "train.yaml").write_text(
        f"max_seq_len: 64\ntokenizer: {{name: {tokenizer_folder}}}\n"
        "train_loader: {name: text, dataset: {shuffle: true, shuffle_seed: 7, streams: "
        f"{{web: {{local: /nowhere, remote: {folder / 'web'}}}}}}}}}\n"
    )
    assert main(["rows", "--yaml", str(tmp_path / "train.yaml"), *steps, *local]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["step"], row["row"], len(row["input_ids"])) for row in lines] == [
        (2, row, 64) for row in range(3)
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "1"], "--data is missing, and no state was given. Pass --data"),
        (
            ["--steps", "1", "--data", "x"],
            "seq_len is missing, and no state was given. Pass --option seq_len=2048",
        ),
        (
            ["--steps", "1", "--data", "x", "--option", "seq_len=8", "--option", "sed=1"],
            "--option: CloudLoader has no argument 'sed'. Did you mean seed?",
        ),
        (
            ["--steps", "1", "--out", "/no/such/page.html"],
            "the folder /no/such does not exist. Create",
        ),
        (["--steps", "1", "--option", "seq_len"], "Use --option NAME=VALUE, such as seq_len=2048"),
        (["--steps", "1", "--option", "seq_len=["], "line 1 is not valid YAML: "),
        (["state", "--steps", "1", "--option", "seq_len=1"], "--option have no effect"),
    ],
)
def test_the_command_says_what_is_missing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rows", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_page_that_would_be_too_large_is_refused(
    make_loader: MakeLoader, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with make_loader() as loader:
        _, state = consume(loader)
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert main(["rows", str(tmp_path / "state.json"), "--steps", "9:999", "--quiet"]) == 1
    assert "a page of 5,940 rows would be too large" in capsys.readouterr().err


def test_the_command_says_where_the_data_ends(
    make_loader: MakeLoader, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with make_loader(epochs=1) as loader:
        batches, state = consume(loader)
    (tmp_path / "state.json").write_text(json.dumps(state))
    steps, last = f"{len(batches)}:{len(batches) + 3}", len(batches)
    local = ["--local", str(folder / "cache"), "--workers", "0", "--quiet", "--json"]
    assert main(["rows", str(tmp_path / "state.json"), "--steps", steps, *local]) == 0
    printed = capsys.readouterr()
    assert {json.loads(line)["step"] for line in printed.out.splitlines()} == {last}
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
    make_loader: MakeLoader, folder: Path, settings: dict[str, Any]
) -> None:
    with make_loader(**settings) as loader:
        batches, state = consume(loader)
    steps = range(max(SAVED + 1, len(batches) - 2), len(batches) + 1)  # the last has padding
    options: dict[str, Any] = {"local": folder / "cache", "num_workers": 0, "mask_edges": True}
    viewed = list(view_rows(open_run(state), steps, **options))
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
        assert np.array_equal(
            firsts[runs] + np.arange(len(tokens)) - starts[runs], row.position_ids
        )
        assert found["length"] == row.num_tokens
        for span, shown in zip(row.spans, found["spans"], strict=True):
            document = values["documents"][shown["document"]]
            assert (document["id"], document["text"]) == (span.span.id, span.document.text)
            assert document["shard"] == span.span.shard
            assert (shown["start"], shown["stop"]) == (span.span.start, span.span.stop)


@pytest.mark.parametrize("size", [199_999, 200_000, 200_001, 1_000_000])
def test_a_long_document_is_cut_around_its_span_and_says_so(tmp_path: Path, size: int) -> None:
    write_mds(tmp_path / "mds", ["".join(map(str, range(size)))[:size]])
    run = start_run(
        1, data=str(tmp_path / "mds"), tokenizer=byte_tokenizer(), eos=None, seq_len=50, num_lanes=1
    )
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
