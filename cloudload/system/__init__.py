"""Files, threads, and processes on one machine, independent of data and object stores.

    temp_files       partial files and locks      stage_times         seconds per stage of work
    file_locks       locks released at a death    parent_watch        exit with the parent
    verified_files   marks of verified files      background_process  a call in a new process
    array_files      arrays mapped by processes   main_script         the script, for spawn
    open_files       the limit on open files      shared_memory       a ring of slots per worker
    daemon_threads   threads that delay no exit   memory              this machine's memory
    ordered_results  results in task order        progress_bar        a bar of bytes on stderr
    activity         report a long wait           network_folders     network file systems
    garbage          pause garbage collection

Other packages may use every name without an underscore.
"""
