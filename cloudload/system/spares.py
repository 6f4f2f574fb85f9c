"""Objects that are used by one caller at a time, such as readers of files.

    spares = Spares(open_reader, close_reader)
    with spares.lend() as reader:      a spare reader, or a new one
        reader.read(…)                 meanwhile, threads and signal handlers get others

After an exception, the object is closed, because it may be in the midst of a change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Spares(Generic[T]):
    """Lends objects that `make` creates. Can be pickled if both functions can, without objects."""

    def __init__(self, make: Callable[[], T], close: Callable[[T], object]) -> None:
        self._make, self._close = make, close
        self._idle: list[T] = []
        self._process = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return Spares, (self._make, self._close)

    @contextmanager
    def lend(self) -> Iterator[T]:
        """Lend an object for the `with` block, which is then its only user."""
        lent = self._take()
        lent = self._make() if lent is None else lent
        try:
            yield lent
        except BaseException:
            self._close(lent)
            raise
        self._idle.append(lent)

    def _take(self) -> T | None:
        if self._process != os.getpid():  # a fork copies objects, but not their threads
            self._idle, self._process = [], os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def close(self) -> None:
        """Close the objects that nobody uses. `lend` still works, and makes new ones."""
        while (spare := self._take()) is not None:
            self._close(spare)
