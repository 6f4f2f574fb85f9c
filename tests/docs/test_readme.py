"""The README's blocks run, in its order, in one namespace; and its tables leave nothing out."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, errors
from cloudload.cli import main
from tests.support import ROOT
from tests.support.corpora import random_documents

README = (ROOT / "README.md").read_text("utf-8")


def blocks_of(language: str) -> list[str]:
    """The README's fenced blocks of a language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return [block for of_language, block in fenced if of_language == language]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's, of torch
@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_every_block_of_the_readme_runs(
    tmp_path: Path,
    s3_url: str,
    tokenizer_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "corpus").mkdir()
    lines = [json.dumps({"text": text, "source": "a test"}) for text in random_documents(0, 300)]
    (tmp_path / "corpus" / "part.jsonl").write_text("\n".join(lines))
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "part.jsonl").write_text("\n".join(lines[:50]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUDLOAD_CACHE", str(tmp_path / "cache"))
    namespace: dict[str, Any] = models()
    printed = ""
    try:
        for language, block in re.findall(
            r"^```(sh|python|)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE
        ):
            # what a reader has of his own
            code = block.replace("s3://my-bucket", s3_url).replace(
                '"gpt2"', repr(os.fspath(tokenizer_folder))
            )
            if language == "python":
                exec(compile(code, "README.md", "exec"), namespace)
            elif language == "sh":
                run_shell(code)
            printed += capfd.readouterr().out
    finally:
        if "loader" in namespace:
            namespace["loader"].close()
    assert namespace["checkpoint"]["step"] == 4
    assert namespace["report"].documents == 300
    (expected,) = [block for block in blocks_of("") if block.startswith("the state is of another")]
    assert expected in printed


def models() -> dict[str, Any]:
    """What a reader has of his own: a model, an optimizer, and a Lightning module."""
    from torch.optim import SGD

    from tests.frameworks.small import Model
    from tests.frameworks.test_lightning import Module

    model = Model()
    return {
        "model": model,
        "optimizer": SGD(model.parameters(), lr=0.1),
        "lightning_module": Module(),
    }


def run_shell(block: str) -> None:
    """Run the block's lines that are cloudload's; those of make are for a fresh machine."""
    for line in block.splitlines():
        command = shlex.split(line, comments=True)
        assert command[0] in ("cloudload", "make"), f"nobody checks {line!r}"
        if command[0] == "cloudload":
            assert (
                main(
                    [
                        *command[1:],
                        "--quiet",
                        *(["--processes", "1"] if command[1] == "convert" else []),
                    ]
                )
                == 0
            )


def test_the_readme_lists_every_argument_of_the_loader() -> None:
    listed = set(
        re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", README, re.MULTILINE)))
    )
    parameters = set(inspect.signature(CloudLoader.__init__).parameters) - {"self", "data"}
    assert parameters <= listed


def test_the_readme_names_every_error() -> None:
    names = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert {name for name in names if f"`{name}`" not in README} == set()
