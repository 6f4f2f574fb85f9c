"""Conversations to text, with the characters that are trained. No tokens, no files after loading.

    Chat, tokenizer ─► load_template ─► ChatTemplate     plain data, one for the whole run
                                            │
    each worker, a sample ─► Renderer.render ─► Text     with `trained` and `literal` ranges

    chat_template  `ChatTemplate`, from files           renderer      `load_template`, `Renderer`
    conversation   a sample's columns to messages       sandbox       run a template
    literals       names of tokens that users wrote     seams         strings between messages
    turn_ranges    where turns begin and end            tool_calls    arguments of tool calls
    split_names    names that users could complete

Only `Text` leaves here. What its ranges mean in tokens is up to `tokenization`.
"""
