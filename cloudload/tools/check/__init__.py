"""Check a dataset as cloudload and Streaming would read it, and list the problems of both.

    index.json ─ index ─► shards ─ objects ─► their files ─ shards ─► hashes, offsets, values
                  │                 │                        │
                  └─────────────────┴────────────────────────┴─► findings ─► CheckReport

    check           `check_dataset`
    groups          shards in groups, on any engine; repeated documents
    index_entries   `index.json`, entry by entry
    stored_objects  the files in the folder, and their lengths
    shard_contents  a shard's bytes and samples
    rules           every kind of finding
    findings        a finding, and the report
    document_rules  choose the tests of documents
    chat_rules      test conversations

Streaming is not imported: `index_entries` and `rules` state what it does, and tests compare both
with Streaming itself.
"""

from __future__ import annotations

from cloudload.tools.check.check import check_dataset as check_dataset
