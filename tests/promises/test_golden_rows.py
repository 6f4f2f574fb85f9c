"""Comparing golden rows shows whether a run's first rows changed, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudload import Chat, CloudLoader, Stream
from cloudload.errors import DatasetError
from cloudload.provenance import compare_golden, read_golden, record_golden
from cloudload.tools.provenance.golden import GoldenReport
from testkit.conversations import chat_tokenizer, conversations, write_conversations
from testkit.corpora import EOS, byte_tokenizer, random_documents, write_mds

TEXTS = random_documents(5, 120, max_words=12)
ROWS = 40
Options = dict[str, Any]


def write(folder: Path, texts: list[str] = TEXTS) -> str:
    ids = [f"d{number}" for number in range(len(texts))]
    write_mds(folder, texts, shard_bytes=1_500, extra={"id": ("str", ids)})
    return str(folder)


def options_of(data: Any, cache: Path, **others: Any) -> Options:
    base = {"tokenizer": byte_tokenizer(), "eos": EOS, "seq_len": 32, "num_lanes": 4, "seed": 3}
    return {**base, "data": data, "local": str(cache), **others}


@pytest.fixture
def data(tmp_path: Path) -> str:
    return write(tmp_path / "data")


@pytest.fixture
def options(data: str, tmp_path: Path) -> Options:
    return options_of(data, tmp_path / "cache")


def compare(options: Options, changed: Options) -> GoldenReport:
    """Record the rows of `options`, and compare them with those of `changed`."""
    return compare_golden(record_golden(ROWS, **options), **changed)


def test_rows_are_the_same_in_a_copy_of_the_data_and_in_any_world(
    options: Options, tmp_path: Path
) -> None:
    golden = record_golden(ROWS, **options)
    (tmp_path / "golden.json").write_text(golden.to_json())
    read = read_golden(tmp_path / "golden.json")
    assert (read.rows, read.digest) == (golden.rows, golden.digest)
    assert [sum(each.stop - each.start for each in row) for row in read.rows] == [32] * ROWS
    elsewhere = {**options, "data": write(tmp_path / "copy"), "local": str(tmp_path / "other")}
    world = {"batch_size": 7, "dp_rank": 1, "dp_world_size": 2, "num_workers": 2}
    report = compare_golden(read, **elsewhere, **world)
    assert (report.is_same, report.rows, report.changed) == (True, ROWS, ())


def test_a_document_with_another_text_is_named(options: Options, tmp_path: Path) -> None:
    golden = record_golden(ROWS, **options)
    samples = [[each.sample for each in row] for row in golden.rows]
    changed = samples[17][0]
    texts = list(TEXTS)
    texts[changed] = texts[changed].swapcase()
    new = {"data": write(tmp_path / "new", texts), "local": str(tmp_path / "other")}
    report = compare_golden(golden, **{**options, **new})
    first = next(number for number, row in enumerate(samples) if changed in row)
    assert (report.first_row, report.cause) == (first, "data")
    document = samples[first].index(changed) + 1
    assert report.what == (
        f"document {document} of the row, sample {changed} of stream 0 (id 'd{changed}'), "
        "has different text"
    )


def test_other_tokens_of_the_same_text_are_the_tokenizer(options: Options) -> None:
    other = byte_tokenizer().from_str(byte_tokenizer().to_str())
    other.add_tokens(["fox"])
    report = compare(options, {**options, "tokenizer": other})
    assert report.cause == "tokenizer"
    assert "has the same text, but different tokens" in report.what
    assert {each.name for each in report.changed} == {"tokenizer", "token_ids"}
    # best_fit moves documents whose length changes to different rows
    packed = {**options, "packing": "best_fit"}
    assert compare(packed, {**packed, "tokenizer": other}).cause == "tokenizer"
    report = compare(options, {**options, "eos": None})
    assert (report.cause, [each.name for each in report.changed]) == ("tokenizer", ["bos_eos"])


@pytest.mark.parametrize(
    "change",
    [{"seed": 4}, {"num_lanes": 2}, {"seq_len": 16}, {"packing": "best_fit"}, {"shuffle": False}],
)
def test_other_documents_are_the_order(options: Options, change: Options) -> None:
    report = compare(options, {**options, **change})
    assert (report.cause, report.is_same) == ("order", False)
    assert set(change) <= {each.name for each in report.changed}


def test_another_mask_of_the_same_tokens_is_found(tmp_path: Path) -> None:
    folder = write_conversations(tmp_path / "chats", conversations(60))
    options = options_of(folder, tmp_path / "cache", tokenizer=chat_tokenizer(), eos="auto")
    options |= {"seq_len": 400, "packing": "one_per_row", "chat": Chat()}
    last = {**options, "chat": Chat(train="last")}
    masks = []
    for each in (options, last):
        with CloudLoader(**each, batch_size=ROWS) as loader:
            [batch] = loader.take(1)
        masks.append(batch)
    assert (masks[0]["input_ids"] == masks[1]["input_ids"]).all()
    differs = (masks[0]["labels"] != masks[1]["labels"]).any(dim=1).nonzero()
    report = compare(options, last)
    assert (report.first_row, report.cause) == (int(differs[0]), "data")
    assert "has the same text, but other tokens are trained" in report.what
    assert [each.name for each in report.changed] == ["chat"]
    assert compare(options, options).is_same


def test_the_id_of_padding_has_no_effect(options: Options) -> None:
    padded = {**options, "pad_documents_to": 8}
    recorded = record_golden(8, **padded, pad_id=3)
    assert compare_golden(recorded, **padded, pad_id=4).is_same
    assert not compare_golden(recorded, **options).is_same


def test_more_and_missing_documents_are_the_data(options: Options, tmp_path: Path) -> None:
    for name, texts in (("more", [*TEXTS, *TEXTS[:40]]), ("fewer", TEXTS[:-5])):
        changed = {"data": write(tmp_path / name, texts), "local": str(tmp_path / f"of {name}")}
        report = compare(options, {**options, **changed})
        assert report.cause == "data"
        assert "data" in {each.name for each in report.changed}


def test_a_mixture_and_a_run_that_ends_are_recorded_to_their_end(
    data: str, options: Options, tmp_path: Path
) -> None:
    small = write(tmp_path / "small", TEXTS[:30])
    streams = [Stream(data, proportion=2, name="a"), Stream(small, proportion=1, name="b")]
    mixed = {**options, "data": streams}
    assert {each.stream for row in record_golden(ROWS, **mixed).rows for each in row} == {0, 1}
    shares = [Stream(data, proportion=1, name="a"), Stream(small, proportion=1, name="b")]
    report = compare(mixed, {**mixed, "data": shares})
    assert (report.cause, [each.name for each in report.changed]) == ("order", ["mixture"])
    whole = record_golden(10_000, **options, epochs=1)
    read = {each.index for row in whole.rows for each in row}
    assert read == {(0, 0, sample) for sample in range(len(TEXTS))}
    (tmp_path / "whole.json").write_text(whole.to_json())
    whole = read_golden(tmp_path / "whole.json")
    assert compare_golden(whole, **options, epochs=1).is_same
    report = compare_golden(whole, **options, epochs=2)  # a longer run
    assert report.first_row is not None
    all_at_once = record_golden(len(whole.rows), **options, epochs=1)
    assert (all_at_once.rows, all_at_once.is_whole) == (whole.rows, True)
    assert not record_golden(len(whole.rows) - 1, **options, epochs=1).is_whole
    report = compare_golden(whole, **options)  # an endless run
    assert (report.cause, report.is_same) == ("order", False)
    with pytest.raises(ValueError, match="num_rows is 0"):
        record_golden(0, **options)


def test_a_damaged_file_is_refused(options: Options, tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    text = record_golden(3, **options).to_json()
    tokens = json.loads(text)["rows"][1][0][-1]
    damaged = (text[:-9], text.replace(tokens, "0" * 16), text.replace('"state"', '"x"'))
    content = json.loads(text)
    states: list[Any] = [{}, [], "x"]
    states += [{**content["state"], **wrong} for wrong in ({"mixture": "{"}, {"part": 1})]
    foreign = [json.dumps({**content, "state": state}) for state in states]
    for wrong in (*damaged, *foreign, "[]"):
        path.write_text(wrong)
        with pytest.raises(DatasetError, match=r"golden.json is not a valid file of golden.*Write"):
            read_golden(path)


def test_the_command_writes_and_compares(
    data: str, tmp_path: Path, tokenizer_folder: Path, cli: Any
) -> None:
    run = {"data": data, "tokenizer": str(tokenizer_folder), "seq_len": 32, "seed": 3}
    config, golden = tmp_path / "run.yaml", str(tmp_path / "golden.json")
    config.write_text(json.dumps({**run, "local": str(tmp_path / "cache")}))
    command = ["check", "--config", config, "--quiet", "--processes", "1"]
    printed = cli(*command, "--write-golden", golden, "--rows", "20").out
    digest = read_golden(Path(golden)).digest
    assert printed == f"{golden} has 20 rows with the digest {digest}\n"
    printed = cli(*command, "--golden", golden).out
    assert "(120 tested by the rules)" in printed
    assert printed.endswith("golden: all 20 rows are the same\n")
    other = [*command, "--golden", golden, "--sample", "0", "--seed", "4"]
    lines = cli(*other, status=1).out.splitlines()
    assert "golden: row 0 differs, because of the order" in lines
    assert lines[-1] == "  seed (order): 3 → 4"
    found = json.loads(cli(*other, "--json", status=1).out)["golden"]
    assert (found["first_row"], found["cause"], found["is_same"]) == (0, "order", False)
    for wrong_file, message in (
        ("no/x.json", "does not exist. Create the folder"),
        ("", "which is a folder"),
    ):
        assert message in cli(*command, "--write-golden", tmp_path / wrong_file, status=1).err
    both = [*command[1:], "--golden", golden, "--write-golden", golden]
    for wrong in ([], ["--golden", golden, data], both, [data, "--rows", "2"]):
        with pytest.raises(SystemExit, match="2"):
            cli("check", *wrong)


def test_the_command_takes_the_data_of_a_config_as_the_loader_does(
    data: str, tmp_path: Path, tokenizer_folder: Path, cli: Any
) -> None:
    config, golden = tmp_path / "run.py", str(tmp_path / "golden.json")
    run = {"tokenizer": str(tokenizer_folder), "seq_len": 32, "local": str(tmp_path / "cache")}
    head = f"from pathlib import Path\nconfig = {run!r}\nconfig['data'] = "
    command = ["check", "--config", config, "--quiet", "--processes", "1"]
    parent, name = Path(data).parent, Path(data).name
    for given, flags in ((f"Path({data!r})", []), (f"Path({str(parent)!r})", ["--split", name])):
        config.write_text(head + given)
        cli(*command, *flags, "--write-golden", golden, "--rows", "5")
        assert "golden: all 5 rows are the same" in cli(*command, *flags, "--golden", golden).out
    config.write_text(head + "[object()]")
    assert "Pass the URL or folder of a dataset" in cli(*command, status=1).err


def test_rows_after_the_last_recorded_one_of_a_run_that_ended_are_found(
    options: Options, tmp_path: Path
) -> None:
    one = {**options, "packing": "one_per_row", "epochs": 1, "shuffle": False, "num_lanes": 1}
    golden = record_golden(1_000, **one)
    more = write(tmp_path / "more", [*TEXTS, "one more"])
    report = compare_golden(golden, **{**one, "data": more, "local": str(tmp_path / "other")})
    assert (report.first_row, report.cause) == (len(TEXTS), "data")
    assert report.what == (
        f"document 1 of the row was missing, but is now sample {len(TEXTS)} of stream 0"
        f" (id 'd{len(TEXTS)}')"
    )
