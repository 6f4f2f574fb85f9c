"""Pack documents into rows. Arrays in, arrays out: no text, no files, no ranks.

    document table, IDs ─► a lane packer ─► pieces, cursors, residues ─► fill_rows ─► tokens, spans
                               │
              packing          reference (`packers`, `PackerLanes`)     vectorized twin
              concat           one lane, document by document           `ConcatLanes`
              best_fit         "                                        `BestFitLanes`
              one_per_row      "                                        (the reference is used)

    tail    the tokens left in all lanes at the end of a finite run, packed as one lane

`tables` names the columns of every table. The reference is the specification. Tests compare the
twins' rows, cursors, residues and counts with it. `packing` imports only `cloudload.arrays` from
outside. Other packages use `Packing`, `lane_packer`, the three kinds of `LaneRows`, `rows`,
`residue`, `tail` and `tables`.
"""
