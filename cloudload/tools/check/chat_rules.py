"""Test conversations: whether a run can read them, and whether their turns are as expected.

    sample ─► read_conversation ─┬► Conversation ─► tests ─► (rule, what is wrong)
                                 └► ChatError ─► the rule of its type
    sample ─► TrainedReader ─► the document of a run ─► the rule of its fault

A test takes a conversation, and returns a description of what is wrong with it, or None. The rules
of documents need the run's tokenizer and its `Chat`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from cloudload.config import Chat
from cloudload.data import Shard
from cloudload.rows import conversation
from cloudload.tools.check import document_rules
from cloudload.tools.inspect import trained_documents

ChatTest = Callable[[conversation.Conversation], str | None]

_RULE_OF_ERROR: dict[type[conversation.ChatError], str] = {
    conversation.NoMessagesError: document_rules.NO_MESSAGES,
    conversation.EmptyMessageError: document_rules.EMPTY_MESSAGE,
    conversation.NoAnswerError: document_rules.NO_ANSWER,
}
_RULE_OF_FAULT = {
    trained_documents.REFUSED: document_rules.REFUSED_CHAT,
    trained_documents.UNTRAINED: document_rules.UNTRAINED_CHAT,
    trained_documents.LONG: document_rules.LONG_CHAT,
}
_UNREADABLE = {document_rules.NO_CHAT, *_RULE_OF_ERROR.values()}
_SYSTEM, _USER, _ASSISTANT, _TOOL = "system", "user", "assistant", "tool"
_KINDS = {"system": _SYSTEM, "developer": _SYSTEM, "user": _USER, "assistant": _ASSISTANT}
"""What a role is. All other roles are those of tools."""
_MAY_FOLLOW = {
    None: {_SYSTEM, _USER},
    _SYSTEM: {_SYSTEM, _USER},
    _USER: {_ASSISTANT},
    _ASSISTANT: {_USER, _TOOL},
    _TOOL: {_TOOL, _ASSISTANT},
}
_PLAIN_KEYS = {"role", "content", "name"}


def list_chat_tests(rules: document_rules.DocumentRules) -> list[tuple[str, ChatTest]]:
    """List the tests that each conversation must pass, in order."""
    tests: dict[str, ChatTest] = {
        document_rules.ROLES: _find_roles,
        document_rules.EMPTY_MESSAGE: _find_empty,
    }
    tests |= {
        name: partial(_find_in_contents, test)
        for name, test in document_rules.list_tests(rules)
        if name in (document_rules.LONG_TEXT, document_rules.SPECIAL_TEXT)
    }
    return [(name, test) for name, test in tests.items() if name in rules.names]


def find_faults(
    sample: Mapping[str, Any], chat: Chat, tests: Sequence[tuple[str, ChatTest]]
) -> Iterator[tuple[str, str]]:
    """Yield each rule that a sample breaks, and what is wrong with it.

    If the sample is not a conversation that a run can read, only that is yielded.
    """
    try:
        read = conversation.read_conversation(sample, chat)
    except conversation.ChatError as error:
        what, _, advice = str(error).rpartition(". ")
        yield _RULE_OF_ERROR.get(type(error), document_rules.NO_CHAT), what or advice
        return
    for rule, test in tests:
        if (found := test(read)) is not None:
            yield rule, found


def find_faults_of_documents(
    reader: trained_documents.TrainedReader, shard: Shard, faults: Mapping[int, Collection[str]]
) -> Iterator[tuple[int, str, str]]:
    """Yield each sample whose document breaks a rule, the rule, and what is wrong with it.

    `faults` has the samples to read, and the rules that each breaks as a conversation.
    """
    documents = reader.open(shard).read([*faults])
    for (sample, broken), document in zip(faults.items(), documents, strict=True):
        is_known = document.fault == trained_documents.REFUSED and {*broken} & _UNREADABLE
        if document.fault is not None and not is_known:
            yield sample, _RULE_OF_FAULT[document.fault], document.what


def _find_roles(read: conversation.Conversation) -> str | None:
    before: str | None = None
    for number, message in enumerate(read.messages):
        role = message["role"]
        kind = _KINDS.get(role, _TOOL)
        if kind not in _MAY_FOLLOW[before]:
            after = read.messages[number - 1]["role"] if number else None
            where = f"follows message {number - 1} ({after})" if after else "comes first"
            return f"has roles that do not alternate: message {number} ({role}) {where}"
        before = kind
    return None


def _find_empty(read: conversation.Conversation) -> str | None:
    for number, message in enumerate(read.messages):
        # a message with only tool calls or reasoning is not empty
        if message.keys() <= _PLAIN_KEYS and not _content(message).strip():
            return f"has an empty message: message {number} ({message['role']})"
    return None


def _find_in_contents(test: document_rules.Test, read: conversation.Conversation) -> str | None:
    for number, message in enumerate(read.messages):
        if what := test(_content(message).encode("utf-8", "replace")):
            return f"{what} of message {number} ({message['role']})"
    return None


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
