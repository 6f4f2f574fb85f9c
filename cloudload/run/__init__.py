"""The definition of a run, which determines its rows, and a position in those rows.

    RowsConfig, tokenizer, data ─► Recipe          layout, components, mixture: settled, immutable
                                     │
                                  Position         rows delivered, a cursor for every lane
                                     │
             build_state ◄───────────┴───────────► read_state, resume_position
             one flat dict of JSON types           checks every field, then moves the position

`components` are groups of streams that share an order, and `recipe` joins them. `position` and
`state` hold the point that a run has reached, `state_codec` encodes arrays as text, and `resume`
decides which changes are allowed.

Other packages use `open_recipe`, `Recipe`, `Component`, `Position`, `LaneArrays`, `build_state`,
`read_state`, `merge_state_dicts`, `mask_lanes` and `resume_position`.
"""
