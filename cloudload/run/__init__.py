"""The recipe of a run, which determines its rows, and the position that the run has reached.

    RowsConfig, tokenizer, data ─► Recipe          layout, components, mixture: immutable
                                     │
                                  Position         rows delivered, a cursor for every lane
                                     │
             build_state ◄───────────┴───────────► read_state, resume_position
             one flat dict of JSON types           check every field, return where to continue

    recipe           all that determines the rows    local_states     merge the states of ranks
    components       streams that share an order     not_a_state      explain a wrong value
    sources          where data and tokenizer are    resume           where to continue
    position         rows delivered, cursors         changes          what may change on resume
    position_checks  refuse impossible positions     appended         the data before an append
    run_tail         pack the run's tail             same_data        recognize rewritten data
    state            position and recipe as a dict   framing          keep the saved bos and eos
    state_codec      arrays of a state as text       streaming_state  a StreamingDataset's state
    lane_texts       lanes of a state as text        lengths          positions from token lengths
    streaming        Streaming's arguments

A recipe does not depend on the world size.
"""
