"""Replace a stream that is a glob of datasets with a stream for each dataset.

    Stream("s3://b/dolma3/*", proportion=0.4)     s3://b/dolma3/  law/  partitions.json  science/

    streams       law, science         sorted by URL, named by the folders
    tokens        1,000  3,000         from token lengths
    proportions     0.1    0.3

Each folder that matches must be a dataset, so none is left out in silence. Every rank lists the
folders, and gets the same streams. Without proportions, they are one corpus, like a list of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cloudload.config import Stream
from cloudload.data import Retry, find_folders, redact, selections


@dataclass(frozen=True)
class FoundStreams:
    """Streams, and the indices of those that share the proportion of a glob."""

    streams: tuple[Stream, ...]
    shared: tuple[range, ...]


def find_streams(streams: Sequence[Stream], retry: Retry | None = None) -> FoundStreams:
    """Replace each stream that is a glob of folders with a stream for each folder.

    Each dataset uses its own selection of the name `select`. Raises `ValueError` if such a stream
    has `choose`, or a list of samples, which are those of one dataset, `DatasetError` if a glob
    matches folders and files, and `StoreError` if folders cannot be listed.
    """
    found: list[Stream] = []
    shared: list[range] = []
    for stream in streams:
        folders = find_folders(stream.locate_remote(retry or Retry()))
        if not folders:
            found.append(stream)
            continue
        if stream.choose is not None:
            raise ValueError(
                f"{redact(stream.remote)} is a glob of {len(folders):,} datasets, and has choose, "
                "which is for a single dataset. Set repeat instead, or list the datasets"
            )
        _check_lists(stream, len(folders))
        if stream.proportion:
            shared.append(range(len(found), len(found) + len(folders)))
        prefix = f"{stream.name}/" if stream.name else ""
        found += [replace(stream, remote=url, name=prefix + name) for url, name in folders]
    return FoundStreams(tuple(found), tuple(shared))


def _check_lists(stream: Stream, num_datasets: int) -> None:
    for option, value in (("select", stream.select), ("drop", stream.drop)):
        if value is not None and selections.listed.is_listed(value):
            raise ValueError(
                f"{redact(stream.remote)} is a glob of {num_datasets:,} datasets, and has {option}="
                f"{redact(value)!r}, a file that lists documents of a single dataset by shard and "
                "index. Run cloudload select on each dataset, with one name for all, and set "
                "select to that name, or list the datasets"
            )
