"""The parts of a loader, which open its run, prepare plans, read batches and save states.

    options ─► current_run ─► preparation ─► reader ─► passes over batches
                 ▲    │
           load ─┘    └─► save

    current_run  a run and its progress    preparation  the plan of an iteration
    reader       an iteration at a time

Only the loader and `forecast` import these modules.
"""
