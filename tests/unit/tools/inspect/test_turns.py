"""`cloudload head` shows conversations by role, and finds them by a pattern."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudload.errors import DatasetError
from cloudload.inspect import read_samples
from cloudload.tools.inspect.turns import describe_messages, find_messages
from testkit.corpora import write_mds

TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 + 2 = 狐?\n\x1b[31m"},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}], "name": "bot"},
    {"role": "tool", "content": [{"type": "text", "text": "4"}]},
]
LINES = """\
> system
>   Be brief.
> user
>   2 + 2 = 狐?
>   \\x1b[31m
> assistant
>   tool_calls: [{"name": "add"}]
>   name: bot
> tool
>   [{"type": "text", "text": "4"}]
"""


def show(messages: list[dict[str, Any]], columns: int = 80, *, is_full: bool = False) -> str:
    lines = describe_messages(messages, columns, "> ", is_full=is_full)
    return "".join(f"{line}\n" for line in lines)


def test_messages_are_shown_by_role() -> None:
    assert show(TURNS) == LINES
    assert show([{"from": "human", "value": "hi"}, {"from": "gpt", "value": ""}]) == (
        "> human\n>   hi\n> gpt\n>   \n"
    )


def test_lines_are_cut_at_the_width_of_the_terminal() -> None:
    assert show([{"role": "user", "content": "one two"}], 8) == "> user\n>   one \n>   two\n"


def test_long_conversations_are_shortened_unless_all_is_asked_for() -> None:
    messages = [{"role": "user", "content": f"{number}" * 400} for number in range(9)]
    shown = show(messages, 999)
    assert [len(line.strip("> ")) for line in shown.splitlines() if line[-1].isdigit()] == [
        *(300, 300, 200)
    ]
    assert shown.count("… 100 more characters") == 2
    assert shown.endswith(">   … 200 more characters\n> … 6 more messages\n")
    whole = show(messages, 999, is_full=True)
    assert "…" not in whole
    assert all(each["content"] in whole for each in messages)


@pytest.mark.parametrize(
    "value", [[], None, "text", "[1]", "[", [1], [{"a": 1}], [{"role": 5}], {"role": "user"}]
)
def test_other_values_are_not_messages(value: Any) -> None:
    assert find_messages(value) is None


def test_json_text_is_read() -> None:
    assert find_messages(TURNS) == find_messages(json.dumps(TURNS)) == TURNS


# ---------------------------------------------------------------- samples


CHATS: list[Any] = [
    TURNS,
    [{"role": "user", "content": "a fox"}, {"role": "assistant", "content": "狐"}],
    [],
]


def write(folder: Path) -> Path:
    extra: dict[str, tuple[str, list[Any]]] = {
        "id": ("str", ["a", "b", "c"]),
        "source": ("json", ["web", "fox", None]),
        "rejected": ("json", [[{"role": "assistant", "content": "no"}]] * 3),
    }
    write_mds(folder, CHATS, column="messages", encoding="json", extra=extra)
    return folder


def test_a_sample_shows_each_list_of_messages_after_its_other_columns(tmp_path: Path) -> None:
    [_, sample, empty] = read_samples(write(tmp_path))
    assert [*sample.describe("text", 80, is_full=False)] == [
        "sample 1  shard.00000.mds  id b",
        "  source: fox",
        *("  messages: 2 messages", "    user", "      a fox", "    assistant", "      狐"),
        *("  rejected: 1 message", "    assistant", "      no"),
    ]
    assert "  messages: []" in empty.describe("text", 80, is_full=False)
    assert sample.as_dict()["values"]["messages"] == CHATS[1]


def test_a_pattern_is_searched_in_the_texts_of_conversations(tmp_path: Path) -> None:
    write(tmp_path)

    def find(pattern: str, **options: Any) -> list[int]:
        return [each.sample for each in read_samples(tmp_path, pattern=pattern, **options)]

    assert find("狐") == [0, 1]
    assert find("^a fox$") == [1]
    assert find("fox", text_key="source") == [1]
    assert find("no", text_key="rejected") == [0, 1, 2]
    assert find("web") == find("role") == []
    assert len([*read_samples(tmp_path, text_key="messages")]) == 3
    with pytest.raises(DatasetError, match="has no column 'body'"):
        read_samples(tmp_path, pattern="a", text_key="body")


def test_the_command_shows_conversations(
    tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    assert json.loads(cli("head", tmp_path, "--grep", "fox").out)["values"]["id"] == "b"
    monkeypatch.setattr("cloudload.tools.cli.head_command.is_terminal", lambda _: True)
    said = cli("head", tmp_path, "--grep", "fox").out
    assert "  messages: 2 messages\n    user\n      a fox\n    assistant\n" in said
