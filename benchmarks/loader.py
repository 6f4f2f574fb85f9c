"""How near the loader comes to the bare tokenizer, what a state weighs, and how soon a resumed run
has its first batch.

    python -m benchmarks.loader --corpus corpus/*.jsonl.gz --tokenizer gpt2-folder llama3-folder

Prints a Markdown table. Speeds are of one core, to which the training process and its worker are
both pinned; the loader and the bare tokenizer take short turns on it, and medians over several
epochs are given with the extremes. Without --corpus, text is generated; without --tokenizer, the
example's is used.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

SEQ_LEN, BATCH_SIZE, WARM_UP_BATCHES = 2048, 8, 8
DOCUMENTS_AT_ONCE, BATCHES_AT_ONCE = 64, 4
LANES = (64, 960, 8192)
PLACES = (0.01, 0.5, 0.99)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help=".jsonl or .jsonl.gz with a field `text`",
    )
    parser.add_argument("--tokenizer", nargs="+", default=[str(ROOT / "examples" / "tokenizer")])
    parser.add_argument(
        "--megabytes", type=float, default=24.0, help="of text, at most (default: %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--only", choices=["speed", "state", "resume"], help="one part")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        request = json.loads(args.measure)
        print(json.dumps(MEASURES[request.pop("what")](**request)))
        return
    with tempfile.TemporaryDirectory(prefix="cloudload-bench-") as folder:
        rows: list[tuple[str, str, str]] = []
        dataset = make_dataset(args, Path(folder))
        for tokenizer in args.tokenizer:
            if args.only in (None, "speed"):
                rows += compare_speed(dataset, tokenizer, args.repeats)
            if args.only in (None, "resume"):
                rows += time_resumes(dataset, tokenizer, Path(folder), args.repeats)
        if args.only in (None, "state"):
            rows += weigh_states(Path(folder), args.tokenizer[0])
    print("| measure | median | extremes |\n|---|---:|---:|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(what: str, **request: Any) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--measure", json.dumps({"what": what, **request})]
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    note(f"  {what}: {result}")
    return result


def spread(values: list[float], form: str) -> tuple[str, str]:
    """The median and the extremes, written out."""
    return format(statistics.median(values), form), f"{min(values):{form}} to {max(values):{form}}"


# ---------------------------------------------------------------- the corpus


def make_dataset(args: argparse.Namespace, folder: Path) -> str:
    """An MDS dataset of the corpus, beside it the same documents as text.json."""
    from cloudload import convert_to_mds

    texts = list(read_texts(args.corpus, args.megabytes * 1e6))
    random.Random(0).shuffle(texts)
    (folder / "mds").mkdir()
    (folder / "texts.json").write_text(json.dumps(texts))
    convert_to_mds(
        iter([{"text": text} for text in texts]),
        folder / "mds",
        shard_bytes=1 << 20,
        progress=False,
    )
    note(f"{len(texts):,} documents, {sum(len(text.encode()) for text in texts) / 1e6:.1f} MB")
    return str(folder / "mds")


def read_texts(files: list[Path], most_bytes: float) -> Iterator[str]:
    """The documents of the files, up to a share of `most_bytes` from each; generated ones where
    there are no files."""
    if not files:
        yield from generate_texts(most_bytes)
    for file in files:
        left = most_bytes / len(files)
        with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
            for line in lines:
                text = json.loads(line)["text"]
                left -= len(text.encode())
                if left < 0:
                    break
                yield text


def generate_texts(num_bytes: float) -> Iterator[str]:
    """Words of made-up letters, as often as words are in a language."""
    dice = random.Random(0)
    words = [
        "".join(dice.choices("etaoinshrdlucmfwypvbgk", k=dice.randint(1, 10)))
        for _ in range(20_000)
    ]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    while num_bytes > 0:
        text = " ".join(dice.choices(words, weights, k=dice.randint(20, 1500)))
        num_bytes -= len(text)
        yield text


# ---------------------------------------------------------------- speed


def compare_speed(dataset: str, tokenizer: str, repeats: int) -> list[tuple[str, str, str]]:
    """The loader's tokens a second as a share of the bare tokenizer's, over the same epoch."""
    name = Path(tokenizer).name
    note(f"speed, {name}")
    pairs = [race(dataset, tokenizer) for _ in range(repeats)]
    rows = []
    for clock in ("wall", "cpu"):
        speeds = [[side["tokens"] / side[clock] for side in pair] for pair in pairs]
        rows.append(
            (
                f"{name}: bare tokenizer, tokens/s ({clock} time)",
                *spread([bare for bare, _ in speeds], ",.0f"),
            )
        )
        rows.append(
            (
                f"{name}: loader, tokens/s ({clock} time)",
                *spread([loader for _, loader in speeds], ",.0f"),
            )
        )
        rows.append(
            (
                f"{name}: share ({clock} time)",
                *spread([loader / bare for bare, loader in speeds], ".3f"),
            )
        )
    return rows


def race(dataset: str, tokenizer: str) -> tuple[dict[str, float], dict[str, float]]:
    """An epoch by the bare tokenizer and one by the loader, in short turns: while one works the
    other is stopped, so that whatever else the machine does slows both."""
    turns: list[list[dict[str, float]]] = [[], []]
    racing = [
        (start_side(what, dataset, tokenizer), done)
        for what, done in zip(SIDES, turns, strict=True)
    ]
    while racing:
        for side, done in list(racing):
            if turn := take_turn(side):
                done.append(turn)
            else:
                side.wait()
                racing.remove((side, done))
    bare, loader = ({name: sum(turn[name] for turn in done) for name in done[0]} for done in turns)
    # the bare tokenizer makes no end-of-text tokens, and those cost the loader nothing
    loader["tokens"] *= bare["tokens"] / (bare["tokens"] + bare["documents"])
    note(f"  bare {bare}\n  loader {loader}")
    return bare, loader


def start_side(what: str, dataset: str, tokenizer: str) -> subprocess.Popen[str]:
    """A side of the race in a process group of its own, ready and stopped."""
    command = [
        sys.executable,
        __file__,
        "--measure",
        json.dumps({"what": what, "dataset": dataset, "tokenizer": tokenizer}),
    ]
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    side = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert side.stdout
    assert side.stdout.readline() == "ready\n"
    os.killpg(side.pid, signal.SIGSTOP)
    return side


def take_turn(side: subprocess.Popen[str]) -> dict[str, float]:
    """What a side did in its turn; nothing when it is through."""
    assert side.stdin
    assert side.stdout
    os.killpg(side.pid, signal.SIGCONT)
    side.stdin.write("go\n")
    side.stdin.flush()
    turn: dict[str, float] = json.loads(side.stdout.readline())
    if turn:
        os.killpg(side.pid, signal.SIGSTOP)
    return turn


def serve_turns(turns: Iterator[dict[str, float]]) -> dict[str, float]:
    """Take a turn whenever asked to; the seconds of each go with what it did."""
    print("ready", flush=True)
    for _ in sys.stdin:
        started, cpu_started = time.perf_counter(), family_cpu()
        if (done := next(turns, None)) is None:
            break
        print(
            json.dumps(
                done | {"wall": time.perf_counter() - started, "cpu": family_cpu() - cpu_started}
            ),
            flush=True,
        )
    return {}


def race_bare(dataset: str, tokenizer: str) -> dict[str, float]:
    """`encode_batch_fast` on the documents in memory; its ids are not even looked at."""
    from tokenizers import Tokenizer

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    texts = json.loads(Path(dataset).with_name("texts.json").read_text())
    encoder = Tokenizer.from_file(str(Path(tokenizer, "tokenizer.json")))
    encoder.encode_batch_fast(texts[:DOCUMENTS_AT_ONCE], add_special_tokens=False)

    def turns() -> Iterator[dict[str, float]]:
        for start in range(0, len(texts), DOCUMENTS_AT_ONCE):
            documents = texts[start : start + DOCUMENTS_AT_ONCE]
            encodings = encoder.encode_batch_fast(documents, add_special_tokens=False)
            yield {"tokens": sum(map(len, encodings)), "documents": len(documents)}

    return serve_turns(turns())


def race_loader(dataset: str, tokenizer: str) -> dict[str, float]:
    """An epoch through the loader with one worker, less the first batches, on the core of the bare
    tokenizer."""
    from cloudload import CloudLoader

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    with (
        tempfile.TemporaryDirectory(prefix="cloudload-bench-") as cache,
        CloudLoader(
            dataset,
            tokenizer=tokenizer,
            seq_len=SEQ_LEN,
            batch_size=BATCH_SIZE,
            num_workers=1,
            local=cache,
        ) as loader,
    ):
        batches = iter(loader)

        def turns() -> Iterator[dict[str, float]]:
            while loader.stats().documents < loader.num_samples:
                some = list(itertools.islice(batches, BATCHES_AT_ONCE))
                yield {"tokens": sum(int((batch["labels"] >= 0).sum()) for batch in some)}

        list(itertools.islice(batches, WARM_UP_BATCHES))
        return serve_turns(turns())


def family_cpu() -> float:
    """CPU seconds of this process and its living children."""
    children = Path("/proc/self/task").glob("*/children")
    pids = [pid for file in children for pid in file.read_text().split()]
    ticks = 0
    for pid in pids:
        fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------- state


def weigh_states(folder: Path, tokenizer: str) -> list[tuple[str, str, str]]:
    """The bytes of a state as JSON, and the time that `state_dict` takes."""
    from cloudload import CloudLoader, convert_to_mds

    note("state")
    data = folder / "short-documents"
    convert_to_mds(
        iter([{"text": f"document {number} of many"} for number in range(20_000)]),
        data,
        progress=False,
    )
    rows = []
    for num_lanes in LANES:
        with CloudLoader(
            str(data),
            tokenizer=tokenizer,
            seq_len=8,
            batch_size=64,
            num_lanes=num_lanes,
            num_workers=0,
            local=folder / "cache",
        ) as loader:
            next(iter(loader))
            times = []
            for _ in range(200):
                started = time.perf_counter()
                state = loader.state_dict()
                times.append(1e6 * (time.perf_counter() - started))
        rows.append(
            (f"state, {num_lanes:,} lanes: bytes of JSON", f"{len(json.dumps(state)):,}", "")
        )
        rows.append((f"state, {num_lanes:,} lanes: µs in state_dict()", *spread(times, ",.0f")))
    return rows


# ---------------------------------------------------------------- resuming


def time_resumes(
    dataset: str, tokenizer: str, folder: Path, repeats: int
) -> list[tuple[str, str, str]]:
    """Seconds from making the loader to the first batch, anywhere in an epoch; with an empty cache,
    and with a filled one."""
    name = Path(tokenizer).name
    note(f"resume, {name}")
    rows = []
    for place in PLACES:
        times: dict[str, list[float]] = {"empty": [], "filled": []}
        for repeat in range(max(1, repeats // 2)):
            cache = str(folder / f"cache-{name}-{place}-{repeat}")
            # the first finds the cache empty and fills it
            for seconds in times.values():
                seconds.append(
                    measure(
                        "resume", dataset=dataset, tokenizer=tokenizer, place=place, cache=cache
                    )["seconds"]
                )
        for cache_is, seconds in times.items():
            rows.append(
                (
                    f"{name}: s to the first batch, resumed at {place:.0%}, {cache_is} cache",
                    *spread(seconds, ".2f"),
                )
            )
    return rows


def measure_resume(dataset: str, tokenizer: str, place: float, cache: str) -> dict[str, float]:
    """Seconds from making the loader to its first batch, resumed from a state at `place` of the
    first epoch."""
    import numpy as np

    from cloudload import CloudLoader

    def make_loader() -> CloudLoader:
        return CloudLoader(
            dataset,
            tokenizer=tokenizer,
            seq_len=SEQ_LEN,
            batch_size=BATCH_SIZE,
            num_workers=1,
            local=cache,
        )

    # every lane within its document at that place: what a run that came there would have saved
    there = make_loader()
    cursors = np.ones((there.num_lanes, 2), np.int64)
    cursors[:, 0] = place * (there.num_samples // there.num_lanes)
    rows = int(place * 1000) * there.num_lanes
    table = base64.b64encode(cursors.astype("<i8").tobytes()).decode("ascii")
    state = {**there.state_dict(), "rows": rows, "table_rows": rows, "cursors": table}
    started = time.perf_counter()
    with make_loader() as loader:
        loader.load_state_dict(state)
        next(iter(loader))
        return {"seconds": time.perf_counter() - started}


SIDES = ("bare", "loader")
MEASURES = {"bare": race_bare, "loader": race_loader, "resume": measure_resume}

if __name__ == "__main__":
    main()
