"""Files, threads, and processes on one machine. Nothing here knows about data or object stores.

    files      temp_files ◄── file_locks        verified_files
               partial files and their cleanup  "unmodified since verified", kept in the mtime
    threads    daemon_threads                   a pool that never delays interpreter exit
    processes  parent_watch ◄── background_process      memory   shared_memory    open_files
               exit with the parent    one call in a new process ring of slots    descriptor limit

Other packages may use every name without an underscore.
"""
