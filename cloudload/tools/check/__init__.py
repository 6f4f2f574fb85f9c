"""Check a dataset as cloudload and Streaming would read it, and list the problems of both.

    index.json ─ index ─► shards ─ objects ─► their files ─ shards ─► hashes, offsets, values
                  │                 │                        │
                  └─────────────────┴────────────────────────┴─► findings ─► CheckReport

    check    `check_dataset`                   findings          a finding, and the report
    groups   shards in groups, on any engine   streaming_format  what Streaming accepts
    index    `index.json`, entry by entry      documents         test and hash documents
    objects  the files in the folder           document_rules    choose the tests
    shards   a shard's bytes and samples       duplicates        repeated documents
    rules    every kind of finding             mojibake          text in a wrong encoding
    lengths  token lengths of the dataset

Streaming is not imported: `streaming_format` and `rules` state what it does, and tests compare both
with Streaming itself.
"""

from __future__ import annotations

from cloudload.tools.check.check import check_dataset as check_dataset
