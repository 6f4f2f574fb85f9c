"""Files, threads, and processes on one machine, independent of data and object stores.

    temp_files        partial files and locks     stage_times         seconds per stage of work
    file_locks        locks freed if holders die  parent_watch        exit with the parent
    verified_files    mark verified files         background_process  a call in a new process
    array_files       arrays for all processes    main_script         the main script, for spawn
    open_files        the limit on open files     shared_memory       a ring of slots per worker
    daemon_threads    don't delay the exit        memory              this machine's memory
    ordered_results   results in task order       progress_bar        a progress bar on stderr
    activity          report a long wait          network_folders     network file systems
    garbage           pause garbage collection    pipes               send through a pipe
    package_versions  of installed packages     spares              objects for one caller at a time
    arrays            array types, integers     option_docs         docstrings of options
    json_text         reports as JSON           option_names        advice on unknown arguments
    html_tables       tables for notebooks      text_tables         tables for a terminal

Other packages may use every name without an underscore.
"""
