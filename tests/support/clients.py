"""Clients of stores that are created in a different environment."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from cloudload.storage import registry


@contextlib.contextmanager
def new_clients(variables: Mapping[str, str]) -> Iterator[None]:
    """Within this block, create cloudload's clients in an environment with these variables."""
    with environment(variables):
        registry._open.clear()
        try:
            yield
        finally:
            registry._open.clear()


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process, and restore them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
