"""Read one finite run for `benchmarks.epoch_end`, and print the times of its batches as JSON.

cloudload is imported from PYTHONPATH, so its version may differ from the benchmark's.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time

from benchmarks.harness import family_cpu
from cloudload import CloudLoader


def main() -> None:
    request = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="cloudload-bench-") as cache:
        options = {"epochs": 1, "lengths": "off", "local": cache, **request}
        with CloudLoader(options.pop("data"), **options) as loader:
            began, tokens = time.perf_counter(), 0
            times = [(0.0, family_cpu(), 0)]
            for batch in loader:
                tokens += batch.num_tokens
                times.append((time.perf_counter() - began, family_cpu(), tokens))
            state = loader.state_dict()
            # in the tail, `table_rows` is the row at which the tail began
            first_of_tail = state["table_rows"] // request["batch_size"]
    print(json.dumps({"times": times, "tail": first_of_tail}))


if __name__ == "__main__":
    main()
