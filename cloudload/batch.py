"""The tensors of a batch; see `cloudload.loading.batch`."""

from __future__ import annotations

from cloudload.loading.batch import Batch as Batch
