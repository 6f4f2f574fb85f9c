"""Files, threads and processes of one machine. Nothing here knows about data or object stores.

    files      temp_files ◄── file_locks        verified_files
               partial files, swept if killed   "unmodified since it was verified", kept in mtime
    threads    daemon_threads                   a pool that never delays the interpreter's exit
    processes  parent_watch ◄── background_process      memory   shared_memory    open_files
               exit with the parent    run one call apart        ring of slots    descriptor limit

Everything without an underscore may be used from any other package.
"""
