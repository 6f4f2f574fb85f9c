"""Measure the CPU time, memory and disk space to find `best_fit` rows from token lengths.

    python -m benchmarks.best_fit_rows 1_000_000 100_000_000

The arguments are numbers of documents, whose lengths are synthetic. Plays the lanes of one rank of
16 through 97% of an epoch, which writes marks to disk, and then finds random rows from the marks.
Each number runs in a separate process, whose CPU times are printed as one line of JSON.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.length_tables import NUM_LANES, SEQ_LEN, make_lanes
from cloudload.rows.packing.packers import Packing
from cloudload.run.lengths.best_fit_walker import BestFitWalker
from cloudload.run.lengths.row_finder import BestFitRows
from cloudload.run.lengths.tables import LaneTables

RANKS, ROWS = 16, 200


def measure(documents: int, folder: Path) -> dict[str, Any]:
    """Play one rank's lanes through 97% of `documents` documents, then find random rows."""
    sizes, figures = make_lanes(documents, folder, "py1e")
    packing = Packing("best_fit", SEQ_LEN, 16, "cut", fair_from=0)
    tables = LaneTables(folder / "lengths", sizes, packing, "made-up")
    own = np.arange(0, NUM_LANES, RANKS)
    cursors, residues = np.zeros((NUM_LANES, 3), np.int64), np.full(NUM_LANES, b"", object)
    rows = int(0.97 * figures["tokens"]) // SEQ_LEN // NUM_LANES
    before_mb = _resident_mb()
    began = time.process_time()
    walker = BestFitWalker(tables, sizes, packing)
    with walker.playing(own, cursors, residues) as playing:
        playing.play(own, np.full(len(own), rows))
        play_s = time.process_time() - began
        played = sum(playing.state(lane).ordinal for lane in own.tolist())
    marks = list(folder.rglob("*.marks"))
    random, found = np.random.default_rng(1), []
    finder = BestFitRows(BestFitWalker(tables, sizes, packing), cursors, residues)
    finder.find(own, np.full(len(own), 1))  # opens the files of marks before the timing
    for _ in range(ROWS):
        lane, row = random.choice(own, 1), random.integers(rows, size=1)
        began = time.process_time()
        finder.find(lane, row)
        found.append(1e3 * (time.process_time() - began))
    seeks = {}
    for share in (0.01, 0.5, 0.99):
        began = time.process_time()
        walker = BestFitWalker(tables, sizes, packing)
        with walker.playing(own, cursors, residues) as playing:
            playing.play(own, np.full(len(own), int(rows * share)))
        seeks[f"s_of_{len(own)}_lanes_at_{share:.0%}"] = round(time.process_time() - began, 3)
    return {
        **figures,
        "played_documents": played,
        "us_per_document": round(1e6 * play_s / played, 2),
        "ms_per_row_median": round(float(np.median(found)), 2),
        "ms_per_row_p99": round(float(np.quantile(found, 0.99)), 2),
        **seeks,
        "mark_bytes_per_document": round(sum(each.stat().st_size for each in marks) / played, 3),
        "rss_mb_of_lengths": before_mb,
        "rss_mb_after": _resident_mb(),
    }


def _resident_mb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20


def main() -> None:
    if sys.argv[1] == "one":
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(int(sys.argv[2]), Path(folder))), flush=True)
        return
    for size in sys.argv[1:]:
        subprocess.run([sys.executable, "-m", "benchmarks.best_fit_rows", "one", size], check=False)


if __name__ == "__main__":
    main()
