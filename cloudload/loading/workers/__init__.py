"""Turn documents into blocks, in worker processes.

    Plan ─► worker ─► lane_reader: documents ─► packers ─► CutRows ─────► block.Pieces
                 └──► tail_reader: the end of a finite run ──────────────────┘   │
                          copies tokens into rows, once: packing.rows.fill_rows  ▼
    trainer ◄── transport.unpack_block ◄── PackedBlock, in shared memory ◄── block.Block

The types that carry rows, from documents to a batch:

    Documents       documents of lanes, and their token IDs                 packing.tables
    CutRows         rows cut from lanes, in pieces, with cursors            packing.lane_packer
    Pieces          pieces of documents, sorted by row of a block           workers.block
    Block           one worker's rows of consecutive batches                workers.block
    PackedBlock     the location of a block in shared memory                workers.transport
    Report          a rank's cursors after each of its rows                 delivery.progress
    Window, Update  the rows that an exchange covers, and its result        delivery.progress
    Batch           the tensors for the training loop                       batch

The modules:

    plan             a rank's work, and its phases   document_reader  texts or IDs of samples
    block_sources    blocks of all workers           kept_documents   a tail's documents, in memory
    processes        start and stop processes
    worker_main      what a process runs             bad_documents    errors to skip
    worker           make blocks                     prefetch         fetch shards ahead of use
    lane_reader      documents to fill rows          block            rows of several batches
    row_reader       documents of any rows           transport        blocks in shared memory
    dealt_rows       rows of an uneven world         trace            find the documents of rows
    tail_reader      the end of a finite run         length_check     check lengths first
    documents        find, fetch, tokenize           text_check       warn if it is not text
    found_documents  which samples lanes read        work_pickles     send work without fork
"""
