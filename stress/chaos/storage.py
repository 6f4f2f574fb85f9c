"""The faults of stores, disks and caches."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudload.system.temp_files import TAG
from testkit.disks import mounted, remount
from testkit.fault_proxy import Fault, FaultProxy, start_fault_proxy
from testkit.servers import BUCKET, GCSServer, S3Server, start_gcs, start_s3

# ---------------------------------------------------------------- stores

_BUSY = {
    "s3": {503: "SlowDown", 500: "InternalError", 429: "TooManyRequests", 504: "GatewayTimeout"},
    "gs": {
        503: "backendError",
        500: "internalError",
        429: "rateLimitExceeded",
        504: "gatewayTimeout",
    },
}
"""The transient errors of each kind of store: the code for each HTTP status."""


@dataclass(frozen=True)
class Store:
    """A running store, and the fault proxy through which jobs read from it."""

    scheme: str
    """The scheme of the store's URLs, `s3` or `gs`."""
    server: S3Server | GCSServer
    proxy: FaultProxy

    def url(self, path: str) -> str:
        """The URL of a folder in the store's bucket."""
        return f"{self.scheme}://{BUCKET}/{path}"

    def set_faults(self, draw: random.Random, share: float) -> None:
        """Inject faults into about `share` of the shard requests, and fewer of all others."""
        is_gcs, at = self.scheme == "gs", draw.randrange(600)
        status, code = draw.choice(list(_BUSY[self.scheme].items()))
        self.proxy.set_faults(
            [
                Fault("GET .*shard", "truncate", share=share / 4, at=at),
                # corruption is rare, because a job fails if a download is corrupt twice in a row
                Fault("GET .*shard", "corrupt", share=share / 20, at=at),
                Fault("GET .*shard", "stall", share=share / 20, at=at, seconds=5),
                Fault(".", "status", share=share / 4, status=status, code=code, as_json=is_gcs),
                Fault(".", "reset", share=share / 4),
                Fault(".", "delay", share=share / 8, seconds=0.3),
                Fault(".", "drop", share=share / 40, seconds=5),
            ]
        )

    def count_faults(self) -> Counter[str]:
        """Count the faults of each kind that were injected since the last `set_faults`."""
        return Counter(request.action for request in self.proxy.requests() if request.action)


@contextlib.contextmanager
def start_stores() -> Iterator[tuple[Store, ...]]:
    """Start an S3 and a GCS server, and let this process read from both without a proxy."""
    with (
        start_s3() as s3,
        start_fault_proxy(s3.endpoint) as s3_proxy,
        start_gcs() as gcs,
        start_fault_proxy(gcs.endpoint) as gcs_proxy,
    ):
        os.environ.update(s3.environment() | gcs.environment())
        yield Store("s3", s3, s3_proxy), Store("gs", gcs, gcs_proxy)


# ---------------------------------------------------------------- disks

_NAMESPACE = "CLOUDLOAD_CHAOS_NAMESPACE"
AMPLE = "size=1g,nr_inodes=1000000"


def enter_namespace(module: str) -> None:
    """Restart this program in a new mount namespace, so that its mounts disappear when it exits.

    The restarted program has a private /dev/shm, so names that it finds there are its own. Returns
    in the restarted program, or if the system does not permit the namespace.
    """
    if _NAMESPACE in os.environ:
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run(["mount", "-t", "tmpfs", "none", "/dev/shm"], check=True)
        return
    command = ["unshare", "--mount", "--propagation", "private"]
    command += [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    with contextlib.suppress(subprocess.CalledProcessError, FileNotFoundError):
        subprocess.run([*command, "true"], check=True, capture_output=True)
        os.environ[_NAMESPACE] = "1"
        os.execvp("unshare", [*command, sys.executable, "-m", module, *sys.argv[1:]])


def can_mount(folder: Path) -> bool:
    """Whether this process may mount file systems in a separate namespace."""
    if _NAMESPACE not in os.environ:
        return False
    with contextlib.suppress(subprocess.CalledProcessError), mounted(folder / "trial", AMPLE):
        return True
    return False


def resize(folder: Path, draw: random.Random | None) -> None:
    """Resize a file system to little more than it uses, or, if `draw` is None, to ample space.

    Does nothing if none is mounted at `folder`. Tries up to 20 times, because a resize fails if the
    files have already outgrown the new size.
    """
    for _ in range(20 if folder.is_mount() else 0):
        options = AMPLE if draw is None else _draw_size(folder, draw)
        with contextlib.suppress(subprocess.CalledProcessError):
            remount(folder, options)
            return


def _draw_size(folder: Path, draw: random.Random) -> str:
    found = os.statvfs(folder)
    if draw.random() < 0.2:
        files = found.f_files - found.f_ffree + draw.choice([3, 10, 60, 400])
        return f"size=1g,nr_inodes={files}"
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    more = draw.choice([8, 32, 100, 400, 1_000]) << 10
    return f"size={used + more},nr_inodes=1000000"


# ---------------------------------------------------------------- caches


def damage_caches(caches: Sequence[Path], draw: random.Random, wipe: float) -> None:
    """Wipe a share `wipe` of the caches, and damage 20% of the files in another 40%."""
    for cache in caches:
        choice = draw.random()
        if choice < wipe:
            for path in cache.iterdir():  # keep the cache itself, because it may be a mount point
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        elif choice < wipe + 0.4:
            own = sorted(tag.parent for tag in cache.rglob(TAG))
            files = {path for folder in own for path in folder.rglob("*") if path.is_file()}
            found = sorted(path for path in files if path.name != TAG)
            for path in draw.sample(found, len(found) // 5):
                _damage(path, draw)


def _damage(path: Path, draw: random.Random) -> None:
    data, kind = path.read_bytes(), draw.randrange(6)
    at = draw.randrange(max(1, len(data)))
    flipped = data[:at] + bytes([data[at] ^ 255] if data else []) + data[at + 1 :]
    if kind == 0:
        path.unlink()
    elif kind < 4:
        path.write_bytes([data[:at], flipped, data + b"more"][kind - 1])
    elif kind == 4:
        path.with_name(f"{path.name}.0123456789ab.part").write_bytes(data[:at])
    else:
        path.with_name(f"{path.name}.lock").touch()


def left_overs(caches: Sequence[Path]) -> set[tuple[str, int]]:
    """Find the lock and part files in caches, as (path, inode) pairs."""
    found = set()
    for path in (path for cache in caches for path in cache.rglob("*")):
        if path.suffix in (".lock", ".part"):
            with contextlib.suppress(FileNotFoundError):
                found.add((str(path), path.stat().st_ino))
    return found
