"""Inspect an MDS dataset without a loader; see `cloudload.tools.inspect`."""

from __future__ import annotations

from cloudload.tools.inspect import Bin as Bin
from cloudload.tools.inspect import ColumnInfo as ColumnInfo
from cloudload.tools.inspect import DatasetInfo as DatasetInfo
from cloudload.tools.inspect import Distribution as Distribution
from cloudload.tools.inspect import Sample as Sample
from cloudload.tools.inspect import Unread as Unread
from cloudload.tools.inspect import read_info as read_info
from cloudload.tools.inspect import read_samples as read_samples
