"""Create the environments of the peers, which pip installs once into `.bench/<peer>/`.

A peer whose dependencies conflict with cloudload's has its own virtual environment. Any other peer
runs in cloudload's environment, with a folder of additional packages.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.catalogue import ADDITIONS, ENVIRONMENTS


class EnvironmentFailedError(Exception):
    """A peer's environment could not be created. The message contains pip's errors."""


def environment_of(peer: str, base: Path) -> tuple[Path, list[Path]]:
    """Return the Python interpreter that runs a peer, and the folders to add to its PYTHONPATH.

    Creates the environment if it does not exist or its requirements have changed. Raises
    `EnvironmentFailedError` if pip or venv fails.
    """
    folder = base / peer
    own = folder / "bin" / "python"
    if peer in ADDITIONS:
        _make(
            folder,
            ADDITIONS[peer],
            [sys.executable, "-m", "pip", "install", "--no-deps", f"--target={folder}"],
        )
        return Path(sys.executable), [folder]
    _make(folder, ENVIRONMENTS[peer], [str(own), "-m", "pip", "install"])
    return own, []


def _make(folder: Path, requirements: Sequence[str], pip: list[str]) -> None:
    wanted = [
        requirement.format(tokenizers=metadata.version("tokenizers"))
        for requirement in requirements
    ]
    stamp = folder / ".installed"
    if stamp.exists() and stamp.read_text().split("\n") == wanted:
        return
    print(f"  installing {', '.join(wanted)}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if pip[0] != sys.executable:
        _run([sys.executable, "-m", "venv", str(folder)])
    _run([*pip, "--quiet", "--progress-bar", "off", "--disable-pip-version-check", *wanted])
    stamp.write_text("\n".join(wanted))


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        errors = [
            line for line in done.stdout.splitlines() if line.startswith("ERROR")
        ] or done.stdout.splitlines()[-3:]
        raise EnvironmentFailedError(
            f"`python {' '.join(command[1:4])}` failed: {' '.join(errors)[:300]}"
        )
