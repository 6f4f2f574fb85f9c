"""Inspect an MDS dataset without a loader: summarize it, and read its documents.

    index.json ─────────────────────────────► info        counts, bytes, columns, codecs, hashes
         └─► the first bytes of a few shards ─► sample sizes ─┘
         └─► the first bytes, or whole shards ─► samples      the first ones, one ID, a pattern
                                                    └─► documents of a run, trained parts marked

    info               `read_info`               samples      `read_samples`
    turns              show messages by role     masked_text  show what is trained
    trained_documents  read as a run does        token_texts  the text of each token

Nothing is written to the dataset or to a cache.
"""
