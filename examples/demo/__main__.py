"""The main job from end to end, on this machine alone: `make demo`.

    sources and texts of this Python environment ─► MDS shards on an S3 server of our own ─► a small GPT, trained from s3://

    reference   2 ranks   ───────────────────────────────────────────►
    piece 1     2 ranks   ──────────┬──────✗ SIGKILL
    piece 2     1 rank              └────────────┐
    piece 3     4 ranks                          └────────────────────►

Every rank writes down a hash of every row that it is handed. The end compares, row by row, what the
three pieces trained on with what the reference trained on; the exit status is 1 unless they are the
same. Writes summary.png, summary.json and each run's record to demo-output.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tests.support.servers import start_s3

ROOT = Path(__file__).resolve().parents[2]

BUCKET = "cloudload"
GLOBAL_BATCH, SEQ_LEN, VOCAB_SIZE = 16, 128, 4096
SHARD_BYTES = 1 << 20
MOST_CORPUS_BYTES, MOST_FILE_BYTES = 30_000_000, 500_000
SILENCE_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Length:
    """How long the demo runs, in steps."""

    steps: int
    save_every: int
    kill_at: int
    second_ends: int

    @property
    def checkpoint_before_kill(self) -> int:
        """The step from which the killed run is resumed, if the kill is prompt."""
        return self.kill_at // self.save_every * self.save_every


FULL = Length(steps=240, save_every=40, kill_at=107, second_ends=160)
QUICK = Length(steps=24, save_every=8, kill_at=12, second_ends=16)


@dataclass
class Run:
    """One `torchrun`: what it is asked for, and, afterwards, what its ranks wrote down."""

    name: str
    ranks: int
    stop: int
    checkpoints: str
    cache: str
    kill_at: int | None = None
    seconds: float = 0.0
    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By step: loss, step_s, wait_s, and the rows of all ranks, number to hash."""
    first: int = 0
    last: int = 0
    """The steps that count: those that no later run did again."""

    @property
    def counted(self) -> list[int]:
        """The steps that the final model went through."""
        return [step for step in self.steps if self.first <= step <= self.last]

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second over the run's steps."""
        return (
            GLOBAL_BATCH
            * SEQ_LEN
            / statistics.median(step["step_s"] for step in self.steps.values())
        )

    @property
    def wait_share(self) -> float:
        """The share of its time that the training loop waited for the loader; without the first
        step, when workers start."""
        steps = list(self.steps.values())[1:]
        return sum(step["wait_s"] for step in steps) / sum(step["step_s"] for step in steps)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Convert, train, kill, resume on other ranks, and compare; takes minutes."
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps and less text")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "demo-output", help="folder of the summary, replaced"
    )
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    length = QUICK if args.quick else FULL
    output = args.output.resolve()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="cloudload-demo-", ignore_cleanup_errors=True
    ) as temporary:
        work = Path(temporary)
        say(1, "Corpus: the Python sources and texts of this environment")
        collect_corpus(work / "corpus.jsonl", MOST_CORPUS_BYTES // (10 if args.quick else 1))
        with start_s3(BUCKET) as server:
            os.environ.update(server.environment())
            data = f"s3://{BUCKET}/corpus"
            say(2, f"Conversion to MDS shards in {data}, on an S3 server at {server.endpoint}")
            convert(work / "corpus.jsonl", data)
            runs = plan_runs(length)
            for number, run in enumerate(runs, 3):
                say(number, describe(run, length))
                train(run, data, length, work, output / run.name.replace(" ", "-"))
        reference, *pieces = runs
        say(7, "What each run trained on, row by row")
        summary = compare(reference, pieces, length)
        summary["state_bytes"] = measure_state(work / reference.checkpoints)
    draw(reference, pieces, output / "summary.png")
    summary["seconds"] = round(time.monotonic() - started, 1)
    (output / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    report(summary, output)
    return 0 if summary["identical"] else 1


def say(number: int, text: str) -> None:
    """Head a stage of the demo."""
    print(f"\n[{number}/7] {text}", flush=True)


def progress(name: str, total: int, **options: Any) -> Any:
    """A bar; where nobody watches, a line now and then."""
    return tqdm(total=total, desc=name, mininterval=0.1 if sys.stderr.isatty() else 10.0, **options)


# ---------------------------------------------------------------- corpus


def collect_corpus(target: Path, most_bytes: int) -> None:
    """Write sources and texts of the environment as JSON lines; which ones follows from their names
    alone."""
    paths = sysconfig.get_paths()
    roots = [Path(paths[name]).resolve() for name in ("purelib", "stdlib")]
    found = {
        path.relative_to(root).as_posix(): path
        for root in roots
        for path in root.rglob("*")
        if path.suffix in (".py", ".txt", ".md", ".rst")
        and not {"site-packages", "dist-packages"} & set(path.relative_to(root).parts)
    }
    # an order that mixes packages
    names = sorted(found, key=lambda name: hashlib.sha256(name.encode()).digest())
    num_documents, num_bytes = 0, 0
    with (
        target.open("w") as file,
        progress("collect", most_bytes, unit="B", unit_scale=True) as bar,
    ):
        for name in names:
            text = read_text(found[name])
            if text is None:
                continue
            file.write(json.dumps({"id": name, "text": text}) + "\n")
            num_documents, num_bytes = num_documents + 1, num_bytes + len(text)
            bar.update(len(text))
            if num_bytes >= most_bytes:
                break
    print(f"{num_documents:,} documents, {num_bytes / 1e6:.1f} million characters")


def read_text(path: Path) -> str | None:
    """The text of a file; None for what is no text, too little or too much."""
    try:
        if not 0 < path.stat().st_size <= MOST_FILE_BYTES:
            return None
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return text if text.strip() else None


def convert(corpus: Path, data: str) -> None:
    """What `cloudload convert corpus.jsonl s3://...` does."""
    from cloudload import convert_to_mds

    report = convert_to_mds([str(corpus)], data, shard_bytes=SHARD_BYTES)
    print(
        f"{report.documents:,} documents, {report.text_bytes / 1e6:.1f} MB of text, "
        f"{report.shards} shards, "
        f"{report.stored_bytes / 1e6:.1f} MB stored, {report.seconds:.1f} s"
    )


# ---------------------------------------------------------------- training


def plan_runs(length: Length) -> list[Run]:
    """The reference and three pieces that share their checkpoints; the last has an empty cache, as
    on another machine."""
    return [
        Run(
            "reference",
            2,
            length.steps,
            checkpoints="checkpoints-reference",
            cache="cache-reference",
        ),
        Run(
            "piece 1",
            2,
            length.steps,
            checkpoints="checkpoints",
            cache="cache",
            kill_at=length.kill_at,
        ),
        Run("piece 2", 1, length.second_ends, checkpoints="checkpoints", cache="cache"),
        Run("piece 3", 4, length.steps, checkpoints="checkpoints", cache="cache-elsewhere"),
    ]


def describe(run: Run, length: Length) -> str:
    """The stage's headline."""
    ranks = name_ranks(run)
    if run.name == "reference":
        return f"Reference: {ranks}, {run.stop} steps without a stop"
    if run.kill_at:
        return (
            f"Piece 1: {ranks}, killed with SIGKILL at step {run.kill_at} (a checkpoint every "
            f"{length.save_every} steps)"
        )
    return f"{run.name.capitalize()}: {ranks}, from the last checkpoint to step {run.stop}"


def train(run: Run, data: str, length: Length, work: Path, record: Path) -> None:
    """Run the example under torchrun, to its end or until it is killed, and read what its ranks
    wrote down."""
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
    options = {
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
            f"killed after step {max(run.steps)}; the last checkpoint is of step {run.last}: "
            f"{lost} steps are to be done again"
        )


def last_checkpoint(folder: Path) -> int:
    """The step of the last checkpoint in a folder."""
    steps = [int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.pt")]
    if not steps:
        raise SystemExit(
            "the run was killed before its first checkpoint; this machine is "
            "too slow for the demo's plan"
        )
    return max(steps)


@contextlib.contextmanager
def running_torchrun(
    command: list[str], ranks: int, record: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A torchrun whose words go to torchrun.log; at the end of the block it, its ranks and their
    workers are killed."""
    environment = os.environ | {
        # one core is left to the loaders' workers: threads that fight for cores are slower than
        # fewer threads
        "OMP_NUM_THREADS": str(min(8, max(1, (len(os.sched_getaffinity(0)) - 1) // ranks))),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "CUDA_VISIBLE_DEVICES": "",  # several ranks of one GPU could not use NCCL
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
    """Show how a run gets on, until it ends or the step `stop` of a run that is to be killed is
    reached."""
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
                fail(run, record, f"took no step for {SILENCE_TIMEOUT_S:.0f} s")
            time.sleep(0.05)
    if process.returncode or shown < stop:
        fail(run, record, f"ended with status {process.returncode} at step {shown} of {stop}")


def fail(run: Run, record: Path, what: str) -> None:
    """Give up on the demo, with the end of the run's log."""
    tail = "\n".join((record / "torchrun.log").read_text(errors="replace").splitlines()[-40:])
    raise SystemExit(f"\n{tail}\n\n{run.name} {what}. Its whole log: {record / 'torchrun.log'}")


def kill_tree(pid: int) -> None:
    """SIGKILL a process and all that it started, whatever sessions they are in."""
    family, children = [pid], children_by_parent()
    for member in family:
        family += children.get(member, [])
    for member in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)


def children_by_parent() -> dict[int, list[int]]:
    """The processes of this machine by their parent."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # pid (name) state parent ...; a name may hold spaces and brackets
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    return children


def read_record(record: Path, ranks: int) -> dict[int, dict[str, Any]]:
    """The steps that all ranks wrote down. A line that the kill cut short was no finished step."""
    by_rank: list[dict[int, dict[str, Any]]] = []
    for rank in range(ranks):
        lines = (record / f"rank-{rank}.jsonl").read_text().splitlines(keepends=True)
        steps = [json.loads(line) for line in lines if line.endswith("\n")]
        by_rank.append({step["step"]: step for step in steps})
    finished = sorted(set.intersection(*(set(steps) for steps in by_rank)))
    return {number: join_ranks([steps[number] for steps in by_rank]) for number in finished}


def join_ranks(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """One step of all ranks: the slowest counts, and together they have its rows."""
    rows = [(int(number), row_hash) for line in lines for number, row_hash in line["rows"].items()]
    slowest = {name: max(line[name] for line in lines) for name in ("step_s", "wait_s")}
    return {"loss": lines[0]["loss"], **slowest, "rows": sorted(rows)}


# ---------------------------------------------------------------- the comparison


def compare(reference: Run, pieces: list[Run], length: Length) -> dict[str, Any]:
    """What the pieces trained on, in order, against what the reference trained on."""
    for piece, following in itertools.pairwise(pieces):
        piece.last = following.first - 1
    expected = rows_of(reference, reference.counted)
    found = [row for piece in pieces for row in rows_of(piece, piece.counted)]
    whole = list(range(length.steps * GLOBAL_BATCH))
    # a killed run's last steps count for nothing, but they, too, must have been of the same rows
    discarded = [
        row
        for piece in pieces
        for row in rows_of(piece, [step for step in piece.steps if step > piece.last])
    ]
    redone_alike = set(discarded) <= set(expected)
    losses = {step: piece.steps[step]["loss"] for piece in pieces for step in piece.counted}
    ends = [
        statistics.mean(losses[step] for step in steps)
        for steps in (sorted(losses)[:10], sorted(losses)[-10:])
    ]
    return {
        "identical": [number for number, _ in expected] == whole
        and found == expected
        and redone_alike,
        "rows": len(found),
        "tokens": len(found) * SEQ_LEN,
        "hash_of_reference": hash_rows(expected),
        "hash_of_pieces": hash_rows(found),
        "rows_done_again": len(discarded),
        "loss_of_first_10_steps": round(ends[0], 4),
        "loss_of_last_10_steps": round(ends[1], 4),
        "most_difference_of_loss": max(
            abs(loss - reference.steps[step]["loss"]) for step, loss in losses.items()
        ),
        "runs": [summarize(run, expected) for run in (reference, *pieces)],
    }


def rows_of(run: Run, steps: list[int]) -> list[tuple[int, str]]:
    """The rows of a run's steps, in the order in which they were trained on."""
    return [row for step in steps for row in run.steps[step]["rows"]]


def hash_rows(rows: list[tuple[int, str]]) -> str:
    """One hash of rows in their order."""
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def summarize(run: Run, expected: list[tuple[int, str]]) -> dict[str, Any]:
    rows = rows_of(run, run.counted)
    start = (run.first - 1) * GLOBAL_BATCH
    return {
        "name": run.name,
        "ranks": run.ranks,
        "steps": [run.first, run.last],
        "rows": [start, start + len(rows)],
        "identical": rows == expected[start : start + len(rows)]
        and len(rows) == (run.last - run.first + 1) * GLOBAL_BATCH,
        "tokens_per_s": round(run.tokens_per_s),
        "wait_share": round(run.wait_share, 4),
        "seconds": round(run.seconds, 1),
    }


def measure_state(checkpoints: Path) -> int:
    """The bytes of the loader's state in the last checkpoint, as JSON."""
    import torch

    checkpoint = torch.load(max(checkpoints.glob("step-*.pt")), weights_only=True)
    return len(json.dumps(checkpoint["loader"]))


def report(summary: dict[str, Any], output: Path) -> None:
    print(
        f"\n{'run':<10}{'ranks':>6}{'steps':>12}{'rows':>15}{'tokens':>10}{'tokens/s':>10}{'waiting':>9}   like the reference"
    )
    for run in summary["runs"]:
        steps, rows = (
            " to ".join(f"{number:,}" for number in run[name]) for name in ("steps", "rows")
        )
        tokens = (run["rows"][1] - run["rows"][0]) * SEQ_LEN
        verdict = "" if run["name"] == "reference" else "every row" if run["identical"] else "NO"
        print(
            f"{run['name']:<10}{run['ranks']:>6}{steps:>12}{rows:>15}{tokens:>10,}{run['tokens_per_s']:>10,}"
            f"{run['wait_share']:>9.1%}   {verdict}"
        )
    print(f"\nrows of the reference   sha256 {summary['hash_of_reference']}")
    print(f"rows of the pieces      sha256 {summary['hash_of_pieces']}")
    if summary["identical"]:
        print(
            f"The three pieces trained on the same {summary['rows']:,} rows ({summary['tokens']:,} "
            "tokens) as the reference, "
            f"bit for bit and in the same order. {summary['rows_done_again']} rows were trained on "
            "by the killed run, "
            "discarded with it, and read again alike."
        )
    else:
        print("NOT IDENTICAL: the pieces did not train on what the reference trained on.")
    print(
        f"Loss: {summary['loss_of_first_10_steps']:.2f} over the first 10 steps, "
        f"{summary['loss_of_last_10_steps']:.2f} over the "
        f"last 10 (guessing evenly: {math.log(VOCAB_SIZE):.2f}); "
        f"pieces and reference differ by {summary['most_difference_of_loss']:.0e} at most."
    )
    print(
        f"The loader's state in a checkpoint: {summary['state_bytes']:,} bytes. All this took "
        f"{summary['seconds']:.0f} s."
    )
    print(f"See {output / 'summary.png'} and {output / 'summary.json'}.")


# ---------------------------------------------------------------- the picture


def draw(reference: Run, pieces: list[Run], path: Path) -> None:
    """Loss, tokens a second and waiting, by step."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    settings = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "font.size": 10,
    }
    colours = dict(
        zip(
            [run.name for run in (reference, *pieces)],
            ["#b0b0b0", "#1f77b4", "#d95f02", "#1b9e77"],
            strict=True,
        )
    )
    with plt.rc_context(settings):
        figure, (losses, speeds, waits) = plt.subplots(
            3, 1, figsize=(10, 9), sharex=True, height_ratios=[3, 1.5, 1.5], layout="constrained"
        )
        draw_losses(losses, reference, pieces, colours)
        for run in (reference, *pieces):
            steps = list(run.steps)[1:]
            seconds, waited = (
                [run.steps[step][name] for step in steps] for name in ("step_s", "wait_s")
            )
            speeds.plot(
                steps,
                [GLOBAL_BATCH * SEQ_LEN / each / 1000 for each in seconds],
                color=colours[run.name],
                lw=1,
            )
            waits.plot(
                steps,
                [100 * wait / each for wait, each in zip(waited, seconds, strict=True)],
                color=colours[run.name],
                lw=1,
            )
        speeds.set(ylabel="thousand tokens/s", ylim=(0, None))
        waits.set(ylabel="% of the step", ylim=(0, max(20, waits.get_ylim()[1])), xlabel="step")
        losses.set_title(
            "Loss: an uninterrupted run, and one that was killed and resumed on other ranks",
            loc="left",
        )
        speeds.set_title("Tokens handed out and trained on", loc="left")
        waits.set_title("Time that the training loop waited for the loader", loc="left")
        for axes in (losses, speeds, waits):
            for piece in pieces[1:]:
                axes.axvline(piece.first - 0.5, color=colours[piece.name], lw=0.8, ls=":")
        figure.savefig(path, dpi=110)
        plt.close(figure)


def draw_losses(axes: Any, reference: Run, pieces: list[Run], colours: dict[str, str]) -> None:
    def plot(run: Run, steps: list[int], **style: Any) -> None:
        axes.plot(
            steps,
            [run.steps[step]["loss"] for step in steps],
            **{"color": colours[run.name], "lw": 1.5, **style},
        )

    plot(
        reference,
        reference.counted,
        lw=6,
        label=f"reference: {name_ranks(reference)}, uninterrupted",
    )
    for piece in pieces:
        lost = [step for step in piece.steps if step > piece.last]
        plot(piece, piece.counted, label=f"{piece.name}: {name_ranks(piece)}")
        if lost:
            plot(
                piece,
                lost,
                color="black",
                ls=":",
                zorder=4,
                label="trained on, and lost by the kill",
            )
            plot(
                piece,
                lost[-1:],
                color="#c00000",
                ls="",
                marker="X",
                ms=9,
                zorder=5,
                label="SIGKILL",
            )
        if piece.first > 1:
            axes.annotate(
                f"resumed on {name_ranks(piece)}",
                (piece.first, 0.02),
                xycoords=("data", "axes fraction"),
                size=9,
            )
    evenly, middle = math.log(VOCAB_SIZE), reference.last / 3
    axes.axhline(evenly, color="#555555", lw=0.8, ls="--")
    axes.annotate(
        f"guessing evenly among {VOCAB_SIZE:,} tokens",
        (middle, evenly),
        (0, 4),
        textcoords="offset points",
        size=9,
    )
    axes.set(ylabel="loss", ylim=(None, evenly + 0.4))
    axes.legend(frameon=False, loc="upper right", bbox_to_anchor=(1, 0.88))


def name_ranks(run: Run) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{run.ranks} rank{'s' * (run.ranks > 1)}"


if __name__ == "__main__":
    sys.exit(main())
