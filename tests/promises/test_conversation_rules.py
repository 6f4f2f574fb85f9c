"""`check_dataset` tests conversations, without a tokenizer, and names those that break a rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudload import Chat
from cloudload.tools.check import check_dataset
from cloudload.tools.check.document_rules import CHAT_RULES
from cloudload.tools.check.findings import CheckReport
from testkit.corpora import byte_tokenizer, write_mds

Row = dict[str, Any]


def message(role: str, content: Any, **more: Any) -> Row:
    return {"role": role, "content": content, **more}


SYSTEM, ASKED, ANSWERED = message("system", "s"), message("user", "u"), message("assistant", "a")
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
PARTS = [{"type": "text", "text": "u"}]

PLAIN: list[Row] = [
    {"messages": [message("user", f"question {number}"), ANSWERED]} for number in range(70)
]
GOOD: list[Row] = [
    {"messages": [SYSTEM, ASKED, ANSWERED, message("user", "more"), ANSWERED]},
    {"messages": [message("developer", "s"), ASKED, ANSWERED, ASKED]},
    {"messages": [ASKED, CALL, message("tool", "r"), message("tool", "r"), ANSWERED]},
    {"messages": [ASKED, {"role": "assistant", "reasoning_content": "hm"}, message("user", "v")]},
    {"messages": [message("user", PARTS), ANSWERED]},
    {"messages": json.dumps([message("user", "in JSON text"), ANSWERED])},
    {"conversations": [{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]},
    {"prompt": "u", "completion": "a"},
    {"prompt": [ASKED], "completion": [ANSWERED]},
    {"instruction": "u", "input": "", "output": "a"},
]
BROKEN: list[tuple[str, Any, str]] = [
    ("chat-missing", [], "the column 'messages' has no messages"),
    ("chat-missing", None, "but no conversation"),
    ("chat-invalid", "not JSON", "the column 'messages' is not JSON"),
    ("chat-invalid", 7, "the column 'messages' is 7"),
    ("chat-invalid", {"role": "user"}, "the column 'messages' is {'role': 'user'}"),
    ("chat-invalid", ["hello"], "message 0 is 'hello'"),
    ("chat-invalid", [{"content": "x"}], "the role of message 0 is None"),
    ("chat-invalid", [message("narrator", "x")], "the role of message 0 is 'narrator'"),
    ("chat-invalid", [message("user", 5), ANSWERED], "the content of message 0 is 5"),
    ("chat-unanswered", [SYSTEM, ASKED], "the conversation has no assistant message"),
    ("chat-roles", [ASKED, message("user", "v"), ANSWERED], "message 1 (user) follows message 0"),
    ("chat-roles", [ANSWERED, ASKED], "message 0 (assistant) comes first"),
    ("chat-roles", [ASKED, SYSTEM, ANSWERED], "message 1 (system) follows message 0 (user)"),
    ("chat-roles", [ASKED, message("tool", "r"), ANSWERED], "message 1 (tool) follows message 0"),
    ("chat-roles", [ASKED, ANSWERED, ANSWERED], "message 2 (assistant) follows message 1"),
    ("chat-empty", [message("user", ""), ANSWERED], "an empty message: message 0 (user)"),
    ("chat-empty", [ASKED, message("assistant", " \n")], "message 1 (assistant)"),
    ("chat-empty", [message("user", []), ANSWERED], "message 0 (user)"),
    ("chat-empty", [message("user", None), ANSWERED], "message 0 (user) has no content"),
    ("text-special", [message("user", "a <|im_end|>"), ANSWERED], "at byte 2 of message 0 (user)"),
    ("text-long", [ASKED, message("assistant", "x" * 1025)], "of message 1 (assistant)"),
    ("text-repeated", PLAIN[3]["messages"], "has the same text as sample 3"),
]


def write(folder: Path, rows: list[Row]) -> Path:
    """Write rows as columns of JSON, after 70 conversations that break no rule."""
    rows = [*PLAIN, *rows]
    names = dict.fromkeys(name for row in rows for name in row)
    extra = {name: ("json", [row.get(name) for row in rows]) for name in names}
    write_mds(folder, [f"r{number}" for number in range(len(rows))], column="id", extra=extra)
    return folder


def write_column(folder: Path, column: str, values: list[Any]) -> Path:
    write_mds(folder, values, column=column, encoding="json")
    return folder


def check(folder: Path, **options: Any) -> CheckReport:
    return check_dataset(folder, progress=False, processes=1, max_bytes=1024, **options)


@pytest.mark.parametrize(("kind", "messages", "what"), BROKEN)
def test_a_conversation_that_breaks_a_rule_is_named(
    tmp_path: Path, kind: str, messages: Any, what: str
) -> None:
    folder = write(tmp_path / "data", [{"messages": messages}])
    for options in ({}, {"text_key": None}, {"chat": Chat()}):
        report = check(folder, **options)
        [finding] = report.findings
        assert (finding.kind, report.documents, report.is_sound) == (kind, 71, True)
        assert finding.what.startswith("sample 70 (id 'r70') ")
        assert what in finding.what
    assert not check(folder, fail_on=[kind]).is_sound
    assert check(folder, rules="none").findings == ()
    assert not check(folder, rules=[kind]).counts.keys() - {kind}


def test_all_forms_of_conversations_break_no_rule(tmp_path: Path) -> None:
    report = check(write(tmp_path / "data", GOOD))
    assert (report.findings, report.documents) == ((), 70 + len(GOOD))


def test_every_rule_for_conversations_has_one_that_breaks_it() -> None:
    assert {kind for kind, *_ in BROKEN if kind.startswith("chat-")} == {*CHAT_RULES}


def test_the_options_of_chat_say_how_conversations_are_read(tmp_path: Path) -> None:
    write_column(tmp_path / "data", "talk", [[message("human_1", "u"), ANSWERED]] * 70)
    with_chat = Chat(messages_key="talk", roles={"human_1": "user"})
    assert check(tmp_path / "data", chat=with_chat).counts == {"text-repeated": 69}
    assert check(tmp_path / "data", chat=Chat(messages_key="talk")).counts["chat-invalid"] == 70
    [finding] = check(tmp_path / "data", chat=Chat()).findings
    assert (finding.kind, finding.advice) == ("text-column", "Pass messages_key of Chat")


def test_data_without_text_and_conversations_is_sound_if_no_text_is_expected(
    tmp_path: Path,
) -> None:
    write_column(tmp_path / "data", "input_ids", [[number] for number in range(70)])
    report = check(tmp_path / "data", text_key=None)
    assert (report.findings, report.documents) == ((), 0)
    assert [finding.kind for finding in check(tmp_path / "data").findings] == ["text-column"]


def test_a_run_without_chat_needs_text(tmp_path: Path, cli: Any) -> None:
    data = write(tmp_path / "data", [])
    assert check(data, chat=None).counts == {"text-column": 1}
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(byte_tokenizer().to_str())
    run = {"data": str(data), "tokenizer": str(tokenizer), "seq_len": 64, "eos": None}
    (tmp_path / "run.yaml").write_text(json.dumps(run))
    assert "error: text-column" in cli("check", "--config", tmp_path / "run.yaml", status=1).out


def test_the_command_reads_conversations_as_the_run_does(tmp_path: Path, cli: Any) -> None:
    talk = write_column(tmp_path / "talk", "talk", [[message("alien", "u"), ANSWERED]] * 70)
    said = cli("check", talk, "--chat", "messages_key=talk").out
    assert "the role of message 0 is 'alien'" in said
    chat = {"messages_key": "talk", "roles": {"alien": "user"}}
    (tmp_path / "run.yaml").write_text(json.dumps({"data": str(talk), "chat": chat}))
    report = json.loads(cli("check", "--config", tmp_path / "run.yaml", "--json").out)
    [found] = report["datasets"]
    assert (found["counts"], found["documents"]) == ({"text-repeated": 69}, 70)


def test_a_given_name_of_a_text_column_must_be_right(tmp_path: Path) -> None:
    report = check(write(tmp_path / "data", []), text_key="body")
    assert [finding.kind for finding in report.findings] == ["text-column"]


def test_a_column_of_text_is_tested_instead_of_conversations(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(70)]
    extra: dict[str, tuple[str, list[Any]]] = {"messages": ("json", [[]] * 70)}
    write_mds(tmp_path / "data", texts, extra=extra)
    assert check(tmp_path / "data").findings == ()
    assert check(tmp_path / "data", text_key=None).counts == {"chat-missing": 70}


def test_the_command_tests_conversations(tmp_path: Path, cli: Any) -> None:
    folder = write(tmp_path / "data", [{"messages": [ASKED]}])
    for options in ([], ["--text-key", "none"]):
        said = cli("check", folder, *options).out
        assert "warning: chat-unanswered" in said
        assert "sample 70 (id 'r70') the conversation has no assistant message to train" in said
    assert cli("check", folder, "--fail-on", "chat-unanswered", status=1).out
