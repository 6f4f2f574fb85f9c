"""The order in which documents are read: integers in, integers out.

    shards ─► samples of an epoch ─► shuffled ─► one order per epoch     canonical order
              position ─► lane and ordinal                               lanes
              row ─► lane, rank, worker; in a mixture, row ─► stream

    epoch_order         one epoch's order, sampled    lanes           the layout; position to lane
    streaming_shuffles  Streaming's, bit for bit      ranks           row to rank, and to worker
    seekable            our shuffle, by position      mixture         row to stream, and back
    bijection           keyed permutation             mixture_counts  rows per lane and stream
    order_cache         orders cached on disk         balance         rows among ranks, by work

Only `order_cache` touches the disk or starts a process. Orders, layouts and mixtures do not depend
on the world size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudload._door import open_door

if TYPE_CHECKING:
    from cloudload.order import bijection, mixture_counts
    from cloudload.order.epoch_order import OrderConfig, Sampling, positions_of
    from cloudload.order.lanes import Lanes, Layout, resolve_layout
    from cloudload.order.mixture import Mixture, Weights, build_mixture, merge_entries
    from cloudload.order.order_cache import KNOWN_VERSIONS, EpochOrders, identify_order
    from cloudload.order.ranks import RankShare, StepShape, World, index_in_group, share_rows
    from cloudload.order.seekable import SeekableOrder
    from cloudload.order.streaming_shuffles import default_block_size
else:
    __getattr__, __dir__ = open_door(__name__)
