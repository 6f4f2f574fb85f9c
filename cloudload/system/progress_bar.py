"""A progress bar on stderr that counts bytes."""

from __future__ import annotations

import sys
from typing import Any


def open_progress_bar(
    label: str, total_bytes: int | None, *, done_bytes: int = 0, shown: bool = True
) -> Any:
    """Open a `tqdm` bar. `total_bytes` is None if it is not known.

    If stderr is not a terminal, the bar is updated at most every 30 s.
    """
    from tqdm import tqdm

    return tqdm(
        total=total_bytes,
        initial=done_bytes,
        unit="B",
        unit_scale=True,
        disable=not shown,
        mininterval=0.2 if sys.stderr.isatty() else 30.0,
        desc=label,
        dynamic_ncols=True,
    )
