"""Log the start of a loader: what it read and built, the time of each step, repeated downloads.

    index ─► tokenizer, backend ─► order ─► first shard ─► first batch      one line each, at INFO

One process logs for all ranks, once per loader. The lines about shards come from the workers, which
report their first fetch with a block, because logging is not configured in a spawned worker. A
program that does not configure logging prints nothing, except for one line on a terminal if the
start takes more than two seconds.

Machines that read the same canonical node all download its shards, which is worth a warning:

    1,250 machines, 3,840 lanes on 64 canonical nodes     20 machines download each shard
    1,250 machines, 20,000 lanes on 1,250                  1 machine does

Two canonical nodes both read a shard at their border, but it counts as if only one of them did.
"""

from __future__ import annotations

import json
import logging
import operator
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from cloudload.data import Corpus, are_in_place, list_warnings, redact
from cloudload.loading.delivery.description import join_numbers
from cloudload.loading.workers.block import Block
from cloudload.order import Lanes, RankShare
from cloudload.rows import Choice, log_choice
from cloudload.run import Component, Position, Recipe
from cloudload.system import Ints, counted, is_terminal

logger = logging.getLogger("cloudload.start")
_SHOWN_URLS = 3
_HINT = "(log level INFO shows more)"

# smaller repeated downloads cost a few dollars at most, even from another region
NOTABLE_BYTES = 1e11


class StartLog:
    """The log of one loader's start. Logs nothing unless `is_shown`.

    The loader was created at `created_at`, in `time.monotonic` seconds.
    """

    def __init__(self, created_at: float, *, is_shown: bool) -> None:
        self._is_shown = is_shown
        self._created_at, self._opened_at = created_at, time.monotonic()
        self._began: float | None = None
        self._waits_for_order = self._waits_for_shard = self._waits_for_batch = is_shown
        self._may_notice = is_shown

    def log_opened(self, recipe: Recipe, backend: Choice) -> None:
        """Log the index, the tokenizer and its backend, all opened since this log was created."""
        if not self._is_shown:
            return
        seconds = time.monotonic() - self._opened_at - recipe.index_s
        logger.info("index read in %.2f s: %s", recipe.index_s, _describe_data(recipe))
        logger.info(
            "tokenizer ready in %.2f s: %s; documents get %s",
            *(seconds, _describe_tokenizer(recipe), recipe.tokenizer.framing),
        )
        if (warning := recipe.tokenizer.framing_warning) is not None:
            logger.warning("%s", warning)
        for dataset in recipe.corpus.datasets:
            for warning in list_warnings(dataset):
                logger.warning("%s", warning)
        log_choice(backend)

    def notice(self, _: float, what: str) -> None:
        """Print `what` a slow start does, once, on a terminal, if logging is not configured."""
        is_configured = logger.hasHandlers() or not logger.isEnabledFor(logging.WARNING)
        if not self._may_notice or is_configured or not is_terminal(sys.stderr):
            return
        self._may_notice = False
        with suppress(OSError, ValueError):  # the terminal is gone
            print(f"cloudload: starting: {redact(what)} … {_HINT}", file=sys.stderr, flush=True)

    def begin_iteration(self) -> None:
        """Record the time at which the loader's first iteration begins."""
        self._began = self._began or time.monotonic()

    def log_order(self, recipe: Recipe, share: RankShare, seconds: float | None) -> None:
        """Log the orders of the current epochs, which took `seconds` to build or load.

        `seconds` is None if they are still being built in the background.

        Also warns if several machines will download the same shards.
        """
        if not self._waits_for_order:
            return
        self._waits_for_order = False
        config, layout = recipe.config, recipe.layout
        shuffle = f"shuffled by {config.shuffle_algo}" if config.shuffle else "not shuffled"
        nodes = counted(join_numbers(layout.canonical_nodes), "canonical node")
        logger.info(
            "order %s: %s on %s, %s",
            "is being built" if seconds is None else f"ready in {seconds:.2f} s",
            *(counted(layout.num_lanes, "lane"), nodes, shuffle),
        )
        if (warning := explain_repeated_downloads(recipe, share)) is not None:
            logger.warning("%s", warning)

    def log_shard(self, cache_root: Path, blocks: Sequence[Block]) -> None:
        """Log the first shard fetched, or why none was fetched, given the workers' first blocks."""
        if not self._waits_for_shard:
            return
        self._waits_for_shard = False
        fetches = [block.first_fetch for block in blocks if block.first_fetch is not None]
        if fetches:
            first = min(fetches, key=lambda fetch: fetch.ended_at)
            logger.info(
                "first shard fetched in %.2f s: %s, %s",
                *(first.seconds, first.url, counted(first.bytes, "byte")),
            )
        elif any(block.traffic.misses for block in blocks):
            logger.info("another process on this node fetched the first shards")
        elif any(block.traffic.hits for block in blocks):
            logger.info("no shard fetched yet, because the first shards are in %s", cache_root)
        else:
            logger.info("no shard fetched, because the data is local and read in place")

    def log_batch(self, position: Position) -> None:
        """Log the first batch, which ends at `position`."""
        if not self._waits_for_batch:
            return
        self._waits_for_batch = self._may_notice = False
        now = time.monotonic()
        logger.info(
            "first batch, from row %s: %.2f s after the loader was created, %.2f s after iteration "
            "began",
            f"{position.rows - position.global_batch:,}",
            *(now - self._created_at, now - (self._began or now)),
        )


def _describe_data(recipe: Recipe) -> str:
    datasets = recipe.corpus.datasets
    num_shards = sum(len(dataset.shards) for dataset in datasets)
    stored = sum(int(dataset.table.stored_bytes.sum()) for dataset in datasets)
    urls = [str(dataset.location) for dataset in datasets[:_SHOWN_URLS]]
    more = [f"{len(datasets) - _SHOWN_URLS:,} more"] * (len(datasets) > _SHOWN_URLS)
    return (
        f"{counted(recipe.corpus.num_samples, 'sample')}, {counted(num_shards, 'shard')}, "
        f"{counted(stored, 'byte')}, {counted(len(datasets), 'stream')} "
        f"({', '.join([*urls, *more])})"
    )


def _describe_tokenizer(recipe: Recipe) -> str:
    if not recipe.tokenizer.json:
        return "none, because all data is pre-tokenized"
    name = json.loads(recipe.sources)["tokenizer"] or "an object"
    return f"{name}, {counted(recipe.tokenizer.vocab_size, 'ID')}"


def explain_repeated_downloads(recipe: Recipe, share: RankShare) -> str | None:
    """Return a warning if the repeated downloads of one epoch exceed 100 GB, otherwise None."""
    num_machines = len(np.unique(share.hosts))
    components = recipe.components
    stored = [_count_stored_bytes(recipe.corpus, component) for component in components]
    once = sum(stored)
    if once * (num_machines - 1) < NOTABLE_BYTES:
        return None
    lane_hosts = share.lane_hosts
    machines = [count_machines(component.lanes, lane_hosts) for component in components]
    all_bytes = sum(map(operator.mul, stored, machines))
    if all_bytes - once < NOTABLE_BYTES:
        return None
    return (
        f"{num_machines:,} machines read the same canonical nodes, so each shard is downloaded by "
        f"{all_bytes / once:,.1f} machines on average. An epoch downloads {all_bytes / 1e9:,.0f} "
        f"GB for {once / 1e9:,.0f} GB of shards{_advise(recipe, num_machines)}"
    )


def _advise(recipe: Recipe, num_machines: int) -> str:
    """Return what a new run should set, or nothing if this run has already set it."""
    if all(each.lanes.num_nodes % num_machines == 0 for each in recipe.components):
        return ""
    advice = f". In a new run, set num_canonical_nodes={num_machines}"
    return advice + " and num_lanes to a multiple of it" * bool(recipe.num_lanes % num_machines)


def count_machines(lanes: Lanes, lane_hosts: Ints) -> float:
    """Return the mean number of machines that read each canonical node.

    `lane_hosts` has the machine of each lane: int64 [lanes].
    """
    pairs = lanes.nodes * (int(lane_hosts.max()) + 1) + lane_hosts
    return len(np.unique(pairs)) / lanes.num_nodes


def _count_stored_bytes(corpus: Corpus, component: Component) -> int:
    streams = component.streams
    datasets = corpus.datasets[streams.start : streams.stop]
    return sum(int(each.table.stored_bytes[~are_in_place(each)].sum()) for each in datasets)
