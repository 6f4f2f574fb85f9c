"""One reader for each kind of input: implementations of `InputUnit` and `InputBlock`.

    file ─► InputUnit ─► InputBlock, InputBlock, … ─► records ─► samples

    lines          JSON lines, or a document per line   parquet       Parquet
    json           `.json`: an array or JSON lines      arrow         Arrow IPC and Feather
    json_elements  find an array's elements             arrow_block   rows of an Arrow table
    json_objects   parse objects                        local_copies  files that readers seek in
    csv            CSV and TSV                          mds           shards of an MDS dataset
    csv_records    find the ends of records             webdataset    WebDataset's tar archives
    typed_text     values of text-only formats          tar_members   the files of an archive
    text           whole files                          wet           text of Common Crawl
    rows           `datasets` objects, iterables

`convert.inputs` chooses the reader of each file.
"""
