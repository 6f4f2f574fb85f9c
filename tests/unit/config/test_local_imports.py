"""A transform's digest covers what it imports where it runs, or a warning names what it leaves out.

A function that imports its helpers inside is usual in programs whose workers are spawned.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from testkit import ROOT

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
