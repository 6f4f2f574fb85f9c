"""A state from an earlier release resumes with the same rows that the release read next."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloudload.config.transform import name_function
from cloudload.errors import StreamChangedError
from cloudload.testing import Leg, run_leg
from testkit.corpora import byte_tokenizer, random_documents, write_mds
from testkit.saved_runs import AFTER, RUNS, hash_rows, shout

FILES = sorted((Path(__file__).parents[1] / "data").glob("states_*.json"))
SAVED: dict[str, Any] = {
    path.stem.removeprefix("states_"): json.loads(path.read_text()) for path in FILES
}


def write_data(folder: Path) -> None:
    """Write the datasets and the tokenizer of the saved runs."""
    write_mds(folder / "web", random_documents(1, 90), shard_bytes=2_000)
    write_mds(folder / "books", random_documents(2, 20, max_words=90), shard_bytes=4_000)
    byte_tokenizer().save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def data(module_folder: Path) -> str:
    write_data(module_folder)
    return str(module_folder)


CASES = [(commit, name) for commit, saved in SAVED.items() for name in saved["runs"]]
WORLDS = [Leg(batches=AFTER), Leg(3, workers=2, batch_size=2, batches=AFTER // 6, exchange_every=2)]


def test_the_states_are_there() -> None:
    assert SAVED["38a3700"]["runs"].keys() == RUNS.keys()


@pytest.mark.parametrize(("commit", "name"), CASES)
@pytest.mark.parametrize("leg", WORLDS, ids=lambda leg: f"{leg.ranks} ranks")
def test_a_state_of_an_old_version_resumes_to_the_rows_it_read_on(
    data: str, tmp_path: Path, commit: str, name: str, leg: Leg
) -> None:
    saved = SAVED[commit]["runs"][name]
    state = saved["state"]
    if state["transform"] is not None:
        # before release 0.1.0, the hash did not cover the values that a transform uses
        assert state["transform"].startswith("saved_runs.shout#")
        state = {**state, "transform": name_function(shout)}
    rows, states = run_leg(RUNS[name].opener(data, str(tmp_path)), leg, state)
    assert hash_rows(rows) == saved["rows"]
    assert states[-1]["rows"] == saved["state"]["rows"] + AFTER


@pytest.mark.parametrize("commit", SAVED)
def test_the_state_of_one_rank_of_an_old_version_is_refused_with_the_ways_that_remain(
    data: str, tmp_path: Path, commit: str
) -> None:
    make_loader = RUNS["best_fit"].opener(data, str(tmp_path))
    for part in SAVED[commit].get("parts", ()):
        refused = f"'{part['part']}'.* the version of cloudload that wrote them .*cloudload count"
        with pytest.raises(StreamChangedError, match=refused):
            run_leg(make_loader, Leg(), part)


@pytest.mark.parametrize("commit", SAVED)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 5}, "seed: saved 17, found 5"),
        ({"open_rows": 2}, "open_rows: saved 3, found 2"),
        ({"shuffle_algo": "seekable"}, "shuffle_algo: saved 'py1e', found 'seekable'"),
        ({"eos": None}, "bos_eos .*: saved 'None/256', found 'None/None'"),
        ({"transform": str.upper}, "transform: saved None, found '.*upper#"),
        ({"num_lanes": 24}, "num_lanes: saved 12, found 24"),
        ({"shuffle": False}, "shuffle: saved True, found False"),
        ({"shuffle_block_size": 99}, "shuffle_block_size: saved "),
        ({"num_canonical_nodes": 3}, "num_canonical_nodes: saved "),
        ({"epochs": 2}, "epochs: saved None, found 2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_state_of_an_old_version_refuses_another_stream_of_rows(
    data: str, tmp_path: Path, commit: str, change: dict[str, Any], message: str
) -> None:
    make_changed = partial(RUNS["best_fit"].opener(data, str(tmp_path)), **change)
    with pytest.raises(StreamChangedError, match=message):
        run_leg(make_changed, Leg(), SAVED[commit]["runs"]["best_fit"]["state"])
