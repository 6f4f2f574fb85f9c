"""Stream raw text from object storage into LLM pretraining, with resumes exact to the token.

    convert_to_mds ─► MDS shards of raw text on S3, GCS, … ─► CloudLoader ─► Batch ─► training loop
                                                                  │ ▲
                                                     state_dict() ▼ │ load_state_dict()

Data come in an order, become rows; a run says where we are; loading delivers; tools do the rest:

    system   this machine: files, locks, threads, processes, arrays
    data     bytes by URL, MDS datasets in them, and the shards that this node keeps
    config   what the user asked for, checked
    order    which document comes when: integers in, integers out
    rows     documents to rows of tokens
    run      what a run is, where it is, and where it will be
    loading  the loader at work: workers make blocks, ranks agree, batches leave
    tools    everything beside the training loop: prepare, ask, explain

Each room imports only from those before it, so the loader never imports a tool. All rooms may use:

    errors   all errors, as a tree    stats  statistics of a run    segments  tensors for `fields=`

In front of the rooms:

    integrations  training frameworks           testing     checks of a loader's two laws
    loader        `CloudLoader`                 inspect     a dataset's summary and documents
    batch         `Batch`                       forecast    reads and cost of a run
    convert       `convert_to_mds`              warm        fetch shards before a run
    engines       clusters, for `executor=`     losses      loss by source, document
    cli           the command line              provenance  rows back to documents
    bench         the speed of a loader alone

The names in `__all__` are public, and so are `cloudload.errors`, `.config`, `.segments`, `.stats`,
`.testing`, `.inspect`, `.forecast`, `.bench`, `.losses`, `.warm`, `.provenance` and
`.integrations`. Everything else may change.
"""

from __future__ import annotations

import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING

from cloudload._door import open_door as _open_door
from cloudload._version import __version__ as __version__

if _sys.platform not in ("linux", "darwin"):
    raise ImportError(
        f"cloudload runs on Linux, and to try it on macOS, but this is {_sys.platform}. Use a "
        "Linux machine, a container, or WSL"
    )

if _TYPE_CHECKING:
    from cloudload.config.chat import Chat as Chat
    from cloudload.config.encode import EncodeContext as EncodeContext
    from cloudload.config.encode import TokenIds as TokenIds
    from cloudload.config.fim import Fim as Fim
    from cloudload.config.row_hook import RowContext as RowContext
    from cloudload.config.stream import Stream as Stream
    from cloudload.config.transform import Text as Text
    from cloudload.data.storage.base import Retry as Retry
    from cloudload.errors import CloudloadError as CloudloadError
    from cloudload.loading.batch import Batch as Batch
    from cloudload.loading.document_dataset import Documents as Documents
    from cloudload.loading.evaluation import FromStart as FromStart
    from cloudload.loading.loader import CloudLoader as CloudLoader
    from cloudload.loading.row_dataset import Rows as Rows
    from cloudload.loading.workers.trace import TracedSpan as TracedSpan
    from cloudload.run.training_yaml import config_from_yaml as config_from_yaml
    from cloudload.stats import Stats as Stats
    from cloudload.tools.check.check import check_dataset as check_dataset
    from cloudload.tools.check.findings import CheckReport as CheckReport
    from cloudload.tools.check.findings import Finding as Finding
    from cloudload.tools.convert.conversion_report import ConvertReport as ConvertReport
    from cloudload.tools.convert.convert import convert_to_mds as convert_to_mds
    from cloudload.tools.count.count import count_tokens as count_tokens
    from cloudload.tools.count.length_report import CountReport as CountReport
    from cloudload.tools.export import ExportReport as ExportReport
    from cloudload.tools.export import export_rows as export_rows
    from cloudload.tools.select.report import SelectReport as SelectReport
    from cloudload.tools.select.select import select_documents as select_documents
else:
    __getattr__, _ = _open_door(__name__)

__all__ = [
    "Batch",
    "Chat",
    "CheckReport",
    "CloudLoader",
    "CloudloadError",
    "ConvertReport",
    "CountReport",
    "Documents",
    "EncodeContext",
    "ExportReport",
    "Fim",
    "Finding",
    "FromStart",
    "Retry",
    "RowContext",
    "Rows",
    "SelectReport",
    "Stats",
    "Stream",
    "Text",
    "TokenIds",
    "TracedSpan",
    "check_dataset",
    "config_from_yaml",
    "convert_to_mds",
    "count_tokens",
    "export_rows",
    "select_documents",
]


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
