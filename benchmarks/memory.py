"""Memory of a worker and of the training process while a run goes on: `python -m benchmarks.memory
--minutes 10`.

One worker reads the corpus over and over, as fast as it can. Of each process, what is its own
(RssAnon and RssShmem, MB) and the pages of mapped shards (RssFile), which the kernel takes back
whenever it needs them. Writes MEMORY.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.documents import ROOT, find_tokenizers, lay_out
from benchmarks.report import hardware
from benchmarks.run import BATCH_SIZE, SEQ_LEN, beside, commit, shown_command

MARKS = (1, 2, 5, 10, 20, 30, 60)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=beside("corpus"), metavar="FOLDER")
    parser.add_argument("--tokenizers", type=Path, default=beside("tokenizers"), metavar="FOLDER")
    parser.add_argument("--name", default="gpt2", help="of the tokenizer (default: gpt2)")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--packing", default="concat")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks", metavar="FOLDER")
    args = parser.parse_args()
    from cloudload import CloudLoader

    lines = [
        "| minutes | tokens, million | worker's own, MB | worker's mapped | "
        "training process's own | mapped |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    with TemporaryDirectory(dir=ROOT) as folder:
        work = Path(folder)
        documents = lay_out(args.corpus, work / "data", 40e6)
        [tokenizer] = find_tokenizers(args.tokenizers, [args.name], work)
        with CloudLoader(
            str(documents.folder / "mds"),
            tokenizer=str(tokenizer),
            seq_len=SEQ_LEN,
            batch_size=BATCH_SIZE,
            num_workers=1,
            num_lanes=960,
            packing=args.packing,
            local=work / "cache",
        ) as loader:
            marks = [mark for mark in MARKS if mark <= args.minutes]
            started, tokens = time.monotonic(), 0
            for batch in loader:
                tokens += batch["input_ids"].numel()
                if time.monotonic() - started >= 60 * marks[0]:
                    [worker] = multiprocessing.active_children()
                    cells = [*memory_of(worker.pid or 0), *memory_of(None)]
                    lines.append(
                        f"| {marks.pop(0)} | {tokens / 1e6:,.0f} | "
                        f"{' | '.join(f'{cell:.0f}' for cell in cells)} |"
                    )
                    print(lines[-1], flush=True)
                if not marks:
                    break
        shutil.rmtree(work / "cache", ignore_errors=True)
    facts = (
        f"{args.packing}, {args.name}, 960 lanes; {hardware()}; commit {commit()}; "
        f"{shown_command('benchmarks.memory')}"
    )
    (args.output / "MEMORY.md").write_text(
        "\n".join(["# Memory of a long run", "", facts, "", *lines, ""])
    )


def memory_of(pid: int | None) -> tuple[float, float]:
    """MB of a process's own memory, and of files that it has mapped."""
    fields = dict(
        line.split(":", 1)
        for line in Path("/proc", str(pid or "self"), "status").read_text().splitlines()
    )
    anonymous, shared, files = (
        int(fields[name].split()[0]) / 1024 for name in ("RssAnon", "RssShmem", "RssFile")
    )
    return anonymous + shared, files


if __name__ == "__main__":
    main()
