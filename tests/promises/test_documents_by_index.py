"""`Documents`: each document of an epoch exactly once, on any world, whatever was read ahead."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import Documents, Stream
from cloudload.errors import DatasetError, StreamChangedError
from cloudload.loading import document_dataset
from cloudload.loading.document_dataset import DocumentQueue
from testkit.corpora import write_mds
from testkit.examples import EXAMPLES
from testkit.interrupts import count_visits, run_at
from testkit.loaders import make_loader

TEXTS = [f"{number} " + "x" * (number % 13) for number in range(103)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("documents") / "data"
    extra = {"id": ("str", [f"id-{number}" for number in range(len(TEXTS))])}
    return write_mds(root, TEXTS, shard_bytes=400, extra=extra, compression="zstd")


def texts_of(documents: list[dict[str, Any]]) -> list[str]:
    return [document["text"] for document in documents]


@pytest.mark.parametrize("shuffle_algo", ["py1e", "py1br", "seekable"])
def test_an_index_names_the_document_of_the_loader_with_the_same_order(
    folder: str, shuffle_algo: Any
) -> None:
    docs = Documents(folder, epochs=2, seed=3, shuffle_algo=shuffle_algo)
    options = {"packing": "one_per_row", "batch_size": 1, "num_lanes": 1}
    loader = make_loader(folder, **options, epochs=2, seed=3, shuffle_algo=shuffle_algo)
    with loader:
        read = [batch.spans[0].tolist() for batch in loader]
    assert len(docs) == len(read) == 2 * len(TEXTS)
    for index, (_, _, epoch, sample, *_) in enumerate(read):
        place = docs.where(index)
        assert (place.epoch, place.sample, place.id) == (epoch, sample, f"id-{sample}")
        assert docs[index] == {"id": f"id-{sample}", "text": TEXTS[sample]}


def test_it_is_a_sequence_of_documents_with_the_columns_asked_for(folder: str) -> None:
    docs = Documents(folder, columns=["text"], epochs=1)
    every = list(docs)
    assert sorted(texts_of(every)) == sorted(TEXTS)
    assert docs[-1] == every[-1]
    assert docs[0].keys() == {"text"}
    assert Documents(folder, columns=[])[0] == {}
    assert Documents(folder, columns=iter(["text"]))[0] == docs[0]  # type: ignore[arg-type]
    assert docs.__getitems__([5, 3, 5]) == [every[5], every[3], every[5]]
    assert pickle.loads(pickle.dumps(docs))[7] == every[7]
    for index in (len(TEXTS), -len(TEXTS) - 1, 10**30):
        with pytest.raises(IndexError, match="have 103 indices"):
            docs[index]
    endless = Documents(folder, epochs=None)
    assert endless[1_000] is not None
    with pytest.raises(TypeError, match="no length"):
        len(endless)


@given(
    legs=st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(0, 4)), min_size=1, max_size=4
    ),
    epochs=st.sampled_from([1, 2]),
)
@settings(max_examples=EXAMPLES // 2)
def test_batches_deliver_each_document_once_on_any_chain_of_worlds(
    folder: str, legs: list[tuple[int, int, int]], epochs: int
) -> None:
    docs = Documents(folder, epochs=epochs, columns=["text"])
    state, seen = None, list[str]()
    for ranks, size, number in [*legs, (3, 4, 10_000)]:
        steps = []
        states = []
        for rank in range(ranks):
            batches = docs.batches(size, dp_rank=rank, dp_world_size=ranks)
            if state is not None:
                batches.load_state_dict(state)
            steps.append([texts_of(batch) for batch in itertools.islice(batches, number)])
            states.append(batches.state_dict())
        assert all(each == states[0] for each in states)
        state = json.loads(json.dumps(states[0]))
        assert len({len(each) for each in steps}) == 1
        for step in zip(*steps, strict=True):
            seen += itertools.chain.from_iterable(step)
    assert seen == texts_of(list(docs))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_counts_what_was_received_and_not_what_workers_read_ahead(
    folder: str, num_workers: int
) -> None:
    docs = Documents(folder, epochs=1)
    batches = docs.batches(5, num_workers=num_workers, collate_fn=texts_of)
    iterator = iter(batches)
    first = [next(iterator) for _ in range(3)]
    assert batches.state_dict()["next"] == 15
    del iterator
    again = docs.batches(4, num_workers=num_workers, collate_fn=texts_of)
    again.load_state_dict(batches.state_dict())
    rest = list(again)
    assert [*itertools.chain(*first, *rest)] == texts_of(list(docs))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_draw_no_random_numbers_of_the_model(folder: str, num_workers: int) -> None:
    before = torch.get_rng_state()
    next(iter(Documents(folder).batches(5, num_workers=num_workers)))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_iterator_ends_when_there_is_a_newer_one_or_a_state_is_loaded(folder: str) -> None:
    batches = Documents(folder).batches(5)
    first, state = iter(batches), batches.state_dict()
    next(first)
    second = iter(batches)
    next(second)
    with pytest.raises(DatasetError, match="this iterator of batches has ended"):
        next(first)
    next(second)
    assert batches.next_index == 15
    batches.load_state_dict(state)
    with pytest.raises(DatasetError, match="this iterator of batches has ended"):
        next(second)
    assert batches.next_index == 0


class QueueModel:
    """What a queue promises, kept as plain sets."""

    def __init__(self) -> None:
        self.taken, self.finished = set[int](), set[int]()


@given(data=st.data(), epochs=st.sampled_from([1, 2]))
@settings(max_examples=EXAMPLES)
def test_a_queue_finishes_each_document_once_in_any_order_and_through_restarts(
    folder: str, data: st.DataObject, epochs: int
) -> None:
    docs = Documents(folder, epochs=epochs, columns=["text"])
    queue, finished = docs.queue(), Counter[int]()
    saved, finished_at_save = queue.state_dict(), Counter[int]()
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["take", "done", "save", "crash"])):
            case "take":
                before = set(queue.open)
                taken = queue.take(data.draw(st.integers(0, 20)))
                indices = [index for index, _ in taken]
                assert not before & set(indices)
                assert not any(finished[index] for index in indices)
                assert [each for _, each in taken] == docs.__getitems__(indices)
            case "done" if queue.open:
                some = data.draw(st.lists(st.sampled_from(queue.open), unique=True))
                queue.done(some)
                finished.update(some)
            case "save":
                saved, finished_at_save = (
                    json.loads(json.dumps(queue.state_dict())),
                    finished.copy(),
                )
            case "crash":
                queue, finished = docs.queue(), finished_at_save.copy()
                queue.load_state_dict(saved)
    while taken := queue.take(50):
        queue.done(index for index, _ in taken)
        finished.update(index for index, _ in taken)
    queue.done(left := queue.open)
    finished.update(left)
    assert finished == Counter(range(len(docs)))
    assert (queue.frontier, queue.state_dict()["done"]) == (len(docs), [])


def test_threads_share_an_iterator(folder: str) -> None:
    docs = Documents(folder)
    documents, expected = iter(docs), texts_of(list(docs))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: texts_of(list(documents)), range(8)))
    assert sorted(itertools.chain(*found)) == sorted(expected)


def test_threads_share_a_queue(folder: str) -> None:
    queue, taken = Documents(folder, epochs=3).queue(), list[int]()

    def work(_: int) -> None:
        while documents := queue.take(2):
            indices = [index for index, _ in documents]
            taken.extend(indices)
            assert {*indices} <= {*queue.open}
            queue.done(indices)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert sorted(taken) == list(range(queue.frontier))
    assert queue.state_dict()["done"] == queue.open == []


def test_a_document_that_never_finishes_is_named_before_the_state_grows(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_dataset, "MOST_AHEAD", 20)
    queue = Documents(folder, epochs=None).queue()
    [(first, _)] = queue.take(1)
    queue.done(index for index, _ in queue.take(19))
    with pytest.raises(DatasetError, match="document 0 is not done, while document 20"):
        queue.take(1)
    queue.done([first])
    assert queue.take(5)


def test_a_document_that_is_done_in_a_state_is_not_taken_again_when_the_frontier_passes_it(
    folder: str,
) -> None:
    first, second = Documents(folder).queue(), Documents(folder).queue()
    first.take(8)
    first.done([0, 1, 2, 5, 7])
    second.load_state_dict(first.state_dict())
    taken = []
    for _ in range(5):
        [(index, _document)] = second.take(1)
        taken.append(index)
        second.done([index])
    assert taken == [3, 4, 6, 8, 9]


def test_a_state_that_a_signal_handler_saves_is_that_before_or_after_the_call(folder: str) -> None:
    docs, states = Documents(folder), list[dict[str, Any]]()

    def begin() -> DocumentQueue:
        queue = docs.queue()
        queue.take(5)
        queue.done([1, 3])
        return queue

    before, queue = begin().state_dict(), begin()
    num_visits = len(count_visits(partial(queue.done, [2, 0])))
    after = queue.state_dict()
    assert (after["frontier"], after["done"]) == (4, [])
    for visit in range(num_visits):
        queue = begin()
        save = partial(_append_state, queue, states)
        run_at(partial(queue.done, [2, 0]), visit, save)
    assert all(state in (before, after) for state in states)
    assert before in states


def _append_state(queue: DocumentQueue, states: list[dict[str, Any]]) -> None:
    states.append(queue.state_dict())


def test_a_take_of_more_than_may_be_taken_is_refused_at_once(folder: str) -> None:
    queue = Documents(folder, epochs=None).queue()
    with pytest.raises(
        DatasetError, match="document 0 is not done, while document 65,536 is asked"
    ):
        queue.take(1 << 40)
    assert queue.open == []


def test_done_is_for_documents_that_were_taken_once(folder: str) -> None:
    queue = Documents(folder).queue()
    queue.take(3)
    for indices, message in (
        ([3], "3 was not taken"),
        ([-1], "-1 was not taken"),
        ([1, 1], "1 is done already"),
    ):
        with pytest.raises(ValueError, match=message):
            queue.done(indices)
    queue.done([0])
    with pytest.raises(ValueError, match="0 is done already"):
        queue.done([0])
    assert queue.open == [1, 2]


def test_a_state_of_another_order_or_of_other_data_is_refused_by_name(
    folder: str, tmp_path: Path
) -> None:
    docs = Documents(folder, seed=1)
    for part in (docs.queue(), docs.batches(2)):
        state = part.state_dict()
        for other, name in (
            (Documents(folder, seed=2), "seed: saved 1, found 2"),
            (Documents(folder, seed=1, shuffle=False), "shuffle: saved True, found False"),
            (Documents(write_mds(tmp_path / "other", TEXTS[:-1]), seed=1), "data: saved"),
        ):
            again = other.queue() if hasattr(part, "take") else other.batches(1)
            with pytest.raises(StreamChangedError, match=name):
                again.load_state_dict(state)
        for wrong in ({}, {"version": 2}, {**state, "next": -1, "frontier": "x"}):
            with pytest.raises(StreamChangedError, match=r"not a state|damaged"):
                part.load_state_dict(wrong)


def test_options_that_it_does_not_have_are_refused(folder: str) -> None:
    with pytest.raises(ValueError, match="a stream has a proportion"):
        Documents([Stream(folder, proportion=1)])
    with pytest.raises(ValueError, match="Use a list of names"):
        Documents(folder, columns="text")
    with pytest.raises(DatasetError, match=r"no shard has the column 'txt'.*: id, text$"):
        Documents(folder, columns=["text", "txt"])
    with pytest.raises(TypeError, match="Documents has no argument 'batch_size'"):
        Documents(folder, **dict[str, Any](batch_size=1))


def test_a_sampler_and_a_data_loader_read_it(folder: str) -> None:
    docs = Documents(folder, columns=["text"])
    sampler: Any = torch.utils.data.DistributedSampler(docs, 2, 1, shuffle=False)
    loader = torch.utils.data.DataLoader(
        docs, batch_size=10, sampler=sampler, num_workers=2, collate_fn=texts_of
    )
    found = [text for batch in loader for text in batch]
    assert found[:51] == texts_of(list(docs))[1::2]


@pytest.mark.parametrize(
    ("kind", "position", "last"),
    [
        ("batches", {"next": 104}, 103),
        ("queue", {"frontier": 104, "done": []}, 103),
        ("queue", {"frontier": 3, "done": [5, 103]}, 103),
    ],
)
def test_a_state_beyond_the_end_is_refused(
    folder: str, kind: str, position: dict[str, Any], last: int
) -> None:
    def open_place(epochs: int | None) -> Any:
        docs = Documents(folder, epochs=epochs)
        return docs.queue() if kind == "queue" else docs.batches(4)

    place = open_place(1)
    before, state = place.state_dict(), open_place(2).state_dict() | position
    with pytest.raises(StreamChangedError, match=f"up to index {last}, but .* have 103 indices"):
        place.load_state_dict(state)
    assert place.state_dict() == before
    for epochs in (2, None):
        open_place(epochs).load_state_dict(state)
    open_place(1).load_state_dict(before | {"next": 103, "frontier": 103, "done": []})
