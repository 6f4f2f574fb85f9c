"""Frameworks that would lose or repeat batches of a loader that they are given as it is: they are told what to take instead.

Composer would not save its state, and skips batches by counting its own epochs; Lightning saves it one batch too far, and does
not load it at the end of an epoch.
"""

from __future__ import annotations

import sys

_INSTEAD = {
    "composer.trainer.trainer": "Composer data_spec(loader), or eval_spec(loader), of cloudload.integrations.composer",
    "lightning.pytorch.utilities.combined_loader": (
        "Lightning datamodule=CloudloadDataModule(loader), of cloudload.integrations.lightning; and for evaluation "
        "cloudload.FromStart(loader)"
    ),
}
_INSTEAD["pytorch_lightning.utilities.combined_loader"] = _INSTEAD["lightning.pytorch.utilities.combined_loader"]


def reason_to_refuse_caller() -> str | None:
    """Why what called the caller of this may not iterate, and what it is to be given; None for all but a few modules."""
    instead = _INSTEAD.get(sys._getframe(2).f_globals.get("__name__", ""))
    return instead and f"read like this, a resumed run would lose or repeat batches. Give {instead}"
