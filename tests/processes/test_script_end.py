"""A script that workers cannot import fails with a clear error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testkit import ROOT
from testkit.warm_start import stand_in

SCRIPT = """
import logging
import sys
from cloudload import CloudLoader

logging.getLogger("cloudload").setLevel("ERROR")  # a busy machine may take seconds to start

if __name__ == "__main__":
    data, tokenizer, cache, workers, method = sys.argv[1:]
    loader = CloudLoader(
        data, tokenizer=tokenizer, seq_len=32, batch_size=2, local=cache,
        num_workers=int(workers), start_method=method,
    )
    next(iter(loader))
"""
WITHOUT_GUARD = SCRIPT.replace('if __name__ == "__main__":', "if True:").replace(
    "batch_size=2,", "batch_size=2, num_lanes=9600,"
)
"""A script without a `__main__` guard, and with too many lanes for the plan to fit in a pipe."""
FAILS_IN_WORKERS = """
import os
if __name__ == "__mp_main__":
    os._exit(3)
"""
CONVERTS = """
import sys
from pathlib import Path
from cloudload import convert_to_mds

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.txt").write_text("one two")
    options = dict(progress=False, processes=2, segment_bytes=1)
    print(convert_to_mds(folder, sys.argv[2], **options).documents)
"""
INTERRUPTED_IN_WORKERS = """
import os, signal
if __name__ == "__mp_main__":
    os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C, while a worker imports modules
"""
POOL = """
from cloudload.tools.engines.local_processes import open_processes
from cloudload.tools.engines.units import run_units
if __name__ == "__main__":
    with open_processes(2) as executor:
        list(run_units(len, [b"0" * 300_000], executor))
"""


@pytest.mark.parametrize(
    ("script", "method", "status"),
    [
        (WITHOUT_GUARD, "spawn", 1),
        (FAILS_IN_WORKERS + WITHOUT_GUARD, "forkserver", 3),
        (FAILS_IN_WORKERS + POOL, "", 3),
    ],
)
def test_workers_that_die_before_they_have_their_work_are_an_error(
    folder: str, tokenizer_folder: Path, tmp_path: Path, *, script: str, method: str, status: int
) -> None:
    path = tmp_path / "train.py"
    path.write_text(script)
    ended = _run(path, folder, tokenizer_folder, tmp_path / "cache", 1, method)
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("cloudload.errors.WorkerError: ")
    assert f"status {status}. A worker that is not forked first imports" in last
    assert last.count("if __name__ == '__main__':") == 1


@pytest.mark.parametrize(
    ("transform", "reason"),
    [("lambda s: s['text']", "cannot send work to a worker"), ("read", "cannot load its work")],
)
def test_a_transform_that_workers_cannot_import_is_an_error_with_advice(
    folder: str, tokenizer_folder: Path, tmp_path: Path, *, transform: str, reason: str
) -> None:
    define = "    def read(sample):\n        return sample['text']\n    data, tok"
    path = tmp_path / "train.py"
    path.write_text(
        SCRIPT.replace("    data, tok", define, 1).replace(
            "start_", f"transform={transform}, start_"
        )
    )
    ended = _run(path, folder, tokenizer_folder, tmp_path / "cache", 1, "spawn")
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("cloudload.errors.WorkerError: ")
    assert reason in last
    assert "Define the transform at the top level of a module" in last


def test_ctrl_c_does_not_reach_workers_that_start(
    folder: str, tokenizer_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(INTERRUPTED_IN_WORKERS + SCRIPT)
    ended = _run(path, folder, tokenizer_folder, tmp_path / "cache", 2, "spawn")
    assert (ended.returncode, "KeyboardInterrupt" in ended.stderr) == (0, False), ended.stderr


def test_a_program_that_is_no_file_starts_no_workers_and_says_so(
    folder: str, tokenizer_folder: Path, tmp_path: Path
) -> None:
    ended = _run("-", folder, tokenizer_folder, tmp_path / "cache", 2, "spawn", stdin=SCRIPT)
    assert "WorkerError: worker processes cannot start" in ended.stderr
    assert "<stdin>, which is not a file" in ended.stderr
    ended = _run("-", tmp_path / "in", tmp_path / "out", stdin=CONVERTS)
    assert (ended.returncode, ended.stdout) == (0, "2\n")
    assert "working in one process" in ended.stderr


def _run(
    script: str | Path, *arguments: object, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    # a script that is a file starts warm, as if by `python script`
    command = [sys.executable] if script == "-" else [*stand_in(), "testkit.warm_script"]
    return subprocess.run(
        [*command, str(script), *map(str, arguments)],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
