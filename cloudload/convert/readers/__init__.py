"""A reader for each kind of input: `lines` (JSON lines, or a document a line), `parquet`, `text`
(whole files), and `rows` (of any iterable). Each has a unit and a block, as `records` defines them.
"""
