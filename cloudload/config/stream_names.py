"""Short default names of streams, for metrics, schedules and traces.

    s3://bucket/corpora/web/train      web
    gs://other/corpora/web/train       web-2, if both are in one loader
    s3://bucket/code/v2/mds            code

A name does not depend on the bucket, so it stays the same when the data moves. It does not depend
on later streams either, so it stays the same when streams are appended.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence, Set
from dataclasses import replace

from cloudload.config.stream import Stream
from cloudload.data.storage.redaction import redact
from cloudload.data.storage.urls import is_local, local_path, split_url

# folder names that do not identify a dataset, because many datasets have them
_SHARED_FOLDER = re.compile(
    r"(train(ing)?|val(id(ation)?)?|dev|test|eval(uation)?|mds|data(set)?|shards|raw|text|"
    r"v?\d[\d.\-_]*)",
    re.IGNORECASE,
)


def name_streams(streams: Sequence[Stream]) -> tuple[Stream, ...]:
    """Give a unique name to each stream that has none.

    Streams with the same location get no name. Listing a location twice is a mistake, and the error
    about it then shows the URL.
    """
    urls = [stream.url for stream in streams if stream.name is None]
    taken = {stream.name for stream in streams}
    names = []
    for stream in streams:
        name = stream.name
        if name is None and urls.count(stream.url) == 1:
            name = _choose(_shorten(stream.url), taken)
            taken.add(name)
        names.append(name)
    pairs = zip(streams, names, strict=True)
    return tuple(replace(stream, name=name) for stream, name in pairs)


def _choose(base: str, taken: Set[str | None]) -> str:
    if base not in taken:
        return base
    return next(name for n in itertools.count(2) if (name := f"{base}-{n}") not in taken)


def _shorten(url: str) -> str:
    """The last folder without a common name such as "train", or else the last folder or bucket."""
    if is_local(url):
        bucket, path = "", local_path(url).as_posix()
    else:
        bucket, path = split_url(redact(url))
    folders = [folder for folder in path.split("/") if folder not in ("", ".", "..")]
    telling = [folder for folder in folders if not _SHARED_FOLDER.fullmatch(folder)]
    return (telling or folders or [bucket])[-1] or "data"
