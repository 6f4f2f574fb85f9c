"""With a tokenizer and `chat`, `check_dataset` tests what a run makes of each conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streaming import MDSWriter

from cloudload import Chat
from cloudload.tools.check import check_dataset
from cloudload.tools.check.document_rules import TEMPLATE_RULES
from cloudload.tools.check.findings import CheckReport
from testkit.conversations import TEMPLATE, Message, chat_tokenizer, conversations
from testkit.corpora import write_mds
from testkit.loaders import make_loader

TOKENIZER = chat_tokenizer()
STRICT = "{% if messages|length > 2 %}{{ raise_exception('two messages only') }}{% endif %}"
ASKED, ANSWERED = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
LIMIT = 40
PLAIN: list[list[Message]] = [
    [{"role": "user", "content": f"one {number}"}, ANSWERED] for number in range(70)
]
BROKEN: list[tuple[str, Chat, list[Message], str]] = [
    (
        "chat-refused",
        Chat(STRICT + TEMPLATE),
        [ASKED, ANSWERED, ASKED, ANSWERED],
        "the chat template given as text refuses the conversation: two messages only",
    ),
    (
        "chat-refused",
        Chat(
            "{% if messages[0].content != 'u' %}{{ messages[0].content }}{% endif %}"
            "{% generation %}{{ messages[1].content }}{% endgeneration %}"
        ),
        [ASKED, {**ANSWERED, "content": "u"}],
        "marks all of its text as generated, so prompts would be trained, too",
    ),
    ("chat-untrained", Chat(), [ASKED, {**ANSWERED, "train": False}], "has no trained token, so"),
    ("chat-long", Chat(), [ASKED, {**ANSWERED, "content": "a " * 40}], "so it is left out"),
    (
        "chat-long",
        Chat(overlong="truncate"),
        [ASKED, ANSWERED, {**ASKED, "content": "u " * 40}, ANSWERED],
        "so it is truncated to 21",
    ),
]


def write(folder: Path, last: list[Message]) -> Path:
    """Write 70 conversations that break no rule, and one more."""
    messages = [*PLAIN, last]
    ids = [f"r{number}" for number in range(len(messages))]
    extra: dict[str, Any] = {"messages": ("json", messages)}
    write_mds(folder, ids, column="id", extra=extra, shard_bytes=2_000)
    return folder


def check(folder: Path, chat: Chat | None, **options: Any) -> CheckReport:
    given: dict[str, Any] = {"tokenizer": TOKENIZER, "processes": 1, **options}
    given |= {"chat": chat} if chat else {}
    return check_dataset(folder, progress=False, **given)


@pytest.mark.parametrize(("kind", "chat", "messages", "what"), BROKEN)
def test_a_conversation_that_a_run_leaves_out_is_named(
    tmp_path: Path, kind: str, chat: Chat, messages: list[Message], what: str
) -> None:
    folder = write(tmp_path / "data", messages)
    chat = Chat(**{**vars(chat), "max_tokens": LIMIT})
    for processes in (1, 2):
        report = check(folder, chat, processes=processes)
        [finding] = [each for each in report.findings if each.kind in TEMPLATE_RULES][-1:]
        assert finding.kind == kind
        assert finding.what.startswith("sample ")
        assert "(id 'r70')" in finding.what
        assert what in finding.what
    assert not check(folder, chat, fail_on=[kind]).is_sound
    assert not check(folder, chat, rules=[kind]).counts.keys() - {kind}
    assert not check(folder, chat, tokenizer=None).counts.keys() & {*TEMPLATE_RULES}
    assert not check(folder, None).counts.keys() & {*TEMPLATE_RULES}


def test_every_rule_has_a_conversation_that_breaks_it() -> None:
    assert {kind for kind, *_ in BROKEN} == {*TEMPLATE_RULES}


@pytest.mark.parametrize("overlong", ["drop", "truncate"])
def test_a_check_counts_what_a_run_leaves_out(tmp_path: Path, overlong: Any) -> None:
    messages = conversations(100)
    messages[7][-1] = {**messages[7][-1], "train": False}
    ids = [f"{number}" for number in range(100)]
    extra: dict[str, Any] = {"messages": ("json", messages)}
    write_mds(tmp_path / "data", ids, column="id", extra=extra, shard_bytes=4_000)
    chat = Chat(train="last", max_tokens=100, overlong=overlong)
    with make_loader(
        str(tmp_path / "data"), tokenizer=TOKENIZER, eos="auto", chat=chat, epochs=1, tail="pad"
    ) as loader:
        for _ in loader:
            pass
        filtered = loader.stats().filtered
    found = check(tmp_path / "data", chat)
    left_out = found.counts["chat-untrained"]
    # the last turn is trained, so truncation leaves nothing that is
    assert left_out + found.counts["chat-long"] == filtered > left_out > 0
    assert check(tmp_path / "data", chat, rules=["chat-untrained"]).counts == {
        "chat-untrained": left_out
    }


def test_an_error_of_the_messages_is_not_also_one_of_the_template(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", [ASKED])
    assert check(folder, Chat()).counts == {"chat-unanswered": 1}


def test_a_column_that_no_run_can_read_is_found_once(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path), columns={"messages": "json", "extra": "pkl"}) as writer:
        for messages in [*PLAIN, [ASKED, {**ANSWERED, "train": False}]]:
            writer.write({"messages": messages, "extra": 1})
    assert check(tmp_path, Chat()).counts.keys() == {"pickle", "hash-absent"}


def test_rules_that_cannot_apply_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", PLAIN[0])
    with pytest.raises(ValueError, match="chat-refused requires a tokenizer, and chat=Chat"):
        check(folder, None, rules=["chat-refused"])
    with pytest.raises(ValueError, match=r"chat-long requires .* chat=Chat\(max_tokens=N\)"):
        check(folder, Chat(), rules=["chat-long"])
    with pytest.raises(ValueError, match=r"does not apply. Pass a tokenizer, and chat=Chat\(max"):
        check(folder, Chat(max_tokens=9, overlong="split"), fail_on="chat-long")
    with pytest.raises(ValueError, match="has no chat template"):
        check(folder, Chat(), tokenizer=chat_tokenizer(None))


def test_the_command_checks_a_run_with_its_limit(tmp_path: Path, cli: Any) -> None:
    folder = write(tmp_path / "data", [ASKED, {**ANSWERED, "content": "a " * 40}])
    TOKENIZER.save_pretrained(tmp_path / "tokenizer")
    flags = ["--tokenizer", tmp_path / "tokenizer", "--fail-on", "chat-long"]
    alone = ["check", folder, *flags, "--chat"]
    assert "chat-long" in cli(*alone, "tokenizer,max_tokens=40", status=1).out
    assert "chat-long" not in cli(*alone, "max_tokens=400").out
    run = ["check", "--data", folder, *flags, "--chat", "tokenizer"]
    assert "more than 40" in cli(*run, "--seq-len=40", status=1).out
    assert "chat-long" not in cli(*run, "--seq-len=400").out
