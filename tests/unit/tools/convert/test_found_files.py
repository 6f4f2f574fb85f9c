"""The files of an input are all found, or an error says which are not; what is hidden is named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from cloudload.data.file_kinds import find_table, hidden_part, is_about_data
from cloudload.data.mds.dataset import open_corpus
from cloudload.data.storage.locations import Location
from cloudload.errors import ConvertError, StoreError
from cloudload.tools.convert.found_files import find_files
from cloudload.tools.convert.inputs import list_inputs
from testkit.conversions import convert, convert_and_read, read_dataset
from testkit.privileges import call_unprivileged


def write(folder: Path, *names: str) -> Path:
    """Write a file with one document, its name, for each name."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": name}) + "\n")
    return folder


def texts(inputs: Any, tmp_path: Path) -> list[str]:
    """Convert the inputs, and return the documents, sorted."""
    return sorted(sample["text"] for sample in convert_and_read(inputs, tmp_path / "out"))


def found(location: Path | str) -> list[str]:
    """The names of the files of an input."""
    return [file.name for file in find_files(str(location)).files]


# ---------------------------------------------------------------- links, folders, names


def test_documents_in_linked_folders_are_converted(tmp_path: Path) -> None:
    write(tmp_path / "real", "c.jsonl")
    write(tmp_path / "in", "a.jsonl")
    (tmp_path / "in/linked").symlink_to("../real")
    assert texts(tmp_path / "in", tmp_path) == ["a.jsonl", "c.jsonl"]


def test_a_folder_that_cannot_be_read_stops_the_conversion(tmp_path: Path) -> None:
    write(tmp_path / "in", "a.jsonl", "locked/b.jsonl", ".trash/c.jsonl")
    for name in ("locked", ".trash"):
        (tmp_path / "in" / name).chmod(0)
    with pytest.raises(StoreError, match=r"cannot list .*in/locked"):
        call_unprivileged(lambda: found(tmp_path / "in"))
    # a glob does not look there, and what is hidden is left out
    assert call_unprivileged(lambda: found(f"{tmp_path}/in/*.jsonl")) == ["a.jsonl"]
    (tmp_path / "in/locked").chmod(0o755)
    assert call_unprivileged(lambda: found(tmp_path / "in")) == ["a.jsonl", "locked/b.jsonl"]
    (tmp_path / "in/.trash").chmod(0o755)


def test_a_link_to_nothing_stops_a_conversion_that_would_read_it(tmp_path: Path) -> None:
    write(tmp_path / "in", "a.jsonl")
    (tmp_path / "in/d.jsonl").symlink_to("gone.jsonl")
    (tmp_path / "in/.#a.jsonl").symlink_to("user@host.1")  # a lock of Emacs
    for location in (tmp_path / "in", f"{tmp_path}/in/*.jsonl"):
        with pytest.raises(StoreError, match=r"d\.jsonl is a link to gone\.jsonl, which does not"):
            found(location)
    assert found(f"{tmp_path}/in/a*") == ["a.jsonl"]


def test_a_name_that_is_not_utf8_is_escaped_in_the_id(tmp_path: Path) -> None:
    for name, data in ((b"caf\xe9.jsonl", b'{"text": "a"}\n'), (b"\xff.jsonl", b'{"text": "b"}')):
        os.makedirs(os.fsencode(tmp_path / "in"), exist_ok=True)
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path / "in"), name))).write_bytes(data)
    report = convert(tmp_path / "in", segment_bytes=5)
    assert (report.documents, report.bad) == (2, 0)
    samples = read_dataset(str(tmp_path / "out"), tmp_path)
    assert {sample["id"] for sample in samples} == {"caf%E9.jsonl:@0", "%FF.jsonl:@0"}


def test_two_files_whose_names_are_equal_in_utf8_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "in", "%E9.jsonl", os.fsdecode(b"\xe9.jsonl"))
    with pytest.raises(ConvertError, match=r"two files with the name '%E9\.jsonl'"):
        list_inputs(tmp_path / "in", "auto", None)


def test_the_root_the_home_and_the_current_folder_are_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write(tmp_path / "here", "a.jsonl", "~/b.jsonl"))
    monkeypatch.setenv("HOME", str(write(tmp_path / "home", "c.jsonl")))
    assert texts(".", tmp_path) == ["a.jsonl", "~/b.jsonl"]
    assert found("./~") == ["b.jsonl"]
    assert found("~") == ["c.jsonl"]
    assert find_files("/proc/self/../self/status").root == "/proc/self/../self/status"
    monkeypatch.chdir(write(tmp_path / "mds", "x"))
    convert(tmp_path / "here", ".", segment_bytes=10)
    assert not Path(".convert").exists()


# ---------------------------------------------------------------- hidden


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("_temporary/0/t/part.jsonl", "_temporary/"),
        ("x/_SUCCESS", "x/_SUCCESS"),
        ("_x=1/a.jsonl", ""),
        ("_x=1/_y/a", "_x=1/_y/"),
        (".git/HEAD", ".git/"),
        ("a/.b", "a/.b"),
        ("a_b/c.d", ""),
        ("part-0._COPYING_", "part-0._COPYING_"),
        ("x_$folder$", "x_$folder$"),
        ("/a", ""),
    ],
)
def test_what_begins_with_a_dot_or_an_underscore_is_hidden(name: str, hidden: str) -> None:
    assert hidden_part(name) == hidden


def test_hidden_files_are_left_out_and_listed(tmp_path: Path, cli: Any) -> None:
    names = ("a.jsonl", "_temporary/0/a.jsonl", "_SUCCESS", "x/.b.crc", "_k=1/c.jsonl")
    write(tmp_path / "in", *names)
    said = "left out: 3 files and folders that are not data: _SUCCESS, _temporary/, x/.b.crc\n"
    assert said in cli("convert", tmp_path / "in", "out", "--plan").out
    assert texts(tmp_path / "in", tmp_path) == ["_k=1/c.jsonl", "a.jsonl"]


@pytest.mark.parametrize("segment_bytes", ["1m", "2m"])
def test_the_summary_and_the_report_count_what_is_hidden(
    tmp_path: Path, cli: Any, segment_bytes: str
) -> None:
    write(tmp_path / "in", "a.jsonl", *(f"_{number:02}" for number in range(30)))
    (tmp_path / "in/b.jsonl").write_text('{"text": "b"}\n' * 100_000)
    out = str(tmp_path / "out")
    command = ["convert", str(tmp_path / "in"), out, "--segment-bytes", segment_bytes]
    for _ in range(2):
        said = cli(*command, "--processes", "1").out
        assert "30 files and folders that are not data: _00, _01, _02, _03, _04, and 25" in said
    write(tmp_path / "more", "c.jsonl", ".d")
    report = convert(tmp_path / "more", out, segment_bytes=1 << 20, append=True)
    assert (report.hidden, report.hidden_names) == (31, tuple(f"_{n:02}" for n in range(20)))
    assert convert(tmp_path / "more", out, append=True).hidden == 31


def test_a_location_or_glob_that_names_what_is_hidden_reads_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", "_a/b.jsonl", "_a/_c.jsonl", ".d/e.jsonl")
    assert found(folder / "_a") == ["b.jsonl"]
    assert found(folder / "_a/_c.jsonl") == ["_c.jsonl"]
    assert found(f"{folder}/_*/*.jsonl") == ["_a/_c.jsonl", "_a/b.jsonl"]
    assert found(f"{folder}/.*/*.jsonl") == [".d/e.jsonl"]
    with pytest.raises(ConvertError, match=r"has only hidden or uncommitted files, such as \.d/"):
        found(folder)


# ---------------------------------------------------------------- about the data, and mixtures

ABOUT = (
    "LICENSE",
    "MANIFEST.txt",
    "README.md",
    "a.jsonl.md5",
    "dataset_infos.json",
    "deu/checksums.txt",
    "deu/sha256sums.txt",
    "license_en.txt.gz",
    "wet.paths.gz",
)
"""Names of files about the data, sorted."""


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.gz", "stated.json", "readme/a.jsonl", "x.md"])
def test_data_is_not_about_the_data(name: str) -> None:
    assert not is_about_data(name)


@pytest.mark.parametrize("form", ["auto", "jsonl"])
@pytest.mark.parametrize("glob", ["", "/**/*"])
def test_files_about_the_data_are_left_out_and_listed(
    tmp_path: Path, cli: Any, form: str, glob: str
) -> None:
    folder = write(tmp_path / "in", "data/a.jsonl", *ABOUT)
    report = convert(f"{folder}{glob}", tmp_path / "out", format=form)
    assert (report.documents, report.hidden, report.hidden_names) == (1, len(ABOUT), ABOUT)
    said = cli("convert", f"{folder}{glob}", "out", "--format", form, "--plan").out
    assert f"left out: {len(ABOUT)} files and folders that are not data: LICENSE, MANIFEST" in said


def test_a_file_about_the_data_is_read_if_it_is_the_input_or_all_are_texts(tmp_path: Path) -> None:
    write(tmp_path / "in", "README.md", "LICENSE")
    assert convert(tmp_path / "in", tmp_path / "both").documents == 2
    write(tmp_path / "in", "a.jsonl")
    assert convert(tmp_path / "in/README.md", tmp_path / "one").documents == 1
    assert convert(f"{tmp_path}/in/*.md", tmp_path / "globbed").documents == 1


@pytest.mark.parametrize("glob", ["", "/*"])
def test_a_mixture_of_texts_and_records_asks(tmp_path: Path, glob: str) -> None:
    folder = write(tmp_path / "in", "a.jsonl", "notes.txt", "README.md")
    says = r"has 1 text file, such as notes.txt, and 1 file of records: jsonl \(plain\)"
    with pytest.raises(ConvertError, match=says):
        convert(f"{folder}{glob}", tmp_path / "out")
    assert convert(folder / "notes.txt", tmp_path / "text").documents == 1
    both = [f"{folder}/*.jsonl", f"{folder}/*.txt"]
    assert convert(both, tmp_path / "both").documents == 2


# ---------------------------------------------------------------- tables


def write_table(folder: Path, log: str, data: str) -> Path:
    """Write a table with one log file and one data file, of which readers see neither."""
    write(folder, log)
    path = folder / data
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["deleted"]}), path)
    return folder


DELTA = ("_delta_log/00000000000000000000.json", "lang=en/part-a.parquet")
ICEBERG = ("metadata/00000-a.metadata.json", "data/a.parquet")
HUDI = (".hoodie/hoodie.properties", "x/a.parquet")


@pytest.mark.parametrize(
    ("kind", "names"), [("Delta", DELTA), ("Iceberg", ICEBERG), ("Hudi", HUDI)]
)
def test_the_folder_of_a_table_is_refused_from_above_and_from_below(
    tmp_path: Path, kind: str, names: tuple[str, str]
) -> None:
    table = write_table(tmp_path / "lake/t", *names)
    folder = (table / names[1]).parent
    inputs = [tmp_path / "lake", table, folder, f"{table}/**/*.parquet", f"{folder}/*.parquet"]
    inputs += [f"{tmp_path}/lake/t*/{folder.name}/*.parquet"]
    for location in inputs:
        with pytest.raises(ConvertError, match=rf"lake/t is an? {kind} table.* plain Parquet"):
            find_files(str(location))
    # the files of one version are what it tells the user to pass
    assert found(table / names[1]) == [Path(names[1]).name]


def test_other_files_beside_a_table_are_converted(tmp_path: Path) -> None:
    write_table(tmp_path / "lake/t", *DELTA)
    write(tmp_path / "lake", "a.jsonl", "metadata/a.jsonl", "b/c.jsonl")
    assert found(f"{tmp_path}/lake/*.jsonl") == ["a.jsonl"]
    assert found(tmp_path / "lake/metadata") == ["a.jsonl"]
    assert find_table("metadata/x/a.metadata.json") is None


def test_a_loader_that_is_given_a_table_says_so(tmp_path: Path) -> None:
    from cloudload.data.storage.base import Retry
    from cloudload.errors import DatasetError

    table = write_table(tmp_path / "t", *DELTA)
    with pytest.raises(DatasetError, match=r"t is a Delta table.*file_uris"):
        open_corpus([Location(str(table), Retry())])
