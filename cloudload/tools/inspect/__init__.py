"""Inspect an MDS dataset without a loader: summarize it, and read its documents.

    index.json ─────────────────────────────► info        counts, bytes, columns, codecs, hashes
         └─► the first bytes of a few shards ─► sample sizes ─┘
         └─► the first bytes, or whole shards ─► samples      the first ones, one ID, a pattern

    info  `read_info`    samples  `read_samples`

Nothing is written to the dataset or to a cache.
"""

from __future__ import annotations

from cloudload.tools.inspect.info import Bin as Bin
from cloudload.tools.inspect.info import ColumnInfo as ColumnInfo
from cloudload.tools.inspect.info import DatasetInfo as DatasetInfo
from cloudload.tools.inspect.info import Distribution as Distribution
from cloudload.tools.inspect.info import read_info as read_info
from cloudload.tools.inspect.samples import Sample as Sample
from cloudload.tools.inspect.samples import Unread as Unread
from cloudload.tools.inspect.samples import read_samples as read_samples
