"""Count the tokens of each sample of a dataset once. A count that is stopped can be resumed.

    index ─► groups of shards ─► units on any engine: read, tokenize, write 00000-….lengths
                              ─► all files exist: index-….json, and a report

    count       `count_tokens`: the steps above     length_report  totals, percentiles, by value
    group       one group: a unit of work           estimate       from a sample of the documents
    new_shards  count shards as they are written

Every file is a pure function of the data, the tokenizer and the transform, so units may run in any
order, more than once, or concurrently.
"""

from __future__ import annotations

from cloudload.tools.count.count import count_tokens as count_tokens
