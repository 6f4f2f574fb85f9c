"""Text to token ids, and the choice of the library that computes them.

    name, folder, object ─► load_tokenizer ─► TokenizerSpec     plain data, one for the whole run
                                                   │
    training process     choose_backend ◄──────────┤            hf, or fastokens if it passes
                           probes, all of Unicode  │            every check
                                                   ▼
    each worker          DocumentTokenizer ─► encoders ─► ids   a sample is compared with hf ids

Other packages use `load_tokenizer`, `TokenizerSpec`, `DocumentTokenizer`, `choose_backend` and
`Choice`. Both backends give the same ids, so the choice is not part of a state's identity.
"""
