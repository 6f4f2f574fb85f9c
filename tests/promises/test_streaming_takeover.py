"""A loader starts where a StreamingDataset stopped. Together, they read each sample of the epoch
once.

Streaming's `generate_work` returns the samples that Streaming read. The loader's samples are
decoded from its rows.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from cloudload import CloudLoader, Stream
from cloudload.config.choices import ShuffleAlgorithm
from cloudload.errors import StreamChangedError
from cloudload.testing import Leg, check_resume, check_worlds
from testkit.both_readers import numbers_in, open_numbered, write_numbered
from testkit.examples import EXAMPLES
from testkit.streaming_work import Physical, Weight, order_of_epoch, read_steps, streaming_dataset

ALGORITHMS: list[ShuffleAlgorithm | None] = ["py1e", "py1br", "py1s", "py2s", "naive", None]
SAMPLES = 41
Make = Callable[..., CloudLoader]
STATE = {"epoch": 0, "sample_in_epoch": 8, "num_canonical_nodes": 2, "shuffle_seed": 9176}
STATE["initial_physical_nodes"] = 1


@dataclass(frozen=True)
class Takeover:
    """A run of a StreamingDataset that a loader continues."""

    streams: tuple[tuple[int, ...], ...]
    weights: tuple[Weight, ...]
    algorithm: ShuffleAlgorithm | None
    partition: str
    num_nodes: int
    legs: tuple[tuple[Physical, int], ...]
    """For each part of the run: its machines and its number of steps."""
    epoch: int
    lanes_of_node: int


@st.composite
def takeovers(draw: st.DrawFn) -> Takeover:
    num_nodes = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]))
    shards = st.lists(st.integers(1, 25), min_size=1, max_size=6).map(tuple)
    streams = draw(st.lists(shards, min_size=1, max_size=3))
    while sum(map(sum, streams)) <= num_nodes:
        streams = [*streams, (draw(st.integers(17, 40)),)]
    unweighted: st.SearchStrategy[Weight] = st.just({})
    kinds = unweighted | st.fixed_dictionaries({"repeat": st.floats(1, 2.5)})
    weights = [draw(kinds) for _ in streams]
    larger = [each for each in range(num_nodes + 1, 17) if each % num_nodes == 0]
    nodes = [each for each in range(1, 17) if num_nodes % each == 0] + larger
    ranks, workers = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    first = Physical(draw(st.sampled_from(nodes)), ranks, workers, draw(st.integers(1, 4)))
    num_steps = sum(map(sum, streams)) // first.global_batch
    # often draw a stop near the end of an epoch, where Streaming repeats samples
    legs = [(first, draw(st.integers(0, 12) | st.integers(max(0, num_steps - 2), num_steps + 2)))]
    if draw(st.booleans()):
        # Streaming resumes on other nodes if the global batch size stays the same
        fitting = [each for each in nodes if first.global_batch % (each * ranks) == 0]
        other = draw(st.sampled_from(fitting))
        batch_size = first.global_batch // (other * ranks)
        legs.append((Physical(other, ranks, workers, batch_size), draw(st.integers(1, 6))))
    return Takeover(
        streams=tuple(streams),
        weights=tuple(weights),
        algorithm=draw(st.sampled_from(ALGORITHMS)),
        partition=draw(st.sampled_from(["relaxed", "orig"])),
        num_nodes=num_nodes,
        legs=tuple(legs),
        epoch=draw(st.integers(0, 3)),
        lanes_of_node=draw(st.integers(1, 4)),
    )


@settings(max_examples=2 * EXAMPLES)
@given(takeover=takeovers())
def test_what_streaming_and_then_the_loader_read_is_the_epoch(takeover: Takeover) -> None:
    seed, block_size = 23, 9
    order: dict[str, Any] = {"num_nodes": takeover.num_nodes, "seed": seed}
    order |= {"block_size": block_size, "partition": takeover.partition}
    dataset = streaming_dataset(takeover.streams, takeover.weights, takeover.algorithm, **order)
    state = {**STATE, "epoch": takeover.epoch, "sample_in_epoch": 0, "shuffle_seed": seed}
    state |= {"num_canonical_nodes": takeover.num_nodes, "initial_physical_nodes": 0}
    read: collections.Counter[int] = collections.Counter()
    for physical, steps in takeover.legs:
        # otherwise, Streaming would read the remainder again
        assume(state["sample_in_epoch"] % physical.nodes == 0)
        try:
            of_leg, state = read_steps(dataset, physical, state, steps)
        except ValueError:
            reject()  # Streaming cannot pad so few samples for so many nodes
        read += of_leg
    samples = order_of_epoch(dataset, takeover.epoch)
    with TemporaryDirectory() as folder:
        loader = open_numbered(
            write_streams(Path(folder), takeover),
            shuffle=takeover.algorithm is not None,
            shuffle_algo=takeover.algorithm or "py1e",
            seed=seed,
            shuffle_block_size=block_size,
            num_lanes=takeover.num_nodes * takeover.lanes_of_node,
            epochs=takeover.epoch + 1,
            local=folder + "/cache",
        )
        if read.total() == len(samples):
            with pytest.raises(StreamChangedError, match="nothing is left to read"):
                loader.load_streaming_state(state)
            return
        loader.load_streaming_state(state)
        with loader:
            rest = collections.Counter(numbers_in(loader))
            assert {each.epoch for each in loader.stats().streams.values()} == {takeover.epoch + 1}
    assert read + rest == collections.Counter(samples.tolist())


@pytest.fixture
def continue_streaming(tmp_path: Path) -> Make:
    """A function that makes loaders of 41 numbered documents to continue a StreamingDataset."""
    data = write_numbered(tmp_path / "data", [9, 20, 12])
    return partial(open_numbered, data, seed=9176, epochs=2, local=tmp_path / "cache")


def test_a_run_that_continues_streaming_resumes_as_any_other(continue_streaming: Make) -> None:
    def make_continued(**rank: Any) -> CloudLoader:
        loader = continue_streaming(**rank)
        loader.load_streaming_state(STATE)
        return loader

    with make_continued() as loader:
        expected = numbers_in(loader)
    assert len(expected) == 2 * SAMPLES - STATE["sample_in_epoch"]
    assert len(make_continued()) == -(-len(expected) // 4)
    for steps in (0, 3, 9, 15):
        with make_continued() as loader:
            before = numbers_in(loader.take(steps))
            state = json.loads(json.dumps(loader.state_dict()))
        assert state["origin"] == "0:8"
        with continue_streaming() as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            assert [*before, *numbers_in(loader)] == expected
    assert "origin" not in continue_streaming().state_dict()
    check_resume(make_continued, global_batch=4, num_batches=6)
    check_worlds(make_continued, [Leg(2, 2, 2), Leg(4, 1, 3), Leg(1, 8, 2)])


def test_passes_count_the_epoch_that_streaming_began(continue_streaming: Make) -> None:
    loader = continue_streaming(
        stop_every="epoch", batch_size=1, num_lanes=1, num_canonical_nodes=1
    )
    with loader:
        loader.load_streaming_state({**STATE, "num_canonical_nodes": 1})
        assert [len(numbers_in(loader)) for _ in range(2)] == [SAMPLES - 8, SAMPLES]


def write_streams(folder: Path, takeover: Takeover) -> list[Stream]:
    """Write datasets in which the text of each document is its sample's index in the corpus."""
    firsts = accumulate(map(sum, takeover.streams), initial=0)
    return [
        Stream(write_numbered(folder / str(number), shards, first), **weight)
        for number, (shards, weight, first) in enumerate(
            zip(takeover.streams, takeover.weights, firsts, strict=False)
        )
    ]
