"""`cloudload fetch`: warm a node's cache before a run starts or resumes.

Fetch into a node's cache the shards that it reads first, either after a checkpoint or from the
start of a run.

Run this on a node before the run starts or resumes. Pass the run's number of nodes and ranks, and
its cache folder. The loader then finds these shards in the cache. Shards that are already there are
not downloaded again, so you can interrupt and repeat the command.

examples:
  cloudload fetch checkpoint.pt --nodes 16 --node 3 --ranks-per-node 8 --shards 500
  cloudload fetch --config run.yaml --bytes 200gb
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cloudload.tools.cli import command
from cloudload.tools.cli.declared_options import add_declared, list_given
from cloudload.tools.cli.output import print_result
from cloudload.tools.cli.run_options import (
    add_loader_options,
    check_one_state,
    list_reading,
    load_states,
    locate_run,
    read_loader_options,
    without_start_log,
)

if TYPE_CHECKING:
    from cloudload.loading import CloudLoader


def add_fetch(parser: command.CommandParser) -> None:
    from cloudload.tools.warm import warm_cache

    add = command.set_up(
        parser, _fetch, after_interrupt="The shards that were fetched remain in the cache"
    )
    state = "a checkpoint that contains a loader state (default: the start of the run)"
    add("states", metavar="STATE", type=command.path_argument, nargs="*", help=state)
    add_declared(
        add,
        warm_cache,
        "nodes node ranks_per_node shards max_bytes cache_limit threads",
        max_bytes={"flags": ("--bytes", "--max-bytes")},
        cache_limit={"type": str},
    )
    add_loader_options(parser, delivery="lengths local download_threads verify")


@without_start_log()
def _fetch(options: argparse.Namespace) -> int:
    from cloudload.config import parse_bytes
    from cloudload.tools.warm import warm_cache

    check_one_state(options, "the one that the run will resume from")
    arguments = {} if options.states else read_loader_options(options)
    # keep the limit from the loader, which would check it as if one node read all lanes
    asked = {"cache_limit": arguments.pop("cache_limit", None), **list_given(options, warm_cache)}
    if asked["cache_limit"] is not None:
        asked["cache_limit"] = parse_bytes(asked["cache_limit"])
    with _open_loader(options, arguments) as loader:
        report = warm_cache(loader, **asked, progress=not options.quiet)
    print_result(report, report.describe(), as_json=options.json, indent=None)
    return 0


def _open_loader(options: argparse.Namespace, arguments: dict[str, Any]) -> CloudLoader:
    """Open a loader at the position from which the run resumes. It is used only to find shards."""
    from cloudload.config import alone

    if options.states:
        from cloudload.tools.provenance.state_run import open_run

        run = open_run(load_states(options)[0], **locate_run(options), global_batch=1)
        reading = list_reading(vars(options))
        reading.pop("cache_limit", None)
        return run.loader(**reading, **alone(), num_workers=0)
    from cloudload.loading import CloudLoader

    return CloudLoader(**{**arguments, **alone(), "num_workers": 0})
