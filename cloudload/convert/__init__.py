"""Convert raw corpora to MDS, with the same bytes for any number of processes and interruptions.

    inputs ──► segments ──► units ──► blocks ──► samples ──► shards ──► index.json
    files,     by size,     readers   in order   encoded     cut in     written last, so a partial
    globs, …   in a plan                                     order,     dataset is never readable
                                                             listed in a journal
               └──────── each by one process, anywhere ────────────┘

    convert   the public function              config, columns   options that change the output
    segments, plan, planning   what each       inputs, input_files, records, readers
        worker converts                        segment, shards   encode, cut, store
    run       one segment, or those of a plan  journal, work, claims, report   resume, counts
    rejects   bad records that are left out    output, hidden    where datasets are
    finish, joined_shards, append   join       outline           what a conversion would do
    listing   a table of the inputs            saved_datasets, mds_datasets   folders that are
    split_by_hash   documents to splits            one dataset

Other packages use `convert_to_mds`, `report.ConvertReport` and `outline`. Everything else is
internal.
"""

from __future__ import annotations

from cloudload.convert.convert import convert_to_mds as convert_to_mds
