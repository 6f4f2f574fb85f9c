"""Turn text into token IDs, and choose the library that encodes it.

    name, folder, object ─► load_tokenizer ─► TokenizerSpec     plain data, one for the whole run
                                                   │
    training process     choose_backend ◄──────────┤            hf, or fastokens if it passes
                           probes, code points     │            every check
                                                   ▼
    each worker          DocumentTokenizer ─► encoders ─► IDs   some are compared with hf IDs

Other packages use `load_tokenizer`, `TokenizerSpec`, `DocumentTokenizer`, `choose_backend` and
`Choice`. Both backends give the same IDs, so a state may be resumed with either one. Pre-tokenized
data needs no backend, and its `TokenizerSpec` may be without a tokenizer.
"""
