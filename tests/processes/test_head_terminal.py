"""When `cloudload head` prints to a terminal, no document can control the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from testkit.corpora import write_mds

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202ereversed\u2066\x00\x7f\rover"


def read_on_a_terminal(*arguments: Any) -> str:
    """Run `cloudload head` on a terminal with 60 columns, and return its output."""
    parent, child = os.openpty()
    command = [sys.executable, "-m", "cloudload", "head", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "60"}
    with subprocess.Popen(command, stdout=child, env=environment) as process:
        os.close(child)
        parts = []
        while True:
            try:
                part = os.read(parent, 1 << 16)
            except OSError:  # Linux raises this once the writer has closed the terminal
                break
            if not part:
                break
            parts.append(part)
    os.close(parent)
    assert process.returncode == 0
    return b"".join(parts).decode()


def test_a_hostile_document_cannot_drive_the_terminal(tmp_path: Path) -> None:
    extra: dict[str, tuple[str, list[Any]]] = {
        "id": ("str", [HOSTILE]),
        "meta": ("json", [{HOSTILE: HOSTILE}]),
        HOSTILE: ("int8", [1]),
    }
    write_mds(tmp_path, [HOSTILE + "\nsecond line"], extra=extra)
    for options in ([], ["--full"], ["--json"]):
        printed = read_on_a_terminal(tmp_path, *options)
        printed = printed.replace("\r\n", "\n").replace("\x1b[1m", "").replace("\x1b[0m", "")
        assert all(each == "\n" or each.isprintable() for each in printed), options
        assert "reversed" in printed


def test_a_terminal_shows_text_wrapped_and_shortened(tmp_path: Path) -> None:
    write_mds(tmp_path, ["one two three " * 100 + "end"], extra={"id": ("str", ["a/1"])})
    lines = read_on_a_terminal(tmp_path).replace("\r\n", "\n").splitlines()
    assert lines[0] == "\x1b[1msample 0  shard.00000.mds  id a/1  1,403 characters\x1b[0m"
    assert lines[1].startswith("    one two three ")
    assert lines[-2:] == ["  … 603 more characters", ""]
    assert max(map(len, lines[1:])) <= 60
    assert read_on_a_terminal(tmp_path, "--full").replace("\r\n", "\n").endswith("end\n\n")
