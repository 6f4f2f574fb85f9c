"""Losses by source and document, summed from token losses.

    training step    batch, token losses ─► LossLog.add ─► sums by document, on the device
    periodically     LossLog.take_means ─► mean loss of each source, over all ranks
                     LossLog.flush ─► a file for each rank and start of the run
    afterwards       read_losses ─► Losses, each row once ─► blame ─► outliers

    log       `LossLog`, on the device    blame  read all files, find outliers
    log_file  the file format

A source is a stream. The log has a record for each document in each row: the row, the document, and
the number and the sum of its tokens' losses.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from cloudload.tools.losses.blame import Blame as Blame
from cloudload.tools.losses.blame import DocumentLoss as DocumentLoss
from cloudload.tools.losses.blame import Losses as Losses
from cloudload.tools.losses.blame import SourceLoss as SourceLoss
from cloudload.tools.losses.blame import blame as blame
from cloudload.tools.losses.blame import read_losses as read_losses
from cloudload.tools.losses.log_file import MeanLoss as MeanLoss

if _TYPE_CHECKING:
    from cloudload.tools.losses.log import LossLog as LossLog
    from cloudload.tools.losses.log import token_losses as token_losses

# imported on first use, so that `cloudload blame` does not load torch
_OF_TORCH = "LossLog", "token_losses"


def __getattr__(name: str) -> _Any:
    if name not in _OF_TORCH:
        raise AttributeError(f"module 'cloudload.tools.losses' has no attribute {name!r}")
    return getattr(_import_module("cloudload.tools.losses.log"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_OF_TORCH])
