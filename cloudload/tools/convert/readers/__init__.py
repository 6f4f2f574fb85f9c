"""One reader for each kind of input: implementations of `InputUnit` and `InputBlock`.

    file ─► InputUnit ─► InputBlock, InputBlock, … ─► records ─► samples

    lines       JSON lines, or a document per line    parquet      Parquet
    json        `.json`: an array or JSON lines       arrow        Arrow IPC and Feather
    csv         CSV and TSV                           arrow_block  rows of an Arrow table
    text        whole files                           mds          shards of an MDS dataset
    plain_rows  `datasets` objects, iterables         webdataset   WebDataset's tar archives
    wet         text of Common Crawl

`convert.inputs` chooses the reader of each file.
"""
