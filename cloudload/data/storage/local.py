"""The backend for files on this machine."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from cloudload.data.storage import clients, urls
from cloudload.data.storage.base import Backend, ObjectStream, StoredObject, Wanted
from cloudload.data.storage.redaction import redact
from cloudload.data.storage.versions import version_of_file
from cloudload.errors import FailureKind, StoreError
from cloudload.system import temp_files


class LocalStore(Backend):
    """The backend for paths and `file://` URLs."""

    def open(
        self, url: str, start: int = 0, tag: str = "", stop: int | None = None
    ) -> ObjectStream:
        path = urls.local_path(url)
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise _special(urls.path_url(path))
        file = io.FileIO(path)
        clients.check_tag(url, tag, _tag(os.fstat(file.fileno())))
        file.seek(start)
        return ObjectStream(file, version_of_file(file.fileno()))

    def upload(self, path: Path, url: str, deadline_s: float) -> None:
        with _copied(path, urls.local_path(url)) as (temporary, target):
            temporary.replace(target)

    def create(self, path: Path, url: str, deadline_s: float) -> None:
        with _copied(path, urls.local_path(url)) as (temporary, target):
            try:
                target.hardlink_to(temporary)
            except FileExistsError:
                return
            except OSError:  # the file system has no hard links
                if not target.exists():
                    temporary.replace(target)

    def delete(self, url: str) -> None:
        urls.local_path(url).unlink()

    def list(self, url: str, wanted: Wanted = lambda _: True) -> Iterator[StoredObject]:
        """Yield every file, as the protocol says. Follow links.

        A folder that is not `wanted` is not opened. It is yielded as an object whose URL ends in
        `/`. Raises an error for a folder that cannot be read, and for a link to nothing, a pipe,
        or a device, unless it is not wanted.
        """
        root = urls.local_path(url)
        try:
            status = root.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"{root} does not exist") from None
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(root, _identify(status), wanted)
        elif stat.S_ISREG(status.st_mode):
            yield _describe(url, status)
        else:
            raise _special(url)

    def peek(self, url: str) -> Iterator[str]:
        with os.scandir(urls.local_path(url)) as entries:
            for entry in entries:
                yield f"{entry.name}/" if entry.is_dir() else entry.name

    def failure_kind(self, error: BaseException) -> FailureKind:
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        return FailureKind.MISSING_OBJECT if is_missing else FailureKind.OTHER


@contextlib.contextmanager
def _copied(path: Path, target: Path) -> Iterator[tuple[Path, Path]]:
    """Copy `path` to a temporary file next to `target`. Yield the paths (copy, target)."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # the name is unique among all threads and machines that share the folder
    temporary = target.with_name(f".{target.name}.{secrets.randbits(62)}.tmp")
    temp_files.create(lambda: temp_files.register(temporary))
    try:
        shutil.copyfile(path, temporary)
        _sync(temporary)
        yield temporary, target
    finally:
        temporary.unlink(missing_ok=True)
        temp_files.unregister(temporary)


def _sync(path: Path) -> None:
    """Write a file to the disk. Otherwise, it may be empty if the machine fails after a rename."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _walk(root: Path, identity: tuple[int, int], wanted: Wanted) -> Iterator[StoredObject]:
    """Yield the files below a folder. A folder inside itself, through a link, is listed once."""
    waiting = [(root, frozenset({identity}))]
    while waiting:
        folder, above = waiting.pop()
        for entry in _scan(folder):
            path = folder / entry.name
            url, status = urls.path_url(path), _look_at(path, entry, wanted)
            if status is None:
                continue
            if not stat.S_ISDIR(status.st_mode):
                if not stat.S_ISREG(status.st_mode) and wanted(url):
                    raise _special(url)
                yield _describe(url, status)
            elif not wanted(f"{url}/"):
                yield StoredObject(f"{url}/", 0)
            elif (own := _identify(status)) not in above:
                waiting.append((path, above | {own}))


def _identify(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _scan(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError as error:
        if os.path.lexists(folder):  # otherwise, another process removed it in the meantime
            raise _unreadable(folder, error) from error


def _look_at(path: Path, entry: os.DirEntry[str], wanted: Wanted) -> os.stat_result | None:
    """The status of a file or folder; of a link itself if it leads nowhere and is not `wanted`.

    None if another process removed the file in the meantime.
    """
    try:
        return entry.stat()
    except OSError as error:
        with contextlib.suppress(FileNotFoundError):
            own = path.lstat()
            if wanted(urls.path_url(path)):
                raise _unreadable(path, error) from error
            return own
        return None


def _unreadable(path: Path, error: OSError) -> StoreError:
    what = redact(urls.path_url(path))
    if path.is_symlink() and error.errno in (errno.ENOENT, errno.ELOOP):
        return StoreError(
            f"{what} is a link to {redact(os.readlink(path))}, which does not exist. Restore the "
            "target, or remove the link"
        )
    return StoreError(
        f"cannot list {what} ({error.strerror or error}), so its files are not known. Make it "
        "readable, or move it elsewhere"
    )


def _special(url: str) -> OSError:
    """The error for a pipe, which may block forever, and for a device, which may never end."""
    return OSError(
        f"{redact(url)} is a pipe, a socket, or a device, not a regular file. Use a regular file"
    )


def _describe(url: str, status: os.stat_result) -> StoredObject:
    return StoredObject(url, status.st_size, _tag(status))


def _tag(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}-{status.st_size}"
