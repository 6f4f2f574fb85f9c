"""Where an MDS dataset is: a folder by URL, and the split in it."""

from __future__ import annotations

from dataclasses import dataclass

from cloudload.data.storage.urls import join_url


@dataclass(frozen=True)
class Location:
    """The location of a dataset, as its user wrote it.

    For example, `Location("s3://bucket/corpus", "train").url` is `"s3://bucket/corpus/train"`.
    """

    remote: str
    split: str | None = None

    @property
    def url(self) -> str:
        """The URL of the folder that contains `index.json`."""
        return join_url(self.remote, self.split or "").rstrip("/")
