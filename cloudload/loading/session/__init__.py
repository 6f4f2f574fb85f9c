"""The parts of a loader, which open its run, prepare plans, read batches and save states.

    options ─► opening ─► current_run ─► preparation ─► reader ─► passes over batches
                            ▲    │
                      load ─┘    └─► save
                           saving

    opening      options to a run                    reader  batches, one iteration at a time
    current_run  its recipe, progress, membership    saving  current run to state, and back
    preparation  the plan of an iteration

Only the loader and `forecast` import these modules.
"""
