"""Files, threads, and processes on one machine, independent of data and object stores.

    temp_files      partial files and locks       stage_times         seconds per stage of work
    file_locks      locks freed if holders die    parent_watch        exit with the parent
    verified_files  mark verified files           background_process  a call in a new process
    array_files     arrays for all processes      child_processes     start and feed a process
    threads         that do not delay the exit    shared_memory       a ring of slots per worker
    activity        report a long wait            progress_bar        a progress bar on stderr
    garbage         pause garbage collection      option_help         docstrings, unknown options
    machine         memory, limits, versions      reports             JSON, tables to read
    arrays          array types, integers

Other packages may use every name without an underscore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudload._door import open_door

if TYPE_CHECKING:
    from cloudload.system import (
        activity,
        array_files,
        file_locks,
        machine,
        option_help,
        reports,
        temp_files,
        verified_files,
    )
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
    from cloudload.system.background_process import run_detached
    from cloudload.system.child_processes import GUARD_ADVICE, find_missing_script, send
    from cloudload.system.garbage import freeze_objects, paused_collection
    from cloudload.system.parent_watch import SIGTERM_STATUS, exit_with_parent
    from cloudload.system.progress_bar import is_terminal, open_progress_bar
    from cloudload.system.reports import counted
    from cloudload.system.shared_memory import SharedMemoryRing
    from cloudload.system.stage_times import stage, stopwatch
    from cloudload.system.threads import (
        DaemonThreadPool,
        Spares,
        await_unless_failed,
        run_in_order,
        settle_future,
    )
else:
    __getattr__, __dir__ = open_door(__name__)
