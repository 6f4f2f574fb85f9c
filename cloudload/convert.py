"""Convert raw corpora to MDS; see `cloudload.tools.convert`."""

from __future__ import annotations

from cloudload.tools.convert.convert import convert_to_mds as convert_to_mds
