"""Turn text into token IDs, and choose the library that encodes it.

    name, folder, object ─► load_tokenizer ─► TokenizerSpec     plain data, one for the whole run
                                                   │
    training process     choose_backend ◄──────────┤            hf, or fastokens if it passes
                           probes, code points     │            every check
                                                   ▼
    each worker          DocumentTokenizer ─► encoders ─► IDs   a sample is compared with hf

    tokenizer        `load_tokenizer`, by name or folder
    loading          parse a tokenizer.json, once
    framing          bos and eos
    encoders         `DocumentTokenizer`, in either backend
    marked_texts     which tokens are trained
    backend          choose hf or fastokens
    probes           strings to compare both on
    other_libraries  tokenizers of tiktoken and SentencePiece

Both backends produce the same IDs, so a run can resume with either one. Pre-tokenized data needs no
backend, so its `TokenizerSpec` may have no tokenizer.
"""
