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

from cloudload.system import file_locks, temp_files

logger = logging.getLogger("cloudload.lengths")
DOCUMENTS_OF_MARK = 1_024
"""The spacing of marks: a lane has one after each row in which its cursor passes a multiple of
this ordinal."""
FORMAT = 2
"""The version of the files, which is part of the name of their folder."""
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


class _Written(NamedTuple):
    """The records of a lane's file that this process has read or written."""

    num_bytes: int = 0
    """Their total size. They are at the beginning of the file."""
    keys: frozenset[bytes] = frozenset()
    """The keys of their leaps."""


class LaneMarks:
    """The leaps of a component's lanes. If `folder` is None, they are kept only in memory.

    Once leaps are written to a lane's file, only their keys stay in memory, until the file is read.

    Other threads and signal handlers may call every method at any time, and an exception may end
    it anywhere, because each step adds valid leaps or replaces a whole value.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._leaps: dict[int, dict[bytes, Leap]] = {}
        """The leaps in memory, by lane: those that were read, and those that wait to be written."""
        self._written: dict[int, _Written] = {}

    def after(self, lane: int, state: LaneState) -> Leap | None:
        """The leap from a lane's state; None if it is not known."""
        return self._load(lane).get(state.key)

    def keep(self, lane: int, found: Mapping[bytes, Leap]) -> None:
        """Keep a lane's leaps, by the keys of their first states, and append them to its file.

        While another thread or process appends to the file, they stay in memory, and a later call
        appends them. If a write fails, logs a warning and stops writing.
        """
        if self._folder is not None and self._append(lane, {**self._leaps.get(lane, {}), **found}):
            self._leaps.pop(lane, None)
        else:
            self._load(lane).update(found)

    def _load(self, lane: int) -> dict[bytes, Leap]:
        leaps = self._leaps.get(lane)
        if leaps is None:
            leaps = {}
            with self._forgiving():
                self._written[lane] = self._read(lane, _Written(), leaps)
            self._leaps[lane] = leaps
        return leaps

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

    def _read(self, lane: int, before: _Written, leaps: dict[bytes, Leap]) -> _Written:
        """Read the records of a lane's file after those `before`, and add their leaps to `leaps`.

        Reads the whole file if it was replaced by a shorter one.
        """
        if self._folder is None:
            return before
        try:
            with _path(self._folder, lane).open("rb") as file:
                if os.fstat(file.fileno()).st_size < before.num_bytes:
                    before = _Written()
                file.seek(before.num_bytes)
                content = file.read()
        except FileNotFoundError:
            return _Written()
        new, num_bytes = _parse(content)
        leaps.update(new)
        return _Written(before.num_bytes + num_bytes, before.keys | new.keys())

    def _append(self, lane: int, leaps: Mapping[bytes, Leap]) -> bool:
        """Append the leaps that a lane's file lacks. Returns whether the file has all of them."""
        if leaps.keys() <= self._written.get(lane, _Written()).keys:
            return True
        with self._forgiving():
            assert self._folder is not None
            path = _path(self._folder, lane)
            temp_files.make_folder(path.parent)
            # never wait, because a signal handler may have interrupted the holder of the lock
            with file_locks.locked(temp_files.lock_path(path), wait=False) as is_free:
                if not is_free:
                    return False
                before = self._read(lane, self._written.get(lane, _Written()), {})
                records = [_encode(key, leaps[key]) for key in leaps if key not in before.keys]
                with path.open("ab") as file:
                    file.truncate(before.num_bytes)  # drop a partial record
                    file.write(b"".join(records))
                size = before.num_bytes + sum(map(len, records))
                self._written[lane] = _Written(size, before.keys | leaps.keys())
            return True
        return False


def _path(folder: Path, lane: int) -> Path:
    return folder / f"lane-{lane}.marks"


def _parse(content: bytes) -> tuple[dict[bytes, Leap], int]:
    """Parse complete records. Returns their leaps, by key, and their total size.

    The last record is partial if its writer was killed.
    """
    index, leaps = 0, {}
    while index + _RECORD.size <= len(content):
        key, rows, ordinal, offset, size = _RECORD.unpack_from(content, index)
        end = index + _RECORD.size + size
        if size < 0 or end + _CHECK.size > len(content):
            break
        if _CHECK.unpack_from(content, end) != (zlib.crc32(content[index:end]),):
            break
        residue = content[index + _RECORD.size : end]
        leaps[key] = Leap(rows, LaneState(ordinal, offset, residue))
        index = end + _CHECK.size
    return leaps, index


def _encode(key: bytes, leap: Leap) -> bytes:
    rows, (ordinal, offset, residue) = leap
    record = _RECORD.pack(key, rows, ordinal, offset, len(residue)) + residue
    return record + _CHECK.pack(zlib.crc32(record))
