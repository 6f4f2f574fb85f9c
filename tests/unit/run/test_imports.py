"""What a run computes needs NumPy only: neither its modules nor their tests import torch."""

from __future__ import annotations

import subprocess
import sys

from testkit import ROOT

PROGRAM = """
import importlib, pkgutil, sys
import cloudload.run, tests.conftest, tests.unit.run

for package in (cloudload.run, tests.unit.run):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
print(*sorted({"torch", "streaming", "transformers"} & {*sys.modules}))
"""


def test_the_modules_of_the_room_and_their_tests_do_not_import_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
