"""Find the rows and documents of a run, given one of its states, its data, and its tokenizer.

    load_state      checkpoint ─► state
    open_run        state ─► Run ─► a loader at the state's position
    open_runs       states ─► the parts of a run whose options changed at a resume
    split_steps     steps ─► the steps of each part
    start_run       options of a loader ─► Run, at its beginning
    trace_steps     steps ─► their rows ─► spans: IDs, shards, text
    trace_documents spans of any rows ─► IDs, shards, text
    view_rows       steps ─► their rows, token by token, with the documents in them
    render_rows     rows ─► HTML page
    describe_state  state ─► the run's position, in words
    compare_states  two states ─► the differences, and their effect on a resume
    record_golden   options of a loader ─► its first rows, as a file
    compare_golden  such a file, options of a loader ─► the first row that differs, and why
    find_document   a sample ─► the lanes that read it ─► its rows ─► the steps that use them

    checkpoint      `load_state`
    state_run       `open_run`, `open_runs`, `start_run`
    describe_state  `describe_state`, `compare_states`
    find_document   `find_document`
    viewed_rows     `view_rows`, `trace_steps`, `trace_documents`
    row_page        `render_rows`
    golden          `record_golden`, `compare_golden`

Steps are global batches, counted from 1 at the start of the run. The run's world size does not
matter. To read a single lane, a query simulates a world with one rank per lane, and creates the
loader of that lane's rank.
"""
