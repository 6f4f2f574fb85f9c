"""The order in which documents are read: integers in, integers out.

    shards ─► sampling           the samples of an epoch, if streams have `repeat` or `choose`
                 │
      streaming_shuffles         StreamingDataset's shuffles, bit for bit
      seekable ◄─ bijection      our own shuffle, with random access to any position
               ◄─ spans          the parts of shards that its canonical nodes read
                 │
             canonical           one order per epoch ─► epoch_orders   cached on disk
                 │
      layout, lanes              position ─► lane and ordinal; row ─► lane, rank, worker
      mixture ◄─ mixture_step    row ─► stream

Other packages use `OrderConfig` and `Sampling` (`spec`), `EpochOrders`, `SeekableOrder`,
`positions_of`, `Lanes`, `rank_rows`, `worker_of_rows`, `Layout`, `resolve_layout`, `Mixture` and
`build_mixture`. Only `epoch_orders` touches the disk or starts a process. Orders, layouts and
mixtures do not depend on the world size.
"""
