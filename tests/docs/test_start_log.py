"""The start log in the quickstart matches the log that a script prints."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testkit import ROOT
from tests.docs.test_blocks import Desk, blocks_of

PAGE = "docs/quickstart.md"
IS_LOGGED = re.compile(r"^INFO:cloudload\..*$", re.MULTILINE)


def block_with(language: str, part: str) -> str:
    return next(code for each, code in blocks_of(PAGE) if each == language and part in code)


def without_numbers(lines: list[str]) -> list[str]:
    return [re.sub(r"\d[\d,.]*", "N", line) for line in lines]


@pytest.mark.usefixtures("s3_server")
def test_the_start_in_the_quickstart_is_what_its_script_logs(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    desk = Desk(tmp_path, "gpt2")
    shutil.copytree(tokenizer_folder, tmp_path / "gpt2")
    config = tmp_path / "gpt2" / "tokenizer_config.json"
    config.write_text(config.read_text().replace("{", '{"add_bos_token": false,', 1))
    script = block_with("python", "basicConfig") + block_with("python", "torch.save")
    ended = subprocess.run(
        [sys.executable, "-c", desk.fill_in(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CLOUDLOAD_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    logged = IS_LOGGED.findall(ended.stderr.replace(desk.bucket, "s3://my-bucket"))
    shown = block_with("text", "INFO:cloudload").splitlines()
    assert without_numbers(logged) == without_numbers(shown)
