"""Pack documents into rows. Arrays in, arrays out: no text, no files, no ranks.

    document table, IDs ─► a lane packer ─► pieces, cursors, residues ─► fill_rows ─► tokens, spans
                               │
              packing          reference (`packers`)                    vectorized twin
              concat           one lane, document by document           `ConcatLanes`
              one_per_row      "                                        `ConcatLanes`
              best_fit         "                                        `BestFitLanes`

    tables          columns of all tables         best_fit_lane  its sequential part
    packers         reference packers, one lane   residue        spans not yet emitted, as bytes
    lane_packer     packers of a worker's lanes   fill           pieces to tokens and spans
    concat_lanes    vectorized, two packings      tail           the end of a finite run
    best_fit_lanes  vectorized `best_fit`

The reference packers are the specification. Tests compare the rows, cursors, residues and counts of
the vectorized twins with theirs. From outside, `packing` imports only `cloudload.system.arrays` and
`cloudload.stats`.
"""
