"""Compile a selection of a dataset's documents once. A compilation that is stopped can be resumed.

    rule, index ─► groups of shards ─► units on any engine: evaluate, write 00000-….bits
                                   ─► all files exist: selection.json, and a report

    select      `select_documents`: the steps above     rule        what selects a document
    expression  conditions on columns                   report      documents, bytes, tokens

Every file is a pure function of the rule and the data, so units may run in any order, more than
once, or concurrently.
"""

from __future__ import annotations

from cloudload.tools.select.select import select_documents as select_documents
