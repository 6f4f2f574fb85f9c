"""Inspect an MDS dataset without a loader; see `cloudload.tools.inspect`."""

from __future__ import annotations

from cloudload.tools.inspect.info import Bin as Bin
from cloudload.tools.inspect.info import ColumnInfo as ColumnInfo
from cloudload.tools.inspect.info import DatasetInfo as DatasetInfo
from cloudload.tools.inspect.info import Distribution as Distribution
from cloudload.tools.inspect.info import read_info as read_info
from cloudload.tools.inspect.samples import Sample as Sample
from cloudload.tools.inspect.samples import Unread as Unread
from cloudload.tools.inspect.samples import read_samples as read_samples
