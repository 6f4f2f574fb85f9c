"""A training job without a model, for torchrun. It logs the rows that it consumes, saves its state,
and may kill itself."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from cloudload import CloudLoader, Stream
from cloudload.loading.delivery.exchange import DistributedExchange
from cloudload.tools.count import count_tokens
from testkit.corpora import EOS, byte_tokenizer


def streams_of(*folders: str) -> list[Stream]:
    """A mixture of two streams, with proportions 0.7 and 0.3."""
    return [
        Stream(folder, name=name, proportion=share)
        for folder, name, share in zip(folders, "ab", (0.7, 0.3), strict=True)
    ]


def lengths_location(options: dict[str, Any], rank: int) -> dict[str, Any]:
    """The loader arguments that set this process's data-parallel rank and world size."""
    if ranks := options.get("dp_ranks"):
        return {"dp_rank": ranks[rank], "dp_world_size": max(ranks) + 1}
    if sizes := options.get("mesh"):
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        return {"device_mesh": mesh[tuple(name for name in sizes if name.startswith("dp"))]}
    return {}


def slow_once(rank: int, slow_rank: int) -> dict[str, Any]:
    """Loader arguments for a transform that takes 3 s for the first document of one rank."""
    is_slow = [rank == slow_rank]

    def transform(sample: Any) -> str:
        if is_slow.pop() if is_slow else False:
            time.sleep(3)
        return str(sample["text"])

    return {"transform": transform, "transform_id": "slow once"}


def log_waits_early(path: Path) -> None:
    """Log to a file each wait of this process that lasts longer than 0.5 s."""
    from cloudload.system import activity

    activity.FIRST_REPORT_S, activity.LOOK_EVERY_S = 0.5, 0.1
    logging.getLogger("cloudload").addHandler(logging.FileHandler(path))


def meet_in_files(out: Path, run: int, step: int) -> None:
    """Wait, without torch.distributed, until all ranks have completed this step."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    (out / f"met-{run}-{step}-{rank}").touch()
    while len(list(out.glob(f"met-{run}-{step}-*"))) < world_size:
        time.sleep(0.001)


def change_data(options: dict[str, Any], *, is_due: bool) -> None:
    """Change the data after rank 0 has opened it and before rank 1 does. Both ranks call this, and
    the one with `is_due` appends data or counts tokens."""
    folder = options["folders"][0]
    if "append" in options or "counts" in options:
        dist.barrier()
    if is_due and "append" in options:
        shutil.copy(options["append"], Path(folder, "index.json"))
    if is_due and "counts" in options:
        count_tokens(folder, tokenizer=byte_tokenizer(), processes=1, progress=False)


def shuffle_differently() -> None:
    """Make NumPy's default generator another one, as a version of NumPy may do."""
    generator = np.random.Generator
    vars(np.random)["default_rng"] = lambda seed: generator(np.random.PCG64DXSM(seed))


def open_loader(options: dict[str, Any], rank: int, out: Path) -> CloudLoader:
    """Make a rank's loader. Some `options` change the data first, or one rank's settings."""
    differing = options.get("differ_in") if rank == options.get("differ_on", 1) else None
    if options.get("differ_in") == "nodes":
        os.environ["LOCAL_WORLD_SIZE"] = str(1 + rank)
    if differing == "numpy":
        shuffle_differently()
    settings = options.get("settings", {})
    is_mixed, select = settings.pop("mixed", False), settings.pop("select", None)
    if (slow_rank := options.get("slow_rank")) is not None:
        settings |= slow_once(rank, slow_rank)
        log_waits_early(out / f"log-{rank}.txt")
    if rank == 1:
        change_data(options, is_due=True)
    loader = CloudLoader(
        streams_of(*options["folders"])
        if is_mixed
        else Stream(options["folders"][0], select=select),
        local=options["cache"].replace("{node}", os.environ["GROUP_RANK"]),
        tokenizer=byte_tokenizer(),
        eos=EOS,
        seq_len=32,
        num_lanes=12,
        seed=18 if differing == "seed" else 17,
        epochs=options.get("epochs"),
        batch_size=options["batch_size"] + (differing == "batch_size"),
        num_workers=options["workers"],
        exchange_every=options["exchange_every"],
        **lengths_location(options, rank),
        **settings,
    )
    if rank == 0:
        change_data(options, is_due=False)
    return loader


def train(options: dict[str, Any]) -> None:
    is_alone = options.get("alone", False)
    if not is_alone:
        dist.init_process_group("gloo")
    rank, out = int(os.environ["RANK"]), Path(options["out"])
    loader = open_loader(options, rank, out)
    state_file = out / "state.json"
    if state_file.exists() and not (options.get("differ_in") == "state" and rank == 0):
        loader.load_state_dict(json.loads(state_file.read_text()))
    if is_alone:
        # otherwise, a slow rank could load a state that this run has saved
        meet_in_files(out, options["run"], 0)
    if rank == 0:
        (out / "start.json").write_text(json.dumps(loader.rows))
    log = (out / f"run-{options['run']}-rank-{rank}.jsonl").open("a")
    for step, batch in enumerate(loader, 1):
        rows = dict(zip(batch.rows.tolist(), batch["input_ids"].tolist(), strict=True))
        log.write(json.dumps(rows) + "\n")
        log.flush()
        is_last = step == options["batches"]
        # a killed run does not save after its last batch, so the next run must repeat that batch
        if (not options["killed"] or not is_last) and rank == options.get("save_on", 0):
            temporary = state_file.with_suffix(".tmp")
            temporary.write_text(json.dumps(loader.state_dict()))
            temporary.replace(state_file)
        meet_in_files(out, options["run"], step) if is_alone else dist.barrier()
        if rank in options.get("set_world_on", ()):
            loader.set_world(rank, dist.get_world_size())
        if is_last:
            if options["killed"]:
                os.kill(os.getpid(), signal.SIGKILL)
            break
    exchange = loader._reader.member._exchange
    peers = [0]
    if isinstance(exchange, DistributedExchange):
        peers = sorted(exchange.processes)
    end = {
        "state": loader.state_dict(),
        "stats": {**asdict(loader.stats()), "delivery": None},
        "exchanges_with": peers,
    }
    (out / f"end-{rank}.json").write_text(json.dumps(end))
    loader.close()
    if not is_alone:
        dist.destroy_process_group()


def main() -> None:
    options = json.loads(sys.argv[1])
    try:
        train(options)
    except Exception:
        # `launch` reads this file, because it ignores the exit codes of a killed run
        name = f"error-{options['run']}-{os.environ['RANK']}.txt"
        Path(options["out"], name).write_text(traceback.format_exc())
        raise
    # skip Python's cleanup, because unloading torch would take longer than the run
    os._exit(0)


if __name__ == "__main__":
    main()
