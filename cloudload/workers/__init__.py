"""Turn documents into blocks, in worker processes.

    Plan ─► worker ─► lane_reader: documents ─► packers ─► CutRows ─────► block.Pieces
                 └──► tail_reader: the end of a finite run ──────────────────┘   │
                          copies tokens into rows, once: packing.rows.fill_rows  ▼
    trainer ◄── transport.unpack_block ◄── PackedBlock, in shared memory ◄── block.Block

`worker_main` runs a worker in a process that lives through all phases of a plan.

The types that carry rows, from documents to a batch:

    Documents       documents of lanes, and their token IDs                 packing.tables
    CutRows         rows cut from lanes, in pieces, with cursors            packing.lane_packer
    Pieces          pieces of documents, sorted by row of a block           workers.block
    Block           one worker's rows of consecutive batches                workers.block
    PackedBlock     the location of a block in shared memory                workers.transport
    Report          a rank's cursors after each of its rows                 delivery.progress
    Window, Update  the rows that an exchange covers, and its result        delivery.progress
    Batch           the tensors for the training loop                       batch

Other packages use `block.Block`, `plan.Plan` and its phases, `processes.process_blocks`,
`inline_blocks`, and their type `Blocks`, and `trace.Tracer` and `TracedSpan`.
"""
