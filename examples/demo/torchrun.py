"""Run the demo's trainer under torchrun until it finishes or is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.demo.corpus import progress
from examples.demo.plan import GLOBAL_BATCH, SEQ_LEN, Length, Run, Step
from testkit import ROOT

SILENCE_TIMEOUT_S = 300.0


def train(run: Run, data: str, length: Length, work: Path, record: Path) -> None:
    """Run the trainer under torchrun until it finishes or is killed.

    Sets the fields of `run` from the steps that its ranks recorded.
    """
    record.mkdir()
    checkpoints = work / run.checkpoints
    resumed = checkpoints.exists()
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr",
        "127.0.0.1",
    ]
    command += [
        "--nproc-per-node",
        str(run.ranks),
        "-m",
        "examples.demo.trainer",
        data,
        *["--resume"] * resumed,
    ]
    options: dict[str, int | Path] = {
        "steps": run.stop,
        "save-every": length.save_every,
        "global-batch": GLOBAL_BATCH,
        "seq-len": SEQ_LEN,
    }
    options |= {"checkpoints": checkpoints, "cache": work / run.cache, "record": record}
    command += [f"--{name}={value}" for name, value in options.items()]
    done = last_checkpoint(checkpoints) if resumed else 0
    started = time.monotonic()
    with running_torchrun(command, run.ranks, record) as process:
        follow(run, process, record, done, run.kill_at or run.stop)
    run.seconds = time.monotonic() - started
    run.steps = read_record(record, run.ranks)
    run.first = done + 1
    run.last = last_checkpoint(checkpoints)
    if run.kill_at:
        lost = max(run.steps) - run.last
        print(
            f"The run was killed after step {max(run.steps)}. Its last checkpoint is from step "
            f"{run.last}, so {lost} steps must be repeated."
        )


def last_checkpoint(folder: Path) -> int:
    """Return the step of the last checkpoint in a folder. Raises `SystemExit` if there is none."""
    steps = [int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.pt")]
    if not steps:
        raise SystemExit(
            f"{folder} contains no checkpoint, because the run was killed before it saved one. Run "
            "the demo again"
        )
    return max(steps)


@contextlib.contextmanager
def running_torchrun(
    command: list[str], ranks: int, record: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run torchrun during a `with` block, with its output in torchrun.log.

    At the end of the block, torchrun, its ranks, and their workers are killed.
    """
    environment = os.environ | {
        # leave one core to the loaders' workers, because too many threads slow each other down
        "OMP_NUM_THREADS": str(min(8, max(1, (len(os.sched_getaffinity(0)) - 1) // ranks))),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "CUDA_VISIBLE_DEVICES": "",  # NCCL does not support several ranks on one GPU
        "GLOO_SOCKET_IFNAME": "lo",
    }
    with (record / "torchrun.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill_tree(process.pid)
        process.wait()


def follow(run: Run, process: subprocess.Popen[bytes], record: Path, done: int, stop: int) -> None:
    """Show a run's progress until it exits or, if it is to be killed, until it reaches `stop`."""
    path, shown, heard = record / "rank-0.jsonl", done, time.monotonic()
    with progress(run.name, run.stop, initial=done, unit="step") as bar:
        while True:
            has_ended = process.poll() is not None
            lines = path.read_text().splitlines(keepends=True) if path.exists() else []
            if lines and lines[-1].endswith("\n"):
                newest = json.loads(lines[-1])
                heard = time.monotonic() if newest["step"] > shown else heard
                bar.set_postfix(loss=f"{newest['loss']:.3f}", refresh=False)
                bar.update(newest["step"] - shown)
                shown = newest["step"]
            if run.kill_at and shown >= stop:
                return
            if has_ended:
                break
            if time.monotonic() - heard > SILENCE_TIMEOUT_S:
                fail(run, record, f"completed no step for {SILENCE_TIMEOUT_S:.0f} s")
            time.sleep(0.05)
    if process.returncode or shown < stop:
        fail(run, record, f"exited with status {process.returncode} at step {shown} of {stop}")


def fail(run: Run, record: Path, what: str) -> None:
    """Exit the demo with an error that shows the last 40 lines of the run's log."""
    tail = "\n".join((record / "torchrun.log").read_text(errors="replace").splitlines()[-40:])
    raise SystemExit(
        f"\n{tail}\n\nThe run {run.name!r} {what}. The full log is {record / 'torchrun.log'}"
    )


def kill_tree(pid: int) -> None:
    """Send SIGKILL to a process and all its descendants, even those in other sessions."""
    family, children = [pid], children_by_parent()
    for member in family:
        family += children.get(member, [])
    for member in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)


def children_by_parent() -> dict[int, list[int]]:
    """Return the PIDs of the child processes of each process of this machine, by parent PID."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # the file has `pid (name) state parent ...`; a name may contain spaces and brackets
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    return children


def read_record(record: Path, ranks: int) -> dict[int, Step]:
    """Return the steps that all ranks recorded. Lines that the kill cut short are ignored."""
    by_rank: list[dict[int, dict[str, Any]]] = []
    for rank in range(ranks):
        lines = (record / f"rank-{rank}.jsonl").read_text().splitlines(keepends=True)
        steps = [json.loads(line) for line in lines if line.endswith("\n")]
        by_rank.append({step["step"]: step for step in steps})
    finished = sorted(set.intersection(*(set(steps) for steps in by_rank)))
    return {number: join_ranks([steps[number] for steps in by_rank]) for number in finished}


def join_ranks(lines: list[dict[str, Any]]) -> Step:
    """Combine a step's records, with the times of the slowest rank and the rows of all ranks."""
    rows = [(int(number), row_hash) for line in lines for number, row_hash in line["rows"].items()]
    return {
        "loss": lines[0]["loss"],
        "step_s": max(line["step_s"] for line in lines),
        "wait_s": max(line["wait_s"] for line in lines),
        "rows": sorted(rows),
    }
