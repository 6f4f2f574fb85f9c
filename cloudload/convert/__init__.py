"""Raw corpora to MDS."""

from __future__ import annotations

from cloudload.convert.convert import convert_to_mds as convert_to_mds
