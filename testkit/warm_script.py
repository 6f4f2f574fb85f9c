"""Run a test's script as a warm program, given the script's path and arguments.

[*stand_in(), "testkit.warm_script", "train.py", "--steps=7"]
"""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
