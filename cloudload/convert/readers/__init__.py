"""One reader for each kind of input: implementations of `InputUnit` and `InputBlock`.

    file ─► InputUnit ─► InputBlock, InputBlock, … ─► records ─► samples

    lines          JSON lines, or a document per line   parquet      Parquet
    json           `.json`: an array or JSON lines      arrow        Arrow IPC and Feather
    json_elements  find an array's elements             arrow_block  rows of an Arrow table
    json_objects   parse objects                        mds          shards of an MDS dataset
    csv            CSV and TSV                          webdataset   WebDataset's tar archives
    csv_records    find the ends of records             tar_members  the files of an archive
    typed_text     values of text-only formats          rows         `datasets` objects, iterables
    text           whole files                          local_copies files that must be seekable

`convert.inputs` chooses the reader of each file.
"""
