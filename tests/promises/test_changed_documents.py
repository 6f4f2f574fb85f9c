"""A resume fails if the number of tokens of a partly read document has changed."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from cloudload.errors import StreamChangedError
from cloudload.run.saved import read_state
from cloudload.testing import Leg, run_leg
from testkit import loaders
from testkit.corpora import random_documents, write_mds
from testkit.state_fields import without

COUNT = 60
TEXTS = random_documents(1, COUNT, max_words=40)
IDS = [f"doc-{number}" for number in range(COUNT)]


@pytest.fixture(scope="module")
def folder(module_folder: Path) -> Path:
    write_mds(module_folder / "mds", TEXTS, shard_bytes=4_000, extra={"id": ("str", IDS)})
    return module_folder


class Append:
    """A transform that appends a suffix, which may change, or cuts a text to its first bytes."""

    def __init__(self) -> None:
        self.suffix, self.length = "", None

    suffix: str
    length: int | None

    def __call__(self, sample: dict[str, Any]) -> str:
        return f"{sample['text'][: self.length]}{self.suffix}"


def append_file(path: Path, sample: dict[str, Any]) -> str:
    return f"{sample['text']}{path.read_text()}"


def ranks(folder: Path, **settings: Any) -> Any:
    settings = {"num_lanes": 6, "overflow": "rows", "local": folder / "cache", **settings}
    return loaders.ranks(folder / "mds", **settings)


def changing(folder: Path, **settings: Any) -> tuple[Append, Any]:
    """A transform, and loaders that take it for the same one when it changes."""
    transform = Append()
    return transform, ranks(folder, **{"transform": transform, "transform_id": "x", **settings})


CHANGED = (
    r"sample \d+ of \S+shard\.0\S+ \(id 'doc-\d+'\) has (\d+) tokens, but had (\d+) when the run "
)


@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_document_in_progress_that_grew_is_named_with_both_sizes(
    folder: Path, packing: str, workers: int
) -> None:
    transform, make = changing(folder, packing=packing)
    _, states = run_leg(make, Leg(2, workers=2, batch_size=6, batches=2))
    for leg in (Leg(workers=workers), Leg(3, workers=workers, batch_size=4)):
        transform.suffix = "."
        with pytest.raises(StreamChangedError, match=CHANGED + ".*not deterministic") as raised:
            run_leg(make, leg, states[-1])
        assert "damaged" not in str(raised.value)
        assert "on_change={'transform': 'accept'}" in str(raised.value)
        transform.suffix = ""
        run_leg(make, leg, states[-1])


def test_so_is_one_that_shrank_even_below_the_tokens_that_were_read(folder: Path) -> None:
    transform, make = changing(folder)
    _, states = run_leg(make, Leg(batch_size=6, batches=3))
    transform.length = 3
    with pytest.raises(StreamChangedError, match=CHANGED) as raised:
        run_leg(make, Leg(), states[-1])
    assert "has 4 tokens" in str(raised.value)


def test_a_transform_that_reads_a_file_is_caught_when_the_file_changed(
    folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "suffix.txt"
    file.write_text(" one")
    make = ranks(folder, transform=functools.partial(append_file, file))
    _, states = run_leg(make, Leg(batch_size=6, batches=3))
    run_leg(make, Leg(), states[-1])
    file.write_text(" three")
    with pytest.raises(StreamChangedError, match=CHANGED):
        run_leg(make, Leg(), states[-1])


def test_a_size_is_kept_across_resumes_that_do_not_read_the_lane(folder: Path) -> None:
    transform, make = changing(folder)
    _, states = run_leg(make, Leg(batch_size=6, batches=2))
    for _ in range(4):
        _, states = run_leg(make, Leg(batches=1), states[-1])
    cursors = read_state(states[-1]).position.cursors[0]
    assert ((cursors[:, 1] > 0) == (cursors[:, 2] > 0)).all()
    transform.suffix = "."
    with pytest.raises(StreamChangedError, match=CHANGED):
        run_leg(make, Leg(batches=9), states[-1])


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_in_the_tail_it_is_noticed_too(folder: Path, packing: str) -> None:
    transform, make = changing(folder, packing=packing, epochs=1)
    _, states = run_leg(make, Leg(batches=None))
    in_tail = next(state for state in states if state["tail"])
    transform.suffix = "."
    with pytest.raises(StreamChangedError, match=CHANGED):
        run_leg(make, Leg(batches=None), in_tail)


def test_a_change_that_is_accepted_drops_the_documents_in_progress(folder: Path) -> None:
    transform, make = changing(folder)
    _, states = run_leg(make, Leg(batch_size=6, batches=3))
    transform.suffix = "."
    with make(transform_id="y", batch_size=1) as loader:
        loader.load_state_dict(states[-1], on_change={"transform": "accept"})
        assert loader.state_dict()["document_sizes"] == ""
        assert len(list(loader.take(12))) == 12


def test_a_state_without_sizes_resumes_and_only_lanes_that_run_learn_them(folder: Path) -> None:
    make = ranks(folder)
    whole, states = run_leg(make, Leg(batch_size=6, batches=6))
    older = without(states[2], "document_sizes")
    rest, after = run_leg(make, Leg(batch_size=6, batches=4), older)
    assert rest == whole[12:]
    assert after[-1] == states[-1]


def test_seq_len_may_change_while_sizes_stay_known(folder: Path) -> None:
    transform, make = changing(folder, packing="best_fit")
    _, states = run_leg(make, Leg(batch_size=6, batches=3))
    longer = functools.partial(make, seq_len=11)
    _, changed = run_leg(longer, Leg(batch_size=1, batches=8), states[-1])
    cursors = read_state(changed[-1]).position.cursors[0]
    assert ((cursors[:, 1] > 0) == (cursors[:, 2] > 0)).all()
    transform.suffix = "."
    with pytest.raises(StreamChangedError, match=CHANGED):
        run_leg(longer, Leg(batch_size=6), changed[-1])
