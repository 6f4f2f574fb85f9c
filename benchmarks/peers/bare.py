"""The bare tokenizer encodes documents in memory, 64 per call, on one thread. It adds no bos or
eos, and the IDs are only counted.

    fastokens   encode_batch_flat(documents, add_special_tokens=False, split_special_tokens=True)
    hf          encode_batch_fast(documents, add_special_tokens=False), with encode_special_tokens

With `"documents": "fresh"`, the strings are decoded from UTF-8 before each call, as in a program
that reads files. The decoding is not timed. With "kept", every pass uses the same strings, and
Python caches their UTF-8 in the first pass.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable

from benchmarks.peers.racing import Request, Turn, serve_turns

DOCUMENTS_AT_ONCE = 64


def start(request: Request) -> Callable[[float], Turn]:
    """Load the documents and the tokenizer, and encode all documents once to warm up.

    Returns the function that takes a turn.
    """
    encoded = [
        json.loads(line)["text"].encode()
        for file in sorted((request.data / "texts").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    groups = [
        encoded[first : first + DOCUMENTS_AT_ONCE]
        for first in range(0, len(encoded), DOCUMENTS_AT_ONCE)
    ]
    kept = (
        [[text.decode() for text in group] for group in groups]
        if request.options["documents"] == "kept"
        else None
    )
    encode = ENCODERS[request.options["backend"]](str(request.tokenizer / "tokenizer.json"))
    order = itertools.cycle(range(len(groups)))

    def take(seconds: float) -> Turn:
        turn = Turn()
        while turn.wall < seconds:
            number = next(order)
            texts = kept[number] if kept else [text.decode() for text in groups[number]]
            wall, cpu = time.perf_counter(), time.process_time()
            turn.tokens += encode(texts)
            turn.cpu += time.process_time() - cpu
            turn.wall += time.perf_counter() - wall
            turn.documents += len(texts)
            turn.batches += 1
        turn.main_cpu = turn.cpu
        return turn

    for group in groups:
        encode([text.decode() for text in group])
    return take


def load_fastokens(file: str) -> Callable[[list[str]], int]:
    """Return a function that encodes documents with fastokens and returns their token count."""
    import fastokens
    import numpy as np

    tokenizer = fastokens.Tokenizer.from_file(file)
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(texts: list[str]) -> int:
        ids, _ = tokenizer.encode_batch_flat(
            texts, add_special_tokens=False, split_special_tokens=True
        )
        return len(np.frombuffer(ids, np.int32))

    return encode


def load_hf(file: str) -> Callable[[list[str]], int]:
    """Return a function that encodes documents with `tokenizers` and returns their token count."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(file)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return lambda texts: sum(map(len, tokenizer.encode_batch_fast(texts, add_special_tokens=False)))


ENCODERS = {"fastokens": load_fastokens, "hf": load_hf}

if __name__ == "__main__":
    serve_turns(start, ["tokenizers", "fastokens"])
