"""Turn text into token IDs, and choose the library that encodes it.

    name, folder, object ─► load_tokenizer ─► TokenizerSpec     plain data, one for the whole run
                                                   │
    training process     choose_backend ◄──────────┤            hf, or fastokens if it passes
                           probes, code points     │            every check
                                                   ▼
    each worker          DocumentTokenizer ─► encoders ─► IDs   a sample is compared with hf

    tokenizer   `load_tokenizer`                        backend      choose hf or fastokens
    document_tokenizer   `DocumentTokenizer`            features     what fastokens may get wrong
    hub         tokenizers by name
    loading     parse a tokenizer.json, once            probes       strings to compare both on
    framing     bos and eos                             known        tokenizers known to pass
    encoders    texts to IDs, in either backend         token_texts  the text of single tokens

Both backends produce the same IDs, so a run can resume with either one. Pre-tokenized data needs no
backend, so its `TokenizerSpec` may have no tokenizer.
"""
