"""Documents to blocks, in worker processes.

    Plan ─► worker ─► lane_reader: documents in, a packer, CutRows out ─► block.Pieces
                 └──► tail_reader: the end of a finite run ──────────────────┘   │
                          copies tokens into rows, once: packing.rows.fill_rows  ▼
    trainer ◄── transport.unpack_block ◄── PackedBlock, in shared memory ◄── block.Block

The types that carry rows, from documents to a batch:

    Documents       documents of lanes, and their ids                       packing.tables
    CutRows         rows cut from lanes, in pieces, with cursors            packing.lane_packer
    Pieces          pieces by row of a block                                workers.block
    Block           a worker's rows of some batches                         workers.block
    PackedBlock     where a block is in shared memory                       workers.transport
    Report          a rank's cursors after its rows                         delivery.progress
    Window, Update  the rows that an exchange covers, and its result        delivery.progress
    Batch           the tensors                                             batch

Other packages use `processes.process_blocks` and `inline_blocks`, `plan.Plan`, and `trace.Tracer`.
"""
