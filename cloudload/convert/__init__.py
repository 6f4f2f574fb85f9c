"""Convert raw corpora to MDS, with the same bytes for any number of processes and interruptions.

    inputs ──► segments ──► units ──► blocks ──► samples ──► shards ──► index.json
    files,     by size,     readers   in order   encoded     cut in     written last, so a partial
    globs, …   in a plan                                     order,     dataset is never readable
                                                             listed in a journal
               └──────── each by one process, anywhere ────────────┘

    convert         `convert_to_mds`                   run              run one or all segments
    config          options a rerun must keep          segment          units to stored shards
    columns         columns and their encodings        samples          records to MDS samples
    inputs          list the units of all inputs       shards           samples to shards
    input_files     read and decompress files          stored_shards    store and list a shard
    chunk_reader    bytes as a file                    split_by_hash    documents to splits
    listing         inputs by format, as a table       rejects          bad records left out
    mds_datasets    inputs that are MDS                journal          finished shards, to resume
    saved_datasets  inputs of `datasets`               work             the part already finished
    found_files     the files of one input             joined_shards    all shards, in few bytes
    changed_files   changes since an earlier run       finish           segments to index and report
    records         units, blocks, records             append           plan an append
    readers         a reader per kind of input         lengths          write token lengths
    segments        cut the inputs by size             output           locations of the output
    plan            the plan that workers share        hidden_datasets  refuse to hide a dataset
    planning        make a plan, or use a stored one   report           counts and the report
    claims          what a rerun must match            outline          forecast a conversion
    separation      outputs that are not inputs

Other packages use only `convert_to_mds`, `ConvertReport` and `outline`.
"""

from __future__ import annotations

from cloudload.convert.convert import convert_to_mds as convert_to_mds
