"""Files, threads, and processes on one machine, independent of data and object stores.

    files      temp_files ◄── file_locks              partial files, locks, and their cleanup
               verified_files                         a mark in the mtime: the file was verified
               open_files                             the limit on open files
    threads    daemon_threads                         a pool that never delays interpreter exit
    pools      ordered_results                        results in the order of the tasks
    terminal   progress_bar                           a bar of bytes on stderr
    processes  parent_watch ◄── background_process    exit with the parent; a call in a new process
    memory     shared_memory                          a ring of slots, and short texts
    waits      activity                               a thread's activity, reported if it takes long

Other packages may use every name without an underscore.
"""
