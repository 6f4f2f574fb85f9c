"""Damage caches between jobs, and find the files that jobs leave in them."""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

from cloudload.system.temp_files import TAG
from stress.chaos.rank import Campaign, Job


def damage_caches(campaign: Campaign, draw: random.Random, wipe: float) -> None:
    """Wipe a share `wipe` of a campaign's caches, and damage 20% of the files in another 40%."""
    for cache in campaign.folder.glob("cache-*"):
        choice = draw.random()
        if choice < wipe:
            _empty(cache)
        elif choice < wipe + 0.4:
            own = sorted(tag.parent for tag in cache.rglob(TAG))
            files = sorted(
                path
                for folder in own
                for path in folder.rglob("*")
                if path.is_file() and path.name != TAG
            )
            for path in draw.sample(files, len(files) // 5):
                _damage(path, draw)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():  # keep the folder itself, because it may be a mount point
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _damage(path: Path, draw: random.Random) -> None:
    data, kind = path.read_bytes(), draw.randrange(6)
    at = draw.randrange(max(1, len(data)))
    if kind == 0:
        path.unlink()
    elif kind == 1:
        path.write_bytes(data[:at])
    elif kind == 2:
        path.write_bytes(data[:at] + bytes([data[at] ^ 255] if data else []) + data[at + 1 :])
    elif kind == 3:
        path.write_bytes(data + b"more")
    elif kind == 4:
        path.with_name(f"{path.name}.0123456789ab.part").write_bytes(data[:at])
    else:
        path.with_name(f"{path.name}.lock").touch()


def left_overs(campaign: Campaign, job: Job) -> set[tuple[str, int]]:
    """Find the lock and part files in the caches of a job's nodes, as (path, inode) pairs."""
    found = set()
    for node in range(job.nodes):
        for path in job.cache(campaign, node).rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                if path.suffix in (".lock", ".part"):
                    found.add((str(path), path.stat().st_ino))
    return found
