"""Commands read conversations as a loader with `chat` does, and say which tokens are trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cloudload import Chat
from testkit.conversations import chat_tokenizer, conversations, write_conversations
from testkit.loaders import make_loader

SEQ_LEN = 100


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
