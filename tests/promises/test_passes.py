"""Passes: where `stop_every` ends them, however the run is cut, saved and resumed, they read one
stream."""

from __future__ import annotations

import os
import time
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import CloudLoader, FromStart, Stream
from cloudload.errors import RanksDisagreeError, WorkerError
from tests.support.awkward import EOS, byte_tokenizer
from tests.support.corpora import random_documents, write_mds
from tests.support.examples import EXAMPLES
from tests.support.jobs import command_of

NUM_DOCUMENTS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_mds(
        tmp_path_factory.mktemp("mds"), random_documents(7, NUM_DOCUMENTS), shard_bytes=2_000
    )


def make_loader(folder: str, **options: Any) -> CloudLoader:
    defaults = {
        "tokenizer": byte_tokenizer(),
        "eos": EOS,
        "seq_len": 16,
        "batch_size": 4,
        "num_workers": 0,
        "num_lanes": 12,
    }
    return CloudLoader(folder, **{**defaults, **options})


def ids_of(batches: Any) -> list[list[list[int]]]:
    return [batch["input_ids"].tolist() for batch in batches]


def test_passes_of_a_number_of_batches_follow_each_other(folder: str) -> None:
    expected = ids_of(make_loader(folder).take(10))
    loader = make_loader(folder, stop_every=4)
    passes = [ids_of(loader) for _ in range(2)]
    assert [len(each) for each in passes] == [4, 4]
    assert list(chain(*passes, ids_of(loader.take(2)))) == expected
    assert len(loader) == 4


@given(every=st.integers(1, 5), cuts=st.lists(st.integers(0, 12), max_size=4))
@settings(max_examples=EXAMPLES)
def test_wherever_a_run_is_resumed_its_passes_end_at_the_same_batches(
    folder: str, every: int, cuts: list[int]
) -> None:
    """Saved after some batches and restored afresh, the pass goes on to the same multiple of
    `stop_every`."""
    whole = ids_of(make_loader(folder).take(30))
    loader, seen = make_loader(folder, stop_every=every), 0
    for cut in sorted({min(cut, 20) for cut in cuts}):
        while seen < cut:
            for batch in loader:
                assert batch["input_ids"].tolist() == whole[seen]
                seen += 1
                if seen == cut:
                    break
            else:
                assert seen % every == 0
                assert loader.is_at_stop
        state = loader.state_dict()
        loader = make_loader(folder, stop_every=every)
        loader.load_state_dict(state)
    rest = ids_of(loader)
    assert len(rest) == every - seen % every
    assert rest == whole[seen : seen + len(rest)]


def test_a_pass_of_an_epoch_ends_where_as_many_documents_are_read(folder: str) -> None:
    expected = ids_of(make_loader(folder, epochs=3))
    loader = make_loader(folder, stop_every="epoch", epochs=3)
    passes, progress = [], []
    for _ in range(3):
        passes.append(ids_of(loader))
        progress.append(loader.stats().documents)
    assert list(chain(*passes)) == expected
    assert ids_of(loader) == []
    # within a batch's documents of a whole epoch
    assert progress[2] == 3 * NUM_DOCUMENTS
    assert all(0 <= read - epoch * NUM_DOCUMENTS <= 64 for epoch, read in enumerate(progress, 1))
    assert [len(each) for each in passes] == [pytest.approx(len(expected) / 3, rel=0.3)] * 3


def test_an_endless_run_has_epochs_too_and_a_resume_ends_them_alike(folder: str) -> None:
    loader = make_loader(folder, stop_every="epoch", num_workers=2)
    lengths = [len(ids_of(loader)) for _ in range(3)]
    other = make_loader(folder, stop_every="epoch")
    list(other.take(lengths[0] + 1))
    state = other.state_dict()
    other = make_loader(folder, stop_every="epoch")
    other.load_state_dict(state)
    assert [len(ids_of(other)) for _ in range(2)] == [lengths[1] - 1, lengths[2]]
    loader.close()


def test_nothing_is_begun_before_the_first_batch_is_asked_for(folder: str) -> None:
    loader = make_loader(folder)
    first = iter(loader)
    expected = ids_of(make_loader(folder).take(2))
    assert next(first)["input_ids"].tolist() == expected[0]
    iter(loader)
    assert next(first)["input_ids"].tolist() == expected[1]


def test_the_workers_go_on_from_pass_to_pass_and_end_with_the_loader(folder: str) -> None:
    loader = make_loader(folder, stop_every=2, num_workers=2)
    list(loader)
    workers = workers_of_this_process()
    assert len(workers) == 2
    list(loader)
    assert workers_of_this_process() == workers
    loader.load_state_dict(loader.state_dict())
    assert wait_for_no_workers() == set()
    list(loader)
    loader.close()
    assert wait_for_no_workers() == set()


def test_what_is_skipped_counts_as_passed(folder: str) -> None:
    loader = make_loader(folder, stop_every=4)
    next(iter(loader))
    loader.skip(4)
    assert ids_of(loader) == ids_of(make_loader(folder).take(8))[5:]


def test_an_evaluation_reads_the_same_each_time(folder: str) -> None:
    for options in ({"epochs": 1}, {"stop_every": 3}):
        batches = FromStart(make_loader(folder, **options))
        first = ids_of(batches)
        next(iter(batches))
        assert ids_of(batches) == first
    assert len(first) == 3


def test_a_batch_knows_its_tokens(folder: str) -> None:
    loader = make_loader(folder, epochs=1)
    total = sum(batch.num_tokens for batch in loader)
    assert total == loader.stats().tokens


def test_an_evaluation_without_an_end_is_refused(folder: str) -> None:
    with pytest.raises(ValueError, match="would never end"):
        FromStart(make_loader(folder))


def test_passes_are_the_same_rows_whatever_batches_they_come_in(folder: str) -> None:
    loader = make_loader(folder, batch_size=2, stop_every=6)
    list(loader)
    next(iter(loader))
    next(iter(loader))
    state = loader.state_dict()
    loader = make_loader(folder, batch_size=4, stop_every=3)
    loader.load_state_dict(state)
    assert [len(ids_of(loader)) for _ in range(2)] == [2, 3]
    assert loader.rows == 3 * 12
    loader.seek(3 * 12 + 4)
    assert len(ids_of(loader)) == 2


def test_the_workers_go_on_where_nobody_asks_for_the_end_of_a_pass(folder: str) -> None:
    loader = make_loader(folder, stop_every=2, num_workers=1)
    seen = []
    for _ in range(3):
        seen += ids_of(islice(loader, 2))
        seen_workers = workers_of_this_process()
        assert len(seen_workers) == 1
    first = seen_workers
    seen += ids_of(islice(loader, 2))
    assert workers_of_this_process() == first
    assert seen == ids_of(make_loader(folder).take(8))
    del loader
    assert wait_for_no_workers() == set()


def test_a_forked_child_cannot_take_its_parents_batches(folder: str) -> None:
    loader = make_loader(folder, stop_every=2, num_workers=1)
    list(loader)
    child = os.fork()
    if not child:
        try:
            list(loader)
        except WorkerError:
            os._exit(7)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert ids_of(loader) == ids_of(make_loader(folder).take(4))[2:]
    loader.close()


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "day"])
def test_a_wrong_stop_every_is_refused(folder: str, every: Any) -> None:
    with pytest.raises(ValueError, match="stop_every"):
        make_loader(folder, stop_every=every)


def test_epochs_of_what_has_none_are_refused(folder: str) -> None:
    streams = [Stream(folder, name="a", proportion=1.0)]
    with pytest.raises(ValueError, match=r"stop_every is 'epoch'.*their own epochs"):
        make_loader(streams, stop_every="epoch")  # type: ignore[arg-type]
    with pytest.raises(
        RanksDisagreeError, match=r"stop_every='epoch' on 3 ranks.*leave out stop_every"
    ):
        next(iter(make_loader(folder, stop_every="epoch", dp_rank=0, dp_world_size=3)))


def test_whoever_wraps_a_loader_in_a_dataloader_is_told(folder: str) -> None:
    for options in ({}, {"stop_every": 3}):
        with pytest.raises(TypeError, match="do not wrap it in a DataLoader"):
            list(torch.utils.data.DataLoader(make_loader(folder, **options), batch_size=None))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["set_epoch", "dataset", "sampler", "batch_sampler", "generator"])
def test_a_loader_has_nothing_that_a_framework_would_misuse(folder: str, name: str) -> None:
    assert not hasattr(make_loader(folder), name)


def workers_of_this_process() -> set[int]:
    children = {
        int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    }
    return {pid for pid in children if b"resource_tracker" not in command_of(pid)} - _BEFORE


def wait_for_no_workers() -> set[int]:
    deadline = time.monotonic() + 10
    while workers_of_this_process() and time.monotonic() < deadline:
        time.sleep(0.05)
    return workers_of_this_process()


_BEFORE: set[int] = set()


@pytest.fixture(autouse=True)
def _note_other_processes() -> None:
    _BEFORE.clear()
    _BEFORE.update(workers_of_this_process())
