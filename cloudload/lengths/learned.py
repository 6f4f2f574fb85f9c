"""Record the lengths that a run learns as it reads, in one file per dataset on each node.

    document tokenized in any worker ──► its fact in the file       uint64 [samples]
                                         0 until then               bytes of text << 32 | length + 3

A **fact** is the length of a sample and the size of its text. It depends only on the sample, so it
does not matter which process writes it, how often, or in which order. A run that restarts, on any
world, continues with the same file. Each node reads only a part of the samples, so `count.learn`
joins the facts of all nodes.
"""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from cloudload.arrays import Ints, Words
from cloudload.cache.folder import LENGTHS_FOLDER, dataset_folder
from cloudload.errors import CacheError
from cloudload.lengths.group_file import FAILED
from cloudload.lengths.index import LengthsKey
from cloudload.mds.dataset import Corpus
from cloudload.system.file_locks import locked
from cloudload.system.temp_files import lock_path, make_folder, partial_file

_FIRST_CODE = 1 - FAILED  # added to lengths to make them positive, because 0 means unknown
_MOST = (1 << 32) - 1
_BYTES_SHIFT = 32
_NODE = re.compile("[0-9a-f]{12}")


def encode_facts(lengths: Ints, text_bytes: Ints) -> Words:
    """Encode the facts of samples: uint64 [samples]; 0 if a length or a text is too large.

    `lengths` (a length, `FILTERED` or `FAILED`) and `text_bytes` are int64 [samples].
    """
    codes = lengths + _FIRST_CODE
    facts = codes.astype(np.uint64) | text_bytes.astype(np.uint64) << np.uint64(_BYTES_SHIFT)
    return np.where((codes <= _MOST) & (text_bytes <= _MOST), facts, np.uint64(0))


def decode_facts(facts: Words) -> tuple[Ints, int]:
    """Decode facts above 0 to lengths, int64 [samples], and the total bytes of text."""
    lengths = (facts & np.uint64(_MOST)).astype(np.int64) - _FIRST_CODE
    return lengths, int((facts >> np.uint64(_BYTES_SHIFT)).sum())


@dataclass(frozen=True)
class LearnedDataset:
    """The file of a dataset's learned lengths. Can be pickled, because each process maps the
    file."""

    path: Path
    first: int
    """The index of the dataset's first sample in the corpus."""
    samples: int

    @cached_property
    def facts(self) -> Words:
        """The fact of each sample, writable: uint64 [samples]."""
        if not self.samples:
            return np.empty(0, np.uint64)
        return np.memmap(self.path, "<u8", "r+", shape=(self.samples,)).view(np.ndarray)

    def __getstate__(self) -> dict[str, object]:
        return {name: vars(self)[name] for name in ("path", "first", "samples")}


@dataclass(frozen=True)
class LearnedLengths:
    """The files of a corpus's learned lengths, one for each dataset."""

    datasets: tuple[LearnedDataset, ...]

    def record(self, samples: Ints, lengths: Ints, text_bytes: Ints) -> None:
        """Write the facts of samples of the corpus. Each argument is int64 [samples]."""
        facts = encode_facts(lengths, text_bytes)
        for dataset in self.datasets:
            within = samples - dataset.first
            own = (within >= 0) & (within < dataset.samples)
            if own.any():
                dataset.facts[within[own]] = facts[own]


def open_learned(
    root: Path, key: LengthsKey, corpus: Corpus, stream: int, *, creates: bool = True
) -> LearnedDataset:
    """Open the file of a stream's learned lengths in the cache folder `root`: 8 bytes per sample.

    Creates a missing file if `creates` is True. Raises `CacheError` if the file cannot be created,
    for example because the disk is full.
    """
    dataset, data = corpus.datasets[stream], corpus.fingerprint(range(stream, stream + 1))
    # name the version, because data without hashes has a separate cache folder for each version
    version = dataset_folder(root, dataset).name[-16:]
    path = root / LENGTHS_FOLDER / f"{key.digest}-{data[:16]}-{version}.learned"
    first, stop = corpus.stream_starts[stream : stream + 2].tolist()
    samples = stop - first
    if not creates:
        return LearnedDataset(path, first, samples)
    try:
        make_folder(path.parent)
        with locked(lock_path(path)):
            if not path.exists() or path.stat().st_size != 8 * samples:
                _create(path, 8 * samples)
    except OSError as error:
        raise CacheError(
            f"cannot save learned token lengths in {path}: {error}. Free disk space, or set "
            "`local` to a different folder"
        ) from error
    return LearnedDataset(path, first, samples)


def _create(path: Path, size: int) -> None:
    with partial_file(path) as part:
        with part.open("wb") as file:
            if size:  # reserve disk space: writing to a full disk through a memory map is fatal
                os.posix_fallocate(file.fileno(), 0, size)
        part.replace(path)


def find_node(root: Path) -> str:
    """Return this node's name: 12 hex digits, saved in the cache folder `root`.

    A damaged name is replaced. Raises `CacheError` if the folder cannot be used.
    """
    path = root / LENGTHS_FOLDER / "node"
    try:
        make_folder(path.parent)
        with locked(lock_path(path)):
            found = path.read_bytes()[:12].decode(errors="replace") if path.exists() else ""
            if not _NODE.fullmatch(found):
                found = uuid.uuid4().hex[:12]
                with partial_file(path) as part:
                    part.write_text(found)
                    part.replace(path)
            return found
    except OSError as error:
        raise CacheError(
            f"cannot save the name of this node in {path}: {error}. Free disk space, or set "
            "`local` to a different folder"
        ) from error
