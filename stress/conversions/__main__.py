"""Kill conversions at random until they finish, and compare their output with undisturbed output.

    python -m stress.conversions --kills 120

    SeaweedFS ◄── in every second run, a fault proxy   ◄── 1, 2 or 5 processes, 7 workers of an
    input and     that fails a tenth of the requests       array, executors that run segments last
    output                                                 first or twice at once, or Ray on 2 nodes

The input is about 60 segments of JSON Lines (plain, gzip and zstd) and Parquet, and contains bad
records. Each conversion divides its documents into two splits, and writes rejects. Processes
receive SIGKILL at random moments while they store objects. The victim is a process that this
program started, a worker of such a process, or, with Ray, the raylet of a node, which is then
replaced. Killed processes are restarted until the conversion is finished. Then every object of all
splits, and the rejects, must have the same SHA-256 as in a conversion in one process without kills
and faults. The exit status is 1 if an object differs, is missing, or is left over, or if a process
fails and no kill explains the failure.

Ray runs only if it is installed (pip install ray). Prints a line for each conversion, and a summary
as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from cloudload.data.storage.locations import Location
from cloudload.tools.convert.output_location import list_sizes_at
from stress.campaign import Report, make_parser, run_in_folder
from stress.conversions.cluster import Cluster
from stress.conversions.job import SPLITS, convert
from testkit import ROOT
from testkit.conversions import dataset_bytes
from testkit.fault_proxy import Fault, FaultProxy, start_fault_proxy
from testkit.patience import soon
from testkit.processes import children_of
from testkit.segments import SETTINGS, mixed_corpus
from testkit.servers import BUCKET, S3Server, start_s3

ARGUMENTS = {
    "--kills": (120, "total number of processes to kill"),
    "--pause": (2.0, "maximum seconds from a stored or deleted object to the next kill"),
    "--seed": (0, "random seed"),
}
INPUT = f"s3://{BUCKET}/input"
FAULTS = [
    Fault("", "status", share=0.06),
    Fault("", "reset", share=0.04),
    Fault("GET", "truncate", share=0.02, at=100),
]
"""Faults that together fail about one request in ten."""
TIMEOUT_S = 900.0

OPTIONS = [
    *("--shard-bytes", str(SETTINGS["shard_bytes"])),
    *("--segment-bytes", str(SETTINGS["segment_bytes"])),
    *("--keep", "n", "--split", SPLITS, "--skip-bad", "--quiet"),
]
_CLI = ["cloudload", "convert", INPUT, "{out}", *OPTIONS, "--rejects", "{rejects}"]
_JOB = ["stress.conversions.job", INPUT, "{out}", "{rejects}"]

MODES: dict[str, list[list[str]]] = {
    "1 process": [[*_CLI, "--processes", "1"]],
    "2 processes": [[*_CLI, "--processes", "2"]],
    "5 processes": [[*_CLI, "--processes", "5"]],
    "array": [[*_CLI, "--processes", "1", "--worker", f"{number}/7"] for number in range(7)],
    "last first": [[*_JOB, "last first"]],
    "twice": [[*_JOB, "twice"]],
    "ray": [[*_CLI, "--engine", "ray", "--address", "{address}"]],
}
"""The commands of each mode. They run at the same time, each with `python -m`."""


class Campaign:
    """A series of conversions in all modes, with and without faults, which it kills at random."""

    def __init__(
        self, args: argparse.Namespace, folder: Path, server: S3Server, proxy: FaultProxy
    ) -> None:
        self.args, self._folder, self._server, self._proxy = args, folder, server, proxy
        self.draw, self.report = random.Random(args.seed), Report()
        proxy.set_faults(FAULTS)

    def run(self) -> Report:
        """Run the conversions, and report everything."""
        numbers, expected = self.report.numbers, self._convert_undisturbed()
        numbers["objects"] = len(expected)
        turns = [(mode, fails) for mode in self.args.modes for fails in (False, True)]
        while numbers["kills"] < self.args.kills:
            mode, fails = turns[numbers["conversions"] % len(turns)]
            left = max(1, len(turns) - numbers["conversions"])
            self._convert(mode, fails, -(-(self.args.kills - numbers["kills"]) // left), expected)
        return self.report

    def _convert_undisturbed(self) -> dict[str, str]:
        """Store the input, convert it without kills or faults, and return the objects' hashes."""
        corpus = mixed_corpus(self._folder / "corpus", with_bad=True)
        for path in sorted(corpus.iterdir()):
            Location(f"{INPUT}/{path.name}").write(path.read_bytes())
        out, rejects = self._folder / "out", self._folder / "rejects"
        report = convert(corpus, out, rejects)
        assert report.segments >= 50
        assert report.bad > 50
        assert all(split["documents"] > 100 for split in report.splits.values())
        formats = {"".join(Path(name).suffixes) for name in report.bad_files}
        assert formats == {".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"}
        return _hash_objects(str(out), str(rejects))

    def _convert(self, mode: str, fails: bool, kills: int, expected: dict[str, str]) -> None:
        """Convert to a new folder with at most `kills` kills, and compare the objects."""
        report, began = self.report, time.monotonic()
        before = report.counts["killed"].copy()
        folder = f"s3://{BUCKET}/{report.numbers['conversions']}"
        names = {"out": f"{folder}/out", "rejects": f"{folder}/rejects.jsonl"}
        report.numbers["conversions"] += 1
        variables = os.environ | {"PYTHONPATH": str(ROOT)}
        if fails:
            variables |= self._server.environment(self._proxy.endpoint)
        with contextlib.ExitStack() as stack:
            cluster = None
            if mode == "ray":
                cluster = Cluster(variables)
                stack.callback(cluster.shutdown)
                names["address"] = cluster.address
            commands = [[word.format(**names) for word in words] for words in MODES[mode]]
            self.draw.shuffle(commands)
            _Jobs(commands, names["out"], variables, cluster, self).run(kills)
        objects = _hash_objects(names["out"], names["rejects"])
        differ = sorted(name for name, _ in objects.items() ^ expected.items())
        if differ:
            report.fail(
                f"{folder}, {mode}: objects differ from those of an undisturbed conversion, are "
                f"missing, or are left over: {list(dict.fromkeys(differ))[:5]}"
            )
        requests = self._proxy.requests()
        self._proxy.set_faults(FAULTS)  # also clears the recorded requests
        report.numbers["requests through the proxy"] += len(requests)
        report.counts["faults"].update(each.action for each in requests if each.action)
        new = report.counts["killed"] - before
        killed = ", ".join(f"{number} {name}" for name, number in new.items())
        store, seconds = "failing store" if fails else "store", time.monotonic() - began
        print(f"{mode}, {store}, {seconds:.0f} s, kills: {killed or 'none'}", flush=True)


def _hash_objects(out: str, rejects: str) -> dict[str, str]:
    return dataset_bytes(out) | {"rejects": hashlib.sha256(Location(rejects).read()).hexdigest()}


@dataclass
class _Jobs:
    """The processes of one conversion, which are killed and restarted until they succeed."""

    commands: list[list[str]]
    """The commands that have not succeeded."""
    out: str
    variables: dict[str, str]
    cluster: Cluster | None
    campaign: Campaign
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, kills: int) -> None:
        """Run all processes, kill up to `kills` of them, and restart those that fail."""
        end = time.monotonic() + TIMEOUT_S
        while self.commands and time.monotonic() < end:
            self.running = [self._start(command) for command in self.commands]
            harmed: set[int] = set()
            while not self._have_ended() and time.monotonic() < end:
                self._wait_for_object()
                soon(self._have_ended, self.campaign.draw.uniform(0.0, self.campaign.args.pause))
                if kills > 0 and (pids := self._kill()):
                    kills, harmed = kills - 1, harmed | pids
            self._collect(harmed)
        if self.commands:
            self.campaign.report.fail(
                f"the conversion did not finish within {TIMEOUT_S:.0f} s. These commands had not "
                f"succeeded: {self.commands}"
            )

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        self.campaign.report.numbers["starts"] += 1
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env=self.variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def _have_ended(self) -> bool:
        return all(process.poll() is not None for process in self.running)

    def _wait_for_object(self) -> None:
        """Wait until an object is stored or deleted, so that some kills hit after the start."""
        before, end = list_sizes_at(Location(self.out)), time.monotonic() + TIMEOUT_S / 10
        while time.monotonic() < end and list_sizes_at(Location(self.out)) == before:
            if soon(self._have_ended, 0.3):
                return

    def _kill(self) -> set[int]:
        """Kill a process, and return the PIDs of the commands that may fail because of the kill."""
        live = [process.pid for process in self.running if process.poll() is None]
        if not live:
            return set()
        harmed, kinds = {self.campaign.draw.choice(live)}, ["process"]
        started = next(iter(harmed))
        workers = self.cluster.workers() if self.cluster else sorted(children_of(started))
        kinds += ["worker"] * (2 if workers else 0) + ["raylet"] * bool(self.cluster)
        kind = self.campaign.draw.choice(kinds)
        if self.cluster and kind == "raylet":
            self.cluster.replace_node()
            harmed = set(live)
        else:
            victim = started if kind == "process" else self.campaign.draw.choice(workers)
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                return set()
        report, name = self.campaign.report, f"{kind} of Ray" if self.cluster else kind
        report.numbers["kills"] += 1
        report.counts["killed"][name] += 1
        return harmed

    def _collect(self, harmed: set[int]) -> None:
        """Keep the failed commands to restart them, and report failures that no kill explains."""
        commands, self.commands = self.commands, []
        for command, process in zip(commands, self.running, strict=True):
            if process.poll() is None:
                process.kill()
            errors = process.communicate()[1].decode()
            if process.returncode:
                self.commands.append(command)
            if "Traceback" in errors or (process.returncode and process.pid not in harmed):
                self.campaign.report.fail(
                    f"{command} exited with status {process.returncode}. The end of its stderr:\n"
                    f"{errors[-2000:]}"
                )


def main() -> int:
    parser = make_parser(__doc__, ARGUMENTS)
    modes = [mode for mode in MODES if mode != "ray" or find_spec("ray")]
    shown = f"modes to run, of {', '.join(MODES)} (default: all, but ray only if it is installed)"
    parser.add_argument("--modes", nargs="+", default=modes, choices=list(MODES), help=shown)
    args = parser.parse_args()

    def run(folder: Path) -> Report:
        with start_s3() as server, start_fault_proxy(server.endpoint) as proxy:
            os.environ.update(server.environment())
            return Campaign(args, folder, server, proxy).run()

    return run_in_folder("conversions", run)


if __name__ == "__main__":
    sys.exit(main())
