"""Packages import only from those above them in `STOREYS`, and load heavy libraries on demand."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import cloudload

PACKAGE = Path(cloudload.__file__).parent

# each box (a package or top-level module) may import only from boxes on the lines above its own
STOREYS = """
html_tables text_tables
_version arrays errors file_kinds json_text option_docs option_names stats system
storage segments
config
engines
mds order tokenization
cache packing
run batch streaming_arguments inspect
lengths
workers
delivery count
session
loader convert check
evaluation export losses row_dataset forecast warm
integrations provenance testing
cli
__main__
"""
DISKS = {"order": "epoch_orders", "packing": None}
"""For each package of pure arithmetic, the only module that may access files, or None."""
USERS = {
    "session": ["forecast", "loader"],
    "inspect": ["cli"],
    "convert": ["cli"],
    "check": ["cli"],
}
"""The only boxes that import from each of these packages, besides `cloudload/__init__.py`."""
TOUCHES_DISK = re.compile(r"^(pathlib|os|io|tempfile|shutil|mmap|cloudload\.(system|storage))\b")

BOXES = {box: storey for storey, line in enumerate(STOREYS.split("\n")) for box in line.split()}


def list_modules() -> dict[str, Path]:
    """The path of each module by its dotted name, such as `mds.index`. Omits `cloudload` itself."""
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


def test_every_module_is_in_a_box() -> None:
    assert {name.partition(".")[0] for name in MODULES} == BOXES.keys()


@pytest.mark.parametrize("box", sorted(BOXES))
def test_nothing_imports_upwards(box: str) -> None:
    for module, path in MODULES.items():
        for name in imports_of(path) if module.partition(".")[0] == box else []:
            if name.startswith("cloudload."):
                other = name.split(".")[1]
                is_below = other in BOXES and BOXES[other] < BOXES[box]
                assert other == box or is_below, f"{module} must not import {name}"


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
    files = [path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")]
    folders = [path.parent.name for path in folder.glob("*/__init__.py")]
    assert sorted(listed) == sorted(files + folders)


@pytest.mark.parametrize("package", USERS)
def test_only_the_named_boxes_import_from_a_package(package: str) -> None:
    users = {
        module.partition(".")[0]
        for module, path in MODULES.items()
        if any(f"{name}.".startswith(f"cloudload.{package}.") for name in imports_of(path))
    }
    assert sorted(users - {package}) == USERS[package]


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
    assert users == ["storage.streaming"]


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        (
            "import cloudload",
            ["torch", "streaming", "transformers", "boto3", "google.cloud.storage", "numpy"],
        ),
        (
            "import cloudload.cli",
            ["torch", "streaming", "transformers", "boto3", "google.cloud.storage"],
        ),
        (
            "from cloudload import CloudLoader",
            ["streaming", "transformers", "boto3", "google.cloud.storage"],
        ),
    ],
)
def test_heavy_libraries_wait_until_they_are_needed(statement: str, absent: list[str]) -> None:
    code = f"import sys; {statement}; print([name for name in {absent} if name in sys.modules])"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert printed.strip() == "[]"
