"""Measure the work of a node that grows with shards and lanes, each in a new process."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Row
from benchmarks.harness import ONE_THREAD, memory_of, run_child
from benchmarks.options import temporary_folder
from benchmarks.scale.simulated_store import URL, loader_options, short_texts, use_store
from cloudload.data.cache.cache_folder import sweep
from cloudload.data.cache.fetch import publish, reserve
from cloudload.system.temp_files import make_folder

LANES = 3_840
_LOOKUPS = 20


def measure_cache(most: int) -> Iterator[Row]:
    """Yield the cost of reserving the bytes of a shard, by the number of shards in the cache."""
    files = 1_000
    while files <= most:
        yield run_child(fill_cache, ONE_THREAD, files=files)
        files *= 10


def measure_states(most_lanes: int) -> Iterator[Row]:
    """Yield the size of a state, by the number of lanes."""
    for lanes in (64, 960, 8_192, 10_000, 20_000):
        if lanes <= most_lanes:
            yield run_child(weigh_state, ONE_THREAD, lanes=lanes)


def measure_plans(folder: Path, ranks: int, steps: int) -> Iterator[Row]:
    """Yield the cost of each kind of plan for a dataset."""
    yield run_child(plan_count, ONE_THREAD, folder=str(folder))
    yield run_child(pickle_plan, ONE_THREAD, folder=str(folder))
    yield run_child(forecast, ONE_THREAD, folder=str(folder), ranks=ranks, steps=steps)


# ---------------------------------------------------------------- one part


def fill_cache(files: int) -> Row:
    """Time reservations in a cache without a limit, below its limit, and at its limit."""
    with temporary_folder() as root:
        folder, size = root / "dataset", 4096
        make_folder(folder)
        for number in range(files):
            part = folder / f"{number // 1000:05}"
            part.mkdir(exist_ok=True)
            with (part / f"shard.{number % 1000:05}-0123456789ab.mds").open("wb") as file:
                file.truncate(size)

        def time_ms(limit: int | None, times: int) -> float:
            began = time.process_time()
            for number in range(times):
                path = folder / f"new-{limit}-{number}.mds"
                with reserve(root, path, size, limit) as reserved:
                    publish(root, reserved.path, path)
            return 1e3 * (time.process_time() - began) / times

        began = time.process_time()
        sweep(root)
        return {
            "shards in the cache": files,
            "CPU ms to sweep at a start": 1e3 * (time.process_time() - began),
            "CPU ms to reserve, no limit": time_ms(None, _LOOKUPS),
            "CPU ms, the first with a limit": time_ms(2 * size * (files + 1_000) + 1, 1),
            "CPU ms, below the limit": time_ms(2 * size * (files + 1_000), _LOOKUPS),
            "CPU ms, at the limit": time_ms(size * files, _LOOKUPS),
        }


def weigh_state(lanes: int) -> Row:
    """Measure the size of a state after three batches of short documents."""
    from cloudload import CloudLoader, convert_to_mds

    with temporary_folder() as folder:
        texts = ({"text": text} for text in short_texts(3 * lanes))
        convert_to_mds(texts, f"{folder}/data", progress=False)
        options = loader_options(folder) | {"seq_len": 16, "batch_size": lanes // 2}
        options |= {"num_workers": 0, "num_lanes": lanes, "num_canonical_nodes": 2}
        with CloudLoader(f"{folder}/data", **options) as loader:
            batches = iter(loader)
            for _ in range(3):
                next(batches)
            return {"lanes": lanes, "bytes of JSON": len(json.dumps(loader.state_dict()))}


def forecast(folder: str, ranks: int, steps: int) -> Row:
    from cloudload.forecast import plan_run

    use_store(Path(folder))
    cpu, wall = time.process_time(), time.perf_counter()
    plan_run(
        URL,
        **loader_options(Path(folder)),
        steps=steps,
        nodes=1,
        ranks_per_node=ranks,
        num_lanes=LANES,
        measure=False,
        sample=1e-6,
    )
    return _figures("cloudload plan, 1 node", cpu, wall)


def plan_count(folder: str) -> Row:
    from cloudload.config.rows import RowsConfig
    from cloudload.config.stream import Stream
    from cloudload.data.storage.base import Retry
    from cloudload.data.storage.locations import Location
    from cloudload.run.recipe import open_recipe
    from cloudload.tools.count.count import prepare_count
    from cloudload.tools.count.group import list_groups

    use_store(Path(folder))
    cpu, wall = time.process_time(), time.perf_counter()
    tokenizer = loader_options(Path(folder))["tokenizer"]
    config = RowsConfig(streams=(Stream(URL),), seq_len=1, bos=None, eos=None)
    recipe = open_recipe(config, tokenizer, Retry())
    work = prepare_count(recipe, "hf", Location(f"{URL}/lengths"))
    groups = list_groups(work, recipe.corpus.datasets[0])
    row = _figures("planning cloudload count", cpu, wall)
    return row | {"size": f"{len(groups):,} groups"}


def pickle_plan(folder: str) -> Row:
    from cloudload import CloudLoader

    use_store(Path(folder))
    with CloudLoader(URL, **loader_options(Path(folder))) as loader:
        made = loader.worker_plan()
        cpu, wall = time.process_time(), time.perf_counter()
        sent = pickle.dumps(made)
        pickle.loads(sent)
    row = _figures("sending a plan to a spawned worker", cpu, wall)
    return row | {"size": f"{len(sent) / 1e6:.1f} MB"}


def _figures(what: str, cpu: float, wall: float) -> Row:
    return {
        "what": what,
        "CPU s": time.process_time() - cpu,
        "wall s": time.perf_counter() - wall,
        "peak RSS, MB": memory_of("VmHWM") / 1e6,
        "size": None,
    }
