"""Run units of work on an executor, and yield their results as they arrive."""

from __future__ import annotations

import queue
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, TypeVar

from cloudload.engines.local import LocalProcesses
from cloudload.errors import CloudloadError, WorkerError
from cloudload.storage.redaction import redact

Argument = TypeVar("Argument")
Result = TypeVar("Result")

Engine = Executor | LocalProcesses
"""An engine, which runs units in other processes."""

MOST_WAITING = 10_000
"""Units that are submitted and not finished, so that a list of a million does not fill memory."""


def run_units(
    function: Callable[[Argument], Result],
    arguments: Sequence[Argument],
    engine: Engine | None = None,
) -> Iterator[tuple[int, Result]]:
    """Yield (place, result) of `function(argument)` for each argument, in the order of completion.

    Without an engine, the units run in this process, in order. Raises the `CloudloadError` of the
    first unit that fails, or `WorkerError` with the traceback of any other exception, and cancels
    the units that have not started. `function` must be picklable by reference.
    """
    if engine is None:
        for place, argument in enumerate(arguments):
            yield place, function(argument)
        return
    attempt = partial(_attempt, function)
    run = engine.run if isinstance(engine, LocalProcesses) else partial(_run_on, engine)
    for place, (succeeded, value) in run(attempt, arguments):
        if not succeeded:
            raise value
        yield place, value


def _run_on(
    executor: Executor, attempt: Callable[[Any], Any], arguments: Sequence[Any]
) -> Iterator[tuple[int, Any]]:
    """Yield (place, outcome) of each unit, with up to `MOST_WAITING` submitted."""
    places: dict[Future[Any], int] = {}
    done: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
    left = iter(enumerate(arguments))
    try:
        while True:
            while len(places) < MOST_WAITING and (unit := next(left, None)):
                future = executor.submit(attempt, unit[1])
                places[future] = unit[0]
                future.add_done_callback(done.put)
            if not places:
                return
            future = done.get()
            yield places.pop(future), future.result()
    except CloudloadError:
        raise
    except Exception as error:
        what = f"{type(executor).__name__} has no result of a unit of work"
        raise WorkerError(
            f"{what}: {type(error).__name__}: {redact(str(error))}. Run again to resume"
        ) from None
    finally:
        for future in places:
            future.cancel()


def _attempt(function: Callable[[Any], Any], argument: Any) -> tuple[bool, Any]:
    """Run a unit, and return its result or error.

    An executor would attach the traceback of a raised error, which may contain secrets.
    """
    try:
        return True, function(argument)
    except CloudloadError as error:
        return False, error.with_traceback(None)
    except Exception:
        return False, WorkerError(f"a worker process failed:\n{redact(traceback.format_exc())}")
