"""A file that changes while it is converted is refused, whatever its format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cloudload.convert import convert_to_mds
from cloudload.data.storage.locations import Location
from cloudload.errors import CloudloadError, StoreError
from cloudload.tools.convert.config import ConvertConfig
from cloudload.tools.convert.conversion_plan import Segments
from cloudload.tools.convert.input_files import InputFile, read_decompressed
from cloudload.tools.convert.inputs import group_units, list_inputs, list_units
from cloudload.tools.convert.segment import read_blocks
from cloudload.tools.convert.segment_journal import InputPosition
from testkit.conversions import SETTINGS, documents, make_input, note_each_write, texts
from testkit.input_kinds import INPUT_KINDS

FORMS = ("jsonl", "gz", "zst", "lines", "parquet", *INPUT_KINDS)
DOCUMENTS = documents(600)
METADATA = ("index.json", "state.json", "dataset_info.json")


def write_input(folder: Path, form: str) -> Path:
    """Write the documents in this form, and return the first file with documents."""
    if form in INPUT_KINDS:
        folder.mkdir()
        rows = [{"text": text, "n": number} for number, text in enumerate(DOCUMENTS)]
        INPUT_KINDS[form](folder, rows)
    else:
        make_input(folder, form, DOCUMENTS)
    return min(path for path in folder.iterdir() if path.name not in METADATA)


def append_bytes(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"text": "appended while reading"}\n')


def rewrite(path: Path) -> None:
    """Write as many bytes, in place."""
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(data.replace(b"ocument", b"OCUMENT") if b"ocument" in data else data)


def replace_file(path: Path) -> None:
    """Write as many bytes to another file, and rename it to the first."""
    data = path.read_bytes()
    path.with_name(".new").write_bytes(data)
    path.with_name(".new").rename(path)


@pytest.mark.parametrize("change", [append_bytes, rewrite, replace_file])
@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_changes_after_its_first_block_is_refused_at_its_end(
    tmp_path: Path, form: str, change: Callable[[Path], None]
) -> None:
    path = write_input(tmp_path / "in", form)
    form = "lines" if form == "lines" else "auto"
    units = list_units(list_inputs(tmp_path / "in", form, None), 1_000)
    blocks = read_blocks(units, InputPosition(), ConvertConfig(block_bytes=1_000))
    next(blocks)
    change(path)
    with pytest.raises(CloudloadError, match=r"listed|damaged"):
        list(blocks)


@pytest.mark.parametrize("form", ["jsonl", "lines", "parquet"])
def test_a_range_of_a_file_that_changes_is_refused_at_its_end(tmp_path: Path, form: str) -> None:
    path = write_input(tmp_path / "in", form)
    [folder] = list_inputs(tmp_path / "in", "lines" if form == "lines" else "auto", None)
    segments = Segments(folder.files, path.stat().st_size // 3)
    units = list(group_units(segments[1], 1_000))
    blocks = read_blocks(units, InputPosition(), ConvertConfig(block_bytes=1_000))
    next(blocks)
    rewrite(path)
    with pytest.raises(StoreError, match=r"changed since it was listed"):
        list(blocks)


@pytest.mark.parametrize("segment_bytes", [1 << 20, 20_000])
def test_a_log_that_is_still_written_is_not_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segment_bytes: int
) -> None:
    path = write_input(tmp_path / "in", "jsonl")
    stored: list[str] = []

    def append_once(url: str) -> None:
        if "/shard." in url and not stored:
            append_bytes(path)
            stored.append(url)

    note_each_write(monkeypatch, append_once)
    options = {**SETTINGS, "segment_bytes": segment_bytes}
    with pytest.raises(StoreError, match=r"a\.jsonl (has|changed)"):
        convert_to_mds(tmp_path / "in", tmp_path / "out", **options)
    monkeypatch.undo()
    assert not (tmp_path / "out" / "index.json").exists()
    report = convert_to_mds(tmp_path / "in", tmp_path / "out", overwrite=True, **options)
    assert report.documents == 601
    assert texts(str(tmp_path / "out"), tmp_path)[:600] == DOCUMENTS


def test_a_text_file_that_grows_after_it_was_listed_is_refused(tmp_path: Path) -> None:
    make_input(tmp_path / "in", "text", DOCUMENTS[:9])
    [unit] = list_units(list_inputs(tmp_path / "in", "auto", None), 1 << 20)
    [block] = unit.blocks(InputPosition().start, 1 << 20, ConvertConfig().fields())
    records = block.records("text")
    assert next(records).fields == {"text": DOCUMENTS[0]}
    append_bytes(tmp_path / "in" / "0003.txt")
    with pytest.raises(StoreError, match=r"0003\.txt changed since it was listed"):
        list(records)


def test_an_object_of_another_size_than_listed_is_refused_at_its_end(s3_url: str) -> None:
    Location(f"{s3_url}/a.txt").write(b"0123456789")
    for size in (9, 11):
        file = InputFile(f"{s3_url}/a.txt", "a.txt", size, "text", None)
        with pytest.raises(StoreError, match=f"has 10 bytes, but had {size} when it was listed"):
            list(read_decompressed(file))
