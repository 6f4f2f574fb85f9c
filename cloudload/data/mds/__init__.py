"""The MDS format: shards that hold samples, and an index that lists them.

    index.json    {"version": 2, "shards": [entry of each shard, …]}
    shard         uint32 count │ uint32 offsets[count + 1] │ JSON header │ samples
                  stored as it is, compressed, or virtual: a part of another file
    sample        uint32 size of each variable-sized column │ the columns' bytes, by column name

    open_index        open the index of a dataset       download       fetch and check a shard
    shard_entries     check entries of the index        codecs         compression of shards
    shard_table       the shards as columns             hashes         hashes in an index
    dataset           a dataset, and a corpus           fingerprints   compare datasets on resume
    shard             read samples                      writer         samples to a shard's bytes
    shard_start       a shard's first samples           own_objects    names of our objects
    document_columns  columns of texts and token IDs    wrong_input    explain a wrong location
    synthetic         datasets of random token IDs      record_values  values of samples
    file_selection    the data files of a folder        footers        footers of Parquet files
    virtual_index     files as virtual shards           row_groups     row groups to samples
    arrow_samples     rows of Arrow tables to samples   array_values   values that are arrays
    virtual_shards    write a virtual shard raw         encoded_rows   encoded rows of a file
    json_lines        lines to samples                  json_records   JSON records in lines
    folder_globs      folders that a glob selects       file_records   the index of files as JSON

The format is MosaicML Streaming's (`streaming/base/format/mds`). Tests check that `writer` produces
the same bytes as its `MDSWriter`, except for a hash that it adds to the index (`hashes`). All input
is untrusted, so file names may not leave their folder, the index limits all sizes, and nothing is
unpickled. Other packages may use every name without an underscore.
"""

from __future__ import annotations

from cloudload.data.storage import urls
from cloudload.data.storage.base import Backend
from cloudload.data.storage.locations import BACKENDS


def _open_synthetic(timeout_s: float) -> Backend:
    from cloudload.data.mds.synthetic import SyntheticStore  # imports NumPy

    return SyntheticStore(timeout_s)


# here, because this store writes shards, and storage is below their format
BACKENDS[urls.SYNTHETIC] = _open_synthetic
