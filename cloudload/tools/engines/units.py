"""Run units of work on an executor, and yield their results as they arrive."""

from __future__ import annotations

import queue
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

from cloudload.data import redact
from cloudload.errors import CloudloadError, WorkerError
from cloudload.tools.engines.local_processes import LocalProcesses, OnBytes

Argument = TypeVar("Argument")
Result = TypeVar("Result")

Engine = Executor | LocalProcesses
"""An engine runs units of work in other processes."""

MOST_WAITING = 10_000
"""Maximum number of submitted units that are not finished, to limit the memory that they use."""


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
