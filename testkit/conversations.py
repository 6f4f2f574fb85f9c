"""Conversations with a tokenizer whose chat template says what is trained.

folder = write_conversations(path, 100)          # MDS with the column `messages`
tokenizer = chat_tokenizer(TEMPLATE)             # of transformers, so that it can be an oracle
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from os import PathLike
from typing import Any

from testkit.corpora import write_mds
from testkit.trained_tokenizers import train_tokenizer

BEGIN, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PLAIN_TEMPLATE = TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")
"""The same without `{% generation %}`, so that what is trained must be found."""
_WORDS = ["the", "quick", "Grüße", "狐", "fox", "jumps", "\n", "over", "🦊", "dog.", "one", "  two"]

Message = dict[str, Any]


@functools.cache
def _backend() -> Any:
    return train_tokenizer([" ".join(_WORDS)] * 3, 400, (PAD, BEGIN, END))


def chat_tokenizer(template: str | dict[str, str] | None = TEMPLATE) -> Any:
    """A `PreTrainedTokenizerFast` with a chat template, with several by name, or without one."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_backend(),
        eos_token=END,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = template
    return tokenizer


def conversations(number: int, seed: int = 0, most_turns: int = 4) -> list[list[Message]]:
    """Conversations of 1 to `most_turns` turns, half of them with a system message."""
    chance = random.Random(seed)

    def say(role: str) -> Message:
        return {"role": role, "content": " ".join(chance.choices(_WORDS, k=chance.randint(1, 12)))}

    return [
        [
            *([say("system")] if chance.random() < 0.5 else []),
            *(
                say(role)
                for _ in range(chance.randint(1, most_turns))
                for role in ("user", "assistant")
            ),
        ]
        for _ in range(number)
    ]


def write_conversations(
    folder: str | PathLike[str], messages: Sequence[list[Message]], **options: Any
) -> str:
    """Write conversations as MDS with the columns `messages` and `id`, and return its location."""
    texts = [f"{number}" for number in range(len(messages))]
    extra = {"messages": ("json", list(messages))}
    return write_mds(folder, texts, column="id", extra=extra, shard_bytes=4_000, **options)


def expected_document(
    tokenizer: Any, messages: Sequence[Message], tools: list[Any] | None = None
) -> tuple[list[int], list[int]]:
    """The IDs and labels of a conversation, by transformers. The template must have blocks."""
    found = tokenizer.apply_chat_template(
        messages, tools, return_dict=True, return_assistant_tokens_mask=True
    )
    ids = list(found["input_ids"])
    mask = found["assistant_masks"]
    return ids, [each if is_trained else -100 for each, is_trained in zip(ids, mask, strict=True)]
