"""Passes that end because of `stop_every` read one continuous stream, even if the run is
interrupted, saved, and resumed."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import FromStart, Stream
from cloudload.errors import RanksDisagreeError
from testkit.examples import EXAMPLES
from testkit.loaders import ids_of, make_loader

NUM_DOCUMENTS = 60


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
    """A pass that is saved and restored in a new loader ends at the same multiple of
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
    # each pass may read at most 64 documents, about one batch, beyond its epoch
    assert progress[2] == 3 * NUM_DOCUMENTS
    assert all(0 <= read - epoch * NUM_DOCUMENTS <= 64 for epoch, read in enumerate(progress, 1))
    assert [len(each) for each in passes] == [pytest.approx(len(expected) / 3, rel=0.3)] * 3


def test_nothing_is_begun_before_the_first_batch_is_asked_for(folder: str) -> None:
    loader = make_loader(folder)
    first = iter(loader)
    expected = ids_of(make_loader(folder).take(2))
    assert next(first)["input_ids"].tolist() == expected[0]
    iter(loader)
    assert next(first)["input_ids"].tolist() == expected[1]


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


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "day"])
def test_a_wrong_stop_every_is_refused(folder: str, every: Any) -> None:
    with pytest.raises(ValueError, match="stop_every"):
        make_loader(folder, stop_every=every)


def test_epochs_of_what_has_none_are_refused(folder: str) -> None:
    streams = [Stream(folder, name="a", proportion=1.0)]
    with pytest.raises(ValueError, match=r"stop_every is 'epoch'.*their own epochs"):
        make_loader(streams, stop_every="epoch")
    refused = r"with stop_every='epoch', the 3 ranks must.*omit stop_every"
    with pytest.raises(RanksDisagreeError, match=refused):
        next(iter(make_loader(folder, stop_every="epoch", dp_rank=0, dp_world_size=3)))


def test_a_loader_wrapped_in_a_dataloader_is_an_error(folder: str) -> None:
    for options in ({}, {"stop_every": 3}):
        with pytest.raises(TypeError, match="do not wrap it in a DataLoader"):
            list(torch.utils.data.DataLoader(make_loader(folder, **options), batch_size=None))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["set_epoch", "dataset", "sampler", "batch_sampler", "generator"])
def test_a_loader_has_nothing_that_a_framework_would_misuse(folder: str, name: str) -> None:
    assert not hasattr(make_loader(folder), name)
