"""Record the calls of a function that other code makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def note_calls(
    patch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[..., object]
) -> None:
    """Call `note` with the arguments of each call of `owner.name`, before the call itself."""
    original = getattr(owner, name)

    def noting(*args: Any, **kwargs: Any) -> Any:
        note(*args, **kwargs)
        return original(*args, **kwargs)

    patch.setattr(owner, name, noting)
