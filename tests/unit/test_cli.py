"""The command line is the library: the same bytes, results on stdout, errors on stderr."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudload import cli


def test_an_error_is_one_line_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["convert", str(tmp_path / "none"), str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("cloudload: cannot list ")
    assert printed.err.count("\n") == 1
