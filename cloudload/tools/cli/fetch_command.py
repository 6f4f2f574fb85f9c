"""`cloudload fetch`: warm a node's cache for a run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cloudload.tools.cli import command
from cloudload.tools.cli.loader_options import (
    add_loader_options,
    add_world_options,
    read_loader_options,
)
from cloudload.tools.cli.output import print_json, print_text
from cloudload.tools.cli.trace_commands import without_start_log

if TYPE_CHECKING:
    from cloudload.loading import CloudLoader

_EXAMPLE = """\
Run this on a node before the run starts or resumes. Pass the run's number of nodes and ranks, and
its cache folder. The loader then finds these shards in the cache. Shards that are already there are
not downloaded again, so you can interrupt and repeat the command.

examples:
  cloudload fetch checkpoint.pt --nodes 16 --node 3 --ranks-per-node 8 --shards 500
  cloudload fetch --config run.yaml --bytes 200gb
"""


def add_fetch(commands: command.Commands) -> None:
    parser = command.add_command(
        commands,
        "fetch",
        _fetch,
        help="warm a node's cache before a run starts or resumes",
        description="Fetch into a node's cache the shards that it reads first, either after a "
        "checkpoint or from the start of a run.",
        epilog=_EXAMPLE,
        after_interrupt="The shards that were fetched remain in the cache",
    )
    add = parser.add_argument
    state = "a checkpoint that contains a loader state (default: the start of the run)"
    add("states", metavar="STATE", type=command.path_argument, nargs="*", help=state)
    data = "location of the data, or its new location if it moved; repeat for each stream, in order"
    add("--data", action="append", metavar="URL", help=data)
    tokenizer = "the tokenizer, or its new location if it has moved"
    add("--tokenizer", metavar="NAME", help=tokenizer)
    add("--transform", metavar="MODULE:FUNCTION", help="the run's transform, if it has one")
    lengths = "folder or URL of the token lengths, if they are not in the data's folder"
    add("--lengths", metavar="URL", help=lengths)
    add_loader_options(parser)
    add("--local", metavar="FOLDER", help="folder of the shard cache")
    limit = "the run's cache_limit; the fetch does not exceed it"
    add("--cache-limit", metavar="SIZE", help=limit)
    add_world_options(parser)
    node = "index of this machine (default: 0)"
    add("--node", type=command.whole_number(least=0), default=0, metavar="I", help=node)
    add(
        "--shards",
        type=command.whole_number(),
        metavar="N",
        help="fetch the first N shards (default: one epoch)",
    )
    add("--bytes", metavar="SIZE", help="fetch at most SIZE of uncompressed shards, such as 200gb")
    add(
        "--threads",
        type=command.whole_number(),
        default=8,
        metavar="N",
        help="concurrent downloads (default: 8)",
    )
    add("--json", action="store_true", help="print the result as JSON")
    add("--quiet", action="store_true", help="no progress bar; log only warnings")


@without_start_log()
def _fetch(options: argparse.Namespace) -> int:
    from cloudload.config import checks
    from cloudload.loading import counted
    from cloudload.tools.warm import warm_cache

    if len(options.states) > 1:
        raise ValueError(
            f"{len(options.states)} states were given, but fetch takes one. Pass the one that "
            "the run will resume from"
        )
    arguments = {} if options.states else read_loader_options(options)
    # keep the limit from the loader, which would check it as if one node read all lanes
    limit = options.cache_limit or arguments.pop("cache_limit", None)
    arguments.pop("cache_limit", None)
    with _open_loader(options, arguments) as loader:
        report = warm_cache(
            loader,
            nodes=options.nodes,
            node=options.node,
            ranks_per_node=options.ranks_per_node,
            shards=options.shards,
            max_bytes=None if options.bytes is None else checks.parse_bytes(options.bytes),
            cache_limit=None if limit is None else checks.parse_bytes(limit),
            threads=options.threads,
            progress=not options.quiet,
        )
    if options.json:
        print_json(report, indent=None)
        return 0
    whole = " (everything that the node reads in an epoch)" if report.is_all else ""
    print_text(
        f"{counted(report.shards, 'shard')} of {report.bytes:,} bytes in the cache{whole}, of "
        f"which {report.shards_downloaded:,} were downloaded ({report.bytes_downloaded:,} bytes)"
    )
    return 0


def _open_loader(options: argparse.Namespace, arguments: dict[str, Any]) -> CloudLoader:
    """Open a loader at the position from which the run resumes. It is used only to find shards."""
    alone: dict[str, Any] = {"dp_rank": 0, "dp_world_size": 1, "num_workers": 0}
    if options.states:
        from cloudload.tools.provenance.checkpoint import load_state
        from cloudload.tools.provenance.state_run import open_run

        if options.yaml or options.config or options.option:
            raise ValueError(
                "a state was given, so --yaml, --config, and --option have no effect. Omit these "
                "options, or omit the state"
            )
        run = open_run(
            load_state(options.states[0]),
            data=options.data,
            tokenizer=options.tokenizer,
            transform=options.transform,
            global_batch=1,
            lengths=options.lengths,
        )
        return run.loader(batch_size=1, local=options.local, **alone)
    from cloudload.loading import CloudLoader

    return CloudLoader(**{"batch_size": 1, **arguments, **alone})
