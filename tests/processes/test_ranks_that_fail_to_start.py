"""If a rank ends or fails before its first batch, the others stop with an error that names it. They
wait for a rank that is only slow."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpora import random_documents, write_mds
from tests.support.patience import soon
from tests.support.processes import is_alive
from tests.support.warm_start import Program, start

RANKS = 4
_PATIENCE_S = 120.0
"""Far less than the default of `exchange_timeout_s`."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_mds(tmp_path_factory.mktemp("data") / "mds", random_documents(3, 60))


class Job:
    """A job whose rank `victim` fails to start in one of several ways."""

    def __init__(self, data: str, folder: Path, victim: int, way: str, *, is_first: bool) -> None:
        self.folder, self.victim = folder, victim
        options: dict[str, Any] = {
            "data": data,
            "cache": str(folder / "cache"),
            "out": str(folder),
            "rendezvous": str(folder / "rendezvous"),
            "ranks": RANKS,
            "victim": victim,
            "way": way,
            "is_first": is_first,
        }
        self.ranks: dict[int, Program] = {
            rank: start("tests.support.starting_rank", [json.dumps({**options, "rank": rank})])
            for rank in range(RANKS)
        }

    def await_act(self) -> None:
        """Wait until the victim has failed, or is late."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (self.folder / "acted").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def release(self) -> None:
        """Tell the other ranks to create their loaders."""
        (self.folder / "go").touch()

    def read(self, rank: int) -> tuple[float, str]:
        """Read the seconds and the error that a rank prints."""
        seconds, error = json.loads(self.ranks[rank].stdout.readline())
        return seconds, error

    def others(self) -> set[int]:
        return {*self.ranks} - {self.victim}

    def end(self) -> None:
        """Tell all ranks to end, and wait for them."""
        (self.folder / "done").touch()
        for program in self.ranks.values():
            if not program.stdin.closed:
                program.stdin.close()
        for program in self.ranks.values():
            program.communicate(_PATIENCE_S)


ENDS = ("raises", "cannot resume", "has no disk")


@pytest.mark.parametrize(
    ("way", "text", "is_first"),
    [
        ("is killed", "has ended", False),  # if it is first, then nobody was connected to it
        *(
            (way, text, is_first)
            for way, text in (
                ("raises", "StoreError: "),
                ("raises and lives", "raised StoreError: "),
                ("cannot resume", "StreamChangedError: "),
                ("has no disk", "CacheError: "),
            )
            for is_first in (True, False)
        ),
    ],
)
def test_a_rank_that_fails_before_its_first_batch_ends_the_others_by_name(
    data: str, tmp_path: Path, way: str, text: str, is_first: bool
) -> None:
    job = Job(data, tmp_path, 2 if is_first else 0, way, is_first=is_first)
    job.await_act()
    if is_first and way in ENDS:
        # a child of this rank may keep its pipes open
        assert soon(lambda: not is_alive(job.ranks[job.victim].pid), _PATIENCE_S)
    job.release()
    found = [job.read(rank) for rank in job.others()]
    job.end()
    for _, error in found:
        assert error.startswith("RanksDisagreeError: the ranks cannot start iterating: "), error
        assert f"process {job.victim} (of 0 to 3) " in error
        assert text in error


@pytest.mark.parametrize("way", ["is slow", "tries again"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_rank_that_is_slow_or_tries_again_is_waited_for(
    data: str, tmp_path: Path, way: str, is_first: bool
) -> None:
    job = Job(data, tmp_path, 2, way, is_first=is_first)
    job.await_act()
    job.release()
    found = [job.read(rank) for rank in job.ranks]
    job.end()
    assert {error for _, error in found} == {""}
