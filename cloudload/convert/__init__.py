"""Convert raw corpora to MDS: the same bytes for any number of processes and interruptions.

    inputs ──► units ──► blocks ──► samples ──► shards ──► index.json
    files,     readers   in order   encoded     cut in     written last, so a partial
    globs, …                        in workers  order,     dataset is never readable
                                                stored in workers, listed in the journal

    convert   the steps above                  config, columns   options that change the output
    inputs, input_files, records, readers      shards            encode, cut, store
    saved_datasets, mds_datasets               folders that are one dataset
    journal   resume, report                   process_pool, shared_bytes   workers
    listing   a table of the inputs            split_by_hash     documents to splits

Other packages use `convert_to_mds` and `journal.ConvertReport`. Everything else is internal.
"""

from __future__ import annotations

from cloudload.convert.convert import convert_to_mds as convert_to_mds
