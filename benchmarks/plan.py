"""Compare the forecasts of `plan_run` with real runs of the same loaders.

    python -m benchmarks.plan CORPUS.jsonl.gz CORPUS.jsonl.gz CORPUS.jsonl.gz
    python -m benchmarks.plan CORPUS.jsonl.gz --only-first-batch
    python -m benchmarks.plan CORPUS.jsonl.gz --quick                 one run, and one start

Converts each corpus, then plans the runs in `RUNS` and reads them in two worlds, with and without
token lengths. Prints one line of JSON per figure with the forecast, its range, and the actual
value. The actual time to the first batch is the median of 5 processes that start with an empty
cache.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from cloudload import CloudLoader, convert_to_mds, count_tokens
from cloudload.batch import Batch
from cloudload.data.mds.dataset import Corpus
from cloudload.forecast import Figure, RunPlan, plan_run
from cloudload.loading.delivery.environment import use_environment
from cloudload.loading.delivery.world import World
from cloudload.rows.packing.tables import SPAN_EPOCH, SPAN_ROW, SPAN_SAMPLE, SPAN_STREAM
from cloudload.system.arrays import NEVER
from cloudload.testing import Hub, ThreadEnvironment

TOKENIZER = Path(__file__).parents[1] / "examples/tokenizer"
WORLDS = ((1, 2), (4, 2))
RUNS = (
    "1 epoch",
    "2.5 epochs",
    "2.5 epochs, limited cache",
    "best_fit",
    "two streams",
    "two streams, 1 epoch",
    "two streams, first of 2 epochs, best_fit",
    "two streams, 1 and 3 epochs, one_per_row",
)
SHARD_BYTES, NUM_LANES = 1 << 19, 48
_STARTS = 5
_ENDS: dict[str, dict[str, Any]] = {
    "1 epoch": {"epochs": 1},
    "first of 2 epochs, best_fit": {"epochs": 2, "stopping": "first", "packing": "best_fit"},
    "1 and 3 epochs, one_per_row": {"epochs": 1, "packing": "one_per_row", "overflow": "rows"},
}
"""The loader's options in each run of a mixture whose two streams end."""
_START = """
import json, sys, time
from cloudload import CloudLoader
options = json.loads(sys.argv[1])
began = time.monotonic()
with CloudLoader(**options) as loader:
    next(iter(loader))
    print(time.monotonic() - began)
"""


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
        self._cache_root = loader.plan().cache_root

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
    """Return each stream's numbers of tokens and of documents read, over all ranks."""
    streams = loaders[0].stats().streams.values()
    read = [each.documents + each.filtered + each.empty + each.failed for each in streams]
    return [each.tokens for each in streams], read


def _note_uses(
    uses: dict[tuple[int, int, int], list[int]],
    nodes: Any,
    rows: Any,
    spans: Any,
    corpus: Corpus,
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


def describe(name: str, forecast: Figure, real: float) -> dict[str, Any]:
    """Return the fields of a JSON line that compares a forecast with the actual value."""
    error = (forecast.value - real) / max(1, real)
    return {
        "figure": name,
        **{key: round(value, 3) for key, value in asdict(forecast).items() if key != "is_exact"},
        "is_exact": forecast.is_exact,
        "real": real,
        "stated_error": None if math.isnan(forecast.error) else round(forecast.error, 5),
        "real_error": round(error, 5),
        "is_in_range": bool(forecast.low <= real <= forecast.high),
    }


def _options_of(run: str, data: Path, other: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a loader, and the run's length as options of `plan_run`."""
    options: dict[str, Any] = {
        "data": str(data),
        "tokenizer": str(TOKENIZER),
        "seq_len": 1_024,
        "batch_size": 4,
        "num_lanes": NUM_LANES,
    }
    if run == "1 epoch":
        return {**options, "epochs": 1}, {}
    if run == "best_fit":
        return {**options, "packing": "best_fit"}, {"steps": 40}
    if run.startswith("two streams"):
        from cloudload import Stream

        most = 3 if "1 and 3 epochs" in run else None
        streams = [
            Stream(str(data), proportion=0.7),
            Stream(str(other), proportion=0.3, max_epochs=most),
        ]
        options |= {"data": streams, **_ENDS.get(run.partition(", ")[2], {})}
        return options, {} if "epochs" in options else {"tokens": 2_000_000}
    if run.endswith("limited cache"):
        options["cache_limit"] = None  # the caller sets the limit from a plan without one
    return options, {"tokens": None}


def measure_first_batch(data: Path, root: Path, starts: int) -> dict[str, Any]:
    """Compare the predicted time to the first batch with real starts that have an empty cache."""
    options, _ = _options_of("first batch", data, data)
    # plan with worker processes, because real starts use them by default
    plan = plan_run(**options, steps=1, local=root / "plan")
    assert plan.first_batch_s is not None
    real = []
    for _ in range(starts):
        with tempfile.TemporaryDirectory(dir=root) as folder:
            command = [sys.executable, "-c", _START, json.dumps({**options, "local": folder})]
            found = subprocess.run(command, check=True, capture_output=True, text=True)
            real.append(float(found.stdout))
    line = describe("s to the first batch", plan.first_batch_s, median(real))
    return {**line, "real_range": [min(real), max(real)]}


def main() -> None:
    """Print the comparison for each corpus, run and world."""
    arguments = sys.argv[1:]
    paths = [each for each in arguments if not each.startswith("--")]
    is_quick = "--quick" in arguments
    runs = RUNS[:1] if is_quick else () if "--only-first-batch" in arguments else RUNS
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        sources = []
        for number, path in enumerate(paths):
            folder = root / f"corpus-{number}"
            convert_to_mds(
                path,
                str(folder),
                compression="zstd",
                shard_bytes=SHARD_BYTES,
                processes=1,
                progress=False,
            )
            count_tokens(str(folder), tokenizer=str(TOKENIZER), processes=1, progress=False)
            sources.append(folder)
        for place, path in enumerate(paths):
            case = {"corpus": Path(path).name, "run": "first batch"}
            line = measure_first_batch(sources[place], root, 1 if is_quick else _STARTS)
            print(json.dumps({**case, **line}), flush=True)
            for run in runs:
                for world in WORLDS:
                    case = {"corpus": Path(path).name, "run": run}
                    other = sources[(place + 1) % len(sources)]
                    for line in _compare_run(run, world, (sources[place], other), root):
                        print(json.dumps({**case, **line}), flush=True)


def _compare_run(
    run: str, world: tuple[int, int], sources: tuple[Path, Path], root: Path
) -> Iterator[dict[str, Any]]:
    options, length = _options_of(run, *sources)
    shared: dict[str, Any] = {"nodes": world[0], "ranks_per_node": world[1], "measure": False}
    if length == {"tokens": None}:
        whole = plan_run(**options, epochs=1, local=root / "plan", **shared)
        length = {"tokens": int(2.5 * whole.tokens.value)}
    if "cache_limit" in options:
        options |= {"num_workers": 0, "download_threads": 1}
        unlimited = plan_run(**options, **length, local=root / "plan", **shared)
        needed = max(each.needed_bytes.value for each in unlimited.node_plans)
        total = max(each.all_bytes.value for each in unlimited.node_plans)
        options["cache_limit"] = max(int((needed + total) / 2), unlimited.least_cache_bytes)
    # a mixture with `epochs` needs token lengths
    for lengths in ("require", "off")[
        : 1 if isinstance(options["data"], list) and "epochs" in options else 2
    ]:
        options["lengths"] = lengths
        began = time.process_time()
        plan = plan_run(**options, **length, local=root / "plan", **shared)
        plan_s = round(time.process_time() - began, 2)
        with tempfile.TemporaryDirectory(dir=root) as folder:
            steps = None if options.get("epochs") else int(plan.steps.value)
            real = read_run(options, Path(folder), *world, steps)
        case = {"nodes": world[0], "ranks": world[0] * world[1]}
        figures = compare(plan, real)
        for figure in figures:
            line = {**case, "lengths": lengths == "require", "plan_cpu_s": plan_s}
            yield {**line, **describe(*figure)}


if __name__ == "__main__":
    main()
