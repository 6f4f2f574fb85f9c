"""A rerun of a conversion rebuilds the shards that its finished dataset lacks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard

from cloudload.convert import convert_to_mds
from cloudload.data.mds import writer
from cloudload.data.storage.locations import Location
from cloudload.errors import ConvertError
from testkit.conversions import (
    SETTINGS,
    dataset_bytes,
    documents,
    make_input,
    note_each_write,
    write_corpus,
)

SEGMENTS: dict[str, Any] = {**SETTINGS, "segment_bytes": 8000}


def list_shards(out: Path) -> list[Path]:
    """The shards of a dataset, in order."""
    return sorted(out.rglob("shard.*"))


def unchanged_files(out: Path) -> dict[str, tuple[int, int]]:
    """The inode and time of each file that is not a shard."""
    found = [path for path in out.rglob("*") if path.is_file() and "shard." not in path.name]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}


@pytest.mark.parametrize("form", ["jsonl", "gz", "lines", "text", "parquet"])
@pytest.mark.parametrize("options", [SETTINGS, SEGMENTS], ids=["one segment", "segments"])
def test_missing_and_truncated_shards_are_rebuilt(
    tmp_path: Path, form: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, settings = make_input(tmp_path / "in", form, documents(300))
    settings |= options
    first = convert_to_mds(source(), tmp_path / "out", **settings)
    before, files = dataset_bytes(str(tmp_path / "out")), unchanged_files(tmp_path / "out")
    shards = list_shards(tmp_path / "out")
    shards[1].unlink()
    shards[-1].write_bytes(b"half")
    written: list[str] = []
    note_each_write(monkeypatch, written.append)
    again = convert_to_mds(source(), tmp_path / "out", **settings)
    assert (again.rebuilt_shards, again.already_complete) == (2, False)
    assert again.resumed_shards == first.shards - 2
    assert sorted(written) == [str(shards[1]), str(shards[-1])]
    assert dataset_bytes(str(tmp_path / "out")) == before
    assert unchanged_files(tmp_path / "out") == files
    assert convert_to_mds(source(), tmp_path / "out", **settings).already_complete


def test_all_shards_of_many_segments_are_rebuilt_by_several_processes(tmp_path: Path) -> None:
    corpus, out = write_corpus(tmp_path / "in"), tmp_path / "out"
    options: dict[str, Any] = {"shard_bytes": 50_000, "segment_bytes": 60_000, "progress": False}
    options |= {"keep": ["n"], "processes": 2}
    convert_to_mds(corpus, out, **options)
    before, shards = dataset_bytes(str(out)), list_shards(out)
    for path in shards:
        path.unlink()
    assert convert_to_mds(corpus, out, **options).rebuilt_shards == len(shards)
    assert dataset_bytes(str(out)) == before


def test_an_mds_dataset_is_an_input_that_rebuilds_shards(tmp_path: Path) -> None:
    source, _ = make_input(tmp_path / "in", "jsonl", documents(300))
    convert_to_mds(source(), tmp_path / "first", **SETTINGS)
    convert_to_mds(tmp_path / "first", tmp_path / "out", **SEGMENTS)
    before = dataset_bytes(str(tmp_path / "out"))
    list_shards(tmp_path / "out")[2].unlink()
    assert convert_to_mds(tmp_path / "first", tmp_path / "out", **SEGMENTS).rebuilt_shards == 1
    assert dataset_bytes(str(tmp_path / "out")) == before


def test_a_store_gets_its_missing_shards_again(s3_url: str, tmp_path: Path) -> None:
    source, _ = make_input(tmp_path / "in", "jsonl", documents(300))
    first = convert_to_mds(source(), f"{s3_url}/out", **SEGMENTS)
    before = dataset_bytes(f"{s3_url}/out")
    Location(f"{s3_url}/out/00000/shard.00001.mds.zstd").delete()
    Location(f"{s3_url}/out/00001/shard.00000.mds.zstd").write(b"half")
    again = convert_to_mds(source(), f"{s3_url}/out", **SEGMENTS)
    assert (again.rebuilt_shards, again.shards) == (2, first.shards)
    assert dataset_bytes(f"{s3_url}/out") == before


def test_the_summary_counts_the_rebuilt_shards(tmp_path: Path, cli: Any) -> None:
    source, _ = make_input(tmp_path / "in", "jsonl", documents(300))
    command = ["convert", source(), tmp_path / "out", "--shard-bytes", "2k"]
    cli(*command)
    shards = list_shards(tmp_path / "out")
    shards[0].unlink()
    shards[3].unlink()
    assert f"out is complete: rebuilt 2 of {len(shards)} shards\n" in cli(*command).out


KILLED = """
import os, signal, sys
from cloudload.convert import convert_to_mds
from testkit.conversions import SETTINGS
from cloudload.data.storage.locations import Location

write, left = Location.write, [2]

def kill(location, data):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    write(location, data)

Location.write = kill
convert_to_mds(sys.argv[1], sys.argv[2], segment_bytes=8000, **SETTINGS)
"""


def test_a_repair_that_is_killed_continues(tmp_path: Path) -> None:
    source, _ = make_input(tmp_path / "in", "jsonl", documents(300))
    out = tmp_path / "out"
    convert_to_mds(source(), out, **SEGMENTS)
    before, files = dataset_bytes(str(out)), unchanged_files(out)
    for path in list_shards(out)[:5]:
        path.unlink()
    command = [sys.executable, "-c", KILLED, str(source()), str(out)]
    killed = subprocess.run(command, check=False, cwd=Path(__file__).parents[2])
    assert killed.returncode == -signal.SIGKILL
    assert unchanged_files(out) == files
    assert convert_to_mds(source(), out, **SEGMENTS).rebuilt_shards == 3
    assert dataset_bytes(str(out)) == before


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    """A conversion of 300 documents in `in/a.jsonl`."""
    make_input(tmp_path / "in", "jsonl", documents(300))
    convert_to_mds(tmp_path / "in", tmp_path / "out", **SETTINGS)
    return tmp_path / "out"


def refuse(tmp_path: Path, match: str, source: Any = None, **options: Any) -> None:
    """Lose a shard, check that a rerun is refused, and that it changes nothing."""
    out = tmp_path / "out"
    list_shards(out)[1].unlink()
    before = dataset_bytes(str(out))
    with pytest.raises(ConvertError, match=match) as caught:
        convert_to_mds(tmp_path / "in" if source is None else source, out, **SETTINGS | options)
    assert "from a copy, or convert all inputs again (--overwrite)" in str(caught.value)
    assert dataset_bytes(str(out)) == before


@pytest.mark.usefixtures("converted")
def test_inputs_that_changed_since_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "in" / "a.jsonl"
    path.write_bytes(path.read_bytes().replace(b"document 9", b"Document 9"))
    refuse(tmp_path, r"They cannot be rebuilt, because .*a\.jsonl changed since it was converted")


@pytest.mark.usefixtures("converted")
def test_an_input_that_changed_without_a_trace_is_refused_by_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "in" / "a.jsonl"
    times = path.stat()
    with path.open("r+b") as file:
        file.write(path.read_bytes().replace(b"document 40 ", b"Document 40 "))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    refuse(tmp_path, r"cannot rebuild shard\.0000\d\.mds\.zstd .*because its documents would diff")


@pytest.mark.usefixtures("converted")
def test_shards_that_another_codec_would_write_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "compress", lambda _, data: zstandard.compress(data, 19))
    refuse(tmp_path, "compressed by another version of the codec")


def test_datasets_that_cannot_be_rebuilt_are_refused(tmp_path: Path) -> None:
    source, _ = make_input(tmp_path / "in", "jsonl", documents(300))
    out, more = tmp_path / "out", tmp_path / "more"

    def convert(**options: Any) -> None:
        convert_to_mds(source(), out, overwrite=True, **SETTINGS | options)

    convert(hashes=[])
    refuse(tmp_path, "because the index has no hashes", hashes=[])
    convert()
    refuse(tmp_path, r"because only a run without worker \(--worker\)", finish=True)
    convert()
    make_input(more, "jsonl", documents(20))
    convert_to_mds(more, out, append=True, **SETTINGS)
    refuse(tmp_path, "because documents were appended")
    convert_to_mds(source(), tmp_path / "splits" / "out", splits="a=0.5,b=0.5", **SETTINGS)
    split = {"source": source(), "splits": "a=0.5,b=0.5"}
    refuse(tmp_path / "splits", "because the dataset is divided into splits", **split)


@pytest.mark.parametrize("form", ["dataset", "iterable"])
def test_rows_that_are_not_in_files_do_not_rebuild_shards(tmp_path: Path, form: str) -> None:
    source, _ = make_input(tmp_path / "in", form, documents(300))
    convert_to_mds(source(), tmp_path / "out", **SETTINGS)
    refuse(tmp_path, "because not all inputs are files", source())


def test_other_options_do_not_rebuild_shards(converted: Path, tmp_path: Path) -> None:
    list_shards(converted)[0].unlink()
    with pytest.raises(ConvertError, match="shard_bytes was 2000 and is now 3000"):
        convert_to_mds(tmp_path / "in", converted, **SETTINGS | {"shard_bytes": 3000})


def test_a_repair_stops_if_the_dataset_is_replaced_meanwhile(
    converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = converted
    for path in list_shards(out)[:3]:
        path.unlink()
    write = Location.write

    def replace_index(location: Location, data: bytes) -> None:
        write(location, data)
        (out / "index.json").unlink()

    monkeypatch.setattr(Location, "write", replace_index)
    with pytest.raises(ConvertError, match=r"index of .* changed while shards were rebuilt"):
        convert_to_mds(tmp_path / "in", out, **SETTINGS)
    assert [path.name[6:11] for path in list_shards(out)[:2]] == ["00000", "00003"]
