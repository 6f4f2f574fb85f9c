"""An integration whose framework is not installed names the extra that installs it."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from cloudload.integrations.frameworks import explain_missing


class Hides:
    """Finds modules as if `packages` were not installed."""

    def __init__(self, packages: list[str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, *_: object) -> None:
        if name in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("integration", "packages"),
    [
        ("composer", ["composer"]),
        ("lightning", ["lightning", "pytorch_lightning"]),
        ("torchdata", ["torchdata"]),
        ("torchtitan", ["torchtitan"]),
        ("transformers", ["accelerate"]),
    ],
)
def test_a_missing_framework_is_answered_with_its_package(
    integration: str, packages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"cloudload.integrations.{integration}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    for name in [each for each in sys.modules if each.partition(".")[0] in packages]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Hides(packages), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError) as raised:
        import_module(module)
    assert str(raised.value) == (
        f"{module} needs {packages[0]}, which is not installed. "
        f"Run: pip install {'mosaicml' if integration == 'composer' else packages[0]}"
    )


def test_a_framework_that_fails_to_import_keeps_its_own_error() -> None:
    broken = ModuleNotFoundError("No module named 'numpy'", name="numpy")
    assert explain_missing(broken, "composer", "composer") is broken
    too_old = ImportError("cannot import name 'DataSpec'", name="composer")
    assert explain_missing(too_old, "composer", "composer") is too_old
