"""Plans of small runs. Read a run that was planned, and compare the plan's figures with it."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from cloudload import CloudLoader
from cloudload.batch import Batch
from cloudload.data.mds.dataset import Corpus
from cloudload.forecast import Figure, RunPlan, plan_run
from cloudload.loading.delivery.world import use_environment
from cloudload.order import World
from cloudload.rows.packing.tables import SPAN_EPOCH, SPAN_ROW, SPAN_SAMPLE, SPAN_STREAM
from cloudload.system.arrays import NEVER
from cloudload.testing import Hub, ThreadEnvironment
from testkit.corpora import EOS, byte_tokenizer, random_documents
from testkit.counted import write_counted


def write_zipped(folder: Any, seed: int, samples: int, shards: int, **options: Any) -> str:
    """Write random documents with token lengths in compressed shards, which nodes download."""
    stored: dict[str, Any] = {"shard_samples": [samples // shards] * shards, "compression": "zstd"}
    return write_counted(folder, random_documents(seed, samples, **options), **stored)


def options_of(data: Any, **settings: Any) -> dict[str, Any]:
    """The options of a loader with 12 lanes."""
    defaults = {"tokenizer": byte_tokenizer(), "eos": EOS, "seq_len": 48, "num_lanes": 12}
    defaults |= {"tokenizer_backend": "hf", "batch_size": 3, "num_workers": 0}
    return {"data": data, **defaults, **settings}


def plan(folder: Path, options: dict[str, Any], **length: Any) -> RunPlan:
    return plan_run(**options, **length, measure=False, local=folder / "plan")


def check_unlisted(make_plan: Callable[[], RunPlan]) -> list[tuple[Any, Any]]:
    """Check a plan that does not list the documents of the run against one that lists them.

    Shuffle blocks then bound the figures. Returns the plans of each node in both.
    """
    listed = make_plan()
    with mock.patch("cloudload.tools.forecast.shard_uses._MOST_LISTED", 0):
        found = make_plan()
    assert (found.rows, found.streams, found.steps) == (listed.rows, listed.streams, listed.steps)
    nodes = list(zip(found.node_plans, listed.node_plans, strict=True))
    for node, exact in nodes:
        assert node.shards.value >= exact.shards.value
        assert not node.working_set_bytes.is_exact
        assert 0.9 < node.working_set_bytes.value / exact.working_set_bytes.value < 2
    return nodes


# ---------------------------------------------------------------- the run itself


@dataclass
class RealNode:
    """The measurements of a node's cache in a real run."""

    shards: int = 0
    """The number of shards in the cache at the end of the run."""
    all_bytes: int = 0
    """The bytes of all shards in the cache at the end of the run."""
    peak_bytes: int = 0
    """The most bytes in the cache after any step."""
    working_set_bytes: int = 0
    """Peak bytes of shards in use. A shard is in use from the first to the last row that reads it
    in an epoch."""
    bytes_downloaded: int = 0


@dataclass
class RealRun:
    """The measurements of a real run."""

    rows: int
    steps: int
    tokens: int
    tokens_by_stream: list[int]
    read_by_stream: list[int]
    """The number of documents read from each stream."""
    last_steps: list[int]
    """For each stream, the last step that reads one of its documents."""
    nodes: list[RealNode]


@contextmanager
def world_of(nodes: int, ranks_per_node: int) -> Iterator[None]:
    """Set the variables `WORLD_SIZE` and `LOCAL_WORLD_SIZE` of this world in a `with` block."""
    wanted = {"WORLD_SIZE": str(nodes * ranks_per_node), "LOCAL_WORLD_SIZE": str(ranks_per_node)}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def read_run(
    options: Mapping[str, Any], folder: Path, nodes: int, ranks_per_node: int, steps: int | None
) -> RealRun:
    """Read a run with one loader per rank and one cache per node, all in this process."""
    size = nodes * ranks_per_node
    hub, taken = Hub(size), list[tuple[int, Batch]]()
    real = [RealNode() for _ in range(nodes)]
    uses: dict[tuple[int, int, int], list[int]] = {}
    last_steps: dict[int, int] = {}
    with ExitStack() as stack, world_of(nodes, ranks_per_node):
        loaders = [
            stack.enter_context(_open_rank(options, folder, World(rank, size, ranks_per_node), hub))
            for rank in range(size)
        ]
        corpus = loaders[0].recipe.corpus
        iterators = [loader.take(sys.maxsize if steps is None else steps) for loader in loaders]
        for step, batches in enumerate(_take_in_step(iterators, hub), 1):
            taken += enumerate(batches)
            for batch in batches:
                last_steps |= dict.fromkeys(batch.spans[:, SPAN_STREAM].tolist(), step)
            for node, found in enumerate(real):
                cached = _list_cached(folder / f"node-{node}")
                found.peak_bytes = max(found.peak_bytes, sum(cached.values()))
        owners = TailOwners(loaders[0], ranks_per_node)
        for rank, batch in taken:
            nodes_of = owners.nodes_of(rank // ranks_per_node, batch)
            _note_uses(uses, nodes_of, batch.rows, batch.spans, corpus)
        done = [loader.stats() for loader in loaders]
        tokens, read = _sum_counts(loaders)
    for rank, stats in enumerate(done):
        real[rank // ranks_per_node].bytes_downloaded += stats.delivery.bytes_downloaded
    sizes = np.array([shard.raw.bytes for each in corpus.datasets for shard in each.shards])
    for node, found in enumerate(real):
        cached = _list_cached(folder / f"node-{node}")
        found.shards, found.all_bytes = len(cached), sum(cached.values())
        found.working_set_bytes = _find_peak(uses, node, sizes, done[0].rows)
    global_batch = size * int(options["batch_size"])
    return RealRun(
        rows=done[0].rows,
        steps=-(-done[0].rows // global_batch),
        tokens=sum(tokens),
        tokens_by_stream=tokens,
        read_by_stream=read,
        last_steps=[last_steps.get(stream, 0) for stream in range(len(tokens))],
        nodes=real,
    )


def _open_rank(options: Mapping[str, Any], folder: Path, world: World, hub: Hub) -> CloudLoader:
    node = world.rank // world.ranks_per_node
    with use_environment(ThreadEnvironment(world, hub)):
        return CloudLoader(
            **{
                **options,
                "local": folder / f"node-{node}",
                "dp_rank": world.rank,
                "dp_world_size": world.size,
                "num_workers": 0,
            }
        )


def _take_in_step(iterators: Sequence[Iterator[Batch]], hub: Hub) -> Iterator[list[Batch]]:
    """Yield lists with the next batch of every rank, until the run ends on all ranks."""

    def take(rank: int) -> Batch | None:
        batch = None
        try:
            batch = next(iterators[rank], None)
        finally:
            if batch is None:
                hub.stop(rank)
        return batch

    with ThreadPoolExecutor(len(iterators)) as threads:
        while True:
            found = list(threads.map(take, range(len(iterators))))
            batches = [batch for batch in found if batch is not None]
            if not batches:
                return
            assert len(batches) == len(found), "some ranks ended before others"
            yield batches


class TailOwners:
    """A lookup of the node that read each document of a finite run, including its tail.

    In the tail, if ranks own lanes, a document is read by the owner of its lane, even if its tokens
    are in a row of another node. Create it when the run has ended.
    """

    def __init__(self, loader: CloudLoader, ranks_per_node: int) -> None:
        state, self._recipe = loader.state_dict(), loader.recipe
        self._world = World(0, loader.world_size, ranks_per_node)
        is_even = self._recipe.num_lanes % self._world.size == 0
        is_shared = bool(state["tail"]) and is_even and len(self._recipe.components) == 1
        self._start = state["table_rows"] if is_shared else NEVER
        self._cache_root = loader.worker_plan().inputs.cache_root

    def nodes_of(self, node: int, batch: Batch) -> Any:
        """Return the node that reads the document of each span of a batch: int64 [spans].

        `node` is the node to which the batch was delivered.
        """
        spans = batch.spans
        nodes = np.full(len(spans), node)
        in_tail = np.flatnonzero(batch.rows[spans[:, SPAN_ROW]] >= self._start)
        if not len(in_tail):
            return nodes
        [component] = self._recipe.components
        orders, lanes = component.orders(self._cache_root), component.lanes
        lane_of = np.argsort(lanes.first_positions % lanes.num_lanes)
        streams, epochs, samples = spans[in_tail, SPAN_STREAM : SPAN_SAMPLE + 1].T
        samples = samples + self._recipe.corpus.stream_starts[streams] - component.first_sample
        for epoch in np.unique(epochs).tolist():
            order = np.asarray(orders(epoch)[:])
            own = epochs == epoch
            position_of = np.zeros(int(order.max()) + 1, np.int64)
            position_of[order] = np.arange(len(order))
            ranks = lane_of[position_of[samples[own]] % lanes.num_lanes] % self._world.size
            nodes[in_tail[own]] = np.array(self._world.hosts)[ranks]
        return nodes


def _sum_counts(loaders: Sequence[CloudLoader]) -> tuple[list[int], list[int]]:
    """Return each stream's numbers of tokens and of documents passed, over all ranks."""
    streams = loaders[0].stats().streams.values()
    read = [
        each.documents + each.filtered + each.empty + each.failed + each.deselected
        for each in streams
    ]
    return [each.tokens for each in streams], read


def _note_uses(
    uses: dict[tuple[int, int, int], list[int]], nodes: Any, rows: Any, spans: Any, corpus: Corpus
) -> None:
    samples = spans[:, SPAN_SAMPLE] + corpus.stream_starts[spans[:, SPAN_STREAM]]
    columns = (nodes, corpus.shards_of(samples), spans[:, SPAN_EPOCH], rows[spans[:, SPAN_ROW]])
    for node, shard, epoch, row in zip(*(each.tolist() for each in columns), strict=True):
        use = uses.setdefault((node, epoch, shard), [row, row])
        use[0], use[1] = min(use[0], row), max(use[1], row)


def _find_peak(
    uses: Mapping[tuple[int, int, int], Sequence[int]], node: int, sizes: Any, num_rows: int
) -> int:
    """Return the peak bytes of the shards that a node uses at the same row."""
    by_shard: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for (owner, _, shard), (first, last) in uses.items():
        if owner == node:
            by_shard[shard].append((first, last))
    used = np.zeros(num_rows + 1, np.int64)
    for shard, ranges in by_shard.items():
        is_used = np.zeros(num_rows + 1, np.bool_)
        for first, last in ranges:
            is_used[first : last + 1] = True
        used += is_used * int(sizes[shard])
    return int(used.max())


def _list_cached(root: Path) -> dict[str, int]:
    found = {}
    for path in root.glob("*/*.mds"):
        try:
            found[str(path)] = path.stat().st_size
        except FileNotFoundError:
            continue
    return found


# ---------------------------------------------------------------- comparison


def compare(plan: RunPlan, real: RealRun) -> Iterator[tuple[str, Figure, float]]:
    """Yield the name, the forecast and the actual value of each figure that a run can measure."""
    yield "rows", plan.rows, real.rows
    yield "steps", plan.steps, real.steps
    yield "tokens", plan.tokens, real.tokens
    for number, stream in enumerate(plan.streams):
        tokens = real.tokens_by_stream[number]
        yield f"tokens of {stream.name}", stream.tokens, tokens
        yield f"share of {stream.name}", stream.share, tokens / max(1, real.tokens)
        read = real.read_by_stream[number]
        yield f"epochs of {stream.name}", stream.epochs, read / stream.samples
        if stream.last_step is not None:
            yield f"last step of {stream.name}", stream.last_step, real.last_steps[number]
    for forecast, found in zip(plan.node_plans, real.nodes, strict=True):
        node = f"node {forecast.node}: "
        if plan.cache_limit_bytes is None:
            yield node + "shards", forecast.shards, found.shards
            yield node + "peak cache", forecast.all_bytes, found.peak_bytes
        yield node + "working set", forecast.working_set_bytes, found.working_set_bytes
        yield node + "bytes downloaded", forecast.bytes_downloaded, found.bytes_downloaded


def check_figures(
    found: RunPlan, real: RealRun, settings: Mapping[str, Any]
) -> list[tuple[str, Figure, float]]:
    """Check that the plan's exact figures equal the run's, and that its estimates are in range.

    Returns (name, planned figure, value in the run) for each figure.
    """
    figures = list(compare(found, real))
    if "min_tokens" in settings:  # a run does not record where it reads filtered documents
        figures = [each for each in figures if "working set" not in each[0]]
    wrong = [each for each in figures if each[1].is_exact and each[1].value != each[2]]
    assert not wrong, wrong
    outside = [each for each in figures if not each[1].low <= each[2] <= each[1].high]
    assert not outside, outside
    return figures
