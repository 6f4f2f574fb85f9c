"""Losses by source and document; see `cloudload.tools.losses`. Torch is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

from cloudload._door import open_door as _open_door

if _TYPE_CHECKING:
    from cloudload.tools.losses.blame import Blame as Blame
    from cloudload.tools.losses.blame import DocumentLoss as DocumentLoss
    from cloudload.tools.losses.blame import Losses as Losses
    from cloudload.tools.losses.blame import SourceLoss as SourceLoss
    from cloudload.tools.losses.blame import blame as blame
    from cloudload.tools.losses.blame import read_losses as read_losses
    from cloudload.tools.losses.log import LossLog as LossLog
    from cloudload.tools.losses.log import token_losses as token_losses
    from cloudload.tools.losses.log_file import MeanLoss as MeanLoss
else:
    __getattr__, __dir__ = _open_door(__name__)
