"""A view of a loader for evaluation, in which every pass reads the same batches."""

from __future__ import annotations

from collections.abc import Iterator

from cloudload.loading.batch import Batch
from cloudload.loading.loader import CloudLoader


class FromStart:
    """A view of a loader for evaluation, in which every pass reads the same batches.

    Every pass starts at the position that the loader had when the view was created. Do not use the
    loader for anything else. The loader needs `epochs` (usually 1), or `stop_every` to read part of
    the data. Raises `ValueError` if it has neither.
    """

    def __init__(self, loader: CloudLoader) -> None:
        if loader.is_endless:
            raise ValueError(
                "an evaluation with this loader would never end, because neither epochs nor "
                "stop_every is set. Create the loader with epochs=1 or stop_every=<batches>"
            )
        self._loader, self._start = loader, loader.state_dict()
        self.batch_size = loader.batch_size

    @property
    def dataset(self) -> object:
        """Always raises `AttributeError`, as `CloudLoader.dataset` does."""
        return self._loader.dataset

    def __iter__(self) -> Iterator[Batch]:
        self._loader.load_state_dict(self._start)
        return iter(self._loader)
