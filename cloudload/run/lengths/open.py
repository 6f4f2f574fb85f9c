"""Find the lengths that a run may use.

lengths="auto"      the lengths beside the datasets, if all streams have lengths
lengths="require"   the same, or else an error with the command that counts lengths
lengths="off"       no lengths
lengths=URL         the lengths at another location, for data in a read-only bucket
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cloudload.config import choices
from cloudload.data import Location
from cloudload.errors import DatasetError, StoreError
from cloudload.run.lengths.length_files import (
    CorpusLengths,
    CountedDataset,
    find_index,
    lengths_location,
    open_dataset_lengths,
)
from cloudload.run.lengths.lengths_index import make_key
from cloudload.run.recipe import Recipe
from cloudload.system import map_in_order

logger = logging.getLogger("cloudload.lengths")
_AT_ONCE, _THREADS_NAME = 16, "cloudload-lengths"


def open_lengths(found: Sequence[CountedDataset], recipe: Recipe, root: Path) -> CorpusLengths:
    """Map the lengths of a recipe's corpus from files in the cache folder `root`.

    Downloads lengths that are not in the cache. Raises `StoreError`, `DatasetError` and
    `CacheError` as `open_dataset_lengths` does.
    """
    datasets = tuple(
        map_in_order(
            lambda counted: open_dataset_lengths(counted, root), found, _AT_ONCE, _THREADS_NAME
        )
    )
    digest = hashlib.sha256(b"".join(counted.index.encode() for counted in found))
    locations = tuple(dict.fromkeys(str(counted.location) for counted in found))
    if any(recipe.middles):
        digest.update(repr(recipe.middles).encode())
    if recipe.selection is not None:
        digest.update(recipe.selection.digest.encode())
    return CorpusLengths(
        datasets,
        recipe.corpus.stream_starts,
        digest.hexdigest()[:16],
        locations,
        recipe.selection,
        recipe.middles,
    )


class _Need(NamedTuple):
    """Why a run cannot do without token lengths."""

    why: str
    instead: str
    """How to read the data without lengths."""


_ASKED = _Need("lengths are required", "with lengths='auto'")
_BALANCE = _Need("balance needs token lengths to know the work of each row", "without balance")
_ENDS = _Need(
    "a mixture with epochs or max_epochs needs token lengths to know where its streams end",
    "without epochs and max_epochs, and with take(n)",
)
_SHARES = _Need(
    "the proportion of a glob needs token lengths, because its datasets divide it by their tokens",
    "without proportions, as one corpus, or with the proportion of each dataset in a list",
)


def find_lengths(
    recipe: Recipe, asked: str, *, balances: bool = False
) -> list[CountedDataset] | None:
    """Find the lengths of all streams. Makes one request per stream.

    Returns None if lengths are off, or if they are optional and a stream has none. Raises
    `DatasetError` if lengths are damaged, or if required lengths are missing. Lengths are required
    if the user requests them, if streams of a mixture end or share a proportion, or if the run
    `balances` rows. Raises `StoreError` if a requested store cannot be read, and `ValueError` if
    lengths are required but off.
    """
    need = _ASKED
    has_ends = recipe.config.is_mixed and recipe.has_tails
    if balances or has_ends or recipe.shared:
        need = _BALANCE if balances else _ENDS if has_ends else _SHARES
        if asked == choices.OFF:
            raise ValueError(
                f"lengths is 'off', but {need.why}. Set lengths='auto', and run cloudload count "
                "for each stream"
            )
        asked = choices.REQUIRE if asked == choices.AUTO else asked
    if asked == choices.OFF or (found := _search(recipe, asked)) is None:
        return None
    datasets, locations = recipe.corpus.datasets, _list_locations(recipe, asked)
    missing = [stream for stream, counted in enumerate(found) if counted is None]
    if missing and asked != choices.AUTO:
        raise _missing(recipe, missing, locations, need)
    if 0 < len(missing) < len(found):
        logger.info(
            "%d of %d streams (such as %s) have no token lengths, so the run uses none",
            len(missing),
            len(found),
            datasets[missing[0]].location,
        )
    if missing:
        return None
    logger.info(
        "found token lengths for %s in %s",
        "all streams" if len(found) > 1 else "the dataset",
        ", ".join(dict.fromkeys(map(str, locations))),
    )
    return [counted for counted in found if counted is not None]


def find_resumed_lengths(
    recipe: Recipe, asked: str, whole: Sequence[CountedDataset] | None
) -> list[CountedDataset] | None:
    """Find the lengths of a resumed recipe, which may read only the first shards of its streams.

    For a stream without such lengths, uses the stream's lengths in `whole`, if they are of the same
    documents: they cover all shards, and so begin with the same samples. Returns None if a stream
    has no lengths of either kind.
    """
    found = None if asked == choices.OFF else _search(recipe, asked)
    keys = [make_key(recipe, stream) for stream in range(len(recipe.corpus.datasets))]
    of_all = [
        each if each.key == key else None for each, key in zip(whole or (), keys, strict=False)
    ] or [None] * len(keys)
    counted = [own or other for own, other in zip(found or of_all, of_all, strict=True)]
    return [each for each in counted if each is not None] if all(counted) else None


def _list_locations(recipe: Recipe, asked: str) -> list[Location]:
    location = None if asked in (choices.AUTO, choices.REQUIRE) else asked
    return [lengths_location(dataset, location) for dataset in recipe.corpus.datasets]


def _search(recipe: Recipe, asked: str) -> list[CountedDataset | None] | None:
    """Look for the lengths of each stream.

    If a store cannot be read, returns None if `asked` is "auto", and otherwise raises the
    `StoreError`.
    """
    datasets, locations = recipe.corpus.datasets, _list_locations(recipe, asked)
    keys = [make_key(recipe, stream) for stream in range(len(datasets))]
    data = [recipe.corpus.fingerprint(range(stream, stream + 1)) for stream in range(len(datasets))]
    try:
        asked_for = list(zip(locations, keys, data, strict=True))
        found = list(
            map_in_order(lambda each: find_index(*each), asked_for, _AT_ONCE, _THREADS_NAME)
        )
    except StoreError as error:
        if asked != choices.AUTO:
            raise
        logger.info("the search for token lengths failed, so the run uses none: %s", error)
        return None
    return [
        CountedDataset(dataset, key, location, index) if index is not None else None
        for dataset, key, location, index in zip(datasets, keys, locations, found, strict=True)
    ]


def _missing(
    recipe: Recipe, missing: list[int], locations: list[Location], need: _Need
) -> DatasetError:
    what, command = "text column, and transform", _count_command(recipe, missing[0])
    if (chat := recipe.chats[missing[0]]) is not None:
        what = f"chat template, and options of Chat ({chat.name})"
    who = "the dataset has"
    if len(locations) > 1:
        verb = "has" if len(missing) == 1 else "have"
        who = f"{len(missing):,} of {len(locations):,} streams {verb}"
    return DatasetError(
        f"{need.why}, but {who} none for this tokenizer, {what} in {locations[missing[0]]}. Run: "
        f"{command}. It counts only shards without lengths, such as appended ones. A CloudLoader "
        f"can also read the data {need.instead}, but Rows needs the lengths"
    )


def _count_command(recipe: Recipe, stream: int) -> str:
    """The command that counts a stream."""
    command = f"cloudload count {recipe.corpus.datasets[stream].location} --tokenizer NAME"
    chat = recipe.chats[stream]
    if chat is None:
        return command
    limit = f"max_tokens={chat.max_tokens}" if chat.max_tokens else "overlong=split"
    return f"{command} --chat TEMPLATE,{limit}"
