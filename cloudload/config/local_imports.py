"""Find the values that code imports where it runs, such as inside a function.

    def clean(sample):
        from my_cleaning import strip     strip ─► my_cleaning.strip
        import my_words as words          words ─► the module my_words

Only modules of the program are imported here. Installed packages count by name, which the source of
the code contains.
"""

from __future__ import annotations

import dis
import importlib.util
import itertools
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any, NamedTuple

FINDERS = ("__import__", "eval", "exec")
"""Built-in functions that find code by text, so that no one can know which code they run."""


class Import(NamedTuple):
    """A name that code binds by an import."""

    name: str
    """The name in the code."""
    module: str
    attribute: str | None
    """The imported attribute or submodule; None if the name is the module."""
    required: str
    """The module that must be imported, which may be a submodule of `module`."""

    @property
    def place(self) -> str:
        """The imported value, for a message."""
        return self.module if self.attribute is None else f"{self.module}.{self.attribute}"

    def find(self) -> Any:
        """Import the value. Raises whatever the module raises."""
        importlib.import_module(self.required)
        module = importlib.import_module(self.module)
        if self.attribute is None or hasattr(module, self.attribute):
            return module if self.attribute is None else getattr(module, self.attribute)
        return importlib.import_module(self.place)


def list_steps(code: CodeType) -> list[dis.Instruction]:
    """List the instructions of code, without those that only extend the next one."""
    return [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]


def loaded_name(step: dis.Instruction) -> str | None:
    """The name of the variable that an instruction loads; None if it loads none."""
    is_load = "LOAD_" in step.opname and any(
        kind in step.opname for kind in ("FAST", "DEREF", "GLOBAL", "NAME")
    )
    if not is_load:
        return None
    return step.argval[-1] if isinstance(step.argval, tuple) else str(step.argval)


def list_imports(code: CodeType, names: Mapping[str, Any]) -> Iterator[Import]:
    """Yield the imports in code, in their order. `names` are the globals of the code."""
    steps = list_steps(code)
    for number, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level, listed = steps[number - 2].argval, steps[number - 1].argval
            module = _resolve(step.argval, level, names)
            yield from _list_bound(steps[number + 1 :], module, listed)


def _list_bound(
    steps: list[dis.Instruction], module: str, listed: tuple[str, ...] | None
) -> Iterator[Import]:
    """Yield what the instructions after `IMPORT_NAME` bind."""
    if listed is None:
        is_root = steps[0].opname.startswith("STORE")
        name = next(_stored(step) for step in steps if step.opname.startswith("STORE"))
        yield Import(name, module.partition(".")[0] if is_root else module, None, module)
        return
    for step, after in itertools.pairwise(steps):
        if step.opname == "IMPORT_FROM":
            yield Import(_stored(after), module, step.argval, module)
        elif not step.opname.startswith("STORE"):
            return


def _stored(step: dis.Instruction) -> str:
    return step.argval[0] if isinstance(step.argval, tuple) else str(step.argval)


def _resolve(name: str, level: int, names: Mapping[str, Any]) -> str:
    """The full name of an imported module, whose import may be relative."""
    package = names.get("__package__") or str(names.get("__name__", "")).rpartition(".")[0]
    return importlib.util.resolve_name("." * level + name, package) if level else name


def find_file(module: str) -> str | None:
    """The file of a module's outermost package, which is not imported; None if it has none."""
    root = module.partition(".")[0]
    if (loaded := sys.modules.get(root)) is not None:
        return _file_of(loaded)
    spec = importlib.util.find_spec(root)
    if spec is None:
        raise ModuleNotFoundError(f"no module {root}")
    folders = list(spec.submodule_search_locations or ())
    return spec.origin if spec.has_location else next(iter(folders), None)


def _file_of(module: ModuleType) -> str | None:
    folders = list(getattr(module, "__path__", ()))
    return getattr(module, "__file__", None) or next(iter(folders), None)
