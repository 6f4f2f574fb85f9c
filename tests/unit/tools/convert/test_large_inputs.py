"""Memory is bounded: data is decompressed in pieces, and records have a limit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cloudload.tools.convert.input_files import InputFile, read_decompressed
from cloudload.tools.convert.readers import lines
from testkit.conversions import COMPRESSORS, convert, read_dataset, refuse, texts
from testkit.readers import check_blocks, read_records

LIMIT = 1 << 18  # more than a piece of decompressed data that hardly shrinks
LONG = [
    b'{"text": "' + random.Random(n).randbytes(3 * LIMIT // 2).hex().encode() + b'"}'
    for n in range(3)
]
TOO_LONG = "the line is larger than 1 GiB, the limit of a record"


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit of a record to 256 KiB."""
    for module in ("input_files", "readers.lines"):
        monkeypatch.setattr(f"cloudload.tools.convert.{module}.MOST_RECORD_BYTES", LIMIT)


@pytest.mark.parametrize(
    ("extension", "most_bytes"),
    [(".gz", 1 << 20), (".bz2", 1 << 20), (".xz", 1 << 20), (".zst", 33 << 20)],
)
def test_a_small_file_is_never_decompressed_all_at_once(
    tmp_path: Path, extension: str, most_bytes: int
) -> None:
    path, size = tmp_path / f"a.txt{extension}", 70 << 20
    path.write_bytes(COMPRESSORS[extension](bytes([97]) * size) * 2)
    assert path.stat().st_size < 1 << 18
    compression = {".zst": "zstd"}.get(extension, extension[1:])
    file = InputFile(str(path), path.name, None, "text", compression)
    sizes = [len(chunk) for chunk in read_decompressed(file)]
    assert sum(sizes) == 2 * size
    assert max(sizes) <= most_bytes


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("extension", ["", ".gz", ".zst"])
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
@pytest.mark.parametrize("end", [b"", b"\n", b'\n{"text": "last"}'])
def test_a_line_above_the_limit_is_bad_and_the_lines_around_it_are_read(
    tmp_path: Path, extension: str, block_bytes: int, end: bytes
) -> None:
    path = tmp_path / f"a.jsonl{extension}"
    good = b'{"text": "good"}'
    data = b"\n".join([good, good, LONG[0], good, *LONG[1:]]) + end
    path.write_bytes(COMPRESSORS[extension](data))
    refuse(f"{path}:3[:,].*{TOO_LONG}", path)
    report = convert(path, skip_bad=True, block_bytes=block_bytes)
    assert [record.split(": ")[0] for record in report.bad_records] == [
        f"{path}:{line}" for line in (3, 5, 6)
    ]
    ids = [sample["id"] for sample in read_dataset(str(tmp_path / "out"), tmp_path)]
    last = [f"{path.name}:7"] if len(end) > 1 else []
    assert ids == [f"{path.name}:{line}" for line in (1, 2, 4)] + last
    assert report.input_bytes == path.stat().st_size
    check_blocks(path)


@pytest.mark.usefixtures("small_limit")
def test_the_limit_of_a_line_does_not_depend_on_how_its_bytes_arrive() -> None:
    line = b"x" * (LIMIT - 1) + b"\n"
    for data, is_long in ((line, False), (b"x" + line, True)):
        cuts = []
        for size in (1 << 16, 1000, 77_777):
            chunks = (data[at : at + size] for at in range(0, len(data), size))
            cuts.append(list(lines._cut_at_line_ends(chunks, 1)))
        assert cuts[0] == cuts[1] == cuts[2]
        assert cuts[0] == [(b"", TOO_LONG, len(data)) if is_long else (data, None, len(data))]


@pytest.mark.usefixtures("small_limit")
def test_a_line_above_the_limit_in_a_cut_file_is_named_by_its_offset(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + LONG[0] + b'\n{"text": "b"}\n')
    out = tmp_path / "out"
    report = convert(path, out, skip_bad=True, segment_bytes=400_000)
    assert report.bad_records == (f"{path}:@14: {TOO_LONG}",)
    assert texts(str(out), tmp_path) == ["a", "b"]


@pytest.mark.usefixtures("small_limit")
def test_a_text_file_above_the_limit_is_bad(tmp_path: Path) -> None:
    (tmp_path / "a.txt.zst").write_bytes(COMPRESSORS[".zst"](b"x" * (2 * LIMIT)))
    (tmp_path / "b.txt").write_bytes(b"x" * LIMIT)
    records = read_records(tmp_path)
    assert records[0].problem == "the file is larger than 1 GiB, the limit of a document"
    assert records[1].problem is None
