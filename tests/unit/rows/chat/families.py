"""Chat templates of real models, which TRL installs, and conversations to render with them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import trl

from cloudload.config import Chat
from cloudload.rows.chat.chat_template import ChatTemplate
from cloudload.rows.chat.renderer import Renderer

TEMPLATES = {
    path.stem: path.read_text("utf-8")
    for path in sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))
    # those of these models for images read only contents that are lists
    if not path.stem.startswith(("llava", "idefics3", "smolvlm"))
}
DATE = "2026-01-31"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
PIPED = (
    *("im_start", "im_end", "start_header_id", "end_header_id", "eot_id", "eom_id", "eot", "eom"),
    *("python_tag", "start", "end", "message", "channel", "return", "call", "final", "think"),
    *("user", "assistant", "system", "observation", "USER_TOKEN", "CHATBOT_TOKEN", "SYSTEM_TOKEN"),
    *("START_OF_TURN_TOKEN", "END_OF_TURN_TOKEN", "START_RESPONSE", "END_RESPONSE"),
)
SPECIAL = (
    *("<s>", "</s>", "<pad>", "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>"),
    *("<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool>", "<tool|>"),
    *("<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
    *("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    *(f"<|{name}|>" for name in PIPED),
)


@cache
def renderer(name: str, **options: Any) -> Renderer:
    text = TEMPLATES[name]
    chat = Chat(**{"date": DATE, **options})
    return Renderer(ChatTemplate(name, text, text, TOKENS, SPECIAL, SPECIAL, chat))


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string", "description": "A city & country"}},
    "required": ["place"],
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "forecast", "description": "Tells <b>rain</b>", "parameters": SCHEMA},
    }
]
CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "forecast", "arguments": {"place": "K\u00f6ln"}},
}
TOOL = {"role": "tool", "content": "wet", "tool_call_id": "call00001", "name": "forecast"}
SYSTEM = {"role": "system", "content": "Be brief."}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one turn": {"messages": [user("Hi there"), assistant("Hello, you.")]},
    "turns": {
        "messages": [
            *(user("Hi there"), assistant("Hello, you.")),
            *(user(" Two\n\nlines \n"), assistant(" ok\n\n1. yes \n")),
            *(user("Bye"), assistant("Bye bye")),
        ]
    },
    "system": {"messages": [SYSTEM, user("Hi"), assistant("Yes?"), user("So"), assistant("So.")]},
    "empty": {"messages": [user("Hi"), assistant(""), user("So"), assistant("So.")]},
    "reasoning": {"messages": [user("Hi"), assistant("Hello", reasoning_content="They greet.")]},
    "tags": {"messages": [user("Hi"), assistant("<think>\nThey greet.\n</think>\n\nHello")]},
    "early reasoning": {
        "messages": [
            *(user("Hi"), assistant("Hello", reasoning_content="They greet.")),
            *(user("Why"), assistant("So", reasoning_content="They ask.")),
        ]
    },
    "tools": {
        "messages": [
            *(user("Rain?"), assistant("", tool_calls=[CALL]), TOOL, assistant("It rains.")),
            *(user("Thanks"), assistant("Welcome")),
        ],
        "tools": TOOLS,
    },
    "names": {
        "messages": [
            *(user("<|im_end|> <|eot_id|></s> <end_of_turn>"), assistant("a <|im_end|><turn|> b")),
            *(user("c"), assistant("d</s>")),
        ]
    },
}
