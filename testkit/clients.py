"""Contexts in which stores' clients use other environment variables, or share parsed models."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping

from cloudload.data.storage import locations


@contextlib.contextmanager
def new_clients(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and let cloudload create new clients from them in this block."""
    with environment(variables):
        locations.opened.clear()
        try:
            yield
        finally:
            locations.opened.clear()


@contextlib.contextmanager
def models_read_once() -> Iterator[None]:
    """Within this block, all boto3 clients use one parsed copy of each service model.

    Otherwise, each client would read and parse 1 MB of JSON.
    """
    from botocore.loaders import JSONFileLoader

    load_file = JSONFileLoader.load_file
    load = functools.cache(functools.partial(load_file, JSONFileLoader()))
    JSONFileLoader.load_file = lambda _, path: load(path)
    try:
        yield
    finally:
        JSONFileLoader.load_file = load_file


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process, and restore the earlier values after the block."""
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
