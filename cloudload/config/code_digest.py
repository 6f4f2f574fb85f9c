"""Compute a digest of a function and the values that it uses, which is equal in all processes.

    function         its source, defaults, closure, and the globals and imports that its code uses
    lambda           its own source, without the rest of its line
    object, class    its attributes, and the functions of its class
    plain values     numbers, text, bytes, patterns, arrays, and containers of them

Code of the standard library and of installed packages counts by name only, except for the package
of the function itself. Other values may differ between processes, so the digest leaves them out, as
it does code that is found only at run time. It names both.

A function may import values where it runs. The digest includes them as if they were globals:

    def clean(sample):
        from my_cleaning import strip     strip ─► my_cleaning.strip
        import my_words as words          words ─► the module my_words

Only modules of the program are imported for this. The source already names installed packages.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import enum
import functools
import hashlib
import importlib
import importlib.util
import inspect
import itertools
import logging
import os
import re
import sys
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Set
from dis import Instruction
from pathlib import PurePath
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

_PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes, PurePath)
_INSTALLED = tuple(
    os.path.join(sysconfig.get_paths()[name], "")
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


_AT_RUN_TIME = "code found at run time"
Imported = dict[str, list[tuple[str, Any]]]
"""The values that each name may stand for, with their full names."""

_Point = tuple[int, int]

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
    def where(self) -> str:
        """The imported value, for a message."""
        return self.module if self.attribute is None else f"{self.module}.{self.attribute}"

    def find(self) -> Any:
        """Import the value. Raises whatever the module raises."""
        importlib.import_module(self.required)
        module = importlib.import_module(self.module)
        if self.attribute is None or hasattr(module, self.attribute):
            return module if self.attribute is None else getattr(module, self.attribute)
        return importlib.import_module(self.where)


class CodeDigest:
    """The digest of a function, a callable object, or a `functools.partial`."""

    def __init__(self, function: Any) -> None:
        inner = function.func if isinstance(function, functools.partial) else function
        self._package = module_of(inner).partition(".")[0]
        self._known: dict[int, tuple[Any, bytes]] = {}
        """Maps id(value) to the value, which keeps it alive, and its digest (empty while in
        progress)."""
        self.left_out: dict[str, str] = {}
        """The type of each value that is not in the digest, by the expression that refers to it."""
        self.hexdigest = self._digest(function, "").hex()

    def _digest(self, value: Any, where: str) -> bytes:
        if isinstance(value, _PLAIN) and not isinstance(value, enum.Enum):
            return _hash([type(value).__name__, repr(value)])
        if id(value) not in self._known:
            self._known[id(value)] = (value, b"")
            digest = _hash([type(value).__name__, *self._parts(value, where)])
            self._known[id(value)] = (value, digest)
        return self._known[id(value)][1]

    def _parts(self, value: Any, where: str) -> Iterable[str | bytes]:
        """Return the text and bytes to hash for a value that is not plain."""
        if isinstance(value, list | tuple):
            return [self._digest(item, f"{where}[{i}]") for i, item in enumerate(value)]
        if isinstance(value, Set):
            return sorted(self._digest(item, where) for item in value)
        if isinstance(value, Mapping):
            items = [(key, f"{where}[{key!r:.40}]", item) for key, item in value.items()]
            return sorted(self._digest(key, at) + self._digest(item, at) for key, at, item in items)
        if isinstance(value, re.Pattern):
            return [repr(value.pattern), str(value.flags)]
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            return [str(value.dtype), str(value.shape), value.tobytes()]
        if isinstance(value, enum.Enum):
            return [_name_of(type(value)), value.name]
        if isinstance(value, ModuleType | np.ufunc):
            if isinstance(value, ModuleType) and self._is_own(value):
                self.left_out.setdefault(where, "module")
            return [value.__name__]
        if isinstance(value, logging.Logger):
            return []
        return self._code_parts(value, where)

    def _code_parts(self, value: Any, where: str) -> Iterable[str | bytes]:
        if isinstance(value, functools.partial):
            return self._named(("func", "args", "keywords"), value, where)
        if isinstance(value, MethodType):
            return self._named(("__func__", "__self__"), value, where)
        if isinstance(value, type):
            return self._class_parts(value)
        if isinstance(value, FunctionType):
            return self._function_parts(value)
        if hasattr(value, "__wrapped__"):  # set by functools.cache, for example
            return self._named(("__wrapped__",), value, where)
        if inspect.isroutine(value):
            if _is_in_program(module_of(value)):
                self.left_out.setdefault(where, "compiled function")
            owner = getattr(value, "__self__", None)
            return [_name_of(value), self._digest(owner, f"{where}.__self__")]
        slots = [name for cls in type(value).__mro__ for name in _slots_of(cls)]
        has_attributes = hasattr(value, "__dict__") or slots  # C classes may have none
        if has_attributes and self._is_own(type(value)):
            names = sorted({*slots, *getattr(value, "__dict__", ())})
            return [self._digest(type(value), where), *self._named(names, value, where)]
        self.left_out.setdefault(where, _name_of(type(value)))
        return []

    def _named(self, names: Iterable[str], value: Any, where: str) -> Iterator[str | bytes]:
        for name in names:
            yield from (name, self._digest(getattr(value, name, None), f"{where}.{name}"))

    def _function_parts(self, function: FunctionType) -> Iterator[str | bytes]:
        yield _name_of(function)
        if not self._is_own(function):
            return
        yield _find_source(function) or self._digest_code(function.__code__)
        used: dict[str, Any] = {"__wrapped__": getattr(function, "__wrapped__", None)}
        used |= {"__defaults__": function.__defaults__, "__kwdefaults__": function.__kwdefaults__}
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            with contextlib.suppress(ValueError):  # raised if the cell is empty
                used[name] = cell.cell_contents
        used |= self._globals_of(function.__code__, function.__globals__)
        for name in sorted(used):
            yield from (name, self._digest(used[name], name))

    def _digest_code(self, code: CodeType) -> bytes:
        """The digest of bytecode, for a function whose source cannot be read."""
        constants = [
            self._digest_code(each) if isinstance(each, CodeType) else self._digest(each, "")
            for each in code.co_consts
        ]
        return _hash([code.co_code, *code.co_names, *code.co_varnames, *constants])

    def _globals_of(
        self, code: CodeType, names: Mapping[str, Any], outer: Imported | None = None
    ) -> dict[str, Any]:
        """The globals that `code` uses, and the values that it imports.

        Modules of this program are replaced by the attributes that `code` uses of them. `outer` are
        the imports of the code around it.
        """
        imported = {**(outer or {}), **self._imports_of(code, names)}
        used = {
            where: value
            for pairs in imported.values()
            for where, value in pairs
            if not isinstance(value, ModuleType)
        }
        steps = list_steps(code)
        for index, step in enumerate(steps):
            name = loaded_name(step, code)
            is_global = step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
            if name in imported:
                pairs = imported[name]
            elif name is not None and is_global and name in names:
                pairs = [(name, names[name])]
            elif is_global and name in FINDERS:
                self.left_out.setdefault(name, _AT_RUN_TIME)
                continue
            else:
                continue
            used |= dict(self._follow(*pair, steps[index + 1 :]) for pair in pairs)
        for inner in code.co_consts:
            used |= self._globals_of(inner, names, imported) if isinstance(inner, CodeType) else {}
        return used

    def _follow(self, where: str, value: Any, steps: Iterable[Instruction]) -> tuple[str, Any]:
        """The attribute that `steps` read, if the value is a module of this program."""
        for step in steps:
            is_attribute = step.opname in ("LOAD_ATTR", "LOAD_METHOD")
            if not (isinstance(value, ModuleType) and self._is_own(value) and is_attribute):
                break
            where, value = f"{where}.{step.argval}", getattr(value, step.argval, None)
        if value is importlib or value is importlib.import_module:
            self.left_out.setdefault(where, _AT_RUN_TIME)
        return where, value

    def _imports_of(self, code: CodeType, names: Mapping[str, Any]) -> Imported:
        """The values that `code` imports from modules of this program, by their names in it."""
        found: Imported = {}
        for each in list_imports(code, names):
            root = each.required.partition(".")[0]
            try:
                is_own = root == self._package or _is_of_program(find_file(root))
                if is_own or root == "importlib":
                    found.setdefault(each.name, []).append((each.where, each.find()))
            except Exception:  # a module may raise anything when it is imported
                self.left_out.setdefault(each.where, "module that cannot be imported")
        return found

    def _class_parts(self, cls: type) -> Iterator[str | bytes]:
        yield _name_of(cls)
        if not self._is_own(cls):
            return
        yield _find_source(cls) or ""
        yield self._digest(cls.__bases__, cls.__name__)
        for name, item in sorted(vars(cls).items()):
            # find the functions of methods, properties, and cached properties
            parts = (item, *(getattr(item, key, None) for key in ("__func__", "fget", "func")))
            functions = [part for part in parts if isinstance(part, FunctionType)]
            # generated methods, such as those of a dataclass, have no source
            yield from (self._digest(each, name) for each in functions if _find_source(each))
            is_special = name.startswith("_") and name.endswith("_")
            is_value = not functions and not hasattr(type(item), "__get__")
            if is_value and not is_special and name != "_abc_impl":
                yield from (name, self._digest(item, f"{cls.__name__}.{name}"))

    def _is_own(self, value: Any) -> bool:
        """Whether to hash the content of a module, function, or class, and not only its name.

        This is True in the package of the function, and in any module that is not installed.
        """
        name = value.__name__ if isinstance(value, ModuleType) else module_of(value)
        return name.partition(".")[0] == self._package or _is_in_program(name)


def _is_in_program(module: str) -> bool:
    """Whether a loaded module is a part of the program, and neither installed nor cloudload's."""
    is_ours = module.partition(".")[0] == __name__.partition(".")[0]
    return not is_ours and _is_of_program(getattr(sys.modules.get(module), "__file__", None))


def _is_of_program(file: str | None) -> bool:
    return file is not None and not file.startswith(_INSTALLED)


def _hash(parts: Iterable[str | bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(b"%d:" % len(data) + data)
    return digest.digest()


def module_of(value: Any) -> str:
    """The name of the module that defines a function or class, or an object's class."""
    return getattr(value, "__module__", None) or type(value).__module__


def _name_of(value: Any) -> str:
    return f"{module_of(value)}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def _find_source(value: Any) -> str | None:
    if getattr(value, "__name__", "") == "<lambda>":
        return find_lambda(value)
    try:
        return inspect.getsource(value)
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return None


def _slots_of(cls: type) -> list[str]:
    slots = [name for name, item in vars(cls).items() if isinstance(item, MemberDescriptorType)]
    return [name for name in slots if not name.startswith("__")]  # dunder names are not slots


def find_lambda(function: FunctionType) -> str | None:
    """Return a lambda's source; None if it cannot be read, or matches several lambdas.

    L(transform=lambda s: s["a"], batch_size=8)     lambda s: s["a"]
    pick = (lambda s: s["a"], lambda s: s["b"])     each lambda separately
    """
    try:
        source = "".join(inspect.findsource(function)[0])
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Lambda)]
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    code = function.__code__
    nodes = [node for node in nodes if node.lineno == code.co_firstlineno]
    if len(nodes) > 1:
        nodes = _pick(nodes, code)
    return ast.get_source_segment(source, nodes[0]) if len(nodes) == 1 else None


def _pick(nodes: list[ast.Lambda], code: CodeType) -> list[ast.Lambda]:
    """Return the innermost lambda that contains all instructions of `code`; empty if unknown."""
    points = [point for each in _instruction_points(code) for point in each]
    if not points:
        return []
    around = [node for node in nodes if _start(node) <= min(points) and max(points) <= _stop(node)]
    return sorted(around, key=_start)[-1:]


def _instruction_points(code: CodeType) -> list[tuple[_Point, _Point]]:
    """List the (line, column) at which each instruction of an expression starts and ends."""
    positions = code.co_positions() if hasattr(code, "co_positions") else ()  # since Python 3.11
    return [
        ((line, column), (last_line, last_column))
        for line, last_line, column, last_column in positions
        if line is not None
        and last_line is not None
        and column is not None
        and last_column is not None
        and (line, column) != (last_line, last_column)  # an empty range is not an expression
    ]


def _start(node: ast.Lambda) -> _Point:
    return node.body.lineno, node.body.col_offset


def _stop(node: ast.Lambda) -> _Point:
    return node.body.end_lineno or node.lineno, node.body.end_col_offset or 0


def list_steps(code: CodeType) -> list[dis.Instruction]:
    """List the instructions of code, without those that only extend the next one.

    Since Python 3.13, an instruction may load or store two variables. It is listed as two.
    """
    return [
        one
        for step in dis.get_instructions(code)
        if step.opname != "EXTENDED_ARG"
        for one in _split(step)
    ]


def _split(step: dis.Instruction) -> list[dis.Instruction]:
    kinds = re.findall("LOAD_FAST|STORE_FAST", step.opname)
    if len(kinds) < 2:
        return [step]
    return [
        step._replace(opname=kind, argval=name)
        for kind, name in zip(kinds, step.argval, strict=True)
    ]


def loaded_name(step: dis.Instruction, code: CodeType) -> str | None:
    """The name of the variable whose value an instruction of `code` loads; None if it loads none.

    Since Python 3.13, `LOAD_FAST` also passes the variables of a closure to an inner function.
    """
    if not step.opname.startswith("LOAD_"):
        return None
    is_value = any(kind in step.opname for kind in ("DEREF", "GLOBAL", "NAME"))
    is_local = "FAST" in step.opname and step.argval not in (*code.co_cellvars, *code.co_freevars)
    return str(step.argval) if is_value or is_local else None


def list_imports(code: CodeType, names: Mapping[str, Any]) -> Iterator[Import]:
    """Yield the imports in code, in their order. `names` are the globals of the code."""
    steps = list_steps(code)
    for index, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level, listed = steps[index - 2].argval, steps[index - 1].argval
            module = _resolve(step.argval, level, names)
            yield from _list_bound(steps[index + 1 :], module, listed)


def _list_bound(
    steps: list[dis.Instruction], module: str, listed: tuple[str, ...] | None
) -> Iterator[Import]:
    """Yield what the instructions after `IMPORT_NAME` bind."""
    if listed is None:
        is_root = steps[0].opname.startswith("STORE")
        name = next(step.argval for step in steps if step.opname.startswith("STORE"))
        yield Import(name, module.partition(".")[0] if is_root else module, None, module)
        return
    for step, after in itertools.pairwise(steps):
        if step.opname == "IMPORT_FROM":
            yield Import(after.argval, module, step.argval, module)
        elif not step.opname.startswith("STORE"):
            return


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
