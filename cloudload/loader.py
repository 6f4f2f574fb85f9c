"""The loader; see `cloudload.loading.loader`."""

from __future__ import annotations

from cloudload.loading.loader import CloudLoader as CloudLoader
