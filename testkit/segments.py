"""A corpus in several formats that is converted in many small segments, and executors that run
units in reverse order or twice."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import zstandard

from cloudload.tools.convert import convert_to_mds
from cloudload.tools.convert.conversion_report import ConvertReport

SETTINGS: dict[str, Any] = {
    "shard_bytes": 8_000,
    "block_bytes": 3_000,
    "segment_bytes": 12_000,
    "keep": ["n"],
    "progress": False,
    "processes": 1,
}
"""Converter options that cut `mixed_corpus` into about 60 segments with a few shards each."""


def mixed_corpus(folder: Path, part: int = 1, *, with_bad: bool = False) -> Path:
    """Write 4 large files (JSON Lines, plain and compressed, and Parquet), and 40 small ones.

    `part` divides the rows of each large file and the number of small files. Tests of stores use
    4, because each object takes time. With `with_bad`, every 23rd row of a file has no text.
    """
    draw = random.Random(3)
    folder.mkdir(parents=True)

    def rows(count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [
            {"text": "wörd " * draw.randint(0, 60), "n": number} for number in range(count)
        ]
        for row in found[7::23] if with_bad else ():
            row["text"] = None
        return found

    def lines(count: int) -> bytes:
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(count)).encode()

    (folder / "a-large.jsonl").write_bytes(lines(1_200 // part))
    (folder / "b-large.jsonl.gz").write_bytes(gzip.compress(lines(300 // part), mtime=0))
    (folder / "c-large.jsonl.zst").write_bytes(zstandard.compress(lines(300 // part)))
    table = pyarrow.Table.from_pylist(rows(1_500 // part))
    pyarrow.parquet.write_table(
        table,
        folder / "d-large.parquet",
        row_group_size=20,
        use_dictionary=False,
        compression="none",
    )
    for number in range(40 // part):
        (folder / f"e{number:02}.jsonl").write_bytes(lines(30))
    return folder


class LastFirst(Executor):
    """An executor that waits for `number` units, and then runs them in reverse order."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._waiting.append((Future(), lambda: function(*args, **kwargs)))
        if len(self._waiting) == self._number:
            for future, call in reversed(self._waiting):
                future.set_result(call())
        return self._waiting[-1][0]


class Twice(Executor):
    """An executor that runs each unit twice concurrently, and fails if the two results differ."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        both = [self._threads.submit(function, *args, **kwargs) for _ in range(2)]
        wait(both)
        values = [one.result().value for one in both]
        assert values[0] == values[1], values
        return both[0]


def convert_every_way(
    source: Path, url: str, segments: int, **options: Any
) -> Iterator[tuple[str, ConvertReport]]:
    """Convert with two processes, with the segments in reverse order, and with each segment twice.

    Yields the URL of each output, which is below `url`, and the report.
    """
    ways: list[dict[str, Any]] = [
        {"processes": 2},
        {"executor": LastFirst(segments)},
        {"executor": Twice()},
    ]
    for number, way in enumerate(ways):
        yield f"{url}/{number}", convert_to_mds(source, f"{url}/{number}", **{**options, **way})
