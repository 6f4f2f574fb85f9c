"""The parts of a loader, which open its run, prepare plans, read batches and save states.

    options ─► opening ─► current_run ─► preparation ─► reader ─► passes over batches
                            ▲    │
                      load ─┘    └─► save

    opening      options to a run                    preparation  the plan of an iteration
    current_run  its recipe, progress, membership    reader       batches, one iteration at a time

Only the loader and `forecast` import these modules.
"""
