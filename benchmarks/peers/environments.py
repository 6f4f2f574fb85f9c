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

ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "hf": (
        "torch==2.13.0",
        "datasets==5.2.0",
        "torchdata==0.11.0",
        "tokenizers=={tokenizers}",
        "s3fs",
    ),
    "litdata": (
        "torch==2.13.0",
        "litdata==0.2.76",
        "polars==2.1.0",
        "pyarrow==26.0.1",
        "tokenizers=={tokenizers}",
    ),
    "lance": ("torch==2.13.0", "lancedb==0.40.0", "pylance==14.0.2"),
}
"""The pip requirements of peers whose dependencies conflict with cloudload's, by environment.

`{tokenizers}` is replaced by the version of tokenizers in cloudload's environment."""

ADDITIONS: dict[str, tuple[str, ...]] = {
    "epochraft": (
        "epochraft==0.1.0.dev20231107",
        "braceexpand==0.1.7",
        "smart-open==7.5.0",
        "wrapt==2.0.1",
    ),
}
"""The pip requirements of peers that run in cloudload's environment, in addition to its own."""


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
