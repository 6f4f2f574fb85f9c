"""The order in which documents are read: integers in, integers out.

    shards ─► sampling           reads of an epoch, where streams have `repeat` or `choose`
                 │
      streaming_shuffles         StreamingDataset's shuffles, bit for bit
      seekable ◄─ bijection      our own: any position without building the rest
                 │
             canonical           one order per epoch ─► epoch_orders   built once per node, on disk
                 │
      layout, lanes              position ─► lane and ordinal; row ─► lane, rank, worker
      mixture ◄─ mixture_step    row ─► stream

Other packages use `OrderConfig` and `Sampling` (`spec`), `EpochOrders`, `Lanes`, `rank_rows`,
`worker_of_rows`, `Layout`, `resolve_layout`, `Mixture` and `build_mixture`. `epoch_orders` alone
may touch a disk or start a process. No module here depends on the world size.
"""
