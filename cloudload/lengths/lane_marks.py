"""Marks of `best_fit` lanes: packer states, saved often enough to reach any row quickly.

    lane     ·············|·············|·········     a mark per 1,024 documents
    leap     state at a mark ─► rows and state at the next one

A lane's state determines all of its later rows. A leap is therefore valid for every run that has
the same lengths and packing and reaches the leap's first state, wherever that run began. The leaps
of a lane are in one file, which the processes of a node share. They only append to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from cloudload.system.file_locks import locked
from cloudload.system.temp_files import lock_path, make_folder

logger = logging.getLogger(__name__)
DOCUMENTS_OF_MARK = 1_024
"""The spacing of marks: a lane has one after each row in which its cursor passes a multiple of
this ordinal."""
_KEY_BYTES = 16
_RECORD = struct.Struct(f"<{_KEY_BYTES}sqqqi")
_CHECK = struct.Struct("<I")


class LaneState(NamedTuple):
    """The state of a lane between two rows."""

    ordinal: int
    offset: int
    residue: bytes
    """Encoded as in the state of a run."""

    @property
    def key(self) -> bytes:
        """A digest of the state: 16 bytes."""
        at = struct.pack("<qq", self.ordinal, self.offset)
        return hashlib.blake2b(at + self.residue, digest_size=_KEY_BYTES).digest()


class Leap(NamedTuple):
    """The step from a state to the next mark: the rows in between, and the state at the mark."""

    rows: int
    state: LaneState


class LaneMarks:
    """The leaps of a component's lanes. If `folder` is None, they are kept only in memory.

    Once leaps are written to a lane's file, only their keys stay in memory, until the file is read.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._leaps: dict[int, dict[bytes, Leap]] = {}
        """The leaps in memory, by lane."""
        self._keys: dict[int, set[bytes]] = {}
        """The keys of all leaps that were ever in memory, by lane."""
        self._new: dict[int, dict[bytes, Leap]] = {}
        """New leaps, which `save` appends to the files that lack them, by lane."""
        self._read_bytes: dict[int, int] = {}

    def after(self, lane: int, state: LaneState) -> Leap | None:
        """The leap from a lane's state; None if it is not known."""
        key = state.key
        return self._new.get(lane, {}).get(key) or self._load(lane).get(key)

    def add(self, lane: int, state: LaneState, leap: Leap) -> None:
        """Add a leap from a lane's state. `save` writes it."""
        if lane not in self._keys:
            self._load(lane)
        if (key := state.key) not in self._keys[lane]:
            self._keys[lane].add(key)
            self._new.setdefault(lane, {})[key] = leap

    def save(self) -> None:
        """Append new leaps to the files. If a write fails, logs a warning and stops writing."""
        for lane, leaps in self._new.items():
            if self._folder is not None and self._append(lane, leaps):
                self._leaps.pop(lane, None)
            else:
                self._load(lane).update(leaps)
        self._new = {}

    def _load(self, lane: int) -> dict[bytes, Leap]:
        if lane not in self._leaps:
            self._leaps[lane], self._read_bytes[lane] = {}, 0
            self._keys.setdefault(lane, set())
            with self._forgiving():
                self._refresh(lane)
        return self._leaps[lane]

    @contextlib.contextmanager
    def _forgiving(self) -> Iterator[None]:
        """On an `OSError`, log a warning and stop using files, which only save work."""
        try:
            yield
        except OSError as error:
            logger.warning(
                "cannot save the packer's state for best_fit lanes in %s, so later seeks will take "
                "longer: %s. Free disk space, or set `local` to a different folder",
                self._folder,
                error,
            )
            self._folder = None

    def _path(self, lane: int) -> Path:
        assert self._folder is not None
        return self._folder / f"lane-{lane}.marks"

    def _refresh(self, lane: int) -> None:
        """Read the leaps that were appended to a lane's file since it was last read."""
        if self._folder is None:
            return
        with contextlib.suppress(FileNotFoundError), self._path(lane).open("rb") as file:
            file.seek(self._read_bytes[lane])
            self._parse(lane, file.read())

    def _parse(self, lane: int, content: bytes) -> None:
        """Parse the complete records of `content`. The last record is partial if its writer was
        killed."""
        place, keys, leaps = 0, self._keys[lane], self._leaps.get(lane, {})
        while place + _RECORD.size <= len(content):
            key, rows, ordinal, offset, size = _RECORD.unpack_from(content, place)
            end = place + _RECORD.size + size
            if size < 0 or end + _CHECK.size > len(content):
                break
            if _CHECK.unpack_from(content, end) != (zlib.crc32(content[place:end]),):
                break
            residue = content[place + _RECORD.size : end]
            keys.add(key)
            leaps[key] = Leap(rows, LaneState(ordinal, offset, residue))
            place = end + _CHECK.size
        self._read_bytes[lane] += place

    def _append(self, lane: int, leaps: Mapping[bytes, Leap]) -> bool:
        """Append leaps to a lane's file. Returns False if files cannot be written."""
        with self._forgiving():
            path = self._path(lane)
            make_folder(path.parent)
            with locked(lock_path(path)):
                known, self._keys[lane] = self._keys[lane], set()
                self._refresh(lane)  # read the leaps that other processes have appended
                others, start = self._keys[lane], self._read_bytes[lane]
                self._keys[lane] = others | known
                records = [_encode(key, leap) for key, leap in leaps.items() if key not in others]
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
                with open(descriptor, "wb") as file:
                    file.truncate(start)  # drop a partial record
                    file.seek(start)
                    file.write(b"".join(records))
                self._read_bytes[lane] = start + sum(map(len, records))
        return self._folder is not None


def _encode(key: bytes, leap: Leap) -> bytes:
    rows, (ordinal, offset, residue) = leap
    record = _RECORD.pack(key, rows, ordinal, offset, len(residue)) + residue
    return record + _CHECK.pack(zlib.crc32(record))
