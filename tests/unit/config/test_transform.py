"""A transform has a name that identifies it, whatever `inspect` can find of its source."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from cloudload.config.transform import Transform, name_function


def upper(sample: dict[str, Any]) -> str:
    return str(sample["text"]).upper()


def cut(sample: dict[str, Any], length: int) -> str:
    return str(sample["text"])[:length]


class Reader:
    def __call__(self, sample: dict[str, Any]) -> str:
        return str(sample["text"])


def define(source: str, file: Path) -> Transform:
    """A function `read` from `source` that seems to be from `file`."""
    names: dict[str, Any] = {"__name__": "elsewhere"}
    exec(compile(source, str(file), "exec"), names)
    function: Transform = names["read"]
    return function


def test_the_name_has_a_hash_of_the_source() -> None:
    name, _, digest = name_function(upper).partition("#")
    assert name == f"{__name__}.upper"
    assert len(digest) == 12
    assert digest != name_function(cut).partition("#")[2]


def test_the_arguments_of_a_partial_are_part_of_the_name() -> None:
    names = {name_function(functools.partial(cut, length=length)) for length in (1, 2)}
    assert len(names) == 2


def test_an_object_has_the_name_and_the_source_of_its_class() -> None:
    assert name_function(Reader()).startswith(f"{__name__}.Reader#")


def test_source_that_cannot_be_read_leaves_the_name(tmp_path: Path) -> None:
    source = "def read(sample):\n    return sample['text']\n"
    assert name_function(define(source, tmp_path / "absent.py")) == "elsewhere.read"
    # the file has changed since: tokenizing it from the function's line on fails
    for number, found in enumerate(("read = (\n", "read = '''\n", "def read(:\n  (\n")):
        changed = tmp_path / f"changed{number}.py"
        changed.write_text(found)
        assert name_function(define(source, changed)).startswith("elsewhere.read")
