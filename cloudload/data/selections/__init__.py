"""Selections: which samples of a dataset a run reads, one bit for each.

    select="good"            <dataset>/selections/good/ ─► groups of bits, verified ─┐
    select="keep.parquet"    (shard, index) of samples to read ──────────────────────┼─► one file
    drop="removed.csv"       (shard, index) of samples to leave out ─────────────────┘   of bits

    bits      the bits of a dataset, and of a corpus     files    a compiled selection, stored
    listed    files of (shard, index)                    opening  the selection of a stream

A sample that is not selected keeps its place in the order. It is only not read.
"""

from __future__ import annotations

from cloudload.data.selections import files as files
from cloudload.data.selections import listed as listed
from cloudload.data.selections.bits import CorpusSelection as CorpusSelection
from cloudload.data.selections.bits import Selection as Selection
from cloudload.data.selections.opening import open_selection as open_selection
