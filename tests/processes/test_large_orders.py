"""An order of ten billion samples needs less than 5 s of CPU time and 100 MB of memory."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.alone
def test_ten_billion_samples_cost_neither_time_nor_memory() -> None:
    code = """
import re, time
import numpy as np
from cloudload.order.seekable import SeekableOrder, Shuffle
sizes = np.full(2_000_000, 5_000, np.int64)
def peak():  # only of this process, because ru_maxrss starts at its parent's value
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before, start = peak(), time.process_time()
order = SeekableOrder(sizes, Shuffle(64, 17, 20_000), 0)
samples = order[7_654_321_000 + np.arange(10_000)]
assert len(set(samples.tolist())) == 10_000 and samples.max() < len(order) == 10**10
print(time.process_time() - start, peak() - before)
"""
    seconds, kilobytes = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert float(seconds) < 5
    assert int(kilobytes) < 100_000
