"""Run tasks in a pool, and yield their results in the order of the items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_in_order(
    submit: Callable[[Item], Future[Result]], items: Iterable[Item], ahead: int
) -> Iterator[tuple[Item, Result]]:
    """Yield (item, result) in the order of `items`.

    While one result is awaited, up to `ahead` further items are already submitted.

    Raises the error of the first item whose task fails.
    """
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    for item in items:
        waiting.append((item, submit(item)))
        if len(waiting) > ahead:
            yield _take(waiting)
    while waiting:
        yield _take(waiting)


def _take(waiting: deque[tuple[Item, Future[Result]]]) -> tuple[Item, Result]:
    item, future = waiting.popleft()
    return item, future.result()
