"""Run a side of `benchmarks.tokenizer_ratio`, as a separate process.

bare     fastokens on strings in memory, 64 documents per call, on one thread. The strings are
         decoded from UTF-8 before each call, as in a program that reads files. The decoding is not
         timed.
loader   a CloudLoader with one worker, rows of 2,048 tokens and batches of 8
"""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

from benchmarks.harness import Message, Take, family_cpu, serve
from benchmarks.side_bare import DOCUMENTS_AT_ONCE, load_fastokens

SEQ_LEN, BATCH_SIZE = 2048, 8
BATCHES_OF_BLOCK = 128
_SETTLED_S, _IDLE_CPU_S = 0.3, 0.002


def prepare(request: Message) -> Take:
    """Read up to the first place. Returns a function that reads up to the second and measures."""
    return PREPARE[request["side"]](request)


def prepare_bare(request: Message) -> Take:
    """Prepare the side `bare`. A place is a share of the documents, such as 1.2 epochs."""
    lines = (Path(request["folder"]) / "texts.jsonl").read_text().splitlines()
    texts = [json.loads(line).encode() for line in lines]
    starts = range(0, len(texts), DOCUMENTS_AT_ONCE)
    groups = itertools.cycle([texts[start : start + DOCUMENTS_AT_ONCE] for start in starts])
    encode = load_fastokens(str(Path(request["tokenizer"]) / "tokenizer.json"))

    def encode_epochs(epochs: float) -> Message:
        tokens, cpu = 0, 0.0
        for group in itertools.islice(groups, max(1, round(epochs * len(starts)))):
            strings = [text.decode() for text in group]
            started = time.process_time()
            tokens += encode(strings)
            cpu += time.process_time() - started
        return {"tokens": tokens, "cpu": cpu}

    encode_epochs(request["start"])
    return lambda _: encode_epochs(request["stop"] - request["start"])


def prepare_loader(request: Message) -> Take:
    """Prepare the side `loader`. A place is a number of delivered documents, in epochs."""
    from cloudload import CloudLoader

    folder = Path(request["folder"])
    loader = CloudLoader(
        str(folder / "mds"),
        tokenizer=request["tokenizer"],
        tokenizer_backend="fastokens",
        seq_len=SEQ_LEN,
        batch_size=BATCH_SIZE,
        num_workers=1,
        local=folder / "cache",
    )
    batches = iter(loader)
    framing = sum(each is not None for each in loader.recipe.tokenizer.frames[0])

    def read_until(place: float) -> int:
        """Read whole blocks up to `place` epochs, and return the number of batches read."""
        count = 0
        while count == 0 or loader.stats().documents < place * loader.num_samples:
            for _ in range(BATCHES_OF_BLOCK):
                next(batches)
            count += BATCHES_OF_BLOCK
        settle()
        return count

    def take(_: Message) -> Message:
        documents = loader.stats().documents
        cpu, main_cpu = family_cpu(), time.process_time()
        count = read_until(request["stop"])
        cpu, main_cpu = family_cpu() - cpu, time.process_time() - main_cpu
        tokens = count * BATCH_SIZE * SEQ_LEN - framing * (loader.stats().documents - documents)
        return {"tokens": tokens, "cpu": cpu, "main_cpu": main_cpu, "batches": count}

    read_until(request["start"])
    return take


def settle() -> None:
    """Wait until the worker has filled its slots, so that its lead is the same at both places."""
    before = -1.0
    while (now := family_cpu()) - before > _IDLE_CPU_S:
        before = now
        time.sleep(_SETTLED_S)


PREPARE = {"bare": prepare_bare, "loader": prepare_loader}

if __name__ == "__main__":
    serve(prepare)
