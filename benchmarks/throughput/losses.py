"""Measure how much time logging losses by document adds to a training step, and the log's size.

    python -m benchmarks.throughput.losses

The model is a transformer of the size of the examples' model. Times are medians of CPU time on one
core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.documents import TOKENIZER, add_documents, read_documents, write_dataset
from benchmarks.figures import Row
from benchmarks.options import Options
from cloudload import CloudLoader
from cloudload.losses import LossLog, read_losses

SEQ_LEN, WIDTH, DEPTH = 256, 128, 4


def main() -> None:
    options = Options(__doc__)
    add_documents(options)
    options.add_amount("steps", 25, 3, "number of training steps")
    options.add_amount("logged", 62, 5, "number of steps of 32,768 tokens to log without training")
    options.run(measure)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the cost of the log in a training run, and the size of a long log."""
    torch.set_num_threads(1)
    dataset = write_dataset(read_documents(args), folder / "mds")
    yield "training", [measure_steps(args.steps, dataset, folder)]
    yield "log", [measure_log(args.logged, dataset, folder)]


class Model(nn.Module):
    """A causal transformer that returns the loss of each token, [rows, tokens - 1]."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, WIDTH)
        block = nn.TransformerEncoderLayer(
            WIDTH, WIDTH // 32, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, DEPTH, enable_nested_tensor=False)
        self.mask = nn.Transformer.generate_square_subsequent_mask(SEQ_LEN)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        found = self.blocks(self.embed(input_ids), mask=self.mask, is_causal=True)
        logits = nn.functional.linear(found[:, :-1], self.embed.weight).flatten(0, 1)
        losses = nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="none")
        return losses.view_as(labels[:, 1:])


def open_loader(dataset: str, folder: Path, seq_len: int) -> CloudLoader:
    return CloudLoader(
        dataset,
        tokenizer=TOKENIZER,
        seq_len=seq_len,
        batch_size=16,
        num_workers=0,
        local=folder / "cache",
    )


def measure_steps(steps: int, dataset: str, folder: Path) -> Row:
    """Train a model, and compare the time of `LossLog.add` with that of the training step."""
    with open_loader(dataset, folder, SEQ_LEN) as loader:
        model, log = Model(loader.vocab_size), LossLog(loader, folder / "losses")
        optimizer = torch.optim.AdamW(model.parameters())
        times: list[tuple[float, float]] = []
        for batch in loader.take(steps):
            began = time.process_time()
            losses = model(**batch)
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            trained = time.process_time()
            log.add(batch, losses)
            times.append((trained - began, time.process_time() - trained))
        began = time.process_time()
        log.flush()
        flush_s = time.process_time() - began
    step_s, add_s = (median(each) for each in zip(*times, strict=True))
    return {
        "tokens per step": 16 * SEQ_LEN,
        "step, ms": round(1e3 * step_s, 1),
        "add, ms": round(1e3 * add_s, 2),
        "of a step, %": round(100 * add_s / step_s, 2),
        "flush, ms": round(1e3 * flush_s, 2),
    }


def measure_log(steps: int, dataset: str, folder: Path) -> Row:
    """Log random losses of rows of 2,048 tokens, and measure the time and the log's size."""
    log_folder, times = folder / "long", []
    with open_loader(dataset, folder, 2_048) as loader, LossLog(loader, log_folder) as log:
        for batch in loader.take(steps):
            losses = torch.rand(16, 2_047)
            began = time.process_time()
            log.add(batch, losses)
            times.append(time.process_time() - began)
    found, size = read_losses(log_folder), sum(path.stat().st_size for path in log_folder.iterdir())
    return {
        "tokens per step": 16 * 2_048,
        "add, ms": round(1e3 * median(times), 2),
        "records": len(found.records.sums),
        "bytes per record": round(size / len(found.records.sums), 1),
        "bytes per million tokens": round(1e6 * size / found.tokens),
    }


if __name__ == "__main__":
    main()
