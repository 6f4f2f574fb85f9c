"""Interrupt loaders at any bytecode, and read them from several threads at once.

    python -m stress.interrupts                       # 10,000 interrupts, 4 threads
    python -m stress.interrupts --interrupts 100000 --seed 1

Each interrupt raises KeyboardInterrupt before one bytecode of one operation, such as a seek, and
repeats the operation. The effect must be that of an undisturbed operation, in this loader and in
another one on the same cache folder. For every third interrupt, a signal handler also reads the
loader in the midst of the operation. The operation that has used the least CPU time is next.

Then threads read each kind of loader while it trains. Each state must be one of an undisturbed run,
and each row must be that of one thread. The summary counts interrupts, handlers, and reads by
operation. The exit status is 1 if any result was wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from stress.campaign import Report, make_parser, run_in_folder
from testkit.interrupted import KINDS, Check, Subject, list_reads, open_subject, read_rows

BATCHES, SWITCH_S = 30, 1e-5
OPTIONS = {
    "--interrupts": (10_000, "number of interrupts"),
    "--threads": (4, "number of threads that read"),
    "--seed": (0, "seed of the choices"),
}


class Campaign:
    """Interrupts operations and runs threads, and counts both."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._report = options, Report()

    def run(self, folder: Path) -> Report:
        """Run the campaign in a folder, and report everything."""
        with ExitStack() as stack:
            subjects = {
                name(*kind): stack.enter_context(open_subject(folder / name(*kind), *kind))
                for kind in KINDS
            }
            self._interrupt(subjects)
            sys.setswitchinterval(SWITCH_S)
            for kind, subject in subjects.items():
                self._read_in_threads(kind, subject)
        return self._report

    def _interrupt(self, subjects: dict[str, Subject]) -> None:
        checks = {
            f"{kind}: {operation.name}": Check(subject, operation)
            for kind, subject in subjects.items()
            for operation in subject.operations
        }
        spent_s, choices = dict.fromkeys(checks, 0.0), random.Random(self._options.seed)
        for number in range(self._options.interrupts):
            what = min(spent_s, key=lambda each: spent_s[each])
            began, check = time.process_time(), checks[what]
            self._note("interrupts", what, check.find_fault(check.choose(choices)))
            if number % 3 == 0:
                fault = check.find_fault_of_handler(check.choose(choices))
                self._note("handlers", what, fault)
            spent_s[what] += time.process_time() - began

    def _note(self, kind: str, what: str, fault: str | None) -> None:
        self._report.numbers[kind] += 1
        self._report.counts[f"{kind} by operation"][what] += 1
        if fault is not None:
            self._report.fail(f"{what}: {fault}")

    def _read_in_threads(self, kind: str, subject: Subject) -> None:
        number = self._options.threads
        subject.restart()
        states = self._train(subject)
        reads = list_reads(subject, subject.read_batches()[-1])
        expected = {what: read() for what, read in reads.items()}
        reads = list_reads(subject, subject.read_batches()[-1])
        names = random.Random(self._options.seed).choices(sorted(reads), k=50 * number)
        with ThreadPoolExecutor(number) as threads:
            values = list(threads.map(lambda each: reads[each](), names))
        for what, value in zip(names, values, strict=True):
            self._note_read(f"{kind}: {what}", value == expected[what])
        is_over = threading.Event()
        subject.restart()
        with ThreadPoolExecutor(number) as threads:
            watching = [threads.submit(self._watch, subject, is_over) for _ in range(number)]
            trained = self._train(subject)
            is_over.set()
        self._note_read(f"{kind}: training", trained == states)
        for state in (state for each in watching for state in each.result()):
            self._note_read(f"{kind}: state_dict while training", state in states)
        self._read_rows(kind, subject)
        total = self._report.numbers["reads from threads"]
        print(f"{kind}: {total:,} reads from threads so far", flush=True)

    def _train(self, subject: Subject) -> list[Any]:
        """Read batches from the first row, and return the state before and after each of them."""
        return [subject.start, *(subject.loader.state_dict() for _ in subject.loader.take(BATCHES))]

    def _watch(self, subject: Subject, is_over: threading.Event) -> list[Any]:
        states = []
        while not is_over.is_set():
            subject.loader.stats()
            states.append(subject.loader.state_dict())
        return states

    def _read_rows(self, kind: str, subject: Subject) -> None:
        if (rows := subject.rows) is None:
            return
        expected = [read_rows(rows, row) for row in range(len(rows))]
        rows.close()
        order = random.Random(self._options.seed).choices(range(len(rows)), k=5 * len(rows))
        with ThreadPoolExecutor(self._options.threads) as threads:
            found = list(threads.map(partial(read_rows, rows), order))
        for row, tokens in zip(order, found, strict=True):
            self._note_read(f"{kind}: rows[]", tokens == expected[row])

    def _note_read(self, what: str, is_right: bool) -> None:
        self._note("reads from threads", what, None if is_right else "wrong in a thread")


def name(kind: str, has_lengths: bool) -> str:
    """The name of a kind of subject, for the summary and its folder."""
    return f"{kind} {'with' if has_lengths else 'without'} lengths"


def main() -> int:
    args = make_parser(__doc__, OPTIONS).parse_args()
    return run_in_folder("interrupts", Campaign(args).run)


if __name__ == "__main__":
    sys.exit(main())
