"""Convert raw corpora to MDS, with the same bytes for any number of processes and interruptions.

    inputs ──► segments ──► units ──► blocks ──► samples ──► shards ──► index.json
    files,     by size,     readers   in order   encoded     cut in     written last, so a partial
    globs, …   in a plan                                     order,     dataset is never readable
                                                             listed in a journal
               └──────── each by one process, anywhere ────────────┘

    convert          `convert_to_mds`                run                run one or all segments
    config           options a rerun must keep       segment            units to stored shards
    columns          columns and their encodings     sample_encoding    records to MDS samples
    inputs           list the units of all inputs    values             the values of a sample
    input_files      read and decompress files       shard_files        samples to shards
    chunk_reader     bytes as a file                 rejects            bad records left out
    dry_run          what would be converted         journal            what a rerun must match
    found_files      the files of one input          segment_journal    finished shards, to resume
    joined_shards    all shards, in few bytes        finished_part      the part already finished
    input_records    units, blocks, records          converted_files    files that a dataset has
    readers          a reader per kind of input      finish             segments to index and report
    segment_sizes    cut the inputs by size          append             plan an append
    conversion_plan  the plan that workers share     output_location    locations of the output
    planning         make or use a stored plan       conversion_report  counts and the report
    rerun_check      refuse another conversion       rebuild            shards that are missing
    separation       outputs that are not inputs

Other packages use only `convert_to_mds`, `ConvertReport` and `outline_conversion`.
"""

from __future__ import annotations

from cloudload.tools.convert.convert import convert_to_mds as convert_to_mds
