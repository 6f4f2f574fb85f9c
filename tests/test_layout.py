"""Rooms import only from those before them, through their doors, and load heavy libraries late."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import cloudload

PACKAGE = Path(cloudload.__file__).parent

ROOMS = ["system", "data", "config", "order", "rows", "run", "loading", "tools"]
"""Each room may import only from the rooms before it, and from the vocabulary."""
VOCABULARY = ["_door", "_version", "errors", "segments", "stats"]
"""Modules that every room may import. They may import only `system` and each other."""
FRONT = [
    "__main__",
    "batch",
    "bench",
    "cli",
    "convert",
    "engines",
    "forecast",
    "inspect",
    "integrations",
    "loader",
    "losses",
    "provenance",
    "testing",
    "warm",
]
"""Public modules in front of the rooms, which no room may import."""
FLOORS = {
    "data": ["file_kinds storage", "file_content", "mds", "cache", "selections"],
    "rows": ["trained", "tokenization packing", "chat fill_middle"],
    "loading": [
        *(
            "batch selected_order workers",
            "delivery",
            "current_run",
            "preparation",
            "reader",
            "passes",
            "loader",
        ),
        "evaluation row_dataset document_dataset",
    ],
    "tools": [
        "engines inspect",
        "count check",
        "convert select",
        "bench export losses warm",
        "forecast provenance",
        "cli",
    ],
}
"""The packages and modules of a room. Each may import only from the lines before its own."""
MOST_NAMES = 274
"""The most names that the rooms may use of each other."""
SCOPES = (
    *(ast.FunctionDef, ast.ClassDef, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
"""Parts of a function with a scope of their own."""
DISKS = {"order": "order_cache", "rows/packing": None}
"""For each package of pure arithmetic, the only module that may access files, or None."""
FOLDERS = {
    "testkit": "",
    "scripts": "testkit",
    "examples": "testkit",
    "stress": "testkit",
    "benchmarks": "testkit",
    "tests": "testkit scripts examples stress benchmarks",
}
"""The folders beside the package, and those that each may import. All may import `cloudload`."""
TOUCHES_DISK = re.compile(r"^(pathlib|os|io|tempfile|shutil|mmap)\b")


def list_modules() -> dict[str, Path]:
    """The path of each module by its name, such as `data.mds.shard`. Omits `cloudload` itself."""
    found = {path.relative_to(PACKAGE).with_suffix(""): path for path in PACKAGE.rglob("*.py")}
    return {".".join(name.parts): path for name, path in found.items() if str(name) != "__init__"}


@cache
def imports_of(path: Path) -> list[str]:
    """The full names of everything that a module imports, even if only for type checking."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names]
    return found


MODULES = list_modules()
PACKAGES = sorted(str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("__init__.py"))


def rank_of(name: str) -> int:
    """The height of a module, given its dotted name without `cloudload.`."""
    top = name.partition(".")[0]
    if top in VOCABULARY:
        return 1 if top != "_door" else 0
    return 2 * ROOMS.index(top) if top in ROOMS else 2 * len(ROOMS)


def floor_of(room: str, name: str) -> int:
    [floor] = [number for number, line in enumerate(FLOORS[room]) if name in line.split()]
    return floor


def test_every_module_is_in_a_room_in_front_or_in_the_vocabulary() -> None:
    tops = {name.partition(".")[0] for name in MODULES}
    assert tops == {*ROOMS, *VOCABULARY, *FRONT}


@pytest.mark.parametrize("room", [*ROOMS, *VOCABULARY])
def test_nothing_imports_upwards(room: str) -> None:
    for module, path in MODULES.items():
        for name in imports_of(path) if module.partition(".")[0] == room else []:
            if name.startswith("cloudload."):
                other = name.removeprefix("cloudload.")
                assert rank_of(other) <= rank_of(module), f"{module} must not import {name}"


@pytest.mark.parametrize("room", FLOORS)
def test_nothing_in_a_room_imports_upwards(room: str) -> None:
    for module, path in MODULES.items():
        if not module.startswith(f"{room}."):
            continue
        own = module.split(".")[1]
        for name in imports_of(path):
            if name.startswith(f"cloudload.{room}.") and own != "__init__":
                other = name.split(".")[2]
                is_below = other == own or floor_of(room, other) < floor_of(room, own)
                assert is_below, f"{module} must not import {name}"


def list_crossings() -> list[tuple[str, str]]:
    """Every (module, imported name) whose name is in another room than the module.

    The public modules in front of the rooms may also import the packages of `tools`.
    """
    found = []
    for module, path in MODULES.items():
        for name in imports_of(path):
            room = name.removeprefix("cloudload.").partition(".")[0]
            if room in ROOMS and room not in (module.partition(".")[0], "tools"):
                found.append((module, name))
    return found


def is_public_face(module: str) -> bool:
    """Whether a module is in front of the rooms and only re-exports their public names."""
    body = ast.parse(MODULES[module].read_text()).body
    is_empty = not any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in body)
    return is_empty and module.partition(".")[0] in FRONT


def test_rooms_are_entered_through_their_doors() -> None:
    inside = [
        (module, name)
        for module, name in list_crossings()
        if name.count(".") > 2 and not is_public_face(module)
    ]
    assert not inside


def test_doors_offer_only_what_other_rooms_use() -> None:
    """A name leaves its door when its last user does, so the doors stay narrow."""
    used = {name for module, name in list_crossings() if not is_public_face(module)}
    offered = {
        f"cloudload.{room}.{name}"
        for room in ROOMS
        if room not in ("config", "tools")
        for name in dir(import_module(f"cloudload.{room}"))
    }
    assert offered == {name for name in used if name.split(".")[1] not in ("config", "tools")}
    assert len(used) <= MOST_NAMES


def test_one_word_has_one_meaning() -> None:
    """No two classes and no two public functions of the package share a name."""
    names: Counter[str] = Counter()
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            # each framework has classes of the same names
            if (isinstance(node, ast.ClassDef) and not module.startswith("integrations.")) or (
                isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
            ):
                names[node.name] += 1
    assert not [name for name, times in names.items() if times > 1]


def names_bound_in(node: ast.AST) -> Iterator[str]:
    """The names that a function's own statements bind, without comprehensions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        if not isinstance(child, SCOPES):
            yield from names_bound_in(child)


def test_no_function_has_too_many_names() -> None:
    """A function binds up to 20 names, besides options that are passed by name."""
    crowded = []
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args]
                names = {*names_bound_in(node), *(each.arg for each in arguments)}
                if len(names - {each.arg for each in node.args.kwonlyargs}) > 20:
                    crowded.append(f"{module}.{node.name}")
    assert not crowded


def test_few_files_share_a_name() -> None:
    """Public modules in front of the rooms share theirs with what they show."""
    stems = Counter(path.stem for path in MODULES.values() if path.stem != "__init__")
    shared = {stem for stem, times in stems.items() if times > 1}
    assert shared <= {"batch", "bench", "convert", "loader", "ray", "warm"}


def test_no_modules_of_a_package_import_each_other_in_a_circle() -> None:
    waiting = {
        name: {
            other
            for other in MODULES
            for imported in imports_of(path)
            if other != name and f"{imported}.".startswith(f"cloudload.{other}.")
        }
        for name, path in MODULES.items()
        if not name.endswith("__init__")
    }
    while free := [name for name, others in waiting.items() if not others & waiting.keys()]:
        for name in free:
            del waiting[name]
    assert not waiting


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_lists_each_of_its_modules_once(package: str) -> None:
    """The last indented block of the package's docstring lists them, 1 or 2 per line."""
    folder = PACKAGE / package
    docstring = str(ast.get_docstring(ast.parse((folder / "__init__.py").read_text())))
    *_, table = (part for part in docstring.split("\n\n") if part.startswith("    "))
    cells = [re.split("  +", line.strip()) for line in table.splitlines()]
    listed = [name for line in cells for name in line[::2]]
    if package == ".":
        listed += [*ROOMS, *(name for name in VOCABULARY if not name.startswith("_"))]
    files = [path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")]
    folders = [path.parent.name for path in folder.glob("*/__init__.py")]
    assert sorted(listed) == sorted(files + folders)


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_beside_the_package_import_each_other_in_no_circle(folder: str) -> None:
    allowed = {folder, *FOLDERS[folder].split()}
    for path in (PACKAGE.parent / folder).rglob("*.py"):
        tops = {name.partition(".")[0] for name in imports_of(path)} & FOLDERS.keys()
        assert tops <= allowed, f"{path} must not import {tops - allowed}"


def test_the_package_imports_no_folder_beside_it() -> None:
    for module, path in MODULES.items():
        tops = {name.partition(".")[0] for name in imports_of(path)}
        assert not tops & FOLDERS.keys(), f"{module} must not import {tops & FOLDERS.keys()}"


@pytest.mark.parametrize("package", DISKS)
def test_arithmetic_does_not_touch_a_disk(package: str) -> None:
    for path in (PACKAGE / package).glob("*.py"):
        if path.stem != DISKS[package]:
            touching = [name for name in imports_of(path) if TOUCHES_DISK.match(name)]
            assert not touching, f"{path.stem} must not import {touching}"


def test_streaming_serves_its_own_stores_and_nothing_else() -> None:
    users = [
        name
        for name, path in MODULES.items()
        if any(imported.partition(".")[0] == "streaming" for imported in imports_of(path))
    ]
    assert users == ["data.storage.fsspec"]


def test_heavy_libraries_wait_until_they_are_needed() -> None:
    heavy = ["streaming", "transformers", "boto3", "google.cloud.storage"]
    code = f"""
import sys
import cloudload; print([name for name in {[*heavy, "torch", "numpy"]} if name in sys.modules])
import cloudload.cli; print([name for name in {[*heavy, "torch"]} if name in sys.modules])
from cloudload import CloudLoader; print([name for name in {heavy} if name in sys.modules])
"""
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["[]"] * 3


def test_no_generator_has_a_thread_pool_that_its_garbage_collection_would_wait_for() -> None:
    """`map_in_order` is for that; see its docstring."""
    holders = [
        f"{name}.{function.name}"
        for name, path in MODULES.items()
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        and any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))
        and "ThreadPoolExecutor(" in ast.unparse(function)
    ]
    assert holders == []
