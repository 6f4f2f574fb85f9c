"""The share of the units that one job of an array takes.

--worker 3/64     units 3, 67, 131, …
--worker auto     the index and the number of jobs, from Slurm, Kubernetes, or AWS Batch

Slurm         SLURM_ARRAY_TASK_ID, _MIN, _COUNT, _STEP
Kubernetes    JOB_COMPLETION_INDEX of an Indexed Job, and WORKER_COUNT, set by the user
AWS Batch     AWS_BATCH_JOB_ARRAY_INDEX, and AWS_BATCH_JOB_ARRAY_SIZE
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Unit = TypeVar("Unit")

_INDEXES = ("JOB_COMPLETION_INDEX", "AWS_BATCH_JOB_ARRAY_INDEX")
_COUNTS = ("WORKER_COUNT", "AWS_BATCH_JOB_ARRAY_SIZE")


@dataclass(frozen=True)
class Share:
    """One worker's share of the units: the worker's index, from 0, and the number of workers."""

    index: int
    count: int

    @staticmethod
    def parse(text: str, environment: Mapping[str, str] | None = None) -> Share:
        """Parse `I/N`, or for `auto`, read both numbers from the environment.

        Raises `ValueError` if the text is invalid or the environment lacks a number.
        """
        if text == "auto":
            return _read_environment(os.environ if environment is None else environment)
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None:
            raise ValueError(f"worker is {text!r}. Use I/N, such as 0/64 to 63/64, or auto")
        return _share(int(match[1]), int(match[2]), f"worker is {text!r}")

    def take(self, units: Sequence[Unit]) -> Sequence[Unit]:
        """Return this worker's units: every N-th one, starting at the worker's index."""
        return units[self.index :: self.count]


def _share(index: int, count: int, what: str) -> Share:
    if not 0 <= index < count:
        raise ValueError(f"{what}, but workers are numbered from 0. Use 0/N to N-1/N")
    return Share(index, count)


def _read_environment(environment: Mapping[str, str]) -> Share:
    if "SLURM_ARRAY_TASK_ID" in environment:
        first = int(environment.get("SLURM_ARRAY_TASK_MIN", "0"))
        step = int(environment.get("SLURM_ARRAY_TASK_STEP", "1"))
        index = (int(environment["SLURM_ARRAY_TASK_ID"]) - first) // step
        count = int(environment.get("SLURM_ARRAY_TASK_COUNT", "0"))
        return _share(index, count, f"SLURM_ARRAY_TASK_ID is worker {index} of {count}")
    index_name = next((name for name in _INDEXES if name in environment), None)
    count_name = next((name for name in _COUNTS if name in environment), None)
    if index_name is None:
        raise ValueError(
            "worker is 'auto', but this job is not part of a job array, because neither "
            f"SLURM_ARRAY_TASK_ID nor {' nor '.join(_INDEXES)} is set. Use I/N, such as 0/64"
        )
    if count_name is None:
        raise ValueError(
            f"worker is 'auto', and {index_name} is {environment[index_name]}, but the number of "
            "workers is unknown. Set WORKER_COUNT to the number of workers, which are the "
            "completions of a Kubernetes job"
        )
    index, count = int(environment[index_name]), int(environment[count_name])
    return _share(index, count, f"{index_name} is {index} and {count_name} is {count}")
