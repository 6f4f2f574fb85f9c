"""Convert raw corpora to MDS, with the same bytes for any number of processes and interruptions.

    inputs ──► segments ──► units ──► blocks ──► samples ──► shards ──► index.json
    files,     by size,     readers   in order   encoded     cut in     written last, so a partial
    globs, …   in a plan                                     order,     dataset is never readable
                                                             listed in a journal
               └──────── each by one process, anywhere ────────────┘

    convert          `convert_to_mds`                run                run one or all segments
    config           options a rerun must keep       segment            units to stored shards
    inputs           list the units of all inputs    sample_encoding    records to samples, rejects
    input_files      read and decompress files       values             columns and their values
    found_files      the files of one input          shard_files        samples to shards
    input_records    units, blocks, records          segment_journal    finished shards, to resume
    readers          a reader per kind of input      journal            what is at the output
    conversion_plan  the plan that workers share     joined_segments    notes to index entries
    planning         options, plan, files: Planned   finish             lengths, report, index
    rerun_check      what a rerun must match         conversion_report  counts and the report
    dry_run          what would be converted         rebuild            shards that are missing
    index_files      an index of raw files           line_index         count and cut JSON Lines
    listed_files     the files of a list             hub_dataset        files on the Hub
    prepare          list inputs, plan a dataset     partition_files    files by their partition
    partitions       a dataset for each partition    output_location    locations of the output
    indexed_shards   the shards of an index, to copy     line_journal   lines counted, to resume

Other packages use only `convert_to_mds`, `ConvertReport`, `outline_conversion` and `index_files`.
"""

from __future__ import annotations

from cloudload.tools.convert.convert import convert_to_mds as convert_to_mds
