"""torchdata: wrap a loader as a node, or as the dataset of a StatefulDataLoader.

    torchdata.nodes.Loader(CloudloadNode(loader))
    StatefulDataLoader(CloudloadDataset(loader), batch_size=None, num_workers=0)

The loader starts its own workers. Keep `num_workers=0` in the StatefulDataLoader, because each of
its workers would read all of the data.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from cloudload.integrations.frameworks import explain_missing
from cloudload.loading import Batch, CloudLoader

try:
    from torchdata.nodes import BaseNode
except ImportError as error:
    raise explain_missing(error, "torchdata", "torchdata") from error


class CloudloadNode(BaseNode[Batch]):
    """A torchdata source node that yields the loader's batches.

    A reset without a state, as at the start of an epoch, continues from the loader's position. If a
    `Prefetcher` has read ahead, that position is past the batches trained on. To continue an
    abandoned pass, load the state that torchdata's `Loader` had after the last batch trained on.
    """

    def __init__(self, loader: CloudLoader) -> None:
        super().__init__()
        self._loader = loader
        self._batches: Iterator[Batch] = iter(())
        self._reading = threading.Lock()

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        if self._reading.locked():
            self._loader.close()  # ends the call of a Prefetcher's thread, which waits for a batch
        with self._reading:
            if initial_state is not None:
                self._loader.load_state_dict(initial_state)
            self._batches = iter(self._loader)

    def next(self) -> Batch:
        with self._reading:
            return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        return self._loader.state_dict()


class CloudloadDataset(IterableDataset[Batch]):
    """A dataset of whole batches, for `StatefulDataLoader(..., batch_size=None, num_workers=0)`.

    Raises `ValueError` if a DataLoader's worker iterates over it.
    """

    def __init__(self, loader: CloudLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Batch]:
        if get_worker_info() is not None:
            raise ValueError(
                "a DataLoader's workers cannot read a CloudLoader, because each worker would read "
                "all of the data. Set num_workers=0 on the DataLoader, and num_workers=N on the "
                "CloudLoader"
            )
        return iter(self._loader)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)
