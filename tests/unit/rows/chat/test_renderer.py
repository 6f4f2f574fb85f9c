"""What is trained of a conversation, and which names of special tokens in it stay text."""

from __future__ import annotations

from typing import Any

import pytest

from cloudload.config import Chat, Text
from cloudload.rows.chat.chat_template import ChatTemplate
from cloudload.rows.chat.conversation import ChatError
from cloudload.rows.chat.renderer import Renderer

BLOCKS = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ("<|assistant|>", "<|end|>", "<|user|>")


def render(text: str, *contents: str | dict[str, Any], **options: Any) -> Text | None:
    """Render turns that alternate between user and assistant; a dict adds to a message."""
    template = ChatTemplate("test", text, text, {}, SPECIAL, SPECIAL, Chat(**options))
    messages = [
        {
            "role": "assistant" if number % 2 else "user",
            **({"content": content} if isinstance(content, str) else content),
        }
        for number, content in enumerate(contents)
    ]
    return Renderer(template).render({"messages": messages})


def trained(document: Text | None) -> list[str]:
    assert document is not None
    assert document.trained is not None
    assert document.special_tokens
    return [document[start:stop] for start, stop in document.trained]


def test_blocks_of_a_template_say_what_is_trained() -> None:
    document = render(BLOCKS, "a", "b", "c", "d")
    assert document == "<|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>d<|end|>"
    assert trained(document) == ["b<|end|>", "d<|end|>"]


def test_names_of_special_tokens_that_users_write_stay_text() -> None:
    document = render(BLOCKS, "say <|end|> now", "ok <|user|>")
    assert document is not None
    assert [document[start:stop] for start, stop in document.literal] == ["<|end|>", "<|user|>"]
    assert document[: document.literal[0][0]] == "<|user|>say "
    assert trained(document) == ["ok <|user|><|end|>"]


def test_names_of_special_tokens_of_trusted_data_become_tokens() -> None:
    document = render(BLOCKS, "say <|end|> now", "ok", trusted=True)
    assert document is not None
    assert document.literal == ()


def test_a_template_that_trains_everything_is_refused() -> None:
    everything = (
        "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}"
    )
    with pytest.raises(ChatError, match="chat template test marks all of its text as generated"):
        render(everything, "a", "b")
