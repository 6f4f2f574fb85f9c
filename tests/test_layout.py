"""The package reads from top to bottom, and imports nothing heavy before it is needed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cloudload

PACKAGE = Path(cloudload.__file__).parent

# each module imports only from those before it
ORDER = [
    "errors",
    "locations",
    "store_types",
    "network",
    "s3_store",
    "gcs_store",
    "other_stores",
    "backends",
    "store",
    "config",
    "left_overs",
    "locks",
    "seals",
    "lifeline",
    "background",
    "daemons",
    "index",
    "mds",
    "pool",
    "source_files",
    "sources",
    "journal",
    "convert",
    "lanes",
    "seekable",
    "shuffles",
    "order",
    "dataset",
    "components",
    "mixture",
    "shard_files",
    "traffic",
    "cache",
    "documents",
    "encoders",
    "gate",
    "tokenizer",
    "pack",
    "tail",
    "stats",
    "recipe",
    "position",
    "plan",
    "lane_documents",
    "rows",
    "lane_rows",
    "best_fit_lanes",
    "block_rows",
    "read_ahead",
    "worker",
    "working_set",
    "trace",
    "segments",
    "batch",
    "state",
    "resume",
    "exchange",
    "ring",
    "slots",
    "worker_processes",
    "blocks",
    "batches",
    "passes",
    "callers",
    "loader",
    "from_start",
    "provenance",
    "testing",
    "cli",
]


def test_every_module_is_in_the_order() -> None:
    assert sorted(ORDER) == sorted(
        path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")
    )


@pytest.mark.parametrize("module", ORDER)
def test_nothing_imports_upwards(module: str) -> None:
    above = {"__version__", *ORDER[: ORDER.index(module)]}
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.startswith("cloudload.")
        ):
            assert node.module.split(".")[1] in above, f"{module} imports {node.module}"


def test_streaming_serves_its_own_stores_and_nothing_else() -> None:
    users = [
        path.stem
        for path in PACKAGE.glob("*.py")
        if re.search(r"^\s*(import|from) streaming\b", path.read_text(), re.MULTILINE)
    ]
    assert users == ["other_stores"]


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


def test_what_is_public_is_there() -> None:
    assert all(getattr(cloudload, name) is not None for name in cloudload.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cloudload.nothing
