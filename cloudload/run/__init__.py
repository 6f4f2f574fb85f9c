"""The recipe of a run, which determines its rows, and the position that the run has reached.

    RowsConfig, tokenizer, data ─► Recipe          layout, components, mixture: immutable
                                     │
                                  Position         rows delivered, a cursor for every lane
                                     │
             build_state ◄───────────┴───────────► read_state, resume_position
             one flat dict of JSON types           check every field, return where to continue

    recipe           all that determines the rows
    components       streams that share an order
    sources          where data and tokenizer are
    position         rows delivered, cursors
    run_tail         pack the run's tail
    state            position and recipe as a dict
    state_codec      arrays of a state as text
    lane_texts       lanes of a state as text
    streaming        Streaming's arguments
    local_states     merge the states of ranks
    not_a_state      explain a wrong value
    resume           where to continue, also after an append
    changes          what may change on resume
    same_data        recognize rewritten data
    streaming_state  a StreamingDataset's state
    lengths          positions from token lengths

A recipe does not depend on the world size.
"""
