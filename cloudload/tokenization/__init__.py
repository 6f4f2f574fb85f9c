"""Turn text into token IDs, and choose the library that encodes it.

    name, folder, object ─► load_tokenizer ─► TokenizerSpec     plain data, one for the whole run
                                                   │
    training process     choose_backend ◄──────────┤            hf, or fastokens if it passes
                           probes, code points     │            every check, which may run later
                                                   ▼
    each worker          DocumentTokenizer ─► encoders ─► IDs   some are compared with hf IDs

    tokenizer   `load_tokenizer`, `DocumentTokenizer`   backend      choose hf or fastokens
    hub         tokenizers by name                      features     what fastokens may get wrong
    loading     parse a tokenizer.json, once            probes       strings to compare both on
    framing     bos and eos                             deferral     compare while the loader reads
    kept_files  results saved in the cache              comparing    the process that compares
    encoders    texts to IDs, in either backend         token_texts  the text of single tokens

Both backends give the same IDs, so a state may be resumed with either one. Pre-tokenized data needs
no backend, and its `TokenizerSpec` may be without a tokenizer.
"""
