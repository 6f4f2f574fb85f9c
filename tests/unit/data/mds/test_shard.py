"""A shard is read sample by sample, and a damaged shard is refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.data.mds.shard import Shard
from cloudload.data.mds.shard_entries import Column, FileInfo, ShardInfo
from cloudload.data.mds.shard_table import parse_index
from cloudload.data.mds.writer import ShardFormat, encode_sample
from cloudload.errors import DatasetError
from testkit.corpora import encode_shard, random_documents, write_mds

TEXT = (Column.of("text", "str"),)


def read_dataset(folder: Path) -> list[dict[str, Any]]:
    """Read all samples of an uncompressed dataset in a local folder."""
    shards = parse_index(Path(folder, "index.json").read_bytes(), str(folder))
    opened = [Shard(Path(folder, shard.raw.name), shard) for shard in shards]
    return [shard.read(sample) for shard in opened for sample in range(shard.info.samples)]


def write_shard(
    folder: Path,
    raw: bytes,
    samples: int,
    columns: tuple[Column, ...] = TEXT,
    size: int | None = None,
) -> Shard:
    """Write `raw` to a file, and open the file as a shard.

    The index entry lists `samples` samples and `size` bytes, by default the file's actual size.
    """
    path = folder / "shard.mds"
    path.write_bytes(raw)
    return Shard(
        path,
        ShardInfo(
            samples,
            columns,
            FileInfo("shard.mds", len(raw) if size is None else size, {}),
            None,
            None,
        ),
    )


def test_we_read_what_streaming_writes(tmp_path: Path) -> None:
    from streaming import MDSWriter

    samples = [{"n": number, "text": text} for number, text in enumerate(random_documents(2, 40))]
    with MDSWriter(
        out=str(tmp_path / "mds"), columns={"text": "str", "n": "int"}, size_limit=800
    ) as writer:
        for sample in samples:
            writer.write(sample)
    assert read_dataset(tmp_path / "mds") == samples


@given(st.lists(st.text(), max_size=20), st.integers(100, 400))
def test_every_text_survives(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], shard_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("mds")
    write_mds(folder, documents, shard_bytes=shard_bytes)
    assert [sample["text"] for sample in read_dataset(folder)] == documents


def test_an_empty_shard_is_a_shard(tmp_path: Path) -> None:
    form = ShardFormat(TEXT, None, ())
    assert write_shard(tmp_path, encode_shard(form, []), 0).info.samples == 0


def test_a_sample_may_be_empty(tmp_path: Path) -> None:
    write_mds(tmp_path, ["", "a", ""])
    assert [sample["text"] for sample in read_dataset(tmp_path)] == ["", "a", ""]


def test_a_shard_stays_readable_when_its_file_is_deleted(tmp_path: Path) -> None:
    shard = write_shard(
        tmp_path,
        encode_shard(ShardFormat(TEXT, None, ()), [encode_sample(TEXT, {"text": "still here"})]),
        1,
    )
    shard.path.unlink()
    assert shard.read(0) == {"text": "still here"}


def test_a_shard_of_another_size_is_refused(tmp_path: Path, raw: bytes) -> None:
    for spoiled in (raw[:-1], raw + b"x", b""):
        with pytest.raises(DatasetError, match=r"shard\.mds has .* bytes, but the index says"):
            write_shard(tmp_path, spoiled, 2, size=len(raw))


@pytest.mark.parametrize("samples", [0, 1, 3, 1 << 40])
def test_a_shard_of_another_count_is_refused(tmp_path: Path, raw: bytes, samples: int) -> None:
    with pytest.raises(DatasetError, match="does not contain the"):
        write_shard(tmp_path, raw, samples)


@pytest.mark.parametrize("length", range(17))
def test_a_shard_cut_anywhere_in_its_head_is_refused(
    tmp_path: Path, raw: bytes, length: int
) -> None:
    with pytest.raises(DatasetError, match="shard"):
        write_shard(tmp_path, raw[:length], 2)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("offset", [0, 15, (1 << 32) - 1])
def test_offsets_outside_the_shard_are_refused(
    tmp_path: Path, raw: bytes, place: int, offset: int
) -> None:
    spoiled = bytearray(raw)
    struct.pack_into("<I", spoiled, 4 + 4 * place, offset)
    with pytest.raises(DatasetError, match="sample offsets that decrease or are outside the shard"):
        write_shard(tmp_path, bytes(spoiled), 2)


@pytest.mark.parametrize("size", [4, 1 << 20, (1 << 32) - 1])
def test_a_column_that_reaches_outside_its_sample_is_refused(
    tmp_path: Path, raw: bytes, size: int
) -> None:
    spoiled = bytearray(raw)
    struct.pack_into("<I", spoiled, raw.index(b"one") - 4, size)
    shard = write_shard(tmp_path, bytes(spoiled), 2)
    assert shard.read(1) == {"text": "three"}
    with pytest.raises(DatasetError, match=r"sample 0 of .* has column sizes that do not add up"):
        shard.read(0)


def test_a_column_that_does_not_fill_its_sample_is_refused(tmp_path: Path, raw: bytes) -> None:
    spoiled = bytearray(raw)
    struct.pack_into("<I", spoiled, raw.index(b"three") - 4, 4)
    with pytest.raises(DatasetError, match=r"sample 1 of .* has column sizes that do not add up"):
        write_shard(tmp_path, bytes(spoiled), 2).read(1)


@pytest.mark.parametrize(
    "change",
    [
        (b'"str"', b'"pkl"'),
        (b'["text"]', b'["tex_"]'),
        (b"[null]", b"[1234]"),
        (b'"column_names"', b'"column_nam_s"'),
        (b"{", b"["),
        (b'"mds"', b'"\xff\xfe\xfd"'),
    ],
)
def test_a_header_that_says_other_than_the_index_is_refused(
    tmp_path: Path, raw: bytes, change: tuple[bytes, bytes]
) -> None:
    with pytest.raises(
        DatasetError, match=r"shard\.mds (has a header without valid columns|has the columns)"
    ):
        write_shard(tmp_path, raw.replace(*change, 1), 2)


def test_a_shard_without_a_header_is_read(tmp_path: Path) -> None:
    sample = encode_sample(TEXT, {"text": "one"})
    assert write_shard(tmp_path, struct.pack("<III", 1, 12, 12 + len(sample)) + sample, 1).read(
        0
    ) == {"text": "one"}


def test_text_that_is_not_utf8_names_the_sample(tmp_path: Path, raw: bytes) -> None:
    shard = write_shard(tmp_path, raw.replace(b"three", b"th\xff\xfee"), 2)
    with pytest.raises(DatasetError, match=r"sample 1 of .*shard\.mds does not match its columns"):
        shard.read(1)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    form = ShardFormat((Column("text", "pkl", None),), None, ())
    pickled = encode_sample([Column.of("text", "bytes")], {"text": b"cos\nsystem\n"})
    shard = write_shard(tmp_path, encode_shard(form, [pickled]), 1, form.columns)
    with pytest.raises(DatasetError, match="cannot read a column with the encoding 'pkl'"):
        shard.read(0)


@given(st.data())
def test_a_shard_with_any_byte_changed_is_read_or_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    form = ShardFormat(TEXT, None, ())
    raw = bytearray(
        encode_shard(form, [encode_sample(TEXT, {"text": text}) for text in ("one", "", "three")])
    )
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        shard = write_shard(tmp_path_factory.mktemp("mds"), bytes(raw), 3)
        for sample in range(3):
            shard.read(sample)
    except DatasetError:
        pass
