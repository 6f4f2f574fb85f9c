"""Doors: the names that a room offers to the others, each imported when it is first used.

    # cloudload/data/__init__.py
    if TYPE_CHECKING:
        from cloudload.data.storage.base import Retry
    else:
        __getattr__, __dir__ = open_door(__name__)

    # any other room
    from cloudload.data import Retry

The imports below `if TYPE_CHECKING` are the door. Editors and type checkers read them as usual.
At run time, each name is imported on its first use, so `cloudload --help` loads no NumPy, and
worker processes load no torch.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def open_door(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package, from the imports in its own source."""
    spec = sys.modules[package].__spec__
    source = getattr(spec and spec.loader, "get_source", lambda _: None)(package)
    if source is None:
        raise ImportError(
            f"the source of {package} is missing. Install cloudload with its .py files"
        )
    homes = {
        name.asname or name.name: (str(imported.module), name.name)
        for block in ast.parse(source).body
        if isinstance(block, ast.If)
        for imported in block.body
        if isinstance(imported, ast.ImportFrom)
        for name in imported.names
    }

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, original = homes[name]
        module = import_module(home)
        is_module = home == package or not hasattr(module, original)
        found = import_module(f"{home}.{original}") if is_module else getattr(module, original)
        setattr(sys.modules[package], name, found)
        return found

    return find, lambda: sorted(homes)
