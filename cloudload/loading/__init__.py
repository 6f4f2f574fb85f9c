"""The loader at work: workers make blocks, ranks agree, batches leave.

    documents ─► workers ─► blocks ─► delivery ─► batches ─► loader ─► training loop
                                         ▲                      │ ▲
                                 the other ranks   state_dict() ▼ │ load_state_dict()

    options ─► current_run ─► preparation ─► reader ─► passes over batches

    loader       `CloudLoader`               row_dataset  `Rows`: rows by index
    current_run  a run and its progress      evaluation   `FromStart`: repeatable passes
    preparation  the plan of an iteration    batch        the tensors of a batch
    reader       one iteration at a time     workers      documents to blocks
    passes       passes over the loader      document_dataset  `Documents`: samples by index
    delivery     blocks to batches           selected_order    the selected ones of an epoch

Its workers, ranks and batches decide who computes a row, never what the row holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudload._door import open_door

if TYPE_CHECKING:
    from cloudload.loading.batch import Batch
    from cloudload.loading.delivery.bottleneck import find_bottleneck
    from cloudload.loading.delivery.exchange import Exchange
    from cloudload.loading.delivery.working_set import (
        add_downloads,
        count_downloads,
        join_overlaps,
        measure_working_set,
        sum_in_use,
    )
    from cloudload.loading.delivery.world import (
        Environment,
        LoneEnvironment,
        check_world,
        count_cores,
        use_environment,
    )
    from cloudload.loading.evaluation import FromStart
    from cloudload.loading.loader import CloudLoader
    from cloudload.loading.preparation import take_share
    from cloudload.loading.workers.block import limit_batches, limit_blocks_ahead
    from cloudload.loading.workers.document_reader import DocumentReader, OneShard, ShardSource
    from cloudload.loading.workers.lane_reader import MOST_EAGERNESS
    from cloudload.loading.workers.prefetch import count_documents_ahead
    from cloudload.loading.workers.token_reader import TokenReader
    from cloudload.loading.workers.trace import TracedSpan, WholeDocument
else:
    __getattr__, __dir__ = open_door(__name__)
