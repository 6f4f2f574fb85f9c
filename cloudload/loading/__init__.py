"""The loader at work: workers make blocks, ranks agree, batches leave.

    documents ─► workers ─► blocks ─► delivery ─► batches ─► loader ─► training loop
                                         ▲                      │ ▲
                                 the other ranks   state_dict() ▼ │ load_state_dict()

    loader    `CloudLoader`                  row_dataset  `Rows`: rows by index
    session   the parts of one loader        evaluation   `FromStart`: repeatable passes
    delivery  blocks to batches              batch        the tensors of a batch
    workers   documents to blocks

Its workers, ranks and batches decide who computes a row, never what the row holds.
"""
