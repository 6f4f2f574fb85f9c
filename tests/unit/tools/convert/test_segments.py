"""Segments depend only on file sizes and compression, and each record is in exactly one range."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudload.tools.convert.conversion_plan import Segments, count_bytes
from cloudload.tools.convert.input_files import InputFile
from cloudload.tools.convert.input_records import BlockStart, Fields, InputUnit, Record
from cloudload.tools.convert.readers.lines import LinesUnit
from cloudload.tools.convert.readers.parquet import ParquetUnit
from testkit.examples import EXAMPLES

FIELDS = Fields(["text", "id"])


def make_file(name: str, size: int, compression: str | None = None) -> InputFile:
    return InputFile(name, name, size, "jsonl", compression)


def cut(files: list[InputFile], segment_bytes: int) -> list[list[object]]:
    """List each segment's parts: the name of a whole file, or (name, first, stop) in bytes."""
    return [
        [(part.file.name, *part.range) if part.range else part.file.name for part in segment]
        for segment in Segments(files, segment_bytes)
    ]


def test_small_files_share_a_segment_large_ones_are_cut_and_compressed_ones_are_not() -> None:
    files = [
        make_file("a", 100),
        make_file("b", 60, "gz"),
        make_file("c", 10, "gz"),
        make_file("d", 5),
        make_file("e", 200, "zstd"),
    ]
    assert cut(files, 64) == [
        [("a", 0, 50)],
        [("a", 50, 100)],
        ["b"],
        ["c", "d"],
        ["e"],
    ]
    assert cut(files, 1000) == [["a", "b", "c", "d", "e"]]
    assert cut([], 10) == []


@given(
    sizes=st.lists(st.tuples(st.integers(0, 100), st.sampled_from([None, "gz"])), max_size=20),
    segment_bytes=st.integers(1, 150),
)
def test_segments_hold_every_byte_once_and_in_order(
    sizes: list[tuple[int, str | None]], segment_bytes: int
) -> None:
    files = [make_file(str(number), *size) for number, size in enumerate(sizes)]
    segments = Segments(files, segment_bytes)
    found: list[tuple[str, int]] = []
    for segment in segments:
        assert segment
        size = sum(map(count_bytes, segment))
        assert size <= segment_bytes or len(segment) == 1
        for part in segment:
            found += [
                (part.file.name, byte) for byte in range(*(part.range or (0, part.file.bytes or 0)))
            ]
    assert found == [(file.name, byte) for file in files for byte in range(file.bytes or 0)]


def read(unit: InputUnit, block_bytes: int, start: BlockStart | None = None) -> list[Record]:
    """Return the records of a unit from the block at `start` on, or all of them if it is None."""
    blocks = unit.blocks(start or BlockStart(), block_bytes, FIELDS)
    return [record for block in blocks for record in block.records("text")]


def ranges(size: int, cuts: list[int]) -> list[tuple[int, int]]:
    """Cut a file of `size` bytes at the offsets `cuts`, and return its ranges in bytes."""
    bounds = sorted({0, size, *(cut for cut in cuts if cut < size)})
    return list(itertools.pairwise(bounds))


LINES = st.lists(
    st.tuples(
        st.one_of(
            st.just(""),
            st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=12),
        ),
        st.sampled_from(["\n", "\r\n"]),
    ),
    max_size=12,
)


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=LINES,
    mark=st.booleans(),
    last_end=st.booleans(),
    cuts=st.lists(st.integers(1, 200), max_size=9),
    block_bytes=st.integers(1, 40),
    form=st.sampled_from(["lines", "jsonl"]),
)
def test_any_cut_of_a_file_of_lines_gives_each_line_once(
    tmp_path: Path,
    *,
    lines: list[tuple[str, str]],
    mark: bool,
    last_end: bool,
    cuts: list[int],
    block_bytes: int,
    form: str,
) -> None:
    quote = json.dumps if form == "jsonl" else str
    text = "".join(quote(line) + end for line, end in lines)
    data = ("\ufeff" * mark + (text if last_end else text.rstrip("\r\n"))).encode()
    path = tmp_path / "a"
    path.write_bytes(data)
    file = InputFile(str(path), "a", len(data), form, None)
    whole = read(LinesUnit(file), block_bytes)
    parts: list[Record] = []
    for part in ranges(len(data), cuts):
        unit = LinesUnit(file, part)
        found = read(unit, block_bytes)
        assert sum(b.input_bytes for b in unit.blocks(BlockStart(), 7, FIELDS)) <= len(data)
        for block in unit.blocks(BlockStart(), block_bytes, FIELDS):
            later = read(unit, block_bytes, block.start)
            assert found[len(found) - len(later) :] == later
        parts += found
    assert [(r.fields, r.problem) for r in parts] == [(r.fields, r.problem) for r in whole]
    offsets = [int(record.name.removeprefix("a:@")) for record in parts]
    assert offsets == sorted(set(offsets))
    for offset, record in zip(offsets, parts, strict=True):
        line = data[offset:].split(b"\n")[0].removesuffix(b"\r").decode()
        if form == "lines":
            assert record.fields == {"text": line}


def test_a_line_longer_than_its_range_belongs_to_the_range_of_its_first_byte(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"ab\n" + b"x" * 100 + b"\nc\n")
    file = InputFile(str(path), "a", 106, "lines", None)
    found = [read(LinesUnit(file, (at, at + 2)), 10) for at in range(0, 106, 2)]
    by_range = {2 * n: [r.name for r in records] for n, records in enumerate(found) if records}
    assert by_range == {0: ["a:@0"], 2: ["a:@3"], 104: ["a:@104"]}


@pytest.mark.parametrize(
    "cuts", [[1], [4000, 4001, 9000], [2, 3, 5000, 10_000], list(range(0, 30_000, 100))]
)
def test_any_cut_of_a_parquet_file_gives_each_row_once_with_its_number(
    tmp_path: Path, cuts: list[int]
) -> None:
    rows = [{"text": f"t{n} " * (n % 40), "id": f"d{n}", "more": n} for n in range(300)]
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=7)
    file = InputFile(str(path), "a.parquet", path.stat().st_size, "parquet", None)
    whole = read(ParquetUnit(file), 500)
    assert whole[8].name == "a.parquet:9"
    parts = [
        record
        for part in ranges(path.stat().st_size, cuts)
        for record in read(ParquetUnit(file, part), 500)
    ]
    assert parts == whole
