"""The converter guide's Spark recipe writes the same objects as a conversion in one process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cloudload.convert import convert_to_mds
from testkit import ROOT
from testkit.conversions import dataset_bytes
from testkit.segments import SETTINGS, mixed_corpus

pytest.importorskip("pyspark")
pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs a Java runtime"),
    pytest.mark.timeout(600),
]

MASTER = "--master local[3,4] pyspark-shell"
"""Three Python processes on this machine. A failing task is attempted up to 4 times."""
KEPT = ("keep", "shard_bytes", "block_bytes", "segment_bytes", "progress", "processes")


def recipe(source: Path, out: Path) -> str:
    """Return the guide's code with this test's locations and settings filled in."""
    page = (ROOT / "docs/guides/converter.md").read_text()
    [code] = [
        block for block in re.findall(r"```py\n(.*?)```", page, re.DOTALL) if "spark" in block
    ]
    settings = {name: SETTINGS[name] for name in KEPT}
    for pattern, value in (
        (r'"s3://bucket/raw", "s3://bucket/mds"', f"{str(source)!r}, {str(out)!r}"),
        (r"settings = \{.*\}", f"settings = {settings}"),
        (r"num_shares = 256", "num_shares = 7"),
    ):
        code, count = re.subn(pattern, value, code)
        assert count == 1, pattern
    return str(code)


def run(script: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYSPARK_SUBMIT_ARGS": MASTER,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_the_recipe_for_spark_writes_the_objects_of_one_process(tmp_path: Path) -> None:
    corpus = mixed_corpus(tmp_path / "corpus")
    whole = convert_to_mds(corpus, tmp_path / "whole", **SETTINGS)
    (tmp_path / "recipe.py").write_text(recipe(corpus, tmp_path / "out"))
    done = run(tmp_path / "recipe.py", tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"{whole.documents:,} documents in {whole.shards} shards\n" in done.stdout
    assert dataset_bytes(str(tmp_path / "out")) == dataset_bytes(str(tmp_path / "whole"))


def test_a_bad_record_ends_the_recipe_with_its_place(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "a", "n": 1}\n' * 3000 + "nonsense\n")
    (tmp_path / "recipe.py").write_text(recipe(source, tmp_path / "out"))
    done = run(tmp_path / "recipe.py", tmp_path)
    assert done.returncode != 0
    assert "a.jsonl:@66000: the record is invalid JSON" in done.stderr
    assert not (tmp_path / "out/index.json").exists()
