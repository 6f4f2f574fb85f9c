"""A loader starts where a StreamingDataset stopped: what both read is the epoch, each sample once.

What Streaming read is by its own `generate_work`; what the loader reads, by its decoded rows.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from cloudload import CloudLoader, Stream
from cloudload.errors import StreamChangedError
from tests.support.corpora import EOS, EOS_ID, byte_tokenizer, write_mds
from tests.support.examples import EXAMPLES
from tests.support.streaming_work import (
    Physical,
    Weight,
    order_of_epoch,
    read_steps,
    streaming_dataset,
)

ALGORITHMS = ["py1e", "py1br", "py1s", "py2s", "naive", None]
SAMPLES = 41
STATE = {
    "epoch": 0,
    "sample_in_epoch": 8,
    "num_canonical_nodes": 2,
    "shuffle_seed": 9176,
    "initial_physical_nodes": 1,
}


@dataclass(frozen=True)
class Takeover:
    """A run by Streaming, and how the loader continues it."""

    streams: tuple[tuple[int, ...], ...]
    weights: tuple[Weight, ...]
    algorithm: str | None
    partition: str
    num_nodes: int
    legs: tuple[tuple[Physical, int], ...]
    """The machines of each part of the run, and its steps."""
    epoch: int
    lanes_of_node: int


@st.composite
def takeovers(draw: st.DrawFn) -> Takeover:
    num_nodes = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]))
    streams = draw(
        st.lists(
            st.lists(st.integers(1, 25), min_size=1, max_size=6).map(tuple),
            min_size=1,
            max_size=3,
        )
    )
    while sum(map(sum, streams)) <= num_nodes:
        streams = [*streams, (draw(st.integers(17, 40)),)]
    kinds = st.just({}) | st.fixed_dictionaries({"repeat": st.floats(1, 2.5)})
    weights = [draw(kinds) for _ in streams]
    nodes = [
        nodes
        for nodes in range(1, 17)
        if num_nodes % nodes == 0 or (nodes % num_nodes == 0 and nodes > num_nodes)
    ]
    ranks, workers = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    first = Physical(draw(st.sampled_from(nodes)), ranks, workers, draw(st.integers(1, 4)))
    legs = [(first, draw(st.integers(0, 12)))]
    if draw(st.booleans()):
        # Streaming resumes on other nodes if the global batch stays what it was
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
    dataset = streaming_dataset(
        takeover.streams,
        takeover.weights,
        takeover.algorithm,
        num_nodes=takeover.num_nodes,
        seed=seed,
        block_size=block_size,
        partition=takeover.partition,
    )
    state = {
        "epoch": takeover.epoch,
        "sample_in_epoch": 0,
        "num_canonical_nodes": takeover.num_nodes,
        "shuffle_seed": seed,
        "initial_physical_nodes": 0,
    }
    read: collections.Counter[int] = collections.Counter()
    for physical, steps in takeover.legs:
        # otherwise Streaming reads the remainder again
        assume(state["sample_in_epoch"] % physical.nodes == 0)
        try:
            of_leg, state = read_steps(dataset, physical, state, steps)
        except ValueError:
            reject()  # Streaming cannot pad so few samples for so many nodes
        read += of_leg
    samples = order_of_epoch(dataset, takeover.epoch)
    with TemporaryDirectory() as folder:
        streams = write_streams(Path(folder), takeover)
        loader = CloudLoader(
            streams,
            **NUMBERS,
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
            assert loader.stats().streams.popitem()[1].epoch == takeover.epoch + 1
    assert read + rest == collections.Counter(samples.tolist())


NUMBERS: dict[str, Any] = {
    "tokenizer": byte_tokenizer(),
    "eos": EOS,
    "seq_len": 8,
    "batch_size": 4,
    "num_workers": 0,
    "packing": "one_per_row",
}
"""Options with which each row is one document, which is its number."""


def write_streams(folder: Path, takeover: Takeover) -> list[Stream]:
    """Datasets whose documents are the numbers of their samples."""
    first, streams = 0, []
    for place, (shards, weight) in enumerate(zip(takeover.streams, takeover.weights, strict=True)):
        texts = map(str, range(first, first + sum(shards)))
        url = write_mds(folder / str(place), texts, shard_samples=shards)
        streams.append(Stream(url, **weight))
        first += sum(shards)
    return streams


def numbers_in(loader: CloudLoader) -> list[int]:
    """The documents of the batches that remain."""
    rows = [row for batch in loader for row in batch["input_ids"].tolist()]
    decode = byte_tokenizer().decode
    # a row without an end of text is padding
    return [int(decode(row[: row.index(EOS_ID)]).replace(" ", "")) for row in rows if EOS_ID in row]
