"""A reader for each kind of input, with a unit and a block as `records` defines them.

`lines` reads JSON lines or one document per line; `parquet`, Parquet files; `text`, whole files;
and `rows`, any iterable.
"""
