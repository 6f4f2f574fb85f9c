"""Convert raw corpora to MDS; see `cloudload.tools.convert`."""

from __future__ import annotations

from cloudload.tools.convert.convert import convert_to_mds as convert_to_mds
from cloudload.tools.convert.index_files import IndexReport as IndexReport
from cloudload.tools.convert.index_files import index_files as index_files
