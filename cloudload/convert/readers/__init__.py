"""One reader for each kind of input: implementations of `InputUnit` and `InputBlock`.

`lines` reads JSON lines or one document per line; `parquet`, Parquet files; `text`, whole files;
and `rows`, any iterable.
"""
