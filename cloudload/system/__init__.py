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
