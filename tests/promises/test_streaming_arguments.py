"""A loader that gets a StreamingDataset or its Streams reads the same samples, equally often and in
the same order."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import logging
import re
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload import CloudLoader, Retry
from cloudload.run.streaming_arguments import (
    DatasetArguments,
    StreamArguments,
    choose_by_proportion,
)
from testkit.both_readers import numbers_in, open_numbered, streaming_dataset, write_numbered

SHARDS = {"a": [7, 30, 1, 12], "b": [1], "c": [25, 9, 18]}
pytestmark = pytest.mark.usefixtures("alone_with_streaming")


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """Three datasets of numbered documents."""
    firsts = accumulate(map(sum, SHARDS.values()), initial=0)
    return [
        write_numbered(tmp_path / name, shards, first)
        for (name, shards), first in zip(SHARDS.items(), firsts, strict=False)
    ]


def adopt(data: Any, **options: Any) -> CloudLoader:
    return open_numbered(data, **{"epochs": 1, **options})


def config_of(loader: CloudLoader) -> dict[str, Any]:
    return {**vars(loader.recipe.config), **vars(loader._reader.member.delivery)}


def streams_of(folders: Sequence[str], weights: Sequence[dict[str, Any]]) -> list[Any]:
    from streaming import Stream

    return [Stream(local=folder, **weight) for folder, weight in zip(folders, weights, strict=True)]


PROPORTIONS = [{"proportion": 0.2}, {"proportion": 0.1}, {"proportion": 0.7}]


@pytest.mark.parametrize(
    ("weights", "epoch_size"),
    [
        ([{}, {}, {}], None),
        ([{}, {}, {}], 150),
        ([{"repeat": 2}, {}, {"choose": 20}], None),
        (PROPORTIONS, None),
        (PROPORTIONS, 150),
    ],
)
def test_a_dataset_is_read_as_often_as_it_reads_itself(
    folders: list[str], weights: list[dict[str, float]], epoch_size: int | None
) -> None:
    dataset = streaming_dataset(
        streams=streams_of(folders, weights),
        epoch_size=epoch_size,
        shuffle=True,
        shuffle_seed=5,
        shuffle_block_size=30,
        num_canonical_nodes=1,
        batch_size=1,
    )
    theirs = collections.Counter(int(sample["text"]) for sample in dataset)
    with adopt(dataset) as loader:
        assert collections.Counter(numbers_in(loader)) == theirs


def test_streams_with_proportions_are_read_as_a_dataset_of_them_is(folders: list[str]) -> None:
    weights = [{"proportion": 3.0}, {"proportion": 1.0}, {"proportion": 2.5}]
    dataset = streaming_dataset(
        streams=streams_of(folders, weights), shuffle=True, shuffle_seed=17, batch_size=1
    )
    ours = adopt(streams_of(folders, weights))
    theirs = adopt(dataset)
    assert ours.recipe.fields["choose"] == theirs.recipe.fields["choose"]
    assert [stream.choose for stream in ours.recipe.config.streams] == [
        stream.choose for stream in dataset.streams
    ]


@given(
    sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=9),
    shares=st.lists(st.floats(0.01, 100), min_size=9, max_size=9),
    epoch_size=st.none() | st.integers(1, 10**7),
    seed=st.integers(0, 1000),
)
def test_proportions_are_counted_as_streaming_counts_them(
    sizes: list[int], shares: list[float], epoch_size: int | None, seed: int
) -> None:
    from streaming import Stream

    shares = shares[: len(sizes)]
    theirs = [SimpleNamespace(proportion=share) for share in shares]
    Stream.apply_weights(theirs, np.array(sizes), epoch_size, seed)
    chosen = choose_by_proportion(shares, sizes, seed, epoch_size)
    assert chosen == [stream.choose for stream in theirs]


@pytest.mark.parametrize(
    ("ours", "name"), [(DatasetArguments, "StreamingDataset"), (StreamArguments, "Stream")]
)
def test_the_arguments_and_their_defaults_are_streamings(ours: Any, name: str) -> None:
    import streaming

    parameters = inspect.signature(getattr(streaming, name)).parameters
    of_registry = {"stream_name", "stream_config"}  # for registered subclasses of Stream
    theirs = {each.name: each.default for each in parameters.values()}
    assert {each.name: each.default or None for each in dataclasses.fields(ours)} == {
        each: default or None for each, default in theirs.items() if each not in of_registry
    }


SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"shuffle": True}, {"shuffle": True}),
    ({}, {"shuffle": False, "seed": 9176, "shuffle_algo": "py1e", "num_canonical_nodes": None}),
    ({"shuffle_algo": "py1br"}, {"shuffle_algo": "py1br"}),
    ({"shuffle_seed": 8}, {"seed": 8}),
    ({"shuffle_block_size": 77}, {"shuffle_block_size": 77}),
    ({"num_canonical_nodes": 2}, {"num_canonical_nodes": 2, "shuffle_block_size": 2_000_000}),
    ({"num_canonical_nodes": 8}, {"num_canonical_nodes": 8, "shuffle_block_size": 500_000}),
    ({"cache_limit": "1gb"}, {"cache_limit": 1 << 30}),
    ({"predownload": 99}, {"predownload": 99}),
    ({"batch_size": 9}, {"predownload": None, "batch_size": 4}),
    ({"download_retry": 4, "download_timeout": 30}, {"retry": Retry(timeout_s=30, deadline_s=150)}),
    ({"validate_hash": "xxh64"}, {"verify": "once"}),
]


@pytest.mark.parametrize(("theirs", "ours"), SETTINGS, ids=str)
def test_a_datasets_setting_becomes_an_option(
    folders: list[str], theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    dataset = streaming_dataset(local=folders[0], **{"batch_size": 1, **theirs})
    config = config_of(adopt(dataset))
    assert {name: config[name] for name in ours} == ours


def test_the_partition_algorithm_has_no_effect(folders: list[str]) -> None:
    configs = []
    for algorithm in ("relaxed", "orig"):
        dataset = streaming_dataset(local=folders[0], partition_algo=algorithm)
        configs.append(config_of(adopt(dataset)))
    assert configs[0] == configs[1]


def test_an_option_of_the_loader_wins(folders: list[str]) -> None:
    dataset = streaming_dataset(local=folders[0], shuffle_seed=3, shuffle_algo="naive")
    loader = adopt(dataset, seed=4)
    assert (loader.recipe.config.seed, loader.recipe.config.shuffle_algo) == (4, "naive")


def test_remote_and_split_are_the_url(folders: list[str], tmp_path: Path) -> None:
    above, split = folders[0].rsplit("/", 1)
    dataset = streaming_dataset(remote=above, local=str(tmp_path / "local"), split=split)
    loader = adopt(dataset)
    assert [stream.url for stream in loader.recipe.config.streams] == [folders[0]]


WARNINGS: list[tuple[dict[str, Any], str]] = [
    ({"sampling_method": "fixed"}, "sampling_method='fixed'.*a new selection"),
    ({"sampling_granularity": 2}, "sampling_granularity=2.*one at a time"),
    ({"batching_method": "per_stream"}, "batching_method='per_stream'.*single order"),
    ({"allow_unsafe_types": True}, "allow_unsafe_types=True.*cannot be read"),
    ({"replication": 1}, "replication=1.*device_mesh"),
    ({"keep_zip": True}, "keep_zip=True.*only raw shards"),
]


@pytest.mark.parametrize(("setting", "message"), WARNINGS)
def test_a_setting_without_a_counterpart_is_named_in_a_warning(
    folders: list[str], caplog: pytest.LogCaptureFixture, setting: dict[str, Any], message: str
) -> None:
    dataset = streaming_dataset(local=folders[0], **setting)
    with caplog.at_level(logging.WARNING, "cloudload"):
        adopt(dataset)
    [record] = [record for record in caplog.records if record.name.startswith("cloudload")]
    assert record.levelname == "WARNING"
    assert re.search(message, record.getMessage())


def test_a_subclass_that_changes_samples_is_refused(folders: list[str]) -> None:
    import streaming

    class Tokenized(streaming.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)["text"]

    dataset = streaming_dataset(Tokenized, local=folders[0])
    with pytest.raises(ValueError, match=r"Tokenized overrides __getitem__.*transform="):
        adopt(dataset)


def test_the_patience_of_streams_is_kept(folders: list[str]) -> None:
    weights: list[dict[str, float]] = [{"download_retry": 4, "download_timeout": 90}, {}, {}]
    loader = adopt(streams_of(folders, weights))
    assert loader._reader.member.delivery.retry == Retry(timeout_s=90, deadline_s=450)


def test_streams_of_both_libraries_are_not_mixed(folders: list[str]) -> None:
    with pytest.raises(ValueError, match=r"data mixes streaming\.Stream objects with other types"):
        adopt([*streams_of(folders[:1], [{}]), folders[1]])


def test_a_proportion_for_some_streams_only_is_refused(folders: list[str]) -> None:
    streams = streams_of(folders, [{"proportion": 1.0}, {}, {"proportion": 1.0}])
    with pytest.raises(ValueError, match="Set a proportion for all streams or for none"):
        adopt(streams)


def test_local_without_remote_is_the_data_and_otherwise_not_used(
    folders: list[str], tmp_path: Path
) -> None:
    from streaming import Stream

    local = str(tmp_path / "streaming's cache")
    for data, expected in [
        (streaming_dataset(local=folders[0]), folders[0]),
        (streaming_dataset(remote=folders[0], local=local), folders[0]),
        (Stream(local=folders[0]), folders[0]),
        (Stream(remote=folders[0], local=local), folders[0]),
    ]:
        loader = adopt(data, local=tmp_path / "cache")
        assert [stream.url for stream in loader.recipe.config.streams] == [expected]
        assert loader._reader.member.delivery.local == str(tmp_path / "cache")


def test_a_registered_class_of_streams_is_adopted_or_refused(folders: list[str]) -> None:
    from streaming import Stream
    from streaming.base.stream import streams_registry

    class Plain(Stream):  # type: ignore[misc]
        pass

    class Decrypting(Stream):  # type: ignore[misc]
        def prepare_shard(self, shard: Any) -> int:
            return int(super().prepare_shard(shard))

    for kind in (Plain, Decrypting):
        streams_registry.register(kind.__name__, func=kind)
    options: dict[str, Any] = {"stream_config": {"repeat": 2}, "batch_size": 1}
    dataset = streaming_dataset(local=folders[0], stream_name="Plain", **options)
    loader = adopt(dataset)
    [stream] = loader.recipe.config.streams
    assert (stream.url, stream.choose) == (folders[0], 2 * sum(SHARDS["a"]))
    dataset = streaming_dataset(local=folders[0], stream_name="Decrypting", **options)
    with pytest.raises(ValueError, match="Decrypting overrides prepare_shard"):
        adopt(dataset)


STREAM_SETTINGS: list[dict[str, Any]] = [{"repeat": 2}, {"choose": 20}, {"split": "a"}]


@pytest.mark.parametrize("setting", STREAM_SETTINGS, ids=str)
def test_a_streams_setting_becomes_a_streams_option(
    folders: list[str], tmp_path: Path, setting: dict[str, Any]
) -> None:
    from streaming import Stream

    remote = folders[0] if "split" not in setting else folders[0].rsplit("/", 1)[0]
    data = Stream(remote=remote, local=str(tmp_path / "local"), **setting)
    [stream] = adopt(data).recipe.config.streams
    assert (stream.url, {name: getattr(stream, name) for name in setting}) == (folders[0], setting)


@pytest.mark.parametrize("is_of_dataset", [False, True])
def test_a_streams_zipped_files_and_hash_are_cloudloads_matter(
    folders: list[str], caplog: pytest.LogCaptureFixture, is_of_dataset: bool
) -> None:
    streams = streams_of(folders[:1], [{"validate_hash": "xxh64"}])
    if not is_of_dataset:
        streams = streams_of(folders[:1], [{"validate_hash": "xxh64", "keep_zip": True}])
    data = streaming_dataset(streams=streams, keep_zip=True) if is_of_dataset else streams
    loader = adopt(data)
    assert loader._reader.member.delivery.verify == "once"
    assert "keep_zip=True of" in caplog.text
