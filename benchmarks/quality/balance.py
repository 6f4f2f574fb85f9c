"""Measure what would be won if the rows of a step were balanced among the ranks of a machine.

    python -m benchmarks.quality.balance --corpus FOLDER --tokenizer FOLDER

With documents kept apart, the attention of a row costs the sum of the squares of its segments'
lengths, and the slowest rank sets the pace of a step. The rows of a step are dealt to ranks as the
loader deals them, or are balanced among the 8 ranks of each machine, as with its option
`balance`. `slowest / mean` is the cost of the slowest rank of a step over the mean, dealt →
balanced. `a step saves` is what a step then saves if ranks wait for each other only at its end, and
`of 1 row` if they wait after each micro-batch of one row, as fully sharded ranks do.

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
from cloudload.order.balance import deal_by_work
from cloudload.rows.packing.packers import Packing
from cloudload.system.arrays import Ints

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
                if (gains := compare(costs, seq_len, ranks, batch)) is not None
            ]
    return found


def list_costs(sizes: Ints, packing: str, seq_len: int, tokens: int) -> Ints:
    """The sum of the squares of the segments of each row: int64 [rows]."""
    need = min(tokens // seq_len, STEPS * max(RANKS) * max(BATCHES)) * seq_len
    number = int(need // sizes.mean()) + 1
    documents = repeat_shuffled(sizes.tolist(), number)
    costs = [_pack_lane(documents[lane::NUM_LANES], packing, seq_len) for lane in range(NUM_LANES)]
    rows = min(map(len, costs))
    # row g is a row of lane g % NUM_LANES
    dealt: Ints = np.stack([each[:rows] for each in costs], axis=1).reshape(-1)
    return dealt


def _pack_lane(documents: list[int], packing: str, seq_len: int) -> Ints:
    packer = Packing(packing, seq_len, 16, "cut").packer()
    costs = []
    for ordinal, size in enumerate(documents):
        packer.add(ordinal, int(size))
        while packer.rows:
            pieces = packer.rows.popleft().pieces
            lengths = [int(stop - start) for _, start, stop, _ in pieces]
            lengths.append(seq_len - sum(lengths))
            costs.append(sum(length**2 for length in lengths))
    return np.array(costs)


def compare(costs: Ints, seq_len: int, ranks: int, batch: int) -> Row | None:
    """Compare a step's slowest rank with the mean, as dealt and balanced; None for too few rows."""
    step = ranks * batch
    steps = min(STEPS, len(costs) // step)
    if steps < 4:
        return None
    # rank r has rows r, r + ranks, …
    dealt = costs[: steps * step].reshape(steps, batch, ranks)
    of_machines = dealt.reshape(steps, batch, -1, OF_MACHINE).transpose(0, 2, 1, 3)
    work = of_machines.reshape(-1, batch * OF_MACHINE)

    def balance(sizes: list[int]) -> Ints:
        taken = np.take_along_axis(
            work, deal_by_work(work, OF_MACHINE, sizes).reshape(len(work), -1), axis=1
        )
        # back to steps, rows of a rank, ranks
        by_rank = taken.reshape(steps, ranks, batch)
        rows: Ints = by_rank.transpose(0, 2, 1)
        return rows

    whole, single = balance([batch]), balance([1] * batch)
    attention = 1 / (12 * WIDTH * seq_len)
    mean = dealt.sum(axis=1).mean(axis=1)
    before, after = (each.sum(axis=1).max(axis=1) for each in (dealt, whole))

    def saved(before: Ints, after: Ints) -> str:
        return f"{1 - (batch + after * attention).sum() / (batch + before * attention).sum():.1%}"

    return {
        "attention / rest": float(mean.mean() * attention / batch),
        "slowest / mean": f"{np.median(before / mean):.2f} → {np.median(after / mean):.2f}",
        "a step saves": saved(before, after),
        "of 1 row": saved(dealt.max(axis=2).sum(axis=1), single.max(axis=2).sum(axis=1)),
    }


if __name__ == "__main__":
    main()
