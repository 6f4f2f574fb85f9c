"""The same batches each time, for evaluation."""

from __future__ import annotations

from collections.abc import Iterator

from cloudload.batch import Batch
from cloudload.loader import CloudLoader


class FromStart:
    """A loader of which every pass begins where it stands now: an evaluation reads the same batches each time.

    Give it a loader of its own, with `epochs=1`, or with `stop_every` for a part of the data.
    """

    def __init__(self, loader: CloudLoader) -> None:
        if loader.is_endless:
            raise ValueError("an evaluation with this loader would never end. Give the loader epochs=1, or stop_every=<batches>")
        self._loader, self._start = loader, loader.state_dict()
        self.batch_size = loader.batch_size

    def __iter__(self) -> Iterator[Batch]:
        self._loader.load_state_dict(self._start)
        return iter(self._loader)
