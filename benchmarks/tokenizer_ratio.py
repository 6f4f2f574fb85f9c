"""Compare the loader's CPU time with that of its bare tokenizer, fastokens.

    python -m benchmarks.tokenizer_ratio --corpus FOLDER --tokenizer FOLDER FOLDER

once       documents that a process reads for the first time, while its tokenizer caches their words
repeated   documents that the process has read before

The sides take turns, and each turn is a new process on one core. A side first reads up to one place
in the data, and is then measured from there to a second place. Places are in epochs. The loader's
CPU time is the sum of its worker and the training process. Source files of this Python environment
are added to the corpus, so that it is large enough that the loader does not read ahead into the
next epoch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.documents import read_corpus, read_environment
from benchmarks.figures import Row, print_tables, spread_of
from benchmarks.harness import ROOT, Message, Options, Side, last_cores, note

SHARD_BYTES = 4 << 20
PLACES = {"once": (0.3, 0.7), "repeated": (1.2, 1.6)}
SIDES = ("bare", "loader")


def main() -> None:
    options = Options(__doc__)
    options.add_argument(
        "--corpus", type=Path, metavar="FOLDER", help="folder of *.jsonl or *.jsonl.gz files"
    )
    options.add_argument(
        "--tokenizer",
        nargs="+",
        type=Path,
        default=[ROOT / "examples" / "tokenizer"],
        metavar="FOLDER",
        help="folders that contain a tokenizer.json (default: examples/tokenizer)",
    )
    options.add_amount("megabytes", 60.0, 0.2, "megabytes of source files to add to the corpus")
    options.add_amount("rounds", 9, 1, "number of turns per side")
    options.add_argument("--only", choices=list(PLACES), help="run only this comparison")
    args = options.parse()
    with tempfile.TemporaryDirectory(prefix="cloudload-bench-") as folder:
        print_tables(measure(args, Path(folder)), as_json=args.json)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Run the chosen comparisons, and yield the title and the rows of each table."""
    write_documents(args.corpus, folder, 1e6 * args.megabytes)
    for tokenizer in args.tokenizer:
        for kind in [args.only] if args.only else PLACES:
            yield f"{kind}, {tokenizer.name}", [compare(folder, tokenizer, kind, args.rounds)]


def write_documents(corpus: Path | None, folder: Path, num_bytes: float) -> None:
    """Write the documents as JSON Lines, and as uncompressed MDS shards."""
    from cloudload import convert_to_mds

    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the tables
        texts = list(read_environment(folder, num_bytes))
    texts += read_corpus(corpus, float("inf")) if corpus else []
    random.Random(0).shuffle(texts)
    note(f"{len(texts):,} documents, {sum(len(text.encode()) for text in texts) / 1e6:.1f} MB")
    (folder / "texts.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    samples = iter([{"text": text} for text in texts])
    convert_to_mds(
        samples, folder / "mds", compression=None, shard_bytes=SHARD_BYTES, progress=False
    )


def compare(folder: Path, tokenizer: Path, kind: str, rounds: int) -> Row:
    """Let the sides take turns, and return their speeds and the ratio of each round."""
    turns: dict[str, list[Message]] = {side: [] for side in SIDES}
    places = dict(zip(("start", "stop"), PLACES[kind], strict=True))
    for turn in range(rounds):
        for side in SIDES[:: -1 if turn % 2 else 1]:
            request = {"side": side, "folder": str(folder), "tokenizer": str(tokenizer), **places}
            with Side("benchmarks.tokenizer_ratio_side", cores=last_cores()) as process:
                process.start(request)
                turns[side].append(process.take_turn())
    bare, ours = ([turn["tokens"] / turn["cpu"] / 1e6 for turn in turns[side]] for side in SIDES)
    ratios = [one / other for one, other in zip(ours, bare, strict=True)]
    note(f"  {kind}, {tokenizer.name}: {spread_of(ratios):.3f}")
    return {
        "million tokens per CPU s, bare": bare,
        "loader": ours,
        "ratio": ratios,
        "training process, CPU µs per batch": [
            1e6 * turn["main_cpu"] / turn["batches"] for turn in turns["loader"]
        ],
    }


if __name__ == "__main__":
    main()
