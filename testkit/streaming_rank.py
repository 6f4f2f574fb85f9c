"""One rank of a run that reads a StreamingDataset, and stops after the given number of steps.

    python -m testkit.streaming_rank '{"remote": …, "local": …, "out": …, "steps": 5,
                                             "workers": 2, "options": {…}}'

Writes the documents that the rank read to `out/read-RANK.json`. Rank 0 also writes the loader's
`state_dict()` to `out/state.json`.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path


def main() -> None:
    warnings.simplefilter("ignore")
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.shared import memory

    options = json.loads(sys.argv[1])
    # give each simulated node separate shared memory and lock files
    name_of_node = options["local"].strip("/").replace("/", "_")
    open_shared = memory.BuiltinSharedMemory
    memory.BuiltinSharedMemory = lambda name, *rest: open_shared(f"{name_of_node}_{name}", *rest)
    tempfile.tempdir = options["local"]
    Path(options["local"]).mkdir(exist_ok=True)
    out, rank = Path(options["out"]), os.environ["RANK"]
    dataset = StreamingDataset(
        remote=options["remote"], local=options["local"] + "/shards", **options["options"]
    )
    loader = StreamingDataLoader(
        dataset, batch_size=options["options"]["batch_size"], num_workers=options["workers"]
    )
    read = [text for batch in itertools.islice(loader, options["steps"]) for text in batch["text"]]
    state = loader.state_dict()
    (out / f"read-{rank}.json").write_text(json.dumps(read))
    if rank == "0":
        (out / "state.json").write_text(json.dumps(state))


if __name__ == "__main__":
    main()
