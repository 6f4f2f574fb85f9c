"""The parts of a loader, which open its run, prepare plans, read batches and save states.

    options ─► opening ─► current_run ─► preparation ─► reader ─► passes over batches
                            ▲    │         ▲    ▲
                      load ─┘    └─► save  │    └── learning
                           saving       membership

    opening      options to a run                   saving        current run to state, and back
    current_run  its recipe and progress            learning      lengths for later runs
    preparation  the plan of an iteration           membership    the rank in its world
    reader       batches, one iteration at a time   batch_counts  the length of a pass

Only the loader and `forecast` import these modules.
"""
