"""The recipe of a run, which determines its rows, and the position that the run has reached.

    RowsConfig, tokenizer, data ─► Recipe          layout, components, mixture: immutable
                                     │
                                  Position         rows delivered, a cursor for every lane
                                     │
             build_state ◄───────────┴───────────► read_state, resume_position
             one flat dict of JSON types           checks every field, then moves the position

`components` groups the streams that share an order, and `recipe` combines the groups. `position`
holds the progress of a run. `state` turns it into a dict and back, with arrays encoded by
`state_codec`, and `local_states` merges those of ranks. `changes` decides which changes are allowed
on resume, `resume` moves the position, and `appended` finds the data with which a run began.

Other packages use `open_recipe`, `Recipe`, `Component`, `Position`, `LaneLog`, `LaneArrays`,
`State`, `Saved`, `build_state`, `read_state`, `merge_state_dicts`, `mask_lanes`, `resume_position`
and `HELD_CONFIG_FIELDS`.
"""
