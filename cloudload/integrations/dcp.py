"""torch.distributed.checkpoint, with FSDP2 or without: the loader's state as one leaf of text.

    dcp.save({"model": ..., "loader": LoaderState(loader)}, checkpoint_id=folder)      # or dcp.async_save
    dcp.load({"model": ..., "loader": LoaderState(loader)}, checkpoint_id=folder)

The leaf is the same on every rank, so it is stored once, and any number of ranks loads it. A
mapping in its place would be taken apart, and put together by the keys of the loader that loads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from torch.distributed.checkpoint.stateful import Stateful

from cloudload.loader import CloudLoader


class LoaderState(Stateful):
    """A loader as DCP saves and loads it, in place."""

    def __init__(self, loader: CloudLoader) -> None:
        self._loader = loader

    def state_dict(self) -> dict[str, str]:
        return {"cloudload": json.dumps(self._loader.state_dict())}

    def load_state_dict(self, state_dict: Mapping[str, str]) -> None:
        self._loader.load_state_dict(json.loads(state_dict["cloudload"]))
