"""StreamingDataset and its Streams as arguments of a loader.

    StreamingDataset ─► streams, shuffle, seed, cache limit, …  ┐
    [streaming.Stream, …] ─► streams                            ┴─► options of CloudLoader

An option that the user passes to the loader overrides the dataset's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from cloudload.data.storage.base import Retry
from cloudload.run.streaming.arguments import (
    DatasetArguments,
    StreamArguments,
    adopt_streams,
    options_of,
    retry_of,
)

_SAMPLE_METHODS = ("__getitem__", "__iter__", "get_item")
_STREAM_METHODS = ("get_shards", "prepare_shard", "_download_file")
_BASES = ("streaming.base.array", "streaming.base.dataset", "streaming.base.stream")


def adopt_streaming(
    options: Mapping[str, Any], defaults: Mapping[str, Any], retry: Retry
) -> dict[str, Any]:
    """Replace StreamingDataset's objects in a loader's options with the equivalent options.

    An option that differs from its value in `defaults` is kept. `retry` is used to read the indexes
    of streams that have proportions. Logs a warning for each setting that has no counterpart.
    Raises `ValueError` for a subclass that changes how samples are read, and for incompatible
    objects.
    """
    data = options["data"]
    if _is_a(data, "StreamingDataset"):
        _check_not_overridden(data, _SAMPLE_METHODS)
        found = options_of(_read_dataset(data), retry)
        kept = {name for name in found if name != "data" and options[name] != defaults[name]}
        return {**options, **{name: found[name] for name in found.keys() - kept}}
    items = list(data) if isinstance(data, Sequence) and not isinstance(data, str) else [data]
    theirs = [_is_a(item, "Stream") for item in items]
    if not any(theirs):
        return dict(options)
    if not all(theirs):
        raise ValueError(
            "data mixes streaming.Stream objects with other types. Pass only streaming.Stream "
            "objects, or only cloudload.Stream objects, URLs and folders"
        )
    arguments = [
        _read_stream(item, proportion=item._proportion, repeat=item._repeat, choose=item._choose)
        for item in items
    ]
    found_retry = options["retry"] or retry_of(arguments)
    streams = adopt_streams(arguments, options["seed"], found_retry or retry)
    return {**options, "data": streams, "retry": found_retry}


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
