"""A comparison of the backends that another process makes while a loader already reads.

    choose_backend    no result in the cache folder ─► `Deferral`, which workers get with the choice
    each worker       hf ─────────────────── reads the result ─► fastokens if it passed, or hf
    one per machine   starts the process ──► checks ─► result

hf is the reference, so rows do not depend on when a worker changes to fastokens.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from cloudload.tokenization.kept_files import keep, read_kept

_COMMAND = ("-m", "cloudload.tokenization.comparing")
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class Deferral:
    """A comparison that has no result yet, as plain data for workers."""

    cache_root: Path
    path: Path
    """The file of the result: empty if fastokens passed, or else the reason not to use it."""

    @property
    def failure_path(self) -> Path:
        """The file that says why the comparison could not run."""
        return self.path.with_name(f"failed-{self.path.name}")

    @property
    def is_possible(self) -> bool:
        """Whether another process can run here, and write the result."""
        with contextlib.suppress(OSError):
            folder = self.path.parent
            folder.mkdir(parents=True, exist_ok=True)
            return bool(sys.executable) and os.access(folder, os.W_OK)
        return False

    def read(self) -> str | None:
        """The result: "" if fastokens passed, or the reason not to use it. None if not finished."""
        result = read_kept(self.path)
        return read_kept(self.failure_path) if result is None else result

    def start(self, text: str) -> threading.Thread:
        """Start comparing the backends for the tokenizer.json `text` in another process.

        Returns the thread that waits for the process. The thread also records a failure.
        """
        thread = threading.Thread(
            target=self._compare, args=(text,), name="cloudload-compare", daemon=True
        )
        thread.start()
        return thread

    def _compare(self, text: str) -> None:
        # this process may have found the package through a changed sys.path
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, *_COMMAND, str(self.cache_root)]
        try:
            done = subprocess.run(
                command, input=text.encode(), capture_output=True, env=environment, check=False
            )
        except OSError as error:
            end = str(error)
        else:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            end = f"status {done.returncode}: {lines[-1][:_SHOWN_CHARACTERS] if lines else ''}"
        if self.read() is None:
            self.keep_failure(f"the process that compares it with tokenizers failed ({end})")

    def keep_failure(self, reason: str) -> None:
        """Write why the comparison could not run. The next loader then makes it itself."""
        keep(self.failure_path, reason)
