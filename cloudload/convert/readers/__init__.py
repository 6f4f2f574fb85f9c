"""One reader for each kind of input: implementations of `InputUnit` and `InputBlock`.

lines     files of JSON lines, or of one document per line
parquet   Parquet files
text      whole files, one document each
rows      `datasets` objects and other iterables
"""
