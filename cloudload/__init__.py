"""Pretrain straight from object storage: raw text in MDS shards, tokenized and packed on the fly,
resumable to the token."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cloudload._version import __version__ as __version__

if TYPE_CHECKING:
    from cloudload.batch import Batch as Batch
    from cloudload.config import Stream as Stream
    from cloudload.convert.convert import convert_to_mds as convert_to_mds
    from cloudload.errors import CloudloadError as CloudloadError
    from cloudload.loader import CloudLoader as CloudLoader
    from cloudload.loader import FromStart as FromStart
    from cloudload.run.state import merge_state_dicts as merge_state_dicts
    from cloudload.storage.base import Retry as Retry

# imported when first used, so that `cloudload --help` and the converter never wait for torch
_HOMES = {
    "Batch": "batch",
    "CloudLoader": "loader",
    "CloudloadError": "errors",
    "FromStart": "loader",
    "Retry": "storage.base",
    "Stream": "config",
    "convert_to_mds": "convert",
    "merge_state_dicts": "run.state",
}
__all__ = [
    "Batch",
    "CloudLoader",
    "CloudloadError",
    "FromStart",
    "Retry",
    "Stream",
    "convert_to_mds",
    "merge_state_dicts",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cloudload' has no attribute {name!r}")
    return getattr(import_module(f"cloudload.{_HOMES[name]}"), name)
