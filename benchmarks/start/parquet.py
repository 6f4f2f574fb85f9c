"""Measure loaders that read Parquet files where they are: cloudload, `datasets`, and LitData.

    python -m benchmarks.start.parquet --corpus FOLDER --tokenizer FOLDER

first batch   An S3 server on this machine has --files files of --file-mb MB, and delays every
              request by --latency-ms. Measures the seconds from the construction of the loader,
              after its imports, to its first batch of 8 rows of 2,048 tokens, and the CPU seconds,
              the megabytes, and the requests until then. The loaders take turns, each in a new
              process with an empty cache. All files have the same bytes, so that they need little
              disk space.
speed         The files are local. Measures tokens per second of CPU time in turns of --seconds.
epoch         The server has --files files of --epoch-file-mb MB. Measures the bytes that each node
              downloads with cloudload in one epoch, as a share of the bytes of the column read,
              with one node, and with two that share the data. A node is a process with its own
              cache. Two nodes run one after the other.

The row groups have --rows documents of at most 4,000 characters, and pages compressed with zstd.
Each loader has one worker, and all use the same tokenizer. LitData needs an index, which is made
before. `datasets` and LitData run in environments of their own, in the folder .bench, which pip
makes.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.documents import add_documents, framing_of, read_documents, repeat
from benchmarks.figures import Row
from benchmarks.harness import ROOT, Child, Message, Side, note
from benchmarks.options import Options, temporary_folder
from benchmarks.peers.environments import environment_of
from benchmarks.start.loaders import read
from benchmarks.start.range_server import BUCKET, RangeServer, serve_file

LOADERS = {"cloudload": None, "datasets": "hf", "litdata": "litdata"}
"""Each loader, with the name of its environment, or None for this one."""
_TURNS = 4
_MOST_CHARACTERS = 4_000
_INDEX_LITDATA = (
    "import litdata, sys; litdata.index_parquet_dataset(sys.argv[1], cache_dir=sys.argv[2])"
)


def main() -> None:
    options = Options(__doc__)
    add_documents(options, 40.0)
    options.add_parts(("first-batch", "speed", "epoch"))
    text = f"measure only these loaders: {', '.join(LOADERS)}"
    options.add_argument(
        "--loaders", nargs="+", choices=LOADERS, default=list(LOADERS), metavar="NAME", help=text
    )
    options.add_amount("files", 100, 3, "number of files in the store")
    options.add_amount("file-mb", 300.0, 1.0, "megabytes of each file")
    options.add_amount("epoch-file-mb", 12.0, 1.0, "megabytes of each file in the part `epoch`")
    options.add_amount("rows", 5_000, 100, "number of documents in each row group")
    options.add_amount("latency-ms", 20.0, 2.0, "delay of every request, in milliseconds")
    options.add_amount("repeats", 3, 1, "number of first batches to time for each loader")
    options.add_amount("seconds", 5.0, 0.5, "seconds of each turn in the part `speed`")
    options.run(measure)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the tables of the chosen parts."""
    if {"first-batch", "speed"} & set(args.only):
        index = write_files(args, folder)
    if "first-batch" in args.only:
        yield "first batch", time_first_batches(args, index, folder)
    if "speed" in args.only:
        yield "speed", time_turns(args, index, folder)
    if "epoch" in args.only:
        yield "epoch", count_epochs(args, folder)


def write_files(args: argparse.Namespace, folder: Path) -> Path:
    """Write the files to a folder `files`, as links to one file. Returns LitData's index."""
    (folder / "files").mkdir()
    file = write_file(args, folder / "file.parquet", args.file_mb)
    for number in range(args.files):
        (folder / "files" / f"part-{number:05}.parquet").hardlink_to(file)
    index = folder / "index"
    if "litdata" in args.loaders:
        index.mkdir()
        python, _ = environment_of("litdata", ROOT / ".bench")
        words = [str(folder / "files"), str(index)]
        subprocess.run([python, "-c", _INDEX_LITDATA, *words], check=True)
    return index


def write_file(args: argparse.Namespace, path: Path, megabytes: float) -> Path:
    """Write a Parquet file of about this size."""
    import pyarrow
    import pyarrow.parquet

    texts = [
        text[start : start + _MOST_CHARACTERS]
        for text in read_documents(args)
        for start in range(0, len(text), _MOST_CHARACTERS)
    ]
    schema = pyarrow.schema([("text", pyarrow.string())])
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        group: list[str] = []
        for sample in repeat(texts, float("inf")):
            group.append(sample["text"])
            if len(group) == args.rows:
                writer.write_table(pyarrow.table([group], schema))
                group = []
                if path.stat().st_size >= megabytes * 1e6:
                    break
    note(f"file of {path.stat().st_size / 1e6:.0f} MB")
    return path


# ---------------------------------------------------------------- the parts


def time_first_batches(args: argparse.Namespace, index: Path, folder: Path) -> list[Row]:
    """Return the seconds, requests and bytes of each loader's first batches."""
    [file, *_] = files = sorted((folder / "files").iterdir())
    names = [each.name for each in files]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in args.loaders}
    with serve_file(file, names, args.latency_ms / 1e3) as server:
        source = Source(f"s3://{BUCKET}", index, server)
        for _ in range(args.repeats):
            for name in args.loaders:
                with open_side(name, args, source, folder) as side:
                    server.reset()
                    turn = side.take_turn({})
                    turn |= {"requests": server.requests.value, "bytes": server.bytes.value}
                found[name].append(turn)
                note(f"first batch, {name}: {turn}")
    return [
        {
            "loader": name,
            "s to the first batch": [turn["wall"] for turn in turns],
            "CPU s": [turn["cpu"] for turn in turns],
            "MB": [turn["bytes"] / 1e6 for turn in turns],
            "requests": [turn["requests"] for turn in turns],
        }
        for name, turns in found.items()
    ]


def time_turns(args: argparse.Namespace, index: Path, folder: Path) -> list[Row]:
    """Return the tokens per second of CPU time of each loader, in turns."""
    source = Source(str(folder / "files"), index)
    rates: dict[str, list[float]] = {name: [] for name in args.loaders}
    with contextlib.ExitStack() as stack:
        sides = {
            name: stack.enter_context(open_side(name, args, source, folder))
            for name in args.loaders
        }
        for side in sides.values():
            side.take_turn({})
        for _ in range(1 + _TURNS):
            for name, side in sides.items():
                turn = side.take_turn({"seconds": args.seconds})
                rates[name].append(turn["tokens"] / turn["cpu"] / 1e6)
                note(f"speed, {name}: {turn}")
    # the first turn also has what was read ahead
    return [
        {"loader": name, "million tokens per CPU second": found[1:]}
        for name, found in rates.items()
    ]


def count_epochs(args: argparse.Namespace, folder: Path) -> list[Row]:
    """Return the bytes that each node downloads in an epoch, as a share of the column's bytes."""
    import pyarrow.parquet

    file = write_file(args, folder / "epoch.parquet", args.epoch_file_mb)
    names = [f"part-{number:05}.parquet" for number in range(args.files)]
    metadata = pyarrow.parquet.read_metadata(file)
    groups = [metadata.row_group(index).column(0) for index in range(metadata.num_row_groups)]
    size = args.files * sum(column.total_compressed_size for column in groups)
    rows: list[Row] = []
    with serve_file(file, names, args.latency_ms / 1e3) as server:
        for nodes in (1, 2):
            shares = [
                count_epoch(args, server, node, nodes, folder) / size for node in range(nodes)
            ]
            found = {
                "nodes": nodes,
                "bytes downloaded / bytes of the column, by node": shares,
                "all nodes": f"{sum(shares):.3f}",
            }
            note(f"epoch: {found}")
            by_node = " · ".join(f"{share:.3f}" for share in shares)
            rows.append({**found, "bytes downloaded / bytes of the column, by node": by_node})
    return rows


def count_epoch(
    args: argparse.Namespace, server: RangeServer, node: int, nodes: int, folder: Path
) -> int:
    """Return the bytes that a node downloads in an epoch."""
    server.reset()
    with temporary_folder(folder) as cache:
        request = {
            "what": "epoch",
            "loader": "cloudload",
            "data": f"s3://{BUCKET}",
            "cache": str(cache),
            "tokenizer": str(args.tokenizer[0].absolute()),
            "node": node,
            "nodes": nodes,
        }
        with Child(read, server.environment(), request=request) as child:
            child.answer()
            return server.bytes.value


# ---------------------------------------------------------------- the loaders


@dataclass(frozen=True)
class Source:
    """Where loaders read."""

    data: str
    """The location of the files."""
    index: Path
    """The folder of LitData's index."""
    server: RangeServer | None = None

    def environment(self) -> dict[str, str]:
        """The environment variables of loaders."""
        return self.server.environment() if self.server else {}

    def storage_options(self) -> dict[str, str]:
        """The options with which LitData uses the server."""
        return self.server.options() if self.server else {}


@contextlib.contextmanager
def open_side(name: str, args: argparse.Namespace, source: Source, folder: Path) -> Iterator[Side]:
    """Start the process of a loader, with an empty cache, and import what it needs."""
    tokenizer, environment = args.tokenizer[0].absolute(), LOADERS[name]
    python = sys.executable
    if environment is not None:
        python = str(environment_of(environment, ROOT / ".bench")[0])
    module, variables = "benchmarks.peers.parquet_loaders", source.environment()
    with (
        temporary_folder(folder) as cache,
        Side(module, python=python, variables=variables) as side,
    ):
        request: Message = {
            "loader": name,
            "data": source.data,
            "index": str(source.index),
            "storage_options": source.storage_options(),
            "cache": str(cache),
            "tokenizer": str(tokenizer),
            "eos": framing_of(tokenizer)[0],
            "seq_len": 2_048,
            "batch_size": 8,
        }
        side.start(request)
        yield side


if __name__ == "__main__":
    main()
