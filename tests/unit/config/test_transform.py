"""A transform has a name that changes with its code and with every value that it uses."""

from __future__ import annotations

import functools
import json
import logging
import operator
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from cloudload.config.transform import Transform, name_function
from testkit import ROOT

SETTINGS: dict[str, Any] = {}


def upper(sample: dict[str, Any]) -> str:
    return str(sample["text"]).upper()


def cut(sample: dict[str, Any], length: int = 9) -> str:
    return str(sample["text"])[:length]


def look_up(sample: dict[str, Any]) -> str:
    return str([SETTINGS["a"] for _ in sample])


def use_helper(sample: dict[str, Any]) -> str:
    return look_up(sample)


class Color(Enum):
    RED = 1
    BLUE = 2


@dataclass
class Rule:
    words: Any


class Keeper:
    words: Any = ()

    def __init__(self, *words: Any) -> None:
        self.words = words
        self.own = self  # tests that naming can handle a value that refers to itself

    def __call__(self, sample: dict[str, Any]) -> str:
        return str(sample["text"]) + look_up(sample)

    def call(self, sample: dict[str, Any]) -> str:
        return self(sample)


class Slotted:
    __slots__ = ("words",)

    def __init__(self, words: Any) -> None:
        self.words = words

    def __call__(self, sample: dict[str, Any]) -> str:
        return str(sample["text"])


def close_over(value: Any) -> Transform:
    return lambda sample: str((sample["text"], value))


def by_default(value: Any) -> Transform:
    def read(sample: dict[str, Any], value: Any = value) -> str:
        return str((sample["text"], value))

    return read


def from_globals(value: Any) -> Transform:
    SETTINGS["a"] = value
    return use_helper


WAYS: list[Callable[[Any], Any]] = [
    close_over,
    by_default,
    Keeper,
    Slotted,
    lambda value: Keeper(value).call,
    lambda value: functools.partial(cut, length=value),
    lambda value: functools.partial(Keeper(), {"text": value}),
    lambda value: functools.cache(close_over(value)),
    lambda value: close_over(close_over(value)),
    lambda value: close_over(Rule([value])),
    from_globals,
]
VALUES = [
    *(None, True, 1, 1.0, "1", b"1", (1,), [1], {1}, {1: 2}, {1: 3}, {"a": {"b": [1]}}),
    *({"a": {"b": [2]}}, re.compile("1"), re.compile("1", re.IGNORECASE), Path("1"), Color.RED),
    *(Color.BLUE, np.arange(3), np.arange(3.0), np.int32(1), str.lower, len, re.sub, np.abs),
    *(frozenset("ab"), Rule("en"), Rule("de"), Keeper, Slotted, "e".join, "d".join),
]


@pytest.mark.parametrize("way", WAYS)
def test_a_name_changes_with_every_value_that_a_transform_uses(
    way: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    names = [name_function(way(value)) for value in VALUES]
    assert names[::4] == [name_function(way(value)) for value in VALUES[::4]]
    assert len({*names}) == len(names)
    assert not caplog.records


@pytest.mark.parametrize("value", [1, "de", {"a": 1}, Rule("en")])
def test_a_value_of_a_class_counts(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = name_function(Keeper())
    monkeypatch.setattr(Keeper, "words", value)
    assert name_function(Keeper()) != before


def test_values_of_a_class_without_stable_content_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Keeper, "words", object())
    name_function(Keeper())
    assert "uses Keeper.words (builtins.object)" in caplog.text
    name_function(operator.itemgetter("text"))
    assert "operator.itemgetter uses operator.itemgetter (operator.itemgetter)" in caplog.text
    assert name_function(str.lower).startswith("builtins.")


def test_the_name_has_a_hash_of_the_source() -> None:
    name, _, digest = name_function(upper).partition("#")
    assert name == f"{__name__}.upper"
    assert len(digest) == 12
    assert digest != name_function(cut).partition("#")[2]
    assert name_function(Keeper()).startswith(f"{__name__}.Keeper#")
    assert name_function(functools.partial(Keeper(), {"text": 1})).startswith(f"{__name__}.Keeper#")


def test_a_lambda_is_known_by_its_own_source_not_by_its_line(tmp_path: Path) -> None:
    """A name depends on the lambda's source alone, not on other code in the same lines."""
    (tmp_path / "train.py").write_text(
        "from cloudload.config.transform import name_function\n"
        "def show(function, batch_size=0):\n    print(name_function(function))\n"
        "for each in (lambda s: s['a'][:1], lambda s: s['a'][:2]): show(each)\n"
        "show(lambda s: 'é' + s['a'], batch_size=8)\n"
        "show(lambda s: 'é' + s['a'], batch_size=9)\n"
        "show(lambda s: s['a']\n    + 'de')\n"
        "show(lambda s: s['a']\n    + 'fr')\n"
        "show((lambda x: lambda s: s['a'] + x)('de'))\n"
        "show((lambda x: lambda s: s['a'] + x)('fr'))\n"
    )
    command = [sys.executable, "-B", str(tmp_path / "train.py")]
    environment = {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    one, two, eight, nine, german, french, *inner = ran.stdout.split()
    assert eight == nine
    assert len({one, two, eight, german, french, *inner}) == 7


def test_values_of_other_modules_of_the_program_count(tmp_path: Path) -> None:
    """Name the function in new processes, because set order and addresses differ between them."""
    (tmp_path / "train.py").write_text(
        "import helpers, json\n"
        "from cloudload.config.transform import name_function\n"
        "KEPT = {'en', 'de', 'fr', 'it'}\n"
        "def read(sample):\n    return helpers.clean(json.dumps(sample)) in KEPT or helpers.LANG\n"
        "print(name_function(read))\n"
    )
    found = []
    for helpers in ("LANG = 'en'", "LANG = 'en'", "LANG = 'de'"):
        (tmp_path / "helpers.py").write_text(f"{helpers}\ndef clean(text):\n    return text\n")
        command = [sys.executable, "-B", str(tmp_path / "train.py")]
        environment = {"PYTHONPATH": str(ROOT)}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert ran.stderr == ""
        found.append(ran.stdout)
    assert found[0].startswith("__main__.read#")
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("value", [threading.Lock(), iter("ab"), object(), [{"a": (object(),)}]])
def test_a_value_without_stable_content_is_named_once(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = type(f"Keeper{id(value)}", (Keeper,), {"__module__": __name__})
    with caplog.at_level(logging.WARNING):
        names = {name_function(keeper(value)) for _ in range(3)}
    assert len(names) == 1
    [warning] = [record.getMessage() for record in caplog.records]
    assert "uses words[0]" in warning
    assert "transform_id=" in warning


def test_code_whose_source_cannot_be_read_counts_by_its_bytecode(tmp_path: Path) -> None:
    def define(source: str, file: Path) -> Transform:
        names: dict[str, Any] = {"__name__": "elsewhere"}
        exec(compile(source, str(file), "exec"), names)
        function: Transform = names["read"]
        return function

    bodies = ["'text'", "'title'", "'text'].lower()[0", "'text'].upper()[0", "'a' in {'b', 'cd'}"]
    sources = [f"def read(sample):\n    return sample[{body}]\n" for body in bodies]
    names = [name_function(define(source, tmp_path / "absent.py")) for source in sources]
    assert names == [name_function(define(source, tmp_path / "absent.py")) for source in sources]
    assert len({*names}) == len(names)
    assert names[0].startswith("elsewhere.read#")
    # the file has changed since, so tokenizing it at the function's line fails
    for number, found in enumerate(("read = (\n", "read = '''\n", "def read(:\n  (\n")):
        changed = tmp_path / f"changed{number}.py"
        changed.write_text(found)
        assert name_function(define(sources[0], changed)).startswith("elsewhere.read#")


# ---------------------------------------------------------------- code of the program


TRAIN = """
import json
import sys

from cloudload.config.transform import name_function

def by_name(sample):
    from my_cleaning import clean
    return clean(sample["text"])

def by_module(sample):
    import my_cleaning
    return my_cleaning.clean(sample["text"])

def by_alias(sample):
    import json, my_cleaning as cleaning
    return cleaning.clean(json.dumps(sample))

def by_submodule(sample):
    import my_package.inner
    return my_package.inner.clean(sample["text"])

def by_submodule_alias(sample):
    import my_package.inner as inner
    return inner.clean(sample["text"])

def by_submodule_name(sample):
    from my_package import inner, missing
    return inner.clean(sample["text"])

def by_relative_import(sample):
    from my_package import relative
    return relative(sample["text"])

def in_a_closure(sample):
    from my_cleaning import clean as tidy
    import my_cleaning
    return [tidy(word) + (lambda: my_cleaning.clean(word))() for word in sample["text"]]

def if_there(sample):
    try:
        from my_cleaning import clean
    except ImportError:
        clean = None
    return clean(sample["text"])

class Cleaner:
    def __call__(self, sample):
        from my_cleaning import clean
        return clean(sample["text"])

def installed_alone(sample):
    import re, json as codec
    from os import path
    return codec.dumps(re.sub("a", "b", path.join(sample["text"])))

def by_text(sample):
    import importlib
    return importlib.import_module("my_cleaning").clean(sample["text"])

def by_builtin(sample):
    return eval("__import__('my_cleaning')").clean(sample["text"])

def by_attribute_text(sample):
    import my_cleaning
    return getattr(my_cleaning, "cle" + "an")(sample["text"])

def as_a_value(sample):
    import my_cleaning
    return dict(zip([my_cleaning, sample], sample["text"]))

def from_nowhere(sample):
    from my_absent_module import clean
    return clean(sample["text"])

def that_fails(sample):
    import my_failing_module
    return my_failing_module.clean(sample["text"])

chosen = {name: globals()[name] for name in sys.argv[1:]}
chosen = {name: each() if isinstance(each, type) else each for name, each in chosen.items()}
print(json.dumps({name: name_function(each) for name, each in chosen.items()}))
"""
FOLLOWED = [
    *("by_name", "by_module", "by_alias", "by_submodule", "by_submodule_alias"),
    *("by_submodule_name", "by_relative_import", "in_a_closure", "if_there", "Cleaner"),
]
LEFT_OUT = {
    "by_text": "importlib (code found at run time)",
    "by_builtin": "eval (code found at run time)",
    "by_attribute_text": "my_cleaning (module)",
    "as_a_value": "my_cleaning (module)",
    "from_nowhere": "my_absent_module.clean (module that cannot be imported)",
    "that_fails": "my_failing_module (module that cannot be imported)",
}


class Ran(NamedTuple):
    names: dict[str, str]
    """The name of each function."""
    warnings: str


def run(folder: Path, body: str, *functions: str) -> Ran:
    """Name functions of the program in a new process, with a body of its helper."""
    helper = f"def clean(text):\n    return {body}\n"
    (folder / "my_package").mkdir(exist_ok=True)
    inner = "from . import inner\ndef relative(text):\n    from .inner import clean\n"
    inner += "    return clean(text)\nmissing = None\n"
    (folder / "my_package" / "__init__.py").write_text(inner)
    (folder / "my_package" / "inner.py").write_text(helper)
    (folder / "my_cleaning.py").write_text(helper)
    (folder / "my_failing_module.py").write_text("raise OSError('no such device')\n")
    (folder / "train.py").write_text(TRAIN)
    command = [sys.executable, "-B", str(folder / "train.py"), *functions]
    environment = {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return Ran(json.loads(ran.stdout), ran.stderr)


def test_what_a_transform_imports_where_it_runs_counts(tmp_path: Path) -> None:
    functions = (*FOLLOWED, "installed_alone")
    one, same, other = (
        run(tmp_path, body, *functions) for body in ("text", "text", "sorted(text)")
    )
    assert one.names == same.names
    unchanged = [name for name in functions if one.names[name] == other.names[name]]
    assert unchanged == ["installed_alone"]
    assert one.warnings == other.warnings == ""


@pytest.mark.parametrize("function", LEFT_OUT)
def test_imports_that_cannot_be_followed_are_named_in_a_warning(
    tmp_path: Path, function: str
) -> None:
    ran = run(tmp_path, "text", function)
    assert f"the transform __main__.{function} uses {LEFT_OUT[function]}, whose" in ran.warnings
