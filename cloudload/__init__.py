"""Stream raw text from object storage into LLM pretraining, with resumes exact to the token.

    convert_to_mds ─► MDS shards of raw text on S3, GCS, … ─► CloudLoader ─► Batch ─► training loop
                                                                  │ ▲
                                                     state_dict() ▼ │ load_state_dict()

    order, tokenization, packing, run             which tokens, in which order
    storage, mds, cache, workers, delivery        how they arrive

    loader        the public class               convert              raw corpora to MDS
    config        its options, in two configs    check                problems in a dataset
    session       the parts of one loader        inspect              its summary and documents
    order         the order of documents         count                tokens in each document
    tokenization  text to token IDs              forecast             reads and cost of a run
    packing       documents to rows              warm                 fetch shards before a run
    run           recipe, position, and state    row_dataset          rows by index
    storage       objects by URL                 evaluation           repeatable evaluation passes
    mds           the shard format               export               rows to pre-tokenized MDS
    cache         shards on this node            losses               loss by source, document
    workers       documents to blocks            provenance           rows back to documents
    delivery      blocks to batches              integrations         training frameworks
    batch         the tensors of a batch         streaming_arguments  Streaming's arguments
    segments      tensors for `fields=`          testing              checks of a loader's two laws
    stats         statistics of a run            cli                  the command line
    lengths       positions from token lengths   option_docs          docstrings of options
    arrays        array types, integer helpers   option_names         advice on unknown arguments
    errors        all errors, as a tree          file_kinds           which files are text
    system        files, threads, processes      html_tables          tables for notebooks
    engines       where units of work run        json_text            reports as JSON
    text_tables   tables for a terminal

The names in `__all__` are public, and so are `cloudload.errors`, `.config`, `.segments`, `.stats`,
`.testing`, `.inspect`, `.forecast`, `.losses`, `.warm`, `.provenance` and `.integrations`.
Everything else may change.
"""

from __future__ import annotations

import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from cloudload._version import __version__ as __version__

if _sys.platform != "linux":
    raise ImportError(
        f"cloudload runs only on Linux, but this is {_sys.platform}. Use a Linux machine, a "
        "container, or WSL"
    )

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
