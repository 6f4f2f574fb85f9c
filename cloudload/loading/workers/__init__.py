"""Turn documents into blocks, in worker processes.

    plan ─► worker ─► lane_reader: next documents of lanes ─► packers ─► CutRows ─► BlockBuilder
                 └──► piece_reader: documents of pieces of rows ───────► CutRows ───┘    │
                          copies tokens into rows, once: packing.fill.fill_rows          ▼
    trainer ◄── transport.unpack_block ◄── PackedBlock, in shared memory ◄────────── block.Block

The lane reader takes documents in order, for throughput. The piece reader reads the documents of
any rows whose pieces are known: rows of a tail, of other workers' lanes, or by index.

The types that carry rows, from documents to a batch:

    ReadDocuments   documents of lanes, and their token IDs                 packing.tables
    CutRows         rows in pieces of documents, with cursors of lanes      packing.tables
    Block           one worker's rows of consecutive batches                workers.block
    PackedBlock     the location of a block in shared memory                workers.transport
    Report          a rank's cursors after each of its rows                 delivery.progress
    Window, Update  the rows that an exchange covers, and its result        delivery.progress
    Batch           the tensors for the training loop                       batch

The modules:

    worker_plan       a rank's work, and its phases
    processes         start processes, take their blocks
    worker_main       what a process runs
    worker            make blocks
    lane_reader       documents to fill rows
    passed_documents  documents that are not selected
    piece_reader      documents of any rows
    dealt_rows        rows of other lanes, balance
    held_documents    documents in memory
    hooked_rows       rows that `row_hook` changed
    tail_reader       the end of a finite run
    documents         find, fetch, read
    token_reader      tokens of samples
    document_reader   texts or IDs of samples
    bad_documents     errors to skip, texts to warn of
    prefetch          fetch shards ahead of use
    block             rows of several batches
    transport         blocks in shared memory
    trace             find the documents of rows
"""
