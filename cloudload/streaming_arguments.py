"""StreamingDataset and its Streams as arguments of a loader.

    StreamingDataset ─► streams, shuffle, seed, cache limit, …  ┐
    [streaming.Stream, …] ─► streams                            ┴─► options of CloudLoader

An option that the user passes to the loader overrides the dataset's. This module never imports
Streaming, because a user who passes its objects has already imported it.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cloudload.config.stream import Stream
from cloudload.mds.dataset import open_corpus
from cloudload.order.streaming_shuffles import default_block_size
from cloudload.storage.base import Retry
from cloudload.storage.redaction import redact

logger = logging.getLogger(__name__)

_DOWNLOAD_RETRY, _DOWNLOAD_TIMEOUT_S = 2, 60.0
_SAMPLE_METHODS = ("__getitem__", "__iter__", "get_item")
_STREAM_METHODS = ("get_shards", "prepare_shard", "_download_file")
_BASES = ("streaming.base.array", "streaming.base.dataset", "streaming.base.stream")
# (attribute of a StreamingDataset, its default, what happens instead)
_WITHOUT_COUNTERPART = (
    ("sampling_method", "balanced", "each epoch reads a new selection of a stream's samples"),
    ("sampling_granularity", 1, "samples are selected one by one"),
    ("batching_method", "random", "each batch takes the next rows of one order over all streams"),
    ("allow_unsafe_types", False, "columns of pickled values cannot be read"),
    ("replication", None, "pass device_mesh, or dp_rank and dp_world_size"),
)


def adopt_streaming(
    options: Mapping[str, Any], defaults: Mapping[str, Any], retry: Retry
) -> dict[str, Any]:
    """Replace StreamingDataset's objects in a loader's options with the equivalent options.

    An option that differs from its value in `defaults` is kept. `retry` is used to read the indexes
    of streams that have proportions. Logs a warning for each setting that has no counterpart.
    Raises `ValueError` for a subclass that changes how samples are read, and for objects that
    cannot be combined.
    """
    data = options["data"]
    if _is_a(data, "StreamingDataset"):
        _check_not_overridden(data, _SAMPLE_METHODS)
        _warn(data)
        found = _options_of(data)
        kept = {name for name in found if name != "data" and options[name] != defaults[name]}
        return {**options, **{name: found[name] for name in found.keys() - kept}}
    items = list(data) if isinstance(data, Sequence) and not isinstance(data, str) else [data]
    theirs = [_is_a(item, "Stream") for item in items]
    if not any(theirs):
        return dict(options)
    if not all(theirs):
        raise ValueError(
            "data mixes streaming.Stream objects with others. Pass only streaming.Stream objects, "
            "or only cloudload.Stream objects, URLs and folders"
        )
    found_retry = options["retry"] or _retry_of(items)
    streams = _adopt_streams(items, options["seed"], found_retry or retry)
    return {**options, "data": streams, "retry": found_retry}


def choose_by_proportion(
    proportions: Sequence[float], samples: Sequence[int], seed: int, epoch_size: int | None = None
) -> list[int]:
    """Compute how many samples of each stream an epoch reads, as StreamingDataset does.

    `samples` has the number of samples in each stream, and `epoch_size` is the number in an epoch
    (by default, their sum). Each stream's share is rounded down. The samples that are left over
    each go to a different stream, drawn at random with `seed`.
    """
    total = epoch_size or sum(samples)
    shares = np.array(proportions, np.float64)
    shares /= shares.sum()
    chosen = (total * shares).astype(np.int64)
    shortfall = total - int(chosen.sum())
    chosen[np.random.default_rng(seed).choice(len(chosen), shortfall, False)] += 1
    return [int(each) for each in chosen]


def _is_a(value: object, name: str) -> bool:
    """Whether a value is an instance of the Streaming class with this name."""
    return any(base.__name__ == name and base.__module__ in _BASES for base in type(value).__mro__)


def _check_not_overridden(value: object, methods: Sequence[str]) -> None:
    for method in methods:
        owner = next((base for base in type(value).__mro__ if method in vars(base)), None)
        if owner is not None and owner.__module__ not in _BASES:
            raise ValueError(
                f"{owner.__name__} overrides {method} of Streaming, which CloudLoader does not "
                "call, because it reads shards itself. Pass an object of Streaming's own class. "
                "To change samples, pass CloudLoader(transform=function of a sample to its text)"
            )


def _warn(dataset: Any) -> None:
    for name, default, instead in _WITHOUT_COUNTERPART:
        if (value := getattr(dataset, name, default)) != default:
            logger.warning("StreamingDataset(%s=%r) has no counterpart: %s", name, value, instead)


def _options_of(dataset: Any) -> dict[str, Any]:
    """The loader's options that are equivalent to a StreamingDataset's settings."""
    streams = []
    for stream, samples in zip(dataset.streams, dataset.samples_per_stream, strict=True):
        _check_not_overridden(stream, _STREAM_METHODS)
        choose = None if stream.choose == samples else int(stream.choose)
        streams.append(_adopt_stream(stream, choose=choose))
    options = {
        "data": streams,
        "shuffle": dataset.shuffle,
        "shuffle_algo": dataset.shuffle_algo,
        "seed": dataset.shuffle_seed,
        "num_canonical_nodes": dataset.num_canonical_nodes,
        "shuffle_block_size": dataset.shuffle_block_size,
        "cache_limit": dataset.cache_limit,
        "retry": _retry_of(dataset.streams),
    }
    if options["shuffle_block_size"] is None and dataset.num_canonical_nodes is not None:
        options["shuffle_block_size"] = default_block_size(dataset.num_canonical_nodes)
    # Streaming replaces an unset value with this
    unset = 64 if dataset.batch_size is None else 8 * dataset.batch_size
    if dataset.predownload != unset:
        options["predownload"] = dataset.predownload
    return options


def _adopt_streams(theirs: Sequence[Any], seed: int, retry: Retry) -> list[Stream]:
    for stream in theirs:
        _check_not_overridden(stream, _STREAM_METHODS)
    proportions = [stream._proportion for stream in theirs]
    if all(proportion is None for proportion in proportions):
        return [
            _adopt_stream(stream, repeat=stream._repeat, choose=stream._choose) for stream in theirs
        ]
    if None in proportions:
        raise ValueError(
            "some of the streaming.Stream objects have a proportion and others do not. Set it for "
            "all of them, or for none"
        )
    streams = [_adopt_stream(stream) for stream in theirs]
    corpus = open_corpus(streams, retry)
    samples = np.diff(corpus.stream_starts).tolist()
    chosen = choose_by_proportion(proportions, samples, seed)
    return [
        _adopt_stream(stream, choose=choose) for stream, choose in zip(theirs, chosen, strict=True)
    ]


def _adopt_stream(stream: Any, **weights: Any) -> Stream:
    remote = stream.remote or stream._local
    if remote is None:
        raise ValueError(
            "a streaming.Stream has neither remote nor local. Set remote to the URL of the dataset"
        )
    # a StreamingDataset sets the attribute without an underscore
    if getattr(stream, "keep_zip", stream._keep_zip):
        logger.warning(
            "Stream(keep_zip=True) of %s has no counterpart: the cache keeps raw shards only",
            redact(remote),
        )
    if stream.remote and stream._local:
        logger.info(
            "Stream(local=%r) of %s is not used: cloudload has its own cache, CloudLoader(local=…)",
            stream._local,
            redact(remote),
        )
    return Stream(os.fspath(remote), split=stream.split or None, **weights)


def _retry_of(streams: Sequence[Any]) -> Retry | None:
    """The longest timeout and the most retries of the streams; None for Streaming's defaults."""
    retries = max(getattr(stream, "download_retry", _DOWNLOAD_RETRY) for stream in streams)
    timeout_s = max(getattr(stream, "download_timeout", _DOWNLOAD_TIMEOUT_S) for stream in streams)
    if (retries, timeout_s) == (_DOWNLOAD_RETRY, _DOWNLOAD_TIMEOUT_S):
        return None
    return Retry(timeout_s=timeout_s, deadline_s=math.ceil((1 + retries) * timeout_s))
