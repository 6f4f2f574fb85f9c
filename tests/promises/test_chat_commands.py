"""Commands read conversations as a loader with `chat` does, and say which tokens are trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from cloudload import Chat, EncodeContext, Text, TokenIds
from cloudload.inspect import read_samples
from testkit.conversations import chat_tokenizer, conversations, write_conversations
from testkit.corpora import write_mds
from testkit.loaders import make_loader

SEQ_LEN = 100


def draw(sample: dict[str, Any], context: EncodeContext) -> TokenIds | None:
    """Make a random number of tokens, which depends on the seed and the sample."""
    size = int(context.random.integers(0, 20)) if sample["text"] != "text 3" else 0
    return TokenIds([3] * size) if size else None


def hide(sample: dict[str, Any]) -> Text:
    return Text(sample["text"], trained=[(2, len(sample["text"]))])


class Run(NamedTuple):
    folder: str
    tokenizer: str
    flags: list[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """80 conversations, of which some have more than 100 tokens, and a tokenizer's folder."""
    base = tmp_path_factory.mktemp("chat")
    chat_tokenizer().save_pretrained(base / "tokenizer")
    folder = write_conversations(base / "data", conversations(80))
    tokenizer = str(base / "tokenizer")
    return Run(folder, tokenizer, ["--data", folder, "--tokenizer", tokenizer])


@pytest.mark.parametrize("chat", [Chat(train="last"), Chat(overlong="truncate")])
def test_the_steps_of_an_epoch_are_known_before_a_run(
    run: Run, tmp_path: Path, cli: Any, chat: Chat
) -> None:
    text = f"tokenizer,train={chat.train},overlong={chat.overlong}"
    out = ["--out", tmp_path, "--quiet"]
    counted = ["count", run.folder, *run.flags[2:], "--chat", f"{text},max_tokens={SEQ_LEN}"]
    report = json.loads(cli(*counted, *out, "--json").out)
    options = {"packing": "best_fit", "epochs": 1, "tail": "pad", "num_lanes": 4}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    planned = ["--chat", text, f"--seq-len={SEQ_LEN}", "--batch-size=2", "--no-measure"]
    plan = cli("plan", *run.flags, *planned, *flags, "--lengths", tmp_path, "--json").out
    with make_loader(
        run.folder,
        **options,
        seq_len=SEQ_LEN,
        tokenizer=run.tokenizer,
        eos="auto",
        chat=chat,
        batch_size=2,
    ) as loader:
        steps = sum(1 for _ in loader)
        assert loader.stats().documents == report["documents"]
    assert json.loads(plan)["steps"] == {
        "value": steps,
        "low": steps,
        "high": steps,
        "is_exact": True,
    }


@pytest.mark.parametrize("form", ["flag", "option", "yaml", "python"])
def test_a_config_and_a_flag_say_the_same(run: Run, tmp_path: Path, cli: Any, form: str) -> None:
    given: dict[str, Any] = {"train": "last", "date": "2026-01-31"}
    more: dict[str, list[Any]] = {
        "flag": ["--chat", "train=last,date=2026-01-31"],
        "option": ["--option", "chat={train: last, date: 2026-01-31}"],
        "yaml": ["--config", tmp_path / "run.yaml"],
        "python": ["--config", tmp_path / "run.py"],
    }
    (tmp_path / "run.yaml").write_text("chat:\n  train: last\n  date: 2026-01-31\n")
    (tmp_path / "run.py").write_text(
        f"from cloudload import Chat\nconfig = {{'chat': Chat(**{given})}}"
    )
    flags = ["--seq-len=160", "--global-batch=4", "--steps=1", "--json", *more[form]]
    rows = [json.loads(line) for line in cli("rows", *run.flags, *flags).out.splitlines()]
    with make_loader(
        run.folder,
        seq_len=160,
        tokenizer=run.tokenizer,
        eos="auto",
        chat=Chat(**given),
        batch_size=4,
    ) as loader:
        [batch] = loader.take(1)
        assert [row["labels"] for row in rows] == batch["labels"].tolist()
        assert [row["input_ids"] for row in rows] == batch["input_ids"].tolist()


def test_errors_name_the_flag(
    run: Run, tmp_path: Path, cli: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    count = ["count", run.folder, *run.flags[2:], "--chat"]
    said = cli(*count, "train=last", status=1).err
    assert "Pass --chat max_tokens=N with the run's seq_len" in said
    with pytest.raises(SystemExit, match="2"):
        cli(*count, "tokenizer,trian=last")
    said = capsys.readouterr().err
    assert "argument --chat: Chat has no argument 'trian'. Did you mean train?" in said
    rows = ["rows", *run.flags, "--seq-len=160", "--steps=1", "--option"]
    assert "--chat is {'trian': 1}: Chat has no" in cli(*rows, "chat={trian: 1}", status=1).err
    chat_tokenizer(None).save_pretrained(tmp_path)
    said = cli("count", run.folder, "--tokenizer", tmp_path, "--chat=max_tokens=9", status=1).err
    assert "no chat template. Pass --chat template=PATH with a .jinja file" in said


# ---------------------------------------------------------------- head --mask


def head(run: Run, cli: Any, *flags: str, folder: Any = None) -> list[dict[str, Any]]:
    """The documents that `cloudload head --mask` prints, as JSON."""
    printed = cli("head", folder or run.folder, "--mask", *flags, "--json").out
    return [json.loads(line)["document"] for line in printed.splitlines()]


@pytest.mark.parametrize("train", ["assistant", "last"])
def test_the_marked_parts_are_those_that_a_loader_trains(run: Run, cli: Any, train: Any) -> None:
    tokenizer = chat_tokenizer()
    chat = Chat(train=train)
    shown = head(run, cli, *run.flags[2:], "--chat", f"train={train}", "-n", "80")
    options: dict[str, Any] = {"packing": "one_per_row", "shuffle": False, "seq_len": 400}
    with make_loader(
        run.folder, **options, tokenizer=run.tokenizer, eos="auto", chat=chat, epochs=1, tail="pad"
    ) as loader:
        trained = {}
        for batch in loader:
            for row, (*_, sample, start, stop) in enumerate(batch.spans.tolist()):
                labels = batch["labels"][row][: stop - start]
                trained[sample] = labels[labels != -100].tolist()
    assert len(trained) == 80
    for sample, document in enumerate(shown):
        marked = "".join(part["text"] for part in document["parts"] if part["trained"])
        assert marked == tokenizer.decode(trained[sample])
        assert document["trained"] == len(trained[sample])
        assert document["fault"] is None
    text = "".join(part["text"] for part in shown[0]["parts"])
    assert text == tokenizer.apply_chat_template(conversations(80)[0], tokenize=False)


def test_a_document_says_why_it_is_left_out(run: Run, tmp_path: Path, cli: Any) -> None:
    asked, answered = {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}
    long = {"role": "assistant", "content": "two " * 40}
    folder = write_conversations(
        tmp_path / "data",
        [
            [asked, answered],
            [asked],
            [asked, {**answered, "weight": 0}],
            [asked, long],
            [asked, answered, asked, long],
        ],
    )
    flags = [*run.flags[2:], "--chat", "max_tokens=40,overlong=truncate"]
    good, unanswered, untrained, dropped, cut = head(run, cli, *flags, folder=folder)
    assert (good["fault"], good["what"]) == (None, "")
    assert unanswered["fault"] == "refused"
    assert unanswered["what"].startswith("the conversation has no assistant message")
    assert (unanswered["tokens"], unanswered["parts"]) == (0, [])
    assert (untrained["fault"], untrained["trained"]) == ("untrained", 0)
    assert (dropped["fault"], dropped["tokens"] > 40) == ("long", True)
    assert dropped["what"].endswith("more than 40, so it is left out")
    assert (cut["fault"], cut["parts"]) == ("long", good["parts"][:-1])
    assert cut["what"].endswith(f"so it is truncated to {cut['tokens']}")


def test_labels_of_token_ids_are_marked(run: Run, tmp_path: Path, cli: Any) -> None:
    ids = chat_tokenizer().encode("one two 狐")
    labels = [*ids[:2], *[-100] * (len(ids) - 2)]
    extra = {"labels": ("ndarray:int32", [np.array(labels, np.int32)])}
    write_mds(
        *(tmp_path / "data", [np.array(ids, np.int32)]),
        column="ids",
        encoding="ndarray:int32",
        extra=extra,
    )
    flags = ["--tokens-key", "ids", "--labels-key", "labels"]
    [document] = head(run, cli, *flags, *run.flags[2:], folder=tmp_path / "data")
    assert (document["tokens"], document["trained"]) == (len(ids), 2)
    assert [part["trained"] for part in document["parts"]] == [True, False]
    assert "".join(part["text"] for part in document["parts"]) == "one two 狐"
    [without] = head(run, cli, *flags, folder=tmp_path / "data")
    assert without["parts"][0]["text"].split() == [f"{id}" for id in ids[:2]]


def test_functions_are_called_as_in_a_run(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(40)]
    write_mds(tmp_path, texts, shard_samples=[10] * 4)
    options: dict[str, Any] = {"tokenizer": chat_tokenizer(), "encode": draw, "seed": 5}
    with make_loader(
        str(tmp_path), **options, eos=None, packing="one_per_row", epochs=1, tail="pad", seq_len=32
    ) as loader:
        rows = {}
        for batch in loader:
            for row, (*_, sample, start, stop) in enumerate(batch.spans.tolist()):
                rows[sample] = batch["input_ids"][row][: stop - start].tolist()
    for sample in read_samples(tmp_path, **options, mask=True, limit=40):
        assert sample.document is not None
        assert (sample.document.fault == "filtered") == (sample.sample not in rows)
        assert sample.document.tokens == len(rows.get(sample.sample, ()))
    [_, second, *_] = read_samples(tmp_path, mask=True, tokenizer=chat_tokenizer(), transform=hide)
    assert second.document is not None
    assert second.document.parts == (("te", False), ("xt 1", True))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_only_the_start_of_a_shard_is_needed(
    run: Run, tmp_path: Path, cli: Any, compression: str | None
) -> None:
    folder = write_conversations(tmp_path / "x", conversations(80), compression=compression)
    flags = [*run.flags[2:], "--chat", "tokenizer", "-n", "1"]
    assert head(run, cli, *flags, folder=folder) == head(run, cli, *flags)
    by_id = ["--id", "7", *flags]
    assert head(run, cli, *by_id, folder=folder) == head(run, cli, *by_id)


def test_a_mask_needs_to_know_what_makes_the_tokens(run: Run, cli: Any) -> None:
    said = cli("head", run.folder, "--mask", status=1).err
    assert "--tokenizer is missing" in said
    said = cli("head", run.folder, "--chat", "tokenizer", status=1).err
    assert "--chat is set, but only mask uses it. Set --mask, or omit it" in said
    said = cli("head", run.folder, "--mask", *run.flags[2:], status=1).err
    assert "has no column 'text'" in said
