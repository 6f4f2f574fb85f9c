"""Rooms of pure arithmetic, and their unit tests, need NumPy and no deep learning framework."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOMS = ["order", "rows/packing"]
HEAVY = ["torch", "streaming", "transformers", "pyarrow", "cloudload.loading.loader"]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_and_its_unit_tests_import_no_framework(room: str) -> None:
    files = [*ROOT.glob(f"cloudload/{room}/*.py"), *ROOT.glob(f"tests/unit/{room}/test_*.py")]
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
