"""Virtual environments for the peers whose versions clash with cloudload's: `.bench/<peer>/`, made once by pip."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path


class EnvironmentFailedError(Exception):
    """A peer's environment could not be made; the message is the end of pip's words."""


def python_of(folder: Path, requirements: Sequence[str]) -> Path:
    """The interpreter of an environment that has the requirements, made now where it is not there yet."""
    wanted = [requirement.format(tokenizers=metadata.version("tokenizers")) for requirement in requirements]
    python, stamp = folder / "bin" / "python", folder / ".installed"
    if stamp.exists() and stamp.read_text().split("\n") == wanted:
        return python
    print(f"installing {', '.join(wanted)} into {folder}", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--progress-bar", "off", "--disable-pip-version-check"]
    _run([*pip, *wanted])
    stamp.write_text("\n".join(wanted))
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stdout.splitlines() if line.startswith("ERROR")] or done.stdout.splitlines()[-3:]
        raise EnvironmentFailedError(f"{command[3]} failed: {' '.join(errors)[:300]}")
