"""Kill conversions of every format at random, and compare their documents with the source.

    python -m stress.conversions.forms --kills 300

    corpus of one format, with odd names ─► cloudload convert ─► SIGKILL ─► … ─► documents in order
                                            changed inputs, two at once

Each turn converts another format to a local folder, in one segment or in several, in one process or
in two. Its processes receive SIGKILL at random moments, and are started again. In every third turn,
a file is changed after a kill, so the next run must refuse it, and then restored. In every third
turn, another conversion runs to the same folder at the same time; one of the two must fail. In the
end, each document must be equal to the source's. Prints a line for each failure, and a summary as
JSON. The exit status is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.context import ForkProcess as Run
from pathlib import Path
from typing import Any

from tqdm import tqdm

from cloudload.cli import main as main_of_cli
from cloudload.data import Location
from cloudload.tools.check import check_dataset
from cloudload.tools.convert.output_location import list_sizes_at
from stress.campaign import Report, make_parser, run_in_folder
from testkit.conversions import documents, make_input, texts
from testkit.input_kinds import INPUT_KINDS

FORMS = ("jsonl", "gz", "bz2", "xz", "zst", "lines", "text", "parquet", *INPUT_KINDS)
NAMES = ("plain", "a space", "100%", "a#b", "[x]", "quote'", "-dash", "ünï狐", "back\\slash", "?")
OPTIONS: dict[str, tuple[Any, str]] = {
    "--kills": (300, "total number of kills"),
    "--minutes": (1_000.0, "number of minutes after which no new conversion starts"),
    "--seed": (0, "random seed"),
}
METADATA = ("index.json", "state.json", "dataset_info.json", "dataset_dict.json")
TIMEOUT_S = 120.0


def _convert(arguments: Sequence[str], log: Path) -> None:
    """Run the command line in a forked process, which has imported everything already."""
    os.setsid()
    # tqdm's lock is shared with forked processes, and one that is killed may hold it
    tqdm.set_lock(threading.RLock())
    file = os.open(log, os.O_CREAT | os.O_WRONLY)
    for number in (1, 2):
        os.dup2(file, number)
    sys.exit(main_of_cli(arguments))


class Conversion:
    """The conversion with this number, which is killed several times."""

    def __init__(self, number: int, folder: Path, draw: random.Random, report: Report) -> None:
        self._draw, self._report, self._folder = draw, report, folder
        self.form = FORMS[number % len(FORMS)]
        self.name = NAMES[number % len(NAMES)]
        self.kind = ("kills", "changed", "two at once")[number % 3]
        self._logs: dict[int, Path] = {}
        self._out = folder / f"out {self.name}"
        self._documents = documents(draw.randint(200, 500))
        self._source = self._write("in", self._documents)
        self._options = ["--shard-bytes", "2000", "--quiet", "--processes", draw.choice("1112")]
        if draw.random() < 0.5:
            self._options += ["--segment-bytes", "9000"]
        if self.form == "lines":
            self._options += ["--format", "lines"]

    def run(self, kills: int) -> None:
        """Run the conversion, kill it, and compare the documents."""
        is_calm = True
        for _ in range(kills):
            if not self._start_and_kill(self._source):
                break
            if is_calm and ".convert/plan.json" in list_sizes_at(Location(str(self._out))):
                is_calm = False
                if self.kind == "changed":
                    self._change_and_restore()
                if self.kind == "two at once":
                    self._start_another()
        code, errors = self._finish(self._start(self._source))
        if code:
            self._fail(f"the last run failed: {errors}")
            return
        found = texts(str(self._out), self._folder / "scratch")
        if found != self._documents:
            self._fail(f"{len(found)} documents differ from the source's {len(self._documents)}")
        if not check_dataset(str(self._out), progress=False, processes=1).is_sound:
            self._fail("check finds errors")
        if left := [name for name in list_sizes_at(Location(str(self._out))) if ".convert" in name]:
            self._fail(f"left over: {left[:3]}")

    def _write(self, kind: str, some: Sequence[str]) -> Path:
        folder = self._folder / f"{kind} {self.name}"
        if self.form in INPUT_KINDS:
            folder.mkdir()
            rows = [{"text": text, "n": number} for number, text in enumerate(some)]
            INPUT_KINDS[self.form](folder, rows)
        else:
            make_input(folder, self.form, some)
        return folder

    def _start(self, source: Path) -> Run:
        self._report.numbers["starts"] += 1
        arguments = ["convert", *self._options, str(source), str(self._out)]
        log = self._folder / f"log {self._report.numbers['starts']}"
        run = Run(target=_convert, args=(arguments, log))
        run.start()
        self._logs[run.pid or 0] = log
        return run

    def _finish(self, run: Run) -> tuple[int, str]:
        """Wait for the end of a run. Returns its exit status, and the end of what it printed."""
        run.join(TIMEOUT_S)
        if run.exitcode is None:
            self._kill(run)
            self._fail(f"a run did not end within {TIMEOUT_S:.0f} s")
        log = self._logs.pop(run.pid or 0)
        printed = log.read_text() if log.exists() else ""
        if "Traceback" in printed:
            self._fail(printed[-1000:])
        return run.exitcode or 0, printed[-600:]

    def _kill(self, run: Run) -> None:
        assert run.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.join()

    def _start_and_kill(self, source: Path) -> bool:
        """Return False if the process ended before it could be killed."""
        run, before = self._start(source), list_sizes_at(Location(str(self._out)))
        while run.is_alive() and list_sizes_at(Location(str(self._out))) == before:
            time.sleep(0.005)
        time.sleep(self._draw.choice([0.0, 0.02, 0.1, 0.4, 1.0]) * self._draw.random())
        if not run.is_alive():
            self._finish(run)
            return False
        self._kill(run)
        self._report.numbers["kills"] += 1
        return True

    def _change_and_restore(self) -> None:
        paths = [path for path in self._source.iterdir() if path.name not in METADATA]
        path = self._draw.choice(sorted(paths))
        status, data = path.stat(), path.read_bytes()
        path.write_bytes(data + b'{"text": "changed"}\n')
        code, errors = self._finish(self._start(self._source))
        if not code or not ("chang" in errors or "bytes" in errors):
            self._fail(f"a changed file was not refused: {code} {errors}")
        path.write_bytes(data)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        self._report.numbers["changed inputs"] += 1

    def _start_another(self) -> None:
        """Start two conversions at once. Only one may succeed, and the turn continues with it."""
        upper = [text.upper() for text in self._documents]
        other = self._write("other", upper)
        both = [self._start(each) for each in (self._source, other)]
        codes = [self._finish(each)[0] for each in both]
        if 0 not in codes or codes == [0, 0]:
            self._fail(f"the exit statuses of two conversions to one folder were {codes}")
        if codes[1] == 0:
            self._source, self._documents = other, upper
        self._report.numbers["two at once"] += 1

    def _fail(self, what: str) -> None:
        self._report.fail(f"{self.form}, {self.name}, {self.kind}, {self._options}: {what}")


def run(args: argparse.Namespace, folder: Path) -> Report:
    """Run conversions of every format in turn, and report everything."""
    draw, report = random.Random(args.seed), Report()
    while report.numbers["kills"] < args.kills and report.minutes < args.minutes:
        number = report.numbers["turns"]
        own = folder / str(number)
        own.mkdir()
        Conversion(number, own, draw, report).run(draw.randint(3, 7))
        report.numbers["turns"] += 1
        shutil.rmtree(own)
    return report


def main() -> int:
    args = make_parser(__doc__, OPTIONS).parse_args()
    return run_in_folder("forms", lambda folder: run(args, folder))


if __name__ == "__main__":
    sys.exit(main())
