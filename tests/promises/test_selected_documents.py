"""`Documents` with a selection have the documents that a filter would leave, in the same order."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import Documents, Stream, convert_to_mds, select_documents
from cloudload.errors import DatasetError, StreamChangedError
from cloudload.loading import selected_order
from cloudload.loading.document_dataset import DocumentPlace
from testkit import line_files
from testkit.conversions import QUIET, write_lines
from testkit.corpora import write_mds
from testkit.examples import EXAMPLES
from testkit.loaders import make_loader
from testkit.state_fields import without

SIZES = ([20, 1, 30, 20], [13, 8])
"""The samples of each shard, by dataset."""


@pytest.fixture(scope="module", autouse=True)
def _small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("_BLOCK", 4),
            ("_POSITIONS_AT_ONCE", 12),
            ("_INDICES_AT_ONCE", 5),
            ("_KEPT_BLOCKS", 1),
        ):
            patch.setattr(selected_order, name, value)
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("selected")
    for number, sizes in enumerate(SIZES):
        texts = [f"{number}-{sample} " + "x" * (sample % 13) for sample in range(sum(sizes))]
        write_mds(root / str(number), texts, shard_samples=sizes, compression="zstd")
    return root


def write_list(path: Path, sizes: Sequence[int], samples: set[int]) -> str:
    """Write a JSON Lines file of (shard, index) of a dataset's samples."""
    pairs = [(shard, index) for shard, size in enumerate(sizes) for index in range(size)]
    write_lines(path, [{"shard": pairs[each][0], "index": pairs[each][1]} for each in samples])
    return str(path)


def places_of(docs: Documents) -> list[DocumentPlace]:
    return [docs.where(index) for index in range(len(docs))]


def subsets(size: int) -> st.SearchStrategy[set[int]]:
    return st.sets(st.integers(0, size - 1), min_size=1)


@given(
    kept=st.tuples(*(st.none() | subsets(sum(sizes)) for sizes in SIZES)),
    is_drop=st.booleans(),
    num_streams=st.sampled_from([1, 2]),
    repeat=st.sampled_from([None, 1, 2.0, 3]),
    epochs=st.integers(1, 3),
    options=st.fixed_dictionaries(
        {
            "shuffle_algo": st.sampled_from(["py1e", "py1br", "seekable"]),
            "shuffle": st.booleans(),
            "seed": st.integers(0, 3),
            "num_canonical_nodes": st.sampled_from([None, 1, 3]),
        }
    ),
    chance=st.randoms(use_true_random=False),
)
@settings(max_examples=4 * EXAMPLES)
def test_indices_batches_and_queues_have_the_documents_that_a_filter_would_leave(
    root: Path,
    kept: tuple[set[int] | None, ...],
    *,
    is_drop: bool,
    num_streams: int,
    repeat: float | None,
    epochs: int,
    options: dict[str, Any],
    chance: random.Random,
) -> None:
    numbers = map(str, range(num_streams))
    plain = [Stream(str(root / each), repeat=repeat, name=each) for each in numbers]
    chosen, is_kept = list[Stream](), dict[str, set[int]]()
    for number, (stream, sizes, samples) in enumerate(zip(plain, SIZES, kept, strict=False)):
        every = set(range(sum(sizes)))
        is_kept[stream.label] = every if samples is None else samples
        own: dict[str, Any] = {}
        if samples is not None:
            listed = every - samples if is_drop else samples
            path = write_list(root / f"{number}.jsonl", sizes, listed)
            own = {"drop" if is_drop else "select": path} if listed else {}
        chosen.append(replace(stream, **own))
    options |= {"epochs": epochs, "local": root / "cache"}
    with closing(Documents(plain, **options)) as docs:
        wanted = [
            (place, document)
            for place, document in zip(places_of(docs), docs, strict=True)
            if place.sample in is_kept[place.stream]
        ]
    places, documents = [place for place, _ in wanted], [document for _, document in wanted]
    with closing(Documents(chosen, **options)) as docs:
        assert docs.num_documents * epochs == len(docs) == len(documents)
        assert list(docs) == documents
        assert places_of(docs) == places
        some = [chance.randrange(-len(docs), len(docs)) for _ in range(20)]
        docs.prefetch(some)
        assert docs.__getitems__(some) == [documents[index] for index in some]
        assert pickle.loads(pickle.dumps(docs))[-1] == documents[-1]
        assert read_in_legs(docs, chance) == documents
        assert finish_out_of_order(docs, chance) == dict(enumerate(documents))


def read_in_legs(docs: Documents, chance: random.Random) -> list[dict[str, Any]]:
    """Read batches on a chain of worlds, each of which resumes from the state of the last."""
    state, seen = None, list[dict[str, Any]]()
    legs = [(chance.randint(1, 4), chance.randint(1, 7), chance.randint(0, 4)) for _ in range(3)]
    for ranks, size, number in [*legs, (2, 5, 10_000)]:
        steps, states = [], []
        for rank in range(ranks):
            batches = docs.batches(size, dp_rank=rank, dp_world_size=ranks)
            if state is not None:
                batches.load_state_dict(state)
            steps.append(list(itertools.islice(batches, number)))
            states.append(batches.state_dict())
        assert all(each == states[0] for each in states)
        state = json.loads(json.dumps(states[0]))
        for step in zip(*steps, strict=True):
            seen += itertools.chain.from_iterable(step)
    return seen


def finish_out_of_order(docs: Documents, chance: random.Random) -> dict[int, dict[str, Any]]:
    """Take and finish all documents, with restarts. Returns those that finished, by index."""
    queue, running = docs.queue(), dict[int, dict[str, Any]]()
    finished = dict[int, dict[str, Any]]()
    while queue.frontier < len(docs):
        running.update(queue.take(chance.randint(1, 9)))
        done = chance.sample(sorted(running), chance.randint(1, len(running)))
        queue.done(done)
        for index in done:
            assert index not in finished
            finished[index] = running.pop(index)
        if chance.random() < 0.2:
            state = json.loads(json.dumps(queue.state_dict()))
            queue, running = docs.queue(), {}
            queue.load_state_dict(state)
    return finished


# ---------------------------------------------------------------- selections of any kind


def test_the_order_is_that_of_a_loader_with_the_same_selection(root: Path, tmp_path: Path) -> None:
    keep = write_list(tmp_path / "keep.jsonl", SIZES[0], set(range(0, 71, 3)))
    options: dict[str, Any] = {"epochs": 2, "seed": 3, "local": tmp_path / "cache"}
    stream = Stream(str(root / "0"), select=keep)
    rows = {"packing": "one_per_row", "batch_size": 1, "num_lanes": 1}
    with make_loader(stream, **rows, **options) as loader:
        read = [tuple(batch.spans[0].tolist()[2:4]) for batch in loader]
    with closing(Documents(stream, **options)) as docs:
        assert [(place.epoch, place.sample) for place in places_of(docs)] == read


def test_a_selection_does_not_change_the_order_of_the_whole_data(tmp_path: Path) -> None:
    # a run that reads fewer documents has fewer lanes, and so fewer canonical nodes by default
    sizes = [15] * 256
    texts = [str(number) for number in range(sum(sizes))]
    data = write_mds(tmp_path / "data", texts, shard_samples=sizes)
    keep = write_list(tmp_path / "keep.jsonl", sizes, set(range(0, len(texts), 40)))
    with closing(Documents(data)) as docs:
        order = [int(each["text"]) for each in docs.__getitems__(range(len(docs)))]
        state = docs.queue().state_dict()
    with closing(Documents(data, select=keep)) as docs:
        found = [int(each["text"]) for each in docs]
        assert without(docs.queue().state_dict(), "select") == state
    assert found == [sample for sample in order if sample % 40 == 0]
    with make_loader(Stream(data, select=keep), num_lanes=None) as loader:
        assert loader.state_dict()["num_canonical_nodes"] != str(state["num_canonical_nodes"])


def test_only_shards_with_selected_documents_are_fetched(root: Path, tmp_path: Path) -> None:
    keep = write_list(tmp_path / "keep.jsonl", SIZES[0], {20, 60})
    with closing(Documents(root / "0", select=keep, local=tmp_path / "cache")) as docs:
        assert len(list(docs)) == 2
    fetched = {path.name[:11] for path in (tmp_path / "cache").rglob("shard.*.mds")}
    assert fetched == {"shard.00001", "shard.00003"}


def test_json_lines_have_the_documents_of_a_list_and_of_a_condition(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(60)]
    line_files.write_line_corpus(tmp_path / "in", texts)
    data = line_files.index(tmp_path / "in", tmp_path / "index", all_columns=True)
    keep = tmp_path / "keep.jsonl"
    write_lines(keep, [{"shard": 0, "index": index} for index in (3, 17, 5)])
    local = tmp_path / "cache"
    with closing(Documents(data, select=str(keep), shuffle=False, local=local)) as docs:
        assert [document["text"] for document in docs] == ["text 3", "text 5", "text 17"]
    ids = write_lines(tmp_path / "ids.jsonl", [{"id": "d7"}, {"id": "d59"}])
    select_documents(data, "good", keep_ids=ids, processes=1, progress=False)
    with closing(Documents(data, select="good", local=local)) as docs:
        assert {document["text"] for document in docs} == {"text 7", "text 59"}


@pytest.mark.parametrize("option", ["select", "drop"])
def test_a_run_continues_with_its_selection_after_an_append(tmp_path: Path, option: str) -> None:
    data = tmp_path / "mds"

    def convert(name: str, number: int, **options: Any) -> None:
        source = write_lines(tmp_path / f"{name}.jsonl", [f"{name}{n} " * 9 for n in range(number)])
        convert_to_mds(source, data, **QUIET, shard_bytes=1_500, **options)

    def open_documents(lines: Sequence[dict[str, int]]) -> Documents:
        options: dict[str, Any] = {option: write_lines(tmp_path / "listed.jsonl", lines)}
        return Documents(Stream(str(data), **options), epochs=2, local=tmp_path / "cache")

    convert("a", 40)
    listed = [{"shard": shard, "index": index} for shard in (0, 1) for index in (0, 2, 5)]
    with closing(open_documents(listed)) as docs:
        whole, began = list(docs), docs.num_documents
        queue, batches = docs.queue(), docs.batches(3)
        queue.take(8)
        queue.done([0, 6])
        next(iter(batches))
        states = queue.state_dict(), batches.state_dict()
    convert("b", 15, append=True)
    listed.append({"shard": states[0]["stream_shards"][0], "index": 0})  # an appended document
    with closing(open_documents(listed)) as docs:
        assert docs.num_documents == began + (1 if option == "select" else 14)
        queue, batches = docs.queue(), docs.batches(3)
        queue.load_state_dict(states[0])
        assert (list(docs), docs.num_documents) == (whole, began)
        left = [index for index in range(2 * began) if index not in (0, 6)]
        assert queue.take(100) == [(index, whole[index]) for index in left]
        batches.load_state_dict(states[1])
        assert [document for batch in batches for document in batch] == whole[3:]


def test_a_sampler_and_workers_read_selected_documents(root: Path, tmp_path: Path) -> None:
    keep = write_list(tmp_path / "keep.jsonl", SIZES[0], set(range(5, 50)))
    with closing(Documents(root / "0", select=keep, local=tmp_path / "cache", epochs=2)) as docs:
        every = list(docs)
        sampler: Any = torch.utils.data.DistributedSampler(docs, 2, 1, shuffle=True)
        loader = torch.utils.data.DataLoader(
            docs, batch_size=10, sampler=sampler, num_workers=2, collate_fn=list
        )
        found = [document for batch in loader for document in batch]
        assert found == [every[index] for index in sampler]
        assert [each for batch in docs.batches(7, num_workers=2) for each in batch] == every


# ---------------------------------------------------------------- what is refused


def test_a_state_of_another_selection_is_refused_by_name(root: Path, tmp_path: Path) -> None:
    def open_documents(kept: set[int] | None) -> Documents:
        keep = None if kept is None else write_list(tmp_path / "keep.jsonl", SIZES[0], kept)
        return Documents(root / "0", select=keep, local=tmp_path / "cache")

    kinds = [None, {1, 2, 3}, {1, 2, 4}]
    states = []
    for kept in kinds:
        with closing(open_documents(kept)) as docs:
            states.append((docs.queue().state_dict(), docs.batches(2).state_dict()))
    assert ["select" in of_queue for of_queue, _ in states] == [False, True, True]
    for number, kept in enumerate(kinds):
        with closing(open_documents(kept)) as docs:
            for other, (of_queue, of_batches) in enumerate(states):
                for part, state in ((docs.queue(), of_queue), (docs.batches(3), of_batches)):
                    if other == number:
                        part.load_state_dict(state)
                        continue
                    with pytest.raises(StreamChangedError, match=r": select: saved .*, found"):
                        part.load_state_dict(state)
            with pytest.raises(StreamChangedError, match=r"select: saved 'x', found"):
                docs.queue().load_state_dict({**of_queue, "select": "x"})
    with closing(open_documents(set(range(71)))) as docs:  # selects all, as if without
        docs.queue().load_state_dict(states[0][0])
        assert docs.queue().state_dict() == without(states[0][0], "select")


def test_what_selected_documents_cannot_have_is_refused(root: Path, tmp_path: Path) -> None:
    keep = write_list(tmp_path / "keep.jsonl", SIZES[0], {1, 2})
    data, local = str(root / "0"), tmp_path / "cache"
    with pytest.raises(ValueError, match=r"has repeat 1\.5 and select or drop.* whole number"):
        Documents(Stream(data, select=keep, repeat=1.5), local=local)
    for streams in ([data, str(root / "1")], [Stream(data, select=keep)]):
        with pytest.raises(ValueError, match="select needs data that is one location"):
            Documents(streams, select=keep, local=local)
    with pytest.raises(DatasetError, match=r"found no selection in .*good"):
        Documents(data, select="good", local=local)
    other: Any = Stream(str(root / "1"), choose=9, name="other")
    with closing(Documents([Stream(data, select=keep), other], epochs=3, local=local)) as docs:
        found = [(place.stream, place.epoch) for place in places_of(docs)]
        assert len(docs) == 3 * 11
        assert [found.count(("other", epoch)) for epoch in range(3)] == [9, 9, 9]
