"""The program's main script, which a child process imports first unless it is forked.

spawn, forkserver ─► new interpreter ─► imports the script ─► receives its work

The script must therefore be a file, and must not start processes when it is imported.
"""

from __future__ import annotations

import os
import sys

GUARD_ADVICE = (
    "A worker that is not forked first imports the program's main script, and that import may have "
    "failed (see stderr). In the script, put the code that starts the work under `if __name__ == "
    "'__main__':`"
)
"""The advice in an error about a worker that ended before it received its work."""


def find_missing_script() -> str | None:
    """Return the main script's name, such as `<stdin>`, if other processes cannot import it.

    If they can, return None.
    """
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    is_importable = path is None or main.__spec__ is not None or os.path.exists(path)
    return None if is_importable else path
