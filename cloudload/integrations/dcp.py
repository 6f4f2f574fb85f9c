"""Save and load a loader's state with torch.distributed.checkpoint (DCP), with or without FSDP2.

    dcp.save({"model": ..., "loader": LoaderState(loader)}, checkpoint_id=folder)  # or async_save
    dcp.load({"model": ..., "loader": LoaderState(loader)}, checkpoint_id=folder)

The state is stored as one JSON string. It is the same on every rank, so DCP stores it once, and a
different number of ranks can load it. DCP would flatten a mapping, and load only the keys that the
new loader has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from torch.distributed.checkpoint.stateful import Stateful

from cloudload.loading import CloudLoader


class LoaderState(Stateful):
    """Wraps a loader so that DCP saves its state, and loads a state into it."""

    def __init__(self, loader: CloudLoader) -> None:
        self._loader = loader

    def state_dict(self) -> dict[str, str]:
        return {"cloudload": json.dumps(self._loader.state_dict())}

    def load_state_dict(self, state_dict: Mapping[str, str]) -> None:
        self._loader.load_state_dict(json.loads(state_dict["cloudload"]))
