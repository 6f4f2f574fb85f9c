"""The arguments of a StreamingDataset and its Streams, and the equivalent options of a loader."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cloudload.config.stream import Stream
from cloudload.data.mds.dataset import open_corpus
from cloudload.data.storage.base import Retry
from cloudload.data.storage.redaction import redact
from cloudload.order.streaming_shuffles import default_block_size

logger = logging.getLogger("cloudload.streaming")

# (argument of a StreamingDataset, the warning's text if it is not the default)
_WITHOUT_COUNTERPART = (
    ("sampling_method", "Each epoch reads a new selection of a stream's samples"),
    ("sampling_granularity", "Samples are selected one at a time"),
    ("batching_method", "Each batch contains the next rows of a single order over all streams"),
    ("allow_unsafe_types", "Columns of pickled values cannot be read"),
    ("replication", "Pass device_mesh, or dp_rank and dp_world_size"),
)


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
    samples = np.diff(
        open_corpus([each.location for each in streams], retry).stream_starts
    ).tolist()
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
