"""Make this process as much like macOS as can be without a Mac.

    names of os, fcntl, …   those that typeshed's stubs do not define on macOS are deleted
    sys.platform            darwin, so new processes are spawned
    /proc, /sys, /dev/shm   do not exist
    os.fork                 fails
    open files              at most 10,240, as in the kernel of macOS

The file system, the libraries, and the kernel are still those of Linux.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import resource
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

_MODULES = ("os", "errno", "fcntl", "mmap", "resource", "select", "signal", "socket", "time")
_HIDDEN_FOLDERS = ("/proc", "/sys", "/dev/shm")
_OPENS = ("open", "os.listdir", "os.scandir")
_MOST_OPEN_FILES = 10_240


def hide_linux() -> None:
    """Hide from this process what macOS lacks. Call this before other modules are imported."""
    sysconfig.get_config_vars()  # from files that are named after the platform, kept in memory
    sys.platform = "darwin"
    scproxy: Any = ModuleType("_scproxy")  # the module from which urllib reads proxies on macOS
    scproxy._get_proxies = scproxy._get_proxy_settings = dict
    sys.modules["_scproxy"] = scproxy
    _limit_open_files()
    os.stat, os.lstat = _hide_from(os.stat), _hide_from(os.lstat)
    sys.addaudithook(_refuse)
    for module in _MODULES:
        found = importlib.import_module(module)
        for name in names_of(module, "linux") - names_of(module, "darwin"):
            if hasattr(found, name):  # another version of Python may not have it
                delattr(found, name)


def names_of(module: str, platform: str) -> set[str]:
    """The names that a module of the standard library has on a platform, as typeshed says."""
    mypy = importlib.util.find_spec("mypy")
    assert mypy is not None
    assert mypy.origin is not None
    folder = Path(mypy.origin).parent / "typeshed/stdlib"
    stub = next(folder.glob(f"{module}.pyi"), folder / module / "__init__.pyi")
    return set(_names_in(ast.parse(stub.read_text()).body, platform))


def _names_in(body: list[ast.stmt], platform: str) -> Iterator[str]:
    known = {"sys": SimpleNamespace(platform=platform, version_info=sys.version_info)}
    for node in body:
        if isinstance(node, ast.If):
            is_chosen = eval(compile(ast.Expression(node.test), "stub", "eval"), known)
            yield from _names_in(node.body if is_chosen else node.orelse, platform)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (each.id for each in node.targets if isinstance(each, ast.Name))
        elif isinstance(node, ast.ImportFrom):
            yield from (each.asname or each.name for each in node.names)


def _limit_open_files() -> None:
    set_limit = resource.setrlimit

    def refuse_more(kind: int, limits: tuple[int, int]) -> None:
        if kind == resource.RLIMIT_NOFILE and limits[0] > _MOST_OPEN_FILES:
            raise ValueError("current limit exceeds maximum limit")
        set_limit(kind, limits)

    resource.setrlimit = refuse_more


def _hide_from(look: Any) -> Any:
    """A function that finds nothing in a folder that macOS lacks, and otherwise calls `look`."""

    def find(path: Any, *arguments: Any, **others: Any) -> Any:
        _check(path)
        return look(path, *arguments, **others)

    return find


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse what macOS cannot do. Python calls this before it opens a file, among other things."""
    if event == "os.fork":
        raise RuntimeError("this process must not fork")
    if event in _OPENS:
        _check(arguments[0])


def _check(path: Any) -> None:
    """Raise `FileNotFoundError` for a path in a folder that macOS lacks."""
    if str(path).startswith(_HIDDEN_FOLDERS):
        raise FileNotFoundError(2, "No such file or directory", str(path))
