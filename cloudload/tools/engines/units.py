"""Run units of work on an executor, and yield their results as they arrive.

One job of an array takes a share of the units:

    --worker 3/64     units 3, 67, 131, …
    --worker auto     the index and the number of jobs, from Slurm, Kubernetes, or AWS Batch

    Slurm         SLURM_ARRAY_TASK_ID, _MIN, _COUNT, _STEP
    Kubernetes    JOB_COMPLETION_INDEX of an Indexed Job, and WORKER_COUNT, set by the user
    AWS Batch     AWS_BATCH_JOB_ARRAY_INDEX, and AWS_BATCH_JOB_ARRAY_SIZE
"""

from __future__ import annotations

import os
import queue
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from cloudload.config import checks
from cloudload.data import redact
from cloudload.errors import CloudloadError, WorkerError
from cloudload.system import machine
from cloudload.tools.engines.local_processes import LocalProcesses, OnBytes, open_processes

Argument = TypeVar("Argument")
Result = TypeVar("Result")

Engine = Executor | LocalProcesses
"""An engine runs units of work in other processes."""

MOST_WAITING = 10_000
"""Maximum number of submitted units that are not finished, to limit the memory that they use."""

_NUM_THREADS = 16

Unit = TypeVar("Unit")

_INDEXES = ("JOB_COMPLETION_INDEX", "AWS_BATCH_JOB_ARRAY_INDEX")
_COUNTS = ("WORKER_COUNT", "AWS_BATCH_JOB_ARRAY_SIZE")


def count_processes(processes: int | None) -> int:
    """Return the number of local processes: by default, one per available core."""
    found = machine.usable_cores() if processes is None else processes
    return checks.as_integer("processes", found, 1)


def for_each(function: Callable[[Argument], Result], items: Iterable[Argument]) -> list[Result]:
    """Call a function that waits for a store with each item, several at a time.

    Returns the results in order. After all calls have ended, raises the first error in this order.
    """
    several = list(items)
    if len(several) == 1:
        return [function(several[0])]
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        waiting = [threads.submit(function, each) for each in several]
    return [each.result() for each in waiting]


def choose_engine(
    executor: Executor | None, processes: int
) -> AbstractContextManager[Engine | None]:
    """Open the user's executor if there is one, or else local processes; see `open_processes`."""
    return nullcontext(executor) if executor is not None else open_processes(processes)


class _Outcome(NamedTuple):
    """The outcome of a unit: its result or error, and the number of bytes not reported yet."""

    value: Any
    error: CloudloadError | None
    bytes: int = 0


def run_units(
    function: Callable[..., Result],
    arguments: Iterable[Argument],
    engine: Engine | None = None,
    *,
    on_bytes: OnBytes | None = None,
) -> Iterator[tuple[int, Result]]:
    """Yield (place, result) of `function(argument)` for each argument, in the order of completion.

    Without an engine, the units run in this process, in order. With `on_bytes`, the call is
    `function(argument, on_bytes=…)`, and `function` passes numbers of processed bytes to that
    `on_bytes`, from the thread in which it runs. The caller's `on_bytes` receives them at once from
    this process, twice a second from local processes, and at the end of each unit from other
    executors.

    Raises the `CloudloadError` of the first unit that fails, or `WorkerError` with the traceback of
    any other exception, and cancels the units that have not started. `function` must be picklable
    by reference.
    """
    if engine is None:
        call = function if on_bytes is None else partial(function, on_bytes=on_bytes)
        for index, argument in enumerate(arguments):
            yield index, call(argument)
        return
    attempt = partial(_attempt, function, reports=on_bytes is not None)
    run = (
        engine.run(attempt, arguments, on_bytes)
        if isinstance(engine, LocalProcesses)
        else _run_on(engine, attempt, arguments)
    )
    for index, outcome in run:
        if outcome.error is not None:
            raise outcome.error
        if on_bytes is not None and outcome.bytes:
            on_bytes(outcome.bytes)
        yield index, outcome.value


def in_order(results: Iterable[tuple[int, Result]]) -> Iterator[Result]:
    """Yield the results of `run_units` in the order of the arguments."""
    early: dict[int, Result] = {}
    following = 0
    for index, result in results:
        early[index] = result
        while following in early:
            yield early.pop(following)
            following += 1


def _run_on(
    executor: Executor, attempt: Callable[[Any], Any], arguments: Iterable[Any]
) -> Iterator[tuple[int, Any]]:
    """Yield (place, outcome) of each unit. Submits at most `MOST_WAITING` units at a time."""
    indices: dict[Future[Any], int] = {}
    done: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
    left = iter(enumerate(arguments))
    try:
        while True:
            while len(indices) < MOST_WAITING and (unit := next(left, None)):
                future = executor.submit(attempt, unit[1])
                indices[future] = unit[0]
                future.add_done_callback(done.put)
            if not indices:
                return
            future = done.get()
            yield indices.pop(future), future.result()
    except CloudloadError:
        raise
    except Exception as error:
        what = f"{type(executor).__name__} returned no result for a unit of work"
        raise WorkerError(
            f"{what}: {type(error).__name__}: {redact(str(error))}. Run again to resume"
        ) from None
    finally:
        for future in indices:
            future.cancel()


def _attempt(
    function: Callable[..., Any],
    argument: Any,
    on_bytes: OnBytes | None = None,
    *,
    reports: bool,
) -> _Outcome:
    """Run a unit, and return its outcome. Errors are returned, not raised.

    An executor would attach the traceback of a raised error, which may contain secrets. If the unit
    `reports` bytes, and there is no `on_bytes`, the outcome has their sum.
    """
    sizes: list[int] = []
    call = partial(function, on_bytes=on_bytes or sizes.append) if reports else function
    try:
        return _Outcome(call(argument), None, sum(sizes))
    except CloudloadError as error:
        return _Outcome(None, error.with_traceback(None))
    except Exception:
        text = f"a worker process failed:\n{redact(traceback.format_exc())}"
        return _Outcome(None, WorkerError(text))


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

    def shift(self, by: int) -> Share:
        """Return the share in which unit `by` is the first worker's, to deal several lists."""
        return Share((self.index - by) % self.count, self.count)


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
