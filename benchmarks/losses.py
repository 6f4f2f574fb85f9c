"""Measure how much time logging losses by document adds to a training step, and the log's size.

    python -m benchmarks.losses

The model is that of the examples. Times are medians of CPU time on one core.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from benchmarks.documents import add_documents, read_or_generate, write_dataset
from benchmarks.figures import Row, print_tables
from benchmarks.harness import Options
from cloudload import CloudLoader
from cloudload.losses import LossLog, read_losses
from examples.tiny_gpt import GPT

TOKENIZER = Path(__file__).parents[1] / "examples" / "tokenizer"
MODEL = argparse.Namespace(width=128, depth=4, seq_len=256, seed=1, float64=False)


def main() -> None:
    options = Options(__doc__)
    add_documents(options)
    options.add_amount("steps", 25, 3, "number of training steps")
    options.add_amount("logged", 62, 5, "number of steps of 32,768 tokens to log without training")
    args = options.parse()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="cloudload-bench-") as folder:
        dataset = write_dataset(
            read_or_generate(args.corpus, 1e6 * args.megabytes), Path(folder, "mds")
        )
        tables = [
            ("training", [measure_steps(args.steps, dataset, folder)]),
            ("log", [measure_log(args.logged, dataset, folder)]),
        ]
    print_tables(tables, as_json=args.json)


def make_loader(dataset: str, folder: str, seq_len: int) -> CloudLoader:
    return CloudLoader(
        dataset,
        tokenizer=TOKENIZER,
        seq_len=seq_len,
        batch_size=16,
        num_workers=0,
        local=Path(folder, "cache"),
    )


def measure_steps(steps: int, dataset: str, folder: str) -> Row:
    """Train a model, and compare the time of `LossLog.add` with that of the training step."""
    with make_loader(dataset, folder, MODEL.seq_len) as loader:
        model, log = GPT(loader.vocab_size, MODEL), LossLog(loader, Path(folder, "losses"))
        optimizer = torch.optim.AdamW(model.parameters())
        times: list[tuple[float, float]] = []
        for batch in loader.take(steps):
            began = time.process_time()
            outputs = model(**batch)
            outputs["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            trained = time.process_time()
            log.add(batch, outputs["token_losses"])
            times.append((trained - began, time.process_time() - trained))
        began = time.process_time()
        log.flush()
        flush_s = time.process_time() - began
    step_s, add_s = (median(each) for each in zip(*times, strict=True))
    return {
        "tokens per step": 16 * MODEL.seq_len,
        "step, ms": round(1e3 * step_s, 1),
        "add, ms": round(1e3 * add_s, 2),
        "of a step, %": round(100 * add_s / step_s, 2),
        "flush, ms": round(1e3 * flush_s, 2),
    }


def measure_log(steps: int, dataset: str, folder: str) -> Row:
    """Log random losses of rows of 2,048 tokens, and measure the time and the log's size."""
    place, times = Path(folder, "long"), []
    with make_loader(dataset, folder, 2_048) as loader, LossLog(loader, place) as log:
        for batch in loader.take(steps):
            losses = torch.rand(16, 2_047)
            began = time.process_time()
            log.add(batch, losses)
            times.append(time.process_time() - began)
    found, size = read_losses(place), sum(path.stat().st_size for path in place.iterdir())
    return {
        "tokens per step": 16 * 2_048,
        "add, ms": round(1e3 * median(times), 2),
        "records": len(found.records.sums),
        "bytes per record": round(size / len(found.records.sums), 1),
        "bytes per million tokens": round(1e6 * size / found.tokens),
    }


if __name__ == "__main__":
    main()
