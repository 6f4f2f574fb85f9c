"""Rooms of arithmetic, and their unit tests, need NumPy and no deep learning framework."""

from __future__ import annotations

import subprocess
import sys

from testkit import ROOT

ROOMS = ["order", "rows", "run"]
HEAVY = ["torch", "streaming", "transformers", "pyarrow", "cloudload.loading.loader"]


def test_orders_rows_and_runs_and_their_unit_tests_import_no_framework() -> None:
    files = [
        file
        for room in ROOMS
        for file in [
            *ROOT.glob(f"cloudload/{room}/**/*.py"),
            *ROOT.glob(f"tests/unit/{room}/**/*.py"),
        ]
    ]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    code = f"""
import importlib, sys
for name in ["tests.conftest", *{names}]:
    importlib.import_module(name)
print([name for name in {HEAVY} if name in sys.modules])
"""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.stdout == "[]\n", run.stderr
