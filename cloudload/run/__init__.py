"""What a run is, and where it stands: all that its rows follow from, and a position in them.

    RowsConfig, tokenizer, data ─► Recipe          layout, components, mixture: settled, immutable
                                     │
                                  Position         rows delivered, a cursor for every lane
                                     │
             build_state ◄───────────┴───────────► read_state, resume_position
             one flat dict of JSON types           checks every field, then moves the position

`components` says what is read in an order of its own, `recipe` joins them, `position` and `state`
hold where a run is, `state_codec` turns arrays into text, `resume` decides what may change.
Other packages use `open_recipe`, `Recipe`, `Component`, `Position`, `LaneArrays`, `build_state`,
`read_state`, `merge_state_dicts`, `mask_lanes` and `resume_position`.
"""
