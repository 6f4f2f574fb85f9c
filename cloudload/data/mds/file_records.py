"""The `index.json` of files that are read where they are: a record per file, with all its shards.

    {"version": 1, "format": "parquet", "folder": "s3://bucket/raw",
     "columns": [[["id", "str"], ["text", "str"]]],
     "files": [
      {"name": "a.parquet", "tag": "9b2c…", "columns": 0,
       "bytes": 96217282, "footer_bytes": 7282, "footer": "5f3c…",
       "first": [0, 18], "stop": [18, 31], "samples": [18000, 12700],
       "raw_bytes": [64102938, 45218803], "stored_bytes": [26113022, 18420011]}]}

    {…, "format": "jsonl", "files": [
      {"name": "a.jsonl", "tag": "9b2c…", "columns": 0,
       "first": [0, 67110982], "stop": [67110982, 98217282], "samples": [23411, 10894],
       "raw_bytes": […], "line": [1, 23412], "lines": ["5f3c…", "77ab…"]}]}

Each array has a value per shard: the row groups or bytes [first, stop) of the file, the samples,
the estimated size of the raw shard, and either the bytes to download, or the number of the first
line and the hash of the lines. A compressed file of several shards also has `text_first` and
`text_stop`, the range of the lines in the decompressed bytes. `columns` is the place of the columns
in the list of the index. A file has a tag if the listing had one. Without `folder`, the files are
beside the index.
"""

from __future__ import annotations

import itertools
import json
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import le, lt, sub
from typing import Any, NamedTuple

from cloudload.data.mds import shard_entries
from cloudload.data.mds.shard_entries import Column, LineRange, RowGroups, ShardInfo
from cloudload.data.storage import urls

FIRST = "first"
"""The field by which to recognize the record of a file."""
_FOLDER = "folder"
_TEXT_FIRST, _TEXT_STOP = "text_first", "text_stop"
_MOST_NUMBER = 1 << 62


class ShardRun(NamedTuple):
    """Consecutive shards of a file that have the same words; see `StoredForm.words`."""

    compression: str
    columns: int
    """The place of the columns in the index's list."""
    words: list[Any]
    numbers: tuple[Sequence[int], ...]
    """The samples, raw bytes, stored bytes, and three numbers of the place of each shard."""


# ---------------------------------------------------------------- encode


def encode_index_of_files(shards: Iterable[ShardInfo], compression: str, folder: str = "") -> bytes:
    """Encode `index.json` of virtual shards, in order. They have one compression.

    `folder` is the URL of the files' folder, or "" for the folder of the index.
    """
    sets: dict[tuple[Column, ...], int] = {}
    records = [
        json.dumps(_describe_file(list(group), sets.setdefault(columns, len(sets))))
        for (_, columns), group in itertools.groupby(shards, key=_name_and_columns)
    ]
    facts: dict[str, Any] = {"version": shard_entries.FILES_VERSION, "format": compression}
    facts |= {_FOLDER: folder} if folder else {}
    facts["columns"] = [[(each.name, each.encoding) for each in columns] for columns in sets]
    head, lines = json.dumps(facts)[:-1], ",\n".join(records)
    return f'{head}, "{shard_entries.FILES}": [\n{lines}]}}\n'.encode()


def _name_and_columns(shard: ShardInfo) -> tuple[str, tuple[Column, ...]]:
    assert shard.part is not None
    return shard.part.file, shard.columns


def _describe_file(shards: Sequence[ShardInfo], columns: int) -> dict[str, Any]:
    """The record of a file, given its shards."""
    parts = [shard.part for shard in shards if shard.part is not None]
    own = parts[0]
    record: dict[str, Any] = (
        {"name": own.file} | ({"tag": own.tag} if own.tag else {}) | {"columns": columns}
    )
    if isinstance(own, RowGroups):
        start, stop = own.footer
        record |= {"bytes": stop, "footer_bytes": stop - start, "footer": own.digest}
    record |= {
        FIRST: [part.first for part in parts],
        "stop": [part.stop for part in parts],
        "samples": [shard.samples for shard in shards],
        "raw_bytes": [shard.raw.bytes for shard in shards],
    }
    if isinstance(own, RowGroups):
        return record | {"stored_bytes": [shard.stored.bytes for shard in shards]}
    ranges = [part for part in parts if isinstance(part, LineRange)]
    record |= {"line": [each.line for each in ranges], "lines": [each.digest for each in ranges]}
    if not all(each.text for each in ranges):
        return record
    starts, stops = zip(*(each.text for each in ranges if each.text), strict=True)
    return record | {_TEXT_FIRST: starts, _TEXT_STOP: stops}


# ---------------------------------------------------------------- parse


def parse_file(record: Mapping[str, Any]) -> Iterator[ShardRun]:
    """Yield the shards of a file's record. Raises one of `FAULTS` if it is invalid."""
    name, first, stop = _text(record, "name"), _naturals(record, FIRST), _naturals(record, "stop")
    # members of a compressed file may have lines of two shards
    is_in_order = map(lt, first, first[1:]) if _TEXT_FIRST in record else map(le, stop, first[1:])
    if not all(map(lt, first, stop)) or not all(is_in_order):
        raise ValueError(f"the shards of {name[:100]!r} are not parts of it, in order")
    if fault := shard_entries.fault_of_name(f"{name}#{stop[-1]}-{stop[-1]}.mds"):
        raise ValueError(f"the file name {name[:100]!r} {fault}")
    columns, tag = _natural(record, "columns"), _text(record, "tag") if "tag" in record else ""
    samples, raw_bytes = _naturals(record, "samples"), _naturals(record, "raw_bytes")
    if "footer" in record:
        size, stored = _natural(record, "bytes"), _naturals(record, "stored_bytes")
        if (start := size - _natural(record, "footer_bytes")) < 0:
            raise ValueError(f"the footer of {name!r} is larger than the file")
        words = [name, start, size, _text(record, "footer"), tag]
        numbers = samples, raw_bytes, stored, first, stop, [0] * len(first)
        _check_shards(name, numbers)
        yield ShardRun(shard_entries.PARQUET, columns, words, numbers)
        return
    stored, line, digests = list(map(sub, stop, first)), _naturals(record, "line"), record["lines"]
    numbers = samples, raw_bytes, stored, first, stop, line
    _check_shards(name, (*numbers, digests))
    for digest, text, *own in zip(digests, _texts(record), *numbers, strict=True):
        words = [name, _text({"lines": digest}, "lines"), tag, *text]
        yield ShardRun(shard_entries.JSON_LINES, columns, words, tuple((each,) for each in own))


def _texts(record: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """The range of the lines of each shard in decompressed bytes; () if the file has none."""
    if _TEXT_FIRST not in record:
        return [()] * len(record[FIRST])
    starts, stops = _naturals(record, _TEXT_FIRST), _naturals(record, _TEXT_STOP)
    if not all(map(lt, starts, stops)):
        raise ValueError("the lines are not ranges of decompressed bytes")
    return list(zip(starts, stops, strict=True))


def _check_shards(name: str, arrays: Sequence[Sequence[int]]) -> None:
    """Raise `ValueError` unless the arrays of a file, first its sizes, can be those of shards."""
    if len(set(map(len, arrays))) > 1:
        raise ValueError(f"the arrays of {name!r} differ in length")
    most = shard_entries.MOST_SHARD_BYTES
    for samples, raw_bytes, stored, *_ in zip(*arrays, strict=True):
        if not 4 * (samples + 2) <= raw_bytes <= most or stored > most:
            raise ValueError(
                f"a shard of {name!r} cannot have {raw_bytes:,} raw and {stored:,} stored bytes "
                f"for {samples:,} samples"
            )


def parse_column_sets(index: Mapping[str, Any]) -> list[tuple[Column, ...]]:
    """The columns of an index of files, as its records name them by their place.

    Raises one of `FAULTS` if they are invalid.
    """
    found = []
    for pairs in index["columns"]:
        names, encodings = zip(*pairs, strict=True)
        found.append(shard_entries.parse_columns(names, encodings))
    return found


def parse_folder(index: Mapping[str, Any]) -> str:
    """The URL of the folder of the files; "" for the folder of the index.

    Raises `ValueError` if it is not a location.
    """
    folder = index.get(_FOLDER, "")
    if not isinstance(folder, str):
        raise ValueError(f"{_FOLDER!r} is not the URL of a folder")
    if folder:
        urls.check_location(folder)
    return folder


def _natural(record: Mapping[str, Any], field: str) -> int:
    [value] = _check_naturals([record[field]], field)
    return value


def _naturals(record: Mapping[str, Any], field: str) -> list[int]:
    return _check_naturals(record[field], field)


def _check_naturals(values: Any, field: str) -> list[int]:
    is_valid = isinstance(values, list) and set(map(type, values)) == {int}
    if not is_valid or min(values) < 0 or max(values) > _MOST_NUMBER:
        raise ValueError(f"{field} is {reprlib.repr(values)}, not integers of at least 0")
    return list(values)


def _text(record: Mapping[str, Any], field: str) -> str:
    if not isinstance(value := record[field], str):
        raise ValueError(f"{field} is {reprlib.repr(value)}, not text")
    return value
