"""A StreamingDataset and its Streams, or their arguments, as options of a loader.

    StreamingDataset ─► streams, shuffle, seed, cache limit, …  ┐
    [streaming.Stream, …] ─► streams                            ┴─► options of CloudLoader

An option that the user passes to the loader overrides the dataset's.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from cloudload.config import Stream
from cloudload.data import Retry, open_corpus, redact
from cloudload.order import default_block_size

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

logger = logging.getLogger("cloudload.streaming")
C = TypeVar("C", bound="DataclassInstance")

# (argument of a StreamingDataset, the warning's text if it is not the default)
_WITHOUT_COUNTERPART = (
    ("sampling_method", "Each epoch reads a new selection of a stream's samples"),
    ("sampling_granularity", "Samples are selected one at a time"),
    ("batching_method", "Each batch contains the next rows of a single order over all streams"),
    ("allow_unsafe_types", "Columns of pickled values cannot be read"),
    ("replication", "Pass device_mesh, or dp_rank and dp_world_size"),
)

_SAMPLE_METHODS = ("__getitem__", "__iter__", "get_item")
_STREAM_METHODS = ("get_shards", "prepare_shard", "_download_file")
_BASES = ("streaming.base.array", "streaming.base.dataset", "streaming.base.stream")


@dataclass(frozen=True)
class StreamArguments:
    """The arguments of a `streaming.Stream`. An argument that is None is taken from the dataset."""

    remote: str | None = None
    local: str | None = None
    split: str | None = None
    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None
    download_retry: int | None = None
    download_timeout: float | None = None
    validate_hash: str | None = None
    keep_zip: bool | None = None


@dataclass(frozen=True)
class DatasetArguments:
    """The arguments of a `StreamingDataset`, with its defaults."""

    streams: tuple[StreamArguments, ...] = ()
    remote: str | None = None
    local: str | None = None
    split: str | None = None
    download_retry: int = 2
    download_timeout: float = 60.0
    validate_hash: str | None = None
    keep_zip: bool = False
    epoch_size: int | str | None = None
    predownload: int | None = None
    cache_limit: int | str | None = None
    sampling_method: str = "balanced"
    sampling_granularity: int = 1
    partition_algo: str = "relaxed"
    num_canonical_nodes: int | None = None
    batch_size: int | None = None
    shuffle: bool = False
    shuffle_algo: str = "py1e"
    shuffle_seed: int = 9176
    shuffle_block_size: int | None = None
    batching_method: str = "random"
    allow_unsafe_types: bool = False
    replication: int | None = None


def options_of(dataset: DatasetArguments, retry: Retry) -> dict[str, Any]:
    """Return the loader's options that are equivalent to a StreamingDataset's arguments.

    `retry` is used to read the streams' indexes if the streams have Streaming's default retries.
    Logs a warning for each argument that has no counterpart. Raises `ValueError` for incompatible
    arguments.
    """
    for name, instead in _WITHOUT_COUNTERPART:
        if (value := getattr(dataset, name)) != getattr(DatasetArguments, name):
            logger.warning("CloudLoader ignores StreamingDataset(%s=%r). %s", name, value, instead)
    streams = _list_streams(dataset)
    found_retry = retry_of(streams)
    options = {
        "data": adopt_streams(
            streams, dataset.shuffle_seed, found_retry or retry, dataset.epoch_size
        ),
        "shuffle": dataset.shuffle,
        "shuffle_algo": dataset.shuffle_algo,
        "seed": dataset.shuffle_seed,
        "num_canonical_nodes": dataset.num_canonical_nodes,
        "shuffle_block_size": dataset.shuffle_block_size,
        "cache_limit": dataset.cache_limit,
        "retry": found_retry,
    }
    if options["shuffle_block_size"] is None and dataset.num_canonical_nodes is not None:
        options["shuffle_block_size"] = default_block_size(dataset.num_canonical_nodes)
    if dataset.predownload is not None:
        options["predownload"] = dataset.predownload
    return options


def adopt_streams(
    theirs: Sequence[StreamArguments],
    seed: int,
    retry: Retry,
    epoch_size: int | str | None = None,
) -> list[Stream]:
    """Return the loader's streams that are equivalent to `theirs`, the streams of Streaming.

    If there are proportions or an `epoch_size`, reads the indexes and sets `choose`. Raises
    `ValueError` if the streams' weights cannot be combined.
    """
    streams = [_adopt_stream(stream) for stream in theirs]
    proportions = [each.proportion for each in theirs if each.proportion is not None]
    if proportions and len(proportions) < len(theirs):
        raise ValueError(
            "some streams have a proportion and others do not. Set a proportion for all streams or "
            "for none"
        )
    weighted = [each for each in streams if (each.repeat, each.choose) != (None, None)]
    if weighted and (proportions or epoch_size):
        given = "a proportion" if proportions else f"epoch_size={epoch_size!r}"
        raise ValueError(
            f"{weighted[0].label} has repeat or choose, which cannot be combined with {given}. "
            "Remove one or the other"
        )
    if not proportions and not epoch_size:
        return streams
    samples = np.diff(open_corpus([each.locate(retry) for each in streams]).stream_starts).tolist()
    total = parse_count(epoch_size) if epoch_size else None
    chosen = choose_by_proportion(proportions or samples, samples, seed, total)
    return [
        replace(stream, choose=None if choose == size else choose)
        for stream, choose, size in zip(streams, chosen, samples, strict=True)
    ]


def choose_by_proportion(
    proportions: Sequence[float], samples: Sequence[int], seed: int, epoch_size: int | None = None
) -> list[int]:
    """Compute how many samples of each stream an epoch reads, as StreamingDataset does.

    `samples` has the number of samples in each stream, and `epoch_size` is the number in an epoch
    (by default, their sum). Each stream's share is rounded down. The samples left over are
    assigned to different streams, drawn at random with `seed`.
    """
    total = epoch_size or sum(samples)
    shares = np.array(proportions, np.float64)
    if not shares.sum() > 0 or shares.min() < 0:
        raise ValueError(
            f"the streams' proportions are {[*proportions]}. Use numbers of at least 0, with at "
            "least one above 0"
        )
    shares /= shares.sum()
    chosen = (total * shares).astype(np.int64)
    shortfall = total - int(chosen.sum())
    chosen[np.random.default_rng(seed).choice(len(chosen), shortfall, False)] += 1
    return [int(each) for each in chosen]


def parse_count(value: int | str) -> int:
    """Parse a number of samples such as `1024`, `"10k"`, or `"1.5b"`, as Streaming does.

    Raises `ValueError` if `value` is not a number of at least 1.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)([kmbt]?)\s*", str(value).lower())
    count = float(match[1]) * 1000 ** " kmbt".index(match[2] or " ") if match else 0.0
    if not 1 <= count < 2**63:
        raise ValueError(
            f"epoch_size is {value!r:.60}. Use a number of samples above 0, optionally with the "
            "suffix k, m, b or t"
        )
    return int(count)


def retry_of(streams: Sequence[StreamArguments]) -> Retry | None:
    """Return the longest timeout and most retries of the streams; None if both are defaults."""
    filled = [_fill(stream, DatasetArguments()) for stream in streams]
    retries = max(each.download_retry or 0 for each in filled)
    timeout_s = max(each.download_timeout or 0 for each in filled)
    if (retries, timeout_s) == (DatasetArguments.download_retry, DatasetArguments.download_timeout):
        return None
    return Retry(timeout_s=timeout_s, deadline_s=math.ceil((1 + retries) * timeout_s))


def _list_streams(dataset: DatasetArguments) -> list[StreamArguments]:
    if bool(dataset.streams) == bool(dataset.remote or dataset.local):
        raise ValueError(
            "a StreamingDataset needs either streams, or remote or local, but not both. Set only "
            "one of the two"
        )
    streams = dataset.streams or [StreamArguments(remote=dataset.remote, local=dataset.local)]
    return [_fill(stream, dataset) for stream in streams]


def _fill(stream: StreamArguments, dataset: DatasetArguments) -> StreamArguments:
    """Return a stream in which the dataset's arguments replace unset ones."""
    names = ("split", "download_retry", "download_timeout", "keep_zip")
    unset = [name for name in names if getattr(stream, name) in (None, "")]
    return replace(stream, **{name: getattr(dataset, name) for name in unset})


def _adopt_stream(stream: StreamArguments) -> Stream:
    remote = stream.remote or stream.local
    if remote is None:
        raise ValueError(
            "a streaming.Stream has neither remote nor local. Set remote to the URL of the dataset"
        )
    if stream.keep_zip:
        logger.warning(
            "CloudLoader ignores keep_zip=True of the Stream for %s, because its cache keeps only "
            "raw shards",
            redact(remote),
        )
    if stream.remote and stream.local:
        logger.info(
            "CloudLoader ignores local=%r of the Stream for %s, because it has its own cache. To "
            "set the cache folder, use CloudLoader(local=…)",
            stream.local,
            redact(remote),
        )
    return Stream(remote, split=stream.split or None, repeat=stream.repeat, choose=stream.choose)


@dataclass(frozen=True)
class AdoptedData:
    """A loader's `data` and `retry`, and the options that replace its other defaults."""

    data: Any
    retry: Retry
    options: Mapping[str, Any] = field(default_factory=dict)

    def apply_to(self, config: C) -> C:
        """Return the config of a loader in which these options replace those with their default."""
        defaults = {each.name: each.default for each in fields(config) if each.name in self.options}
        unset = [name for name, default in defaults.items() if getattr(config, name) == default]
        return replace(config, **{name: self.options[name] for name in unset}) if unset else config


def adopt_streaming(data: Any, *, seed: int, retry: Retry | None) -> AdoptedData:
    """Convert StreamingDataset's objects to a loader's data and options. Returns other data as is.

    `seed` and `retry` are options of the loader. `retry` is used to read the indexes of streams
    that have proportions; by default, it is that of the streams. Logs a warning for each setting
    that has no counterpart. Raises `ValueError` for a subclass that changes how samples are read,
    and for incompatible objects.
    """
    if _is_a(data, "StreamingDataset"):
        _check_not_overridden(data, _SAMPLE_METHODS)
        options = options_of(_read_dataset(data), retry or Retry())
        found = retry or options["retry"]
        return AdoptedData(options.pop("data"), found or Retry(), options)
    items = list(data) if isinstance(data, Sequence) and not isinstance(data, str) else [data]
    theirs = [_is_a(item, "Stream") for item in items]
    if not any(theirs):
        return AdoptedData(data, retry or Retry())
    if not all(theirs):
        raise ValueError(
            "data mixes streaming.Stream objects with other types. Pass only streaming.Stream "
            "objects, or only cloudload.Stream objects, URLs and folders"
        )
    arguments = [
        _read_stream(item, proportion=item._proportion, repeat=item._repeat, choose=item._choose)
        for item in items
    ]
    found = retry or retry_of(arguments) or Retry()
    return AdoptedData(adopt_streams(arguments, seed, found), found)


def _is_a(value: object, name: str) -> bool:
    """Return whether a value is an instance of the Streaming class `name`, without importing it."""
    return any(base.__name__ == name and base.__module__ in _BASES for base in type(value).__mro__)


def _check_not_overridden(value: object, methods: Sequence[str]) -> None:
    for method in methods:
        owner = next((base for base in type(value).__mro__ if method in vars(base)), None)
        if owner is not None and owner.__module__ not in _BASES:
            raise ValueError(
                f"{owner.__name__} overrides {method} of Streaming, but CloudLoader never calls "
                f"{method}, because it reads shards itself. Pass an object of Streaming's own "
                "class. To change samples, pass a function that returns the text of a sample, as "
                "CloudLoader(transform=…)"
            )


def _read_dataset(dataset: Any) -> DatasetArguments:
    """Return the arguments of a dataset. The weights of its streams become `choose`."""
    streams = tuple(
        _read_stream(stream, choose=None if stream.choose == samples else int(stream.choose))
        for stream, samples in zip(dataset.streams, dataset.samples_per_stream, strict=True)
    )
    names = {each.name for each in fields(DatasetArguments)} & vars(dataset).keys()
    given = {name: vars(dataset)[name] for name in names - {"streams", "epoch_size"}}
    # Streaming computes this value if predownload is not set
    if dataset.predownload == (64 if dataset.batch_size is None else 8 * dataset.batch_size):
        del given["predownload"]
    return DatasetArguments(streams=streams, **given)


def _read_stream(stream: Any, **weights: Any) -> StreamArguments:
    _check_not_overridden(stream, _STREAM_METHODS)
    return StreamArguments(
        remote=stream.remote and os.fspath(stream.remote),
        local=stream._local and os.fspath(stream._local),
        split=stream.split,
        download_retry=getattr(stream, "download_retry", None),
        download_timeout=getattr(stream, "download_timeout", None),
        # a StreamingDataset sets the attribute without an underscore
        keep_zip=getattr(stream, "keep_zip", stream._keep_zip),
        **weights,
    )
