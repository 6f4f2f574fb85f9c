"""Documents to blocks, in worker processes.

    Plan ─► worker ─► lane_reader ─► documents ─► packing ─► CutRows ─► block.Pieces ─► Block
                 └──► tail_reader (the end of a finite run) ──────────────────┘           │
    trainer ◄── transport.unpack_block ◄── PackedBlock through shared memory ◄────────────┘

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
