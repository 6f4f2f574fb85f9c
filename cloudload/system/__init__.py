"""Files, threads, and processes on one machine, independent of data and object stores.

    temp_files      partial files and locks        child_processes  start, feed, and end a process
    file_locks      locks freed if holders die     shared_memory    a ring of slots per worker
    verified_files  mark verified files            machine          memory, limits, collections
    array_files     arrays for all processes       option_help      docstrings, unknown options
    threads         that do not delay the exit     reports          JSON, tables, pictures, progress
    activity        long waits, seconds per stage  arrays           array types, integers
    terminal        text for a terminal

Other packages may use every name without an underscore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudload._door import open_door

if TYPE_CHECKING:
    from cloudload.system import (
        activity,
        array_files,
        child_processes,
        file_locks,
        machine,
        option_help,
        reports,
        temp_files,
        terminal,
        verified_files,
    )
    from cloudload.system.activity import stage, stopwatch
    from cloudload.system.arrays import (
        NEVER,
        Flags,
        Floats,
        Frame,
        Ids,
        Ints,
        Tokens,
        Words,
        count_within,
        divisors,
    )
    from cloudload.system.machine import freeze_objects, paused_collection
    from cloudload.system.reports import counted, open_progress_bar
    from cloudload.system.shared_memory import SharedMemoryRing
    from cloudload.system.terminal import escape, is_terminal
    from cloudload.system.threads import (
        DaemonThreadPool,
        Spares,
        await_unless_failed,
        map_in_order,
        settle_future,
    )
else:
    __getattr__, __dir__ = open_door(__name__)
