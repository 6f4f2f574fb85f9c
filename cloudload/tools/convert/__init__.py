"""Convert raw corpora to MDS, with the same bytes for any number of processes and interruptions.

    inputs ──► segments ──► units ──► blocks ──► samples ──► shards ──► index.json
    files,     by size,     readers   in order   encoded     cut in     written last, so a partial
    globs, …   in a plan                                     order,     dataset is never readable
                                                             listed in a journal
               └──────── each by one process, anywhere ────────────┘

    convert         `convert_to_mds`               run              run one or all segments
    config          options a rerun must keep      segment          units to stored shards
    columns         columns and their encodings    samples          records to MDS samples
    inputs          list the units of all inputs   values           the values of a sample
    input_files     read and decompress files      shards           samples to shards
    chunk_reader    bytes as a file                stored_shards    store and list a shard
    listing         inputs by format, as a table   split_by_hash    documents to splits
    mds_datasets    inputs that are MDS            rejects          bad records left out
    saved_datasets  inputs of `datasets`           journal          what a rerun must match
    found_files     the files of one input         segment_journal  finished shards, to resume
    changed_files   changes since an earlier run   work             the part already finished
    joined_shards   all shards, in few bytes       converted_files  files that a dataset has
    records         units, blocks, records         finish           segments to index and report
    readers         a reader per kind of input     append           plan an append
    segments        cut the inputs by size         lengths          write token lengths
    plan            the plan that workers share    output           locations of the output
    planning        make or use a stored plan
    claims          what a rerun must match        report           counts and the report
    separation      outputs that are not inputs    outline          forecast a conversion
    partitions      fields in a file's path        rebuild          shards that are missing

Other packages use only `convert_to_mds`, `ConvertReport` and `outline`.
"""

from __future__ import annotations

from cloudload.tools.convert.convert import convert_to_mds as convert_to_mds
