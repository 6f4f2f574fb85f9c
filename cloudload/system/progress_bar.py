"""A progress bar on stderr that counts bytes."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, TextIO


def open_progress_bar(
    label: str, total_bytes: int | None, *, done_bytes: int = 0, shown: bool = True
) -> Any:
    """Open a `tqdm` bar. `total_bytes` is None if it is not known.

    If stderr is not a terminal, the bar is updated at most every 30 s. If stderr is closed, the bar
    is not shown.
    """
    from tqdm import tqdm

    return tqdm(
        total=total_bytes,
        initial=done_bytes,
        unit="B",
        unit_scale=True,
        disable=not shown or sys.stderr is None,
        mininterval=0.2 if is_terminal(sys.stderr) else 30.0,
        desc=label,
        dynamic_ncols=True,
    )


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal. It may be None, closed, or an object without `isatty`."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return stream is not None and stream.isatty()
    return False
