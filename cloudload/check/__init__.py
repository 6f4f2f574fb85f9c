"""Check a dataset as cloudload and Streaming would read it, and list problems for either one.

    index.json ─ index ─► shards ─ objects ─► their files ─ shards ─► hashes, offsets, values
                  │                 │                        │
                  └─────────────────┴────────────────────────┴─► findings ─► CheckReport

    check      the steps above                       rules               every kind of finding
    findings   a finding, and the report             streaming_format    what Streaming accepts

Streaming is not imported: `streaming_format` and `rules` state what it does, and tests compare both
with Streaming itself. Other packages use `check_dataset`, `findings` and `rules`.
"""

from __future__ import annotations

from cloudload.check.check import check_dataset as check_dataset
