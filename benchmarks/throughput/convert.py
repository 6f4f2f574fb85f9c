"""Compare the converter with other ways to write MDS.

    python -m benchmarks.throughput.convert --corpus FOLDER

The ways take turns to convert the same documents to zstd shards. Each file format of the input has
its own table. MB are MB of text. CPU seconds include the worker processes. The coordinator is the
process that starts the workers, and its share is a share of the CPU seconds. Peak memory is the
largest resident set of any process that converts. Peak disk is the space of temporary files and
caches.

cloudload       `convert_to_mds`, with segments of 64 MiB
MDSWriter       a pool of processes. Each reads its files and writes a folder with Streaming's
                MDSWriter, with the same columns and hashes as cloudload. The indexes are merged at
                the end.
llm-foundry     like its script `convert_dataset_json` without tokenization: Hugging Face datasets
                loads the files, and one process writes their text with MDSWriter, without hashes

The input repeats the corpus up to --distinct-mb, each time in a different order and with each
document rotated, and then repeats these files up to --megabytes.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks.documents import add_documents, read_documents
from benchmarks.figures import Row
from benchmarks.harness import Message, Side, descendants, memory_of, note
from benchmarks.options import Options, temporary_folder
from benchmarks.peers.converters import WAYS
from benchmarks.throughput.convert_inputs import FORMS, Input, write_inputs

MOST_TEXT_BYTES = 40e6
INTERVAL_S = 0.1


def main() -> None:
    options = Options(__doc__)
    add_documents(options, megabytes=1000.0)
    options.add_amount("distinct-mb", 250.0, 0.5, "megabytes of distinct text")
    options.add_amount("repeats", 5, 1, "number of turns per way")
    add = options.add_argument
    text = "numbers of processes (default: 1 2)"
    add("--processes", type=int, nargs="+", default=[1, 2], help=text)
    text = "use only these input formats"
    add("--forms", nargs="+", default=list(FORMS), choices=FORMS, help=text)
    add("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), help="compare only these ways")
    options.run(measure)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Convert each format, and yield the title and the rows of its table."""
    most_mb = min(MOST_TEXT_BYTES / 1e6, args.distinct_mb, args.megabytes)
    pool = read_documents(argparse.Namespace(corpus=args.corpus, megabytes=most_mb))
    for form in args.forms:
        data = write_inputs(folder, form, pool, 1e6 * args.distinct_mb, 1e6 * args.megabytes)
        title = f"{form}, {data.text_bytes / 1e6:,.0f} MB of text, {data.stored_bytes / 1e6:,.0f}"
        yield f"{title} MB stored", race(data, args, folder)
        data.remove()


def race(data: Input, args: argparse.Namespace, folder: Path) -> list[Row]:
    """Run the ways in turns, and return a row for each way and number of processes."""
    turns: dict[tuple[str, int], list[Message]] = {
        (way, processes): []
        for way in args.ways
        for processes in args.processes
        if processes == 1 or WAYS[way].is_parallel
    }
    with ExitStack() as stack:
        sides = {way: stack.enter_context(Side("benchmarks.peers.converters")) for way in args.ways}
        for way, side in sides.items():
            side.start({"way": way})
        for number in range(args.repeats):
            for (way, processes), found in turns.items():
                found.append(take_turn(sides[way], data, processes, folder))
                note(f"{data.form}, turn {number + 1}, {way}, {processes=}: {found[-1]}")
    for (way, _), found in turns.items():
        for turn in found:
            if turn["documents"] != data.documents:
                raise SystemExit(
                    f"{way} wrote {turn['documents']} documents, but its input has {data.documents}"
                )
    return [row_of(way, number, found, data) for (way, number), found in turns.items()]


def take_turn(side: Side, data: Input, processes: int, folder: Path) -> Message:
    """Convert the input once, and return the seconds, the bytes and the number of documents."""
    with temporary_folder(folder) as work:
        scratch = work / "scratch"
        scratch.mkdir()
        question = {"inputs": str(data.folder), "out": f"{work}/out", "processes": processes}
        with Sampler(side.pid, scratch) as sampler:
            answer = side.take_turn(question | {"scratch": str(scratch)})
        return answer | {"memory": sampler.memory(processes), "disk": sampler.disk}


def row_of(way: str, processes: int, turns: list[Message], data: Input) -> Row:
    """Return the table row of a way. Lists of values, one per turn, are shown as spreads."""
    return {
        "way": way,
        "processes": processes,
        "MB/s": [data.text_bytes / 1e6 / turn["wall"] for turn in turns],
        "MB per CPU s": [data.text_bytes / 1e6 / turn["cpu"] for turn in turns],
        "CPU s": [turn["cpu"] for turn in turns],
        "coordinator's share": None
        if processes == 1
        else f"{max(turn['own_cpu'] / turn['cpu'] for turn in turns):.1%}",
        "peak MB of memory": max(turn["memory"] for turn in turns) / 1e6,
        "peak MB of disk": max(turn["disk"] for turn in turns) / 1e6,
        "MB written": turns[0]["written"] / 1e6,
    }


class Sampler:
    """A thread that samples memory and disk use every 0.1 s during a `with` block.

    The memory of a process is its high-water mark, which the kernel keeps. Samples therefore miss
    only about the last 0.1 s before a process exits.
    """

    def __init__(self, pid: int, folder: Path) -> None:
        self._pid, self._folder = pid, folder
        self._peaks: dict[int, int] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.disk = 0
        """The largest total size of the files in the folder, in bytes."""

    def __enter__(self) -> Sampler:
        with contextlib.suppress(OSError):
            Path(f"/proc/{self._pid}/clear_refs").write_text("5")  # reset the high-water mark
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._sample()

    def memory(self, processes: int) -> int:
        """Return the largest resident set of a process that converts, in bytes."""
        if processes == 1:
            return self._peaks[self._pid]
        others = [peak for pid, peak in self._peaks.items() if pid != self._pid and peak]
        return max(others, default=self._peaks[self._pid])

    def _run(self) -> None:
        while not self._end.wait(INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        for pid in (self._pid, *descendants(self._pid)):
            self._peaks[pid] = max(self._peaks.get(pid, 0), memory_of("VmHWM", pid))
        self.disk = max(self.disk, size_of(self._folder))


def size_of(folder: Path) -> int:
    """Return the total size of the files in a folder, in bytes."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # a file may be deleted at any time
            total += path.stat().st_size
    return total


if __name__ == "__main__":
    main()
