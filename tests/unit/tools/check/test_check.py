"""The report of `check_dataset`, and the `check` command."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload import cli
from cloudload.tools.check import check_dataset, index_entries
from cloudload.tools.check.findings import MOST_LISTED
from cloudload.tools.cli.check_command import _summary
from testkit.corpora import write_mds

TEXTS = [f"document {number}" for number in range(100)]


def write(folder: Path, **options: Any) -> Path:
    """Write a dataset of four shards with 25 documents each, and return its folder."""
    write_mds(folder, TEXTS, shard_samples=[25] * 4, **options)
    return folder


def check(folder: Path, **options: Any) -> dict[str, int]:
    """Check a dataset, and return the number of findings of each kind."""
    return check_dataset(folder, progress=False, **options).counts


def test_a_codec_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "data", compression="gz")
    index = (folder / "index.json").read_text()
    (folder / "index.json").write_text(index.replace('"gz"', '"snappy"'))
    monkeypatch.setitem(sys.modules, "cramjam", None)
    report = check_dataset(folder, progress=False)
    assert report.counts == {"codec-missing": 1}
    assert report.findings[0].advice == "Run: pip install cramjam"


def test_a_column_that_cloudload_does_not_decode_is_named(tmp_path: Path) -> None:
    from streaming import MDSWriter

    columns = {"text": "str", "tokens": "ndarray:uint16", "id": "str_int"}
    with MDSWriter(out=str(tmp_path / "data"), columns=columns, hashes=["xxh64"]) as writer:
        for number, text in enumerate(TEXTS):
            writer.write({"text": text, "tokens": np.arange(3, dtype="uint16"), "id": number})
    report = check_dataset(tmp_path / "data", progress=False)
    assert (report.counts, report.is_sound) == ({"encoding-unread": 1}, True)


def test_objects_that_the_index_does_not_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    (folder / "shard.00004.mds").write_bytes(b"not listed")
    (folder / "shard.00002.mds.tmp").write_bytes(b"12345")
    (folder / "notes.txt").write_bytes(b"123")
    write(folder / "validation")  # a split is a separate dataset, so its files are not reported
    report = check_dataset(folder, progress=False)
    assert report.counts == {"unlisted": 1, "leftover": 1}
    unlisted, leftover = report.findings
    assert "2 objects (15 bytes: shard.00002.mds.tmp, shard.00004.mds)" in unlisted.what
    assert "1 object (3 bytes: notes.txt)" in leftover.what


def test_the_hash_of_a_decompressed_shard_is_checked(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", compression="zstd")
    index = json.loads((folder / "index.json").read_text())
    index["shards"][2]["raw_data"]["hashes"]["xxh64"] = "0" * 16
    (folder / "index.json").write_text(json.dumps(index))
    [finding] = check_dataset(folder, progress=False).findings
    assert (finding.kind, finding.readers) == ("hash-mismatch", ("cloudload",))
    assert "after decompression" in finding.what


def test_what_is_not_read_is_not_checked(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    for path in folder.glob("*.mds"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    (folder / "shard.00003.mds").unlink()
    assert check(folder) == {"shard-missing": 1, "hash-mismatch": 3}
    assert check(folder, sample=1) == {"shard-missing": 1, "hash-mismatch": 1}
    assert check(folder, sample=0) == {"shard-missing": 1}
    with pytest.raises(ValueError, match="sample is -1"):
        check(folder, sample=-1)


def test_a_report_lists_20_findings_of_a_kind_and_counts_all(tmp_path: Path) -> None:
    write_mds(tmp_path / "data", TEXTS, shard_samples=[2] * 50, hashes=())
    report = check_dataset(tmp_path / "data", progress=False)
    assert report.counts == {"hash-absent": 50}
    assert len(report.findings) == MOST_LISTED
    assert report.findings[19].where == "shard.00019.mds"


def test_the_command_prints_the_findings_and_exits_with_1_for_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "data" / "train", hashes=())
    command = ["check", str(tmp_path / "data"), "--split", "train", "--quiet"]
    assert cli.main(command) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{folder}: 0 errors, 4 warnings, 0 notes\n")
    assert printed.err == ""
    (folder / "shard.00001.mds").write_bytes(b"short")
    assert cli.main(command) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{folder}: 1 error, 4 warnings, 0 notes"
    assert lines[1] == "  error: size, for cloudload and Streaming"
    assert lines[2].startswith("    shard.00001.mds: has 5 bytes, but the index says ")
    assert cli.main([*command, "--json", "--sample", "0"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["is_sound"], report["shards_read"]) == (False, 0)
    assert report["findings"][0]["kind"] == "size"
    with pytest.raises(SystemExit, match="2"):
        cli.main([*command, "--sample", "few"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.data())
def test_any_index_gives_findings_that_can_be_printed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("any")
    write_mds(folder, TEXTS[:4], shard_samples=[2, 2], compression="zstd")
    index = json.loads((folder / "index.json").read_text())
    entry = index["shards"][1]
    for place in (entry, entry["raw_data"], entry["zip_data"]):
        keys = st.sampled_from(sorted(place)) | st.text(max_size=5)
        place.update(data.draw(st.dictionaries(keys, JSON, max_size=2)))
    (folder / "index.json").write_text(json.dumps(index))
    report = check_dataset(folder, progress=False)
    assert "\n".join(_summary(report)).encode()
    assert report.to_json().isascii()


@pytest.mark.parametrize("name", ["data", "./data", "data/", "other/../data"])
def test_a_relative_path_is_a_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "other").mkdir()
    write(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    assert check(Path(name)) == {} == check_dataset(name, progress=False).counts


# ---------------------------------------------------------------- formats of StreamingDataset


@pytest.fixture(scope="module")
def formats() -> Any:
    return pytest.importorskip("streaming.base.format")


def test_the_fields_of_an_entry_are_the_arguments_of_its_reader(formats: Any) -> None:
    arguments = inspect.signature(formats.MDSReader.__init__).parameters.keys()
    expected = {*arguments, "version", "format"} - {"self", "dirname", "split"}
    assert expected == index_entries.ENTRY_FIELDS
    fields = {field.name for field in dataclasses.fields(formats.FileInfo)}
    assert fields == index_entries.FILE_FIELDS
    assert {*index_entries.OTHER_FORMATS, "mds"} == formats._readers.keys()


@pytest.mark.usefixtures("formats")
def test_encodings_compressions_and_hashes_are_those_of_its_registries() -> None:
    from streaming.base.compression import get_compressions
    from streaming.base.format.mds.encodings import get_mds_encodings, is_mds_encoding_safe
    from streaming.base.hashing import get_hashes, is_hash

    assert get_mds_encodings() == index_entries.ENCODINGS
    unsafe = {name for name in get_mds_encodings() if not is_mds_encoding_safe(name)}
    assert unsafe == index_entries.UNSAFE_ENCODINGS
    assert get_compressions() == index_entries.STREAMING_COMPRESSIONS
    for name in [*get_hashes(), "shake_128", "crc32c", "xxh3", "sha512_256"]:
        assert index_entries.knows_hash(name) == is_hash(name), name
