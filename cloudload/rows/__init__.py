"""Documents to rows of tokens.

    text ─► tokenization ─► token IDs ─► packing ─► rows, and the spans that they are made of

    tokenization  text to token IDs    packing  documents to rows

Nothing here depends on ranks, workers, or the order of documents.
"""
