"""Read the loss logs of all ranks and restarts of a run, each row once.

    first start, 2 ranks     rows 0 to 99   ┐
    resumed at 60, 3 ranks   rows 60 to 199 ┴─► rows 0 to 59 of the first, 60 to 199 of the second

Records are sorted by row, so sums are bit-identical on any world.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cloudload.data.storage.urls import expand_home
from cloudload.errors import DatasetError
from cloudload.system.arrays import Ints
from cloudload.tools.losses.log_file import (
    ROW,
    STEP,
    STREAM,
    SUFFIX,
    TOKENS,
    Records,
    find_last,
    read_file,
)
from cloudload.tools.losses.mean import MeanLoss


@dataclass(frozen=True, eq=False)
class Losses:
    """The losses of a run by row and document."""

    streams: tuple[str, ...]
    """The names of the streams."""
    records: Records
    """The records, sorted by row and by place in the row. See `losses.log_file`."""
    state: Mapping[str, Any] | None
    """A state of the run, which records the data's locations; None if no log has a state."""

    def of_steps(self, steps: range) -> Losses:
        """Select the losses of consecutive steps."""
        table = self.records.table
        chosen = (table[:, STEP] >= steps.start) & (table[:, STEP] < steps.stop)
        return Losses(self.streams, self.records.take(chosen), self.state)

    @property
    def tokens(self) -> int:
        """Number of tokens that have a loss."""
        return int(self.records.table[:, TOKENS].sum())

    @property
    def steps(self) -> range:
        """The steps from the first to the last one in the log."""
        steps = self.records.table[:, STEP]
        return range(int(steps.min()), int(steps.max()) + 1) if len(steps) else range(0)

    def means(self) -> dict[str, MeanLoss]:
        """Return the mean loss of each source that has tokens, by stream name."""
        table, sums = self.records
        found = {}
        for stream in np.unique(table[:, STREAM]).tolist():
            own = table[:, STREAM] == stream
            total = MeanLoss(int(table[own, TOKENS].sum()), float(np.add.reduce(sums[own])))
            found[self.streams[stream]] = total
        return found


def read_losses(*places: str | os.PathLike[str]) -> Losses:
    """Read the loss logs of one run, given as files or as folders of files.

    If a row was trained several times, only the latest records are kept. Raises `DatasetError` if
    there is no log, a file is not a loss log, or the files belong to different runs, and `OSError`
    if a file cannot be read.
    """
    paths = [path for place in places for path in _list_files(expand_home(place))]
    if not paths:
        raise DatasetError(
            f"there is no loss log in {', '.join(map(str, places))}. Pass the folder that LossLog "
            "writes to, after its first flush"
        )
    streams: tuple[str, ...] = ()
    state = None
    chunks: list[tuple[Records, Ints]] = []
    for path in sorted(paths, key=lambda path: path.name):  # in order of their start times
        header, own = read_file(path)
        streams = _join_streams(streams, tuple(header["streams"]), path)
        state = header["state"] or state
        chunks += own
    return Losses(streams, _keep_latest(chunks), state)


def _list_files(place: Path) -> list[Path]:
    return list(place.rglob(f"*{SUFFIX}")) if place.is_dir() else [place]


def _join_streams(before: tuple[str, ...], own: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """Return the longer of two lists of streams. Streams may only be added at the end."""
    shared = min(len(before), len(own))
    if before[:shared] != own[:shared]:
        raise DatasetError(
            f"{path} is the log of a run with the streams {', '.join(own)}, but an earlier file "
            f"has the streams {', '.join(before)}. Pass the logs of a single run"
        )
    return max(before, own, key=len)


def _keep_latest(chunks: Sequence[tuple[Records, Ints]]) -> Records:
    """Return the latest records of each row, sorted by row."""
    records = Records.concatenate([each for each, _ in chunks])
    times = np.concatenate([np.empty(0, np.int64), *(each for _, each in chunks)])
    kept = records.take(find_last(records.table[:, ROW], times))
    return kept.take(np.argsort(kept.table[:, ROW], kind="stable"))
