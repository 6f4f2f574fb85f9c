"""Pretrain straight from object storage, tokenizing and packing on the fly, resumable to the token.

    convert_to_mds ─► MDS shards of raw text on S3, GCS, … ─► CloudLoader ─► Batch ─► training loop
                                                                  │ ▲
                                                     state_dict() ▼ │ load_state_dict()

    loader.py         the public class; options are in `config`, results in `batch` and `stats`
      order           the order of documents              ┐
      tokenization    text to token IDs                   │ which tokens, in which order
      packing         documents to rows                   │
      run             recipe, position and state          ┘
      storage         objects by URL                      ┐
      mds             the shard format                    │
      cache           shards on this node                 │ how they arrive
      workers         documents to blocks                 │
      delivery        blocks to batches, ranks in step    ┘
    convert           raw corpora to MDS                  integrations    training frameworks
    check             problems of a dataset               provenance      rows back to documents
    export            rows to pre-tokenized MDS           inspect         summary and documents
    losses            losses by source and document
    count             tokens of each document             lengths         positions by lengths alone
    forecast          reads and cost of a run             warm              shards before a run
    system            files, threads, processes           engines         units of work, anywhere
    streaming_arguments   MosaicML Streaming's arguments and llm-foundry's YAML, as options

The names in `__all__` are public, and so are `cloudload.errors`, `.config`, `.segments`, `.stats`,
`.testing`, `.inspect`, `.forecast`, `.losses`, `.warm`, `.provenance` and `.integrations`.
Everything else may change.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from cloudload._version import __version__ as __version__

if _TYPE_CHECKING:
    from cloudload.batch import Batch as Batch
    from cloudload.check.check import check_dataset as check_dataset
    from cloudload.check.findings import CheckReport as CheckReport
    from cloudload.check.findings import Finding as Finding
    from cloudload.config.stream import Stream as Stream
    from cloudload.config.transform import Text as Text
    from cloudload.convert.convert import convert_to_mds as convert_to_mds
    from cloudload.convert.report import ConvertReport as ConvertReport
    from cloudload.count.count import count_tokens as count_tokens
    from cloudload.count.report import CountReport as CountReport
    from cloudload.errors import CloudloadError as CloudloadError
    from cloudload.evaluation import FromStart as FromStart
    from cloudload.export import ExportReport as ExportReport
    from cloudload.export import export_rows as export_rows
    from cloudload.loader import CloudLoader as CloudLoader
    from cloudload.row_dataset import Rows as Rows
    from cloudload.run.local_states import merge_state_dicts as merge_state_dicts
    from cloudload.stats import Stats as Stats
    from cloudload.storage.base import Retry as Retry
    from cloudload.streaming_arguments.training_yaml import config_from_yaml as config_from_yaml
    from cloudload.workers.trace import TracedSpan as TracedSpan

# imported on first use, so that `cloudload --help` and the converter do not load torch
_HOMES = {
    "Batch": "batch",
    "CheckReport": "check.findings",
    "CloudLoader": "loader",
    "CloudloadError": "errors",
    "ConvertReport": "convert.report",
    "CountReport": "count.report",
    "ExportReport": "export",
    "Finding": "check.findings",
    "FromStart": "evaluation",
    "Retry": "storage.base",
    "Rows": "row_dataset",
    "Stats": "stats",
    "Stream": "config",
    "Text": "config.transform",
    "TracedSpan": "workers.trace",
    "check_dataset": "check.check",
    "config_from_yaml": "streaming_arguments.training_yaml",
    "convert_to_mds": "convert.convert",
    "count_tokens": "count.count",
    "export_rows": "export",
    "merge_state_dicts": "run.local_states",
}
__all__ = [
    "Batch",
    "CheckReport",
    "CloudLoader",
    "CloudloadError",
    "ConvertReport",
    "CountReport",
    "ExportReport",
    "Finding",
    "FromStart",
    "Retry",
    "Rows",
    "Stats",
    "Stream",
    "Text",
    "TracedSpan",
    "check_dataset",
    "config_from_yaml",
    "convert_to_mds",
    "count_tokens",
    "export_rows",
    "merge_state_dicts",
]


def __getattr__(name: str) -> _Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cloudload' has no attribute {name!r}")
    return getattr(_import_module(f"cloudload.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
