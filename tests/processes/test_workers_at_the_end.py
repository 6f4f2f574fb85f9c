"""The workers of a finite run stay alive until its end, even through its tail."""

from __future__ import annotations

from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, Stream
from cloudload.loading.workers.worker import Worker
from cloudload.loading.workers.worker_plan import WorkerPlan
from testkit.counted import write_counted
from testkit.loaders import make_loader
from testkit.noted_calls import note_calls

MODES: dict[str, dict[str, Any]] = {
    "concat": {"packing": "concat"},
    "best_fit": {"packing": "best_fit"},
    "cut": {"packing": "one_per_row", "overflow": "cut"},
    "rows": {"packing": "one_per_row", "overflow": "rows"},
    "replayed": {"packing": "best_fit", "exchange_every": 3},
    "spawned": {"packing": "concat", "start_method": "spawn"},
}
"""Settings by the name of a mode. The workers of all modes except `spawned` are forked."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset in which every twelfth document, all of them in lane 0, is short. Lane 0 runs dry
    early, so most of the run is its tail."""
    texts = [f"{number} " * (1 if number % 12 == 0 else 9) for number in range(200)]
    return write_counted(tmp_path_factory.mktemp("end") / "mds", texts, shard_bytes=1_000)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the name of each process that this process starts."""
    found: list[str] = []
    note_calls(monkeypatch, BaseProcess, "start", lambda process: found.append(process.name))
    return found


def read(loader: CloudLoader) -> list[tuple[list[list[int]], dict[str, Any]]]:
    """Read all batches. Returns the token IDs of each batch and the state after it."""
    with loader:
        return [(batch["input_ids"].tolist(), loader.state_dict()) for batch in loader]


@pytest.mark.parametrize(
    ("mode", "lengths"),
    [
        *[(mode, "off") for mode in MODES],
        *[(mode, "require") for mode in MODES if mode != "spawned"],
        pytest.param("spawned", "require", marks=pytest.mark.long),
    ],
)
def test_a_finite_run_starts_each_of_its_workers_once(
    folder: str, starts: list[str], mode: str, lengths: str
) -> None:
    def make(**more: Any) -> CloudLoader:
        return make_loader(
            folder, epochs=2, shuffle=False, lengths=lengths, **{**MODES[mode], **more}
        )

    expected = read(make(start_method=None))
    assert starts == []
    tails = [state["tail"] for _, state in expected]
    assert not tails[3], "the tail must not be the whole run"
    assert sum(map(bool, tails)) > 1, "several batches must be in the tail"
    found = read(make(num_workers=2))
    assert len(starts) == 2
    assert found == expected
    middle = len(expected) - 2
    resumed = make(num_workers=2)
    resumed.load_state_dict(expected[middle][1])
    assert read(resumed) == expected[middle + 1 :]
    assert len(starts) == 4, (
        "after a resume in the tail, the same workers must measure and read the tail"
    )


def test_a_mixture_whose_streams_end_starts_each_of_its_workers_once(
    folder: str, starts: list[str]
) -> None:
    def make(num_workers: int) -> CloudLoader:
        data = [Stream(folder, proportion=weight, name=str(weight)) for weight in (0.7, 0.3)]
        return make_loader(data, epochs=1, num_workers=num_workers)

    expected = read(make(0))
    assert read(make(2)) == expected
    assert len(starts) == 2


def test_a_worker_halts_between_blocks_and_forgets_what_it_had_read_ahead(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One worker has read far ahead when the other worker's lane runs dry."""
    expected = read(make_loader(folder, epochs=1, shuffle=False, lengths="off"))
    log = tmp_path / "phases"

    def note(worker: Worker, plan: WorkerPlan) -> None:
        with log.open("a") as file:
            file.write(f"{worker.number} {type(plan.phase).__name__}\n")

    note_calls(monkeypatch, Worker, "read_blocks", note)
    loader = make_loader(
        folder, epochs=1, shuffle=False, lengths="off", num_workers=2, prefetch_batches=64
    )
    assert read(loader) == expected
    phases = log.read_text().split("\n")[:-1]
    for worker in "01":
        assert [each[2:] for each in phases if each[0] == worker] == [
            "Steady",
            "Measuring",
            "Sharing",
            "InTail",
        ]
