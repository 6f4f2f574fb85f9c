"""Objects that one process of a node reads for all of them, such as an index.

    rank 0         lock, read, keep, note "read at 12:00:01", unlock
    rank 3                wait for the lock ─────────────────────► the note is fresh: no request
    a later job    lock, open: same version? ─► the body is not transferred

A note is fresh for an opening that began before the noted read. The ranks of a job (on a node with
`LOCAL_WORLD_SIZE` of them) run the same program, so a rank's nth opening may also use what another
process read in its nth opening since this rank was started, at most 10 minutes ago.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from cloudload.errors import FailureKind, StoreError
from cloudload.storage.base import Retry
from cloudload.storage.objects import read_object_version
from cloudload.storage.redaction import redact
from cloudload.storage.urls import is_local
from cloudload.storage.versions import Version
from cloudload.system.file_locks import locked, remove_orphans
from cloudload.system.temp_files import lock_path, partial_file
from cloudload.system.verified_files import is_unmodified, mark_verified

Read = Callable[[Version | None], tuple[bytes, Version]]
"""Reads an object, and returns its bytes and version; any bytes if it still has the given one."""

MISSING = ""
"""The digest of an object that does not exist."""

_MOST_AGE_S = 600.0
# stores round the time of a write down to a second
_SETTLED_S = 2.0
_MOST_KEPT = 8

_openings: Counter[Path] = Counter()


@dataclass(frozen=True)
class Kept:
    """Where and how a node keeps what it made of an object's bytes."""

    path_of: Callable[[str], Path]
    """The file for the bytes with this SHA-256."""
    is_whole: Callable[[Path], bool]
    """Whether the file is there and complete."""
    write: Callable[[bytes, Path], None]
    """Make the file of the bytes."""


@dataclass(frozen=True)
class NodeRead:
    """A read of an object, by this process or another one of the node."""

    digest: str
    """SHA-256 of the object, in hex digits; `MISSING` if there is none."""
    version: Version
    read_s: float
    """When it was read, in seconds since 1970, by the store's clock if the store reports it, and
    not before it was written."""


@dataclass(frozen=True)
class _Note:
    """A file that tells the other processes of a node what one of them read."""

    boot: str
    """The ID of the machine's last start, with which its clock began."""
    began: float
    """When the read began, by that clock; when it ended, if it failed."""
    opening: int
    """Which opening of the object it was for the process that read it, from 1; 0 if it failed."""
    digest: str = MISSING
    read_s: float = 0.0
    tag: str = ""
    written_s: float | None = None
    answered_s: float | None = None
    older: tuple[str, ...] = ()
    """The digests of earlier versions whose files are kept, the latest first."""
    failure: str = ""
    """The message of the error that the read raised; empty if there was none."""
    kind: str = ""

    @property
    def version(self) -> Version:
        return Version(self.tag, self.written_s, self.answered_s)


@dataclass(frozen=True)
class _Opening:
    """An opening of an object by this process."""

    number: int
    began: float
    since: float
    """The reads that other processes began since then, in an opening with this number, serve it."""

    def is_served_by(self, note: _Note) -> bool:
        if not _boot_id() or note.boot != _boot_id():
            return False
        return note.began >= self.began or (
            note.began >= self.since and note.opening >= self.number
        )


def read_for_node(name: str, folder: Path, kept: Kept, read: Read) -> NodeRead:
    """Read an object, unless a process of the node has just read it; its bytes are in `kept`.

    `name` is its URL, or describes it. `folder` has the notes. Processes that wait for a read that
    fails get its error. Raises the errors of `read` and `kept.write`, and `OSError` if the folder
    cannot be used.
    """
    digest = hashlib.sha256(redact(name).encode()).hexdigest()
    path = folder / f"{digest[:32]}.note"
    opening = _begin(path)
    if (found := _find(path, opening, kept)) is not None:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    remove_orphans(folder)
    with locked(lock_path(path), what=f"read {redact(name)}"):
        if (found := _find(path, opening, kept)) is not None:
            return found
        last, note = _load(path), _Note(_boot_id(), _clock(), opening.number)
        try:
            note = _read(name, kept, read, (note, last))
        except StoreError as error:
            failed = replace(last or note, boot=note.boot, began=_clock(), opening=0)
            _save(path, replace(failed, failure=str(error), kind=error.kind.name))
            raise
        _save(path, note)
    return NodeRead(note.digest, note.version, note.read_s)


def read_version_of(url: str, retry: Retry, most_bytes: int) -> Read:
    """Read an object of a store unless its version is known."""
    return lambda known: read_object_version(url, retry, most_bytes, known)


def read_bytes_for_node(url: str, folder: Path, retry: Retry, most_bytes: int) -> bytes | None:
    """The bytes of an object, read once for the node; None if it does not exist.

    Raises the errors of `read_for_node`.
    """
    kept = Kept(lambda digest: folder / f"{digest}.bytes", is_verified, write_bytes)
    found = read_for_node(url, folder, kept, read_version_of(url, retry, most_bytes))
    return None if found.digest == MISSING else kept.path_of(found.digest).read_bytes()


def is_verified(path: Path) -> bool:
    """Whether a file exists and is unmodified since it was marked as verified."""
    with contextlib.suppress(OSError):
        return is_unmodified(path.stat())
    return False


def write_bytes(data: bytes, path: Path) -> None:
    """Write a file atomically, and mark it as verified."""
    with partial_file(path) as part:
        part.write_bytes(data)
        mark_verified(part)
        part.replace(path)


def _begin(path: Path) -> _Opening:
    _openings[path] += 1
    began = _clock()
    ranks = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or "1"
    if ranks == "1":
        return _Opening(_openings[path], began, began)
    since = max(_process_start(os.getpid()), began - _MOST_AGE_S)
    return _Opening(_openings[path], began, since)


def _find(path: Path, opening: _Opening, kept: Kept) -> NodeRead | None:
    """What another process read, if that serves an opening. Raises the `StoreError` that it got."""
    note = _load(path)
    if note is None or not opening.is_served_by(note):
        return None
    if note.failure:
        raise StoreError(note.failure, kind=FailureKind[note.kind])
    if note.digest != MISSING and not kept.is_whole(kept.path_of(note.digest)):
        return None
    return NodeRead(note.digest, note.version, note.read_s)


def _read(name: str, kept: Kept, read: Read, notes: tuple[_Note, _Note | None]) -> _Note:
    """Read an object and keep it; returns the completed note. `notes` are the new and last one."""
    note, last = notes
    before_s = time.time()
    known = _find_known(name, last, kept)
    try:
        data, version = read(known)
    except StoreError as error:
        if not error.is_missing:
            raise
        return replace(note, read_s=before_s, older=_drop_oldest(last, MISSING, kept))
    is_known = known is not None and version.key == known.key
    digest = last.digest if is_known and last is not None else hashlib.sha256(data).hexdigest()
    path = kept.path_of(digest)
    if not kept.is_whole(path):
        with locked(lock_path(path)):  # so that no other process takes its partial file for left
            kept.write(data, path)
    return replace(
        note,
        digest=digest,
        read_s=max(version.read_s or before_s, version.written_s or 0.0),
        tag=version.tag,
        written_s=version.written_s,
        answered_s=version.read_s,
        older=_drop_oldest(last, digest, kept),
    )


def _find_known(name: str, last: _Note | None, kept: Kept) -> Version | None:
    """The version of the last read, if its file is kept and a later write would change it."""
    if last is None or last.digest == MISSING or not last.tag or is_local(name):
        return None
    if last.written_s is not None and last.read_s - last.written_s < _SETTLED_S:
        return None
    return last.version if kept.is_whole(kept.path_of(last.digest)) else None


def _drop_oldest(last: _Note | None, digest: str, kept: Kept) -> tuple[str, ...]:
    """The older digests besides `digest`. Removes the files of all but the latest ones."""
    if last is None:
        return ()
    older = [
        each for each in dict.fromkeys((last.digest, *last.older)) if each not in (digest, MISSING)
    ]
    for old in older[_MOST_KEPT:]:
        kept.path_of(old).unlink(missing_ok=True)
    return tuple(older[:_MOST_KEPT])


def _load(path: Path) -> _Note | None:
    """Read a note; None if it is missing or damaged."""
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
        values = json.loads(path.read_text("utf-8"))
        return _Note(**values | {"older": tuple(values["older"])})
    return None


def _save(path: Path, note: _Note) -> None:
    with partial_file(path) as part:
        part.write_text(json.dumps(asdict(note)), "utf-8")
        part.replace(path)


# ---------------------------------------------------------------- a clock that processes share


def _clock() -> float:
    """Seconds since this machine was started, which all its processes measure alike."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@cache
def _boot_id() -> str:
    """An ID of the machine's last start; empty if unknown, as outside Linux."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


@cache
def _process_start(pid: int) -> float:
    """When a process was started, in seconds of `_clock`; infinity if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return float("inf")
