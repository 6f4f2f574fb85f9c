"""Losses by source and document; see `cloudload.tools.losses`."""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from cloudload.tools import losses as _losses

if _TYPE_CHECKING:
    from cloudload.tools.losses import Blame as Blame
    from cloudload.tools.losses import DocumentLoss as DocumentLoss
    from cloudload.tools.losses import Losses as Losses
    from cloudload.tools.losses import LossLog as LossLog
    from cloudload.tools.losses import MeanLoss as MeanLoss
    from cloudload.tools.losses import SourceLoss as SourceLoss
    from cloudload.tools.losses import blame as blame
    from cloudload.tools.losses import read_losses as read_losses
    from cloudload.tools.losses import token_losses as token_losses


def __getattr__(name: str) -> _Any:
    # `LossLog` and `token_losses` load torch on first use
    return getattr(_losses, name)


def __dir__() -> list[str]:
    return dir(_losses)
