"""Advice to install a package works even if no index serves cloudload."""

from __future__ import annotations

import re
from pathlib import Path

import cloudload


def test_no_message_tells_the_user_to_install_an_extra_of_cloudload() -> None:
    for path in Path(cloudload.__file__).parent.rglob("*.py"):
        assert not re.search(r"cloudload\[\w+\]", path.read_text("utf-8")), path
