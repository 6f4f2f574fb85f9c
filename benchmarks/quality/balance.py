"""Measure what would be won if the rows of a step were balanced among the ranks of a machine.

    python -m benchmarks.quality.balance --corpus FOLDER --tokenizer FOLDER

With documents kept apart, the attention of a row costs the sum of the squares of its documents'
lengths, and the slowest rank sets the pace of a step. The rows of a step are dealt to ranks as the
loader deals them, or the rows of each machine of 8 ranks are divided anew: the most expensive row
first, to the rank with the least cost, with equal numbers of rows for each rank. A cell is the cost
of the slowest rank of a step over the mean, dealt → balanced, and what a step would then save.

The cost of a token is that of its attention plus that of everything else, for a model of width
4,096 (about 7 billion parameters). Attention over a context of `n` tokens costs `n / 12 / 4,096` of
everything else: `2 n d` against `24 d^2` FLOPs per token and layer, for causal attention.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.documents import add_documents, read_documents
from benchmarks.figures import Row
from benchmarks.options import Options
from benchmarks.quality.sizes import count_tokens, draw_sizes, repeat_shuffled
from cloudload.rows.packing.packers import Packing
from cloudload.system.arrays import Floats, Ints

SEQ_LENS = (8_192, 32_768, 131_072)
RANKS, BATCHES, OF_MACHINE = (8, 64, 1_024), (1, 2, 8), 8
WIDTH, NUM_LANES = 4_096, 16
STEPS = 40


def main() -> None:
    options = Options(__doc__)
    add_documents(options)
    options.add_amount("tokens", 3_000_000_000, 20_000_000, "tokens of documents per table")
    options.run(measure, {})


def measure(args: argparse.Namespace, _: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield a table for each kind of document lengths."""
    kinds: dict[str, Any] = {"web-like, log-normal": draw_sizes(200_000)}
    if args.corpus:
        kinds[f"corpus, {args.tokenizer[0].name}"] = count_tokens(
            read_documents(args), args.tokenizer[0]
        )
    chance = np.random.default_rng(0)
    kinds["books, log-normal around 90,000"] = np.exp(chance.normal(11.4, 0.8, 20_000)).astype(int)
    for name, sizes in kinds.items():
        yield f"balance: {name}", measure_kind(np.asarray(sizes), args.tokens)


def measure_kind(sizes: Ints, tokens: int) -> list[Row]:
    """Return a row of the table for each packing, sequence length, world, and batch size."""
    found: list[Row] = []
    for packing in ("concat", "best_fit"):
        for seq_len in SEQ_LENS:
            costs = list_costs(sizes, packing, seq_len, tokens)
            found += [
                {"packing": packing, "seq_len": seq_len, "ranks": ranks, "rows": batch, **gains}
                for ranks in RANKS
                for batch in BATCHES
                if (gains := compare(costs, ranks, batch)) is not None
            ]
    return found


def list_costs(sizes: Ints, packing: str, seq_len: int, tokens: int) -> Floats:
    """The cost of the attention of each row, relative to everything else: float64 [rows]."""
    need = min(tokens // seq_len, STEPS * max(RANKS) * max(BATCHES)) * seq_len
    number = int(need // sizes.mean()) + 1
    documents = repeat_shuffled(sizes.tolist(), number)
    costs = [_pack_lane(documents[lane::NUM_LANES], packing, seq_len) for lane in range(NUM_LANES)]
    rows = min(map(len, costs))
    # row g is a row of lane g % NUM_LANES
    dealt: Floats = np.stack([each[:rows] for each in costs], axis=1).reshape(-1)
    return dealt


def _pack_lane(documents: list[int], packing: str, seq_len: int) -> Floats:
    packer = Packing(packing, seq_len, 16, "cut").packer()
    costs = []
    for ordinal, size in enumerate(documents):
        packer.add(ordinal, int(size))
        while packer.rows:
            pieces = packer.rows.popleft().pieces
            lengths = np.array([stop - start for _, start, stop, _ in pieces], np.float64)
            costs.append(float((lengths**2).sum()) / (12 * WIDTH) / seq_len)
    return np.array(costs)


def compare(costs: Floats, ranks: int, batch: int) -> Row | None:
    """Compare a step's slowest rank with the mean, as dealt and balanced; None for too few rows."""
    step = ranks * batch
    steps = min(STEPS, len(costs) // step)
    if steps < 4:
        return None
    # rank r has rows r, r + ranks, …
    dealt = costs[: steps * step].reshape(steps, batch, ranks)
    of_ranks = dealt.sum(axis=1)
    machines = dealt.reshape(steps, batch, ranks // OF_MACHINE, OF_MACHINE)
    balanced = np.array(
        [
            max(
                balance(machines[number, :, machine].reshape(-1), batch)
                for machine in range(ranks // OF_MACHINE)
            )
            for number in range(steps)
        ]
    )
    mean, slowest = of_ranks.mean(axis=1), of_ranks.max(axis=1)
    before, after = batch + slowest, batch + balanced
    return {
        "attention / rest": float(mean.mean() / batch),
        "slowest / mean": f"{np.median(slowest / mean):.2f} → {np.median(balanced / mean):.2f}",
        "a step saves": f"{1 - float((after / before).mean()):.1%}",
    }


def balance(costs: Floats, batch: int) -> float:
    """The cost of the slowest rank of a machine after its rows are divided among its ranks."""
    loads, counts = np.zeros(OF_MACHINE), np.zeros(OF_MACHINE, np.int64)
    for cost in np.sort(costs)[::-1]:
        rank = int(np.argmin(np.where(counts < batch, loads, np.inf)))
        loads[rank] += cost
        counts[rank] += 1
    return float(loads.max())


if __name__ == "__main__":
    main()
