"""Compare the speed of rendering and tokenizing conversations with that of TRL and transformers.

    python -m benchmarks.throughput.chats --corpus FOLDER --tokenizer FOLDER

A conversation has five questions and five answers, cut out of the documents. The sides are, in one
process and on one thread, on the same conversations:

    cloudload        batches of a `CloudLoader` without workers, packed, with labels
    TRL              `_prepare_dataset` of `SFTTrainer`: IDs and labels, not packed
    transformers     `apply_chat_template`, without labels if the template has no blocks

In each turn, each side reads conversations that it has not read before, except that of a later
epoch. In every second round, the order of the sides is reversed. The templates are those of TRL for
Llama 3: one with `{% generation %}` blocks, and, if the tokenizer is Llama 3's, that of the model,
without. With the latter, TRL and transformers cannot say what is trained, so TRL trains all tokens.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from benchmarks.documents import add_documents, read_documents
from benchmarks.figures import Row
from benchmarks.harness import ONE_THREAD
from benchmarks.options import Options
from cloudload import Chat, CloudLoader, convert_to_mds

TEMPLATES = {"with blocks": "llama3_training", "stock": "llama3"}
END_OF_TURN = "<|eot_id|>"
"""Without this token, the tokenizer cannot end the turns of the stock template."""
TURNS, SEQ_LEN = 5, 2048
_QUESTION, _ANSWER = (40, 400), (100, 1_200)
"""Characters of a question, and of an answer."""

Message = dict[str, str]
Run = Callable[[], int]
"""Processes conversations, and returns the number of their tokens."""
Prepare = Callable[[Sequence[list[Message]]], Run]
"""Makes conversations available to a side, outside of the measurement."""


def main() -> None:
    options = Options(__doc__)
    add_documents(options, 40.0, 4.0)
    options.add_amount("rounds", 4, 2, "number of turns per side")
    options.add_amount("conversations", 1_500, 20, "number of conversations per turn")
    options.run(measure)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield a table for each tokenizer and template."""
    os.environ |= ONE_THREAD
    number = (args.rounds + 1) * args.conversations
    chats = make_conversations(read_documents(args), number)
    for tokenizer in args.tokenizer:
        has_ends = END_OF_TURN in (tokenizer / "tokenizer.json").read_text()
        for name, file in TEMPLATES.items():
            template = find_template(file)
            if not (has_ends or has_blocks(template)):
                continue
            sides = {
                "cloudload": open_cloudload(tokenizer, template, folder),
                "cloudload, later epoch": open_cloudload(tokenizer, template, folder, again=True),
                "TRL": open_trl(tokenizer, template),
                "transformers": open_transformers(tokenizer, template),
            }
            yield f"{tokenizer.name}, {name}", race(sides, chats, args)


def make_conversations(texts: Sequence[str], number: int) -> list[list[Message]]:
    """Cut conversations out of texts, none of which is used twice."""
    draw, text = random.Random(0), "\n".join(texts)
    chats, place = [], 0
    for _ in range(number):
        messages = [{"role": "system", "content": "You are a helpful assistant."}]
        for role, sizes in [("user", _QUESTION), ("assistant", _ANSWER)] * TURNS:
            size = draw.randint(*sizes)
            messages.append({"role": role, "content": text[place : place + size].strip() or "."})
            place += size
        chats.append(messages)
    if place > len(text):
        raise SystemExit(
            f"{number:,} conversations need {place / 1e6:.0f} MB of text, but there are only "
            f"{len(text) / 1e6:.0f}. Set a larger --megabytes, or fewer --rounds or --conversations"
        )
    return chats


def find_template(name: str) -> str:
    """Read a chat template of the package `trl`."""
    spec = importlib.util.find_spec("trl")
    if spec is None or spec.origin is None:
        raise SystemExit("this benchmark needs the package trl")
    return (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text()


def has_blocks(template: str) -> bool:
    """Whether a template says what an assistant generates."""
    return re.search(r"{%-?\s*generation", template) is not None


# ---------------------------------------------------------------- the sides


def open_cloudload(tokenizer: Path, template: str, folder: Path, *, again: bool = False) -> Prepare:
    """Read all rows of a loader of the conversations, in this process. With `again`, read them for
    the second time, as a later epoch does."""
    numbers = itertools.count()

    def prepare(conversations: Sequence[list[Message]]) -> Run:
        own = folder / f"{tokenizer.name}-{len(template)}-{again}-{next(numbers)}"
        samples = iter([{"messages": messages} for messages in conversations])
        convert_to_mds(samples, own / "mds", text_key=None, keep=["messages"], progress=False)
        loader = CloudLoader(
            str(own / "mds"),
            tokenizer=str(tokenizer),
            chat=Chat(template, overlong="split"),
            seq_len=SEQ_LEN,
            batch_size=8,
            num_workers=0,
            num_lanes=1,  # no document is tokenized twice, as those of a tail are
            local=own / "cache",
            epochs=1,
            tail="pad",
        )
        first = loader.state_dict()

        def run() -> int:
            loader.load_state_dict(first)
            for _ in loader:
                pass
            return loader.stats().tokens

        if again:
            run()
        return run

    return prepare


def open_trl(tokenizer: Path, template: str) -> Prepare:
    """Let TRL prepare a dataset of the conversations."""
    from datasets import Dataset, disable_progress_bars
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    disable_progress_bars()
    loaded = AutoTokenizer.from_pretrained(tokenizer)
    trainer: Any = SimpleNamespace(
        chat_template=template, completion_only_loss=False, _tokenizer=loaded
    )
    masks = has_blocks(template)
    config = SFTConfig(max_length=None, assistant_only_loss=masks, use_cpu=True, bf16=False)

    def prepare(conversations: Sequence[list[Message]]) -> Run:
        dataset = Dataset.from_list([{"messages": messages} for messages in conversations])

        def run() -> int:
            prepared: Any = SFTTrainer._prepare_dataset(
                trainer, dataset, loaded, config, False, None, "train"
            )
            return sum(map(len, prepared["input_ids"]))

        return run

    return prepare


def open_transformers(tokenizer: Path, template: str) -> Prepare:
    """Apply the template to one conversation after the other."""
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(tokenizer)
    options = {"chat_template": template, "return_dict": True}
    options |= {"return_assistant_tokens_mask": has_blocks(template)}

    def prepare(conversations: Sequence[list[Message]]) -> Run:
        def run() -> int:
            found = (loaded.apply_chat_template(each, **options) for each in conversations)
            return sum(len(each["input_ids"]) for each in found)

        return run

    return prepare


# ---------------------------------------------------------------- the race


def race(
    sides: dict[str, Prepare], chats: Sequence[list[Message]], args: argparse.Namespace
) -> list[Row]:
    """Let the sides take turns, and return their speeds."""
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(args.rounds + 1):
        part = chats[number * args.conversations : (number + 1) * args.conversations]
        for name in list(sides)[:: -1 if number % 2 else 1]:
            run = sides[name](part)
            began = time.process_time()
            tokens = run()
            speeds[name].append(tokens / (time.process_time() - began) / 1e6)
    own = median(speeds["cloudload"][1:])
    return [
        {
            "side": name,
            # the first turn warms up
            "million tokens per CPU s": [round(each, 3) for each in found[1:]],
            "cloudload is faster, times": round(own / median(found[1:]), 1),
        }
        for name, found in speeds.items()
    ]


if __name__ == "__main__":
    main()
