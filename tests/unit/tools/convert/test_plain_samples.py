"""The fast paths of reading and encoding produce the same samples as the general paths."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloudload.data import file_content
from cloudload.data.file_content import DamagedError
from cloudload.data.mds.writer import ShardBuffer, ShardFormat, pack_shard
from cloudload.data.storage.locations import Location
from cloudload.tools.convert import input_files
from cloudload.tools.convert import sample_encoding as sample_encoding
from cloudload.tools.convert.config import ConvertConfig
from cloudload.tools.convert.input_files import InputFile, read_decompressed
from cloudload.tools.convert.input_records import BlockStart, Record
from cloudload.tools.convert.output_location import Output
from cloudload.tools.convert.readers.arrow_block import ArrowBlock
from cloudload.tools.convert.sample_encoding import ShardContext, encode_block
from cloudload.tools.convert.segment_journal import SegmentJournal

FILE = InputFile("corpus/a.parquet", "a.parquet", 0, "parquet", None)
TEXTS = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES: st.SearchStrategy[Any] = st.one_of(
    TEXTS,
    st.text(st.characters()),
    st.integers(),
    st.floats(),
    st.sampled_from([[], {"id": "inner"}]),
)


def context_of(**options: Any) -> ShardContext:
    config = ConvertConfig(**options)
    journal = SegmentJournal(Output(Location("out")), "")
    return ShardContext(config, config.shard_format([]), journal, keeps_rejects=True)


def encode(block: Any, **options: Any) -> tuple[Any, ...]:
    found = encode_block(context_of(**options), block)
    [samples] = found.samples.values()
    return bytes(samples.data), samples.sizes.tolist(), found.counts, found.first_bad, found.rejects


def encode_generally(block: Any, **options: Any) -> tuple[Any, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_encoding, "_encode_plain", lambda *_: None)
        patch.setattr(ArrowBlock, "utf8_records", ArrowBlock.records)
        return encode(block, **options)


class Rows:
    """An input block with one record for each item of `rows`. None makes a bad record."""

    start, input_bytes = BlockStart(), 0

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def records(self, text_key: str, errors: str = "strict") -> Any:
        for number, fields in enumerate(self._rows):
            yield Record(FILE, str(number), fields, "bad" if fields is None else None)


@given(
    st.lists(
        st.none() | st.dictionaries(st.sampled_from(["text", "id", "meta"]), VALUES, max_size=3)
    ),
    st.sampled_from(["id", "meta", "meta.id"]),
)
@example([{"text": "a", "meta": {"id": "inner"}}], "meta.id")
@example([{"text": "a", "id": ""}, {"text": "", "id": "a"}, {"text": "a", "id": 7}], "id")
def test_plain_records_become_the_samples_of_the_general_way(rows: list[Any], id_key: str) -> None:
    block = Rows(rows)
    assert encode(block, id_key=id_key) == encode_generally(block, id_key=id_key)


@given(
    st.lists(st.tuples(TEXTS, TEXTS), max_size=6),
    st.sampled_from([pyarrow.string(), pyarrow.large_string(), pyarrow.binary()]),
    st.integers(0, 6),
    st.booleans(),
    st.sampled_from(["id", "text"]),
)
@example([("a", "é")], pyarrow.string(), 0, True, "text")
def test_arrow_texts_become_the_samples_of_the_general_way(
    rows: list[tuple[str | None, str | None]],
    kind: Any,
    first: int,
    has_nulls: bool,
    id_key: str,
) -> None:
    texts = [text if has_nulls else text or "" for text, _ in rows]
    batch = pyarrow.record_batch(
        [
            pyarrow.array([name for _, name in rows], pyarrow.string()),
            pyarrow.array(texts, pyarrow.string()).cast(kind),
        ],
        ["id", "text"],
    ).slice(first)
    block = ArrowBlock(FILE, BlockStart(line=first + 1), 0, batch)
    assert encode(block, id_key=id_key) == encode_generally(block, id_key=id_key)


def test_arrow_texts_that_are_not_utf8_are_bad_records() -> None:
    texts = pyarrow.array([b"one", b"t\xffo", b"three"], pyarrow.binary())
    invalid = pyarrow.Array.from_buffers(pyarrow.string(), 3, texts.buffers())
    block = ArrowBlock(FILE, BlockStart(), 0, pyarrow.record_batch([invalid], ["text"]))
    *_, counts, first_bad, _ = encode(block)
    assert (counts.documents, counts.bad) == (2, 1)
    assert first_bad.problem == "the record is not UTF-8 (byte 0xff at offset 1)"
    assert encode(block) == encode_generally(block)


def decompress(path: Path) -> tuple[bytes, str | None]:
    found = []
    try:
        for chunk in read_decompressed(InputFile(str(path), path.name, None, "jsonl", "gz")):
            found.append(chunk)
    except DamagedError as error:
        return b"".join(found), str(error)
    return b"".join(found), None


def test_damaged_gzip_files_have_the_bytes_and_problems_of_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zlib_ng")
    monkeypatch.setattr(input_files, "CHUNK_BYTES", 64)
    draw, path = np.random.default_rng(0), tmp_path / "a.jsonl.gz"
    text = b"".join(b'{"text": "%d"}\n' % number for number in draw.integers(0, 10**9, 200))
    member = gzip.compress(text, 6, mtime=0)
    assert len(member) > 64
    for number in range(400):
        damaged = bytearray(member + member)
        place = draw.integers(0, 60 if number % 2 else len(damaged))
        damaged[place] ^= 1 << draw.integers(0, 8)
        path.write_bytes(damaged[: len(damaged) - (0 if number % 5 else draw.integers(0, 40))])
        found = decompress(path)
        with monkeypatch.context() as patch:
            patch.setattr(file_content, "fast_zlib", zlib)
            assert found == decompress(path)


@pytest.mark.parametrize("compression", [None, "zstd", "gz", "bz2", "br"])
def test_shards_have_the_same_bytes_in_memory_that_is_used_again(compression: str | None) -> None:
    columns = ConvertConfig().shard_format([]).columns
    form = ShardFormat(columns, compression, ("xxh64", "sha1"), shard_bytes=1024)
    buffer = ShardBuffer()
    for number, count in enumerate([3, 500, 1, 40]):
        samples = [bytes([number]) * 9] * count
        sizes = np.full(count, 9)
        expected = pack_shard(form, number, sizes, samples)
        found = pack_shard(form, number, sizes, [memoryview(b"".join(samples))], buffer)
        assert (found.name, found.data, found.entry) == (
            expected.name,
            expected.data,
            expected.entry,
        )
        assert bytes(found.raw) == expected.raw
