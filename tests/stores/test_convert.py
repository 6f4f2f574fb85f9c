"""The converter reads corpora from every store, every key as it is, and writes datasets to every
store. Signed URLs are files, and tables are refused."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from cloudload.convert import convert_to_mds
from cloudload.data.storage.locations import Location
from cloudload.data.storage.urls import join_url, split_url
from cloudload.errors import ConvertError, StoreError
from cloudload.tools.convert.found_files import find_files
from testkit.conversions import (
    QUIET,
    convert,
    convert_until,
    dataset_bytes,
    documents,
    read_dataset,
    texts,
    write_corpus,
)
from testkit.input_kinds import INPUT_KINDS
from testkit.web_server import web_server


def test_every_store_is_read_and_written(store_url: str, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    for item in Location(str(corpus)).list_objects():
        Location(f"{store_url}/in/{Path(item.url).relative_to(corpus)}").write(
            Location(item.url).read()
        )
    options: dict[str, Any] = {"shard_bytes": 100_000, "processes": 2, "progress": False}
    convert_to_mds(corpus, tmp_path / "local", **options)
    report = convert_to_mds(f"{store_url}/in", f"{store_url}/out", **options)
    assert report.documents == 1200
    assert dataset_bytes(f"{store_url}/out") == dataset_bytes(str(tmp_path / "local"))
    assert convert_to_mds(f"{store_url}/in", f"{store_url}/out", **options).already_complete
    assert (
        convert_to_mds(f"{store_url}/in/*/*.jsonl", f"{store_url}/globbed", **options).documents
        == 800
    )


def test_a_conversion_to_any_store_resumes(store_url: str, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    convert_until(4, corpus, store_url, shard_bytes=50_000, **QUIET)
    assert not any(item.url.endswith("index.json") for item in Location(store_url).list_objects())
    assert convert_to_mds(corpus, store_url, shard_bytes=50_000, **QUIET).resumed_shards == 4
    convert_to_mds(corpus, tmp_path / "whole", shard_bytes=50_000, **QUIET)
    assert dataset_bytes(store_url) == dataset_bytes(str(tmp_path / "whole"))


def test_every_format_is_read_from_every_store(store_url: str, tmp_path: Path) -> None:
    rows = [{"text": text, "n": number} for number, text in enumerate(documents(300))]
    for kind, write in INPUT_KINDS.items():
        source, stored = tmp_path / kind, f"{store_url}/{kind}"
        if kind != "mds":  # MDSWriter creates the folder
            source.mkdir()
        write(source, rows)
        for path in source.iterdir():
            Location(f"{stored}/{path.name}").write(path.read_bytes())
        options: dict[str, Any] = {**QUIET, "keep": ["n:int"], "block_bytes": 5000}
        convert_to_mds(source, tmp_path / f"local-{kind}", **options)
        report = convert_to_mds(stored, tmp_path / f"stored-{kind}", **options)
        assert report.documents == 300
        assert dataset_bytes(report.out) == dataset_bytes(str(tmp_path / f"local-{kind}"))


def measure(folder: Path) -> int:
    """The total size of a folder's files in bytes. Skips files that a thread removes meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total


@pytest.mark.parametrize("kind", ["csv", "parquet", "mds"])
def test_the_disk_holds_one_shard_and_one_input_at_a_time(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    rows = [{"text": text * 40, "n": number} for number, text in enumerate(documents(600))]
    source, scratch = tmp_path / "in", tmp_path / "scratch"
    scratch.mkdir()
    if kind != "mds":
        source.mkdir()
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), source / "a.parquet")
    else:
        INPUT_KINDS[kind](source, rows)
    for path in source.iterdir():
        Location(f"{s3_url}/in/{path.name}").write(path.read_bytes())
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    used: list[int] = []

    upload = Location.upload

    def measured_upload(location: Location, path: Path) -> None:
        used.append(measure(scratch))
        upload(location, path)

    monkeypatch.setattr(Location, "upload", measured_upload)
    report = convert_to_mds(
        f"{s3_url}/in",
        f"{s3_url}/out",
        splits="train=0.9,val=0.1",
        compression=None,
        shard_bytes=100_000,
        block_bytes=20_000,
        segment_bytes=1 << 20,
        skip_bad=True,
        rejects=f"{s3_url}/rejects",
        **QUIET,
    )
    copied = max(path.stat().st_size for path in source.iterdir()) if kind != "csv" else 0
    assert report.shards > 20
    assert len(used) > report.shards
    assert 80_000 < max(used) <= 100_000 + copied
    assert not list(scratch.iterdir())


def test_segments_read_their_row_groups_of_a_parquet_file(store_url: str, tmp_path: Path) -> None:
    table = pyarrow.table({"text": documents(300)})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    Location(f"{store_url}/in/a.parquet").write((tmp_path / "a.parquet").read_bytes())
    report = convert(f"{store_url}/in", tmp_path / "out", segment_bytes=2_000, block_bytes=500)
    assert report.segments > 4
    assert texts(str(tmp_path / "out"), tmp_path) == documents(300)


# ---------------------------------------------------------------- keys of inputs


@pytest.fixture(params=["s3", "gcs"])
def bucket_url(request: pytest.FixtureRequest) -> str:
    """An empty folder in S3, then in GCS."""
    return str(request.getfixturevalue(f"{request.param}_url"))


# these tests use GCS, because the S3 server of the tests makes one slash of two


def test_a_key_that_begins_with_a_slash_is_not_the_key_without_it(gcs_url: str) -> None:
    bucket, name = split_url(gcs_url)
    for slashes in ("/", "//"):
        Location(f"gs://{bucket}{slashes}{name}/a.jsonl").write(slashes.encode())
    assert [item.url for item in Location(f"gs://{bucket}//{name}").list_objects()] == [
        f"gs://{bucket}//{name}/a.jsonl"
    ]
    assert Location(f"gs://{bucket}//{name}/a.jsonl").read() == b"//"
    with pytest.raises(ConvertError, match=rf"Did you mean gs://{bucket}/{name}/b\?"):
        find_files(f"gs://{bucket}/{name}//b")


def test_files_that_differ_by_a_slash_have_different_ids(gcs_url: str, tmp_path: Path) -> None:
    for name in ("x/a.jsonl", "x//a.jsonl"):
        Location(join_url(gcs_url, name)).write(b'{"text": "%s"}\n' % name.encode())
    for segment_bytes in (1, 1 << 20):
        out = tmp_path / str(segment_bytes)
        convert_to_mds(gcs_url, out, segment_bytes=segment_bytes, **QUIET)
        samples = read_dataset(str(out), tmp_path)
        assert {sample["text"] for sample in samples} == {"x/a.jsonl", "x//a.jsonl"}
        assert len({sample["id"] for sample in samples}) == 2


def test_a_key_with_brackets_is_itself_before_it_is_a_glob(bucket_url: str) -> None:
    for name in ("[br]ack.jsonl", "back.jsonl", "rack.jsonl", "[f]/a*", "f/b"):
        Location(join_url(bucket_url, name)).write(b"")
    assert [file.name for file in find_files(f"{bucket_url}/[br]ack.jsonl").files] == [
        "[br]ack.jsonl"
    ]
    assert [file.name for file in find_files(f"{bucket_url}/[f]").files] == ["a*"]
    assert [file.name for file in find_files(f"{bucket_url}/[r]ack.jsonl").files] == ["rack.jsonl"]


def test_hidden_keys_and_markers_of_folders_are_left_out(bucket_url: str) -> None:
    for name in ("a", "_temporary/0/b", "x_$folder$", "y/_committed_1", "_z=1/c"):
        Location(join_url(bucket_url, name)).write(b"")
    found = find_files(bucket_url)
    assert [file.name for file in found.files] == ["_z=1/c", "a"]
    assert found.hidden == ("_temporary/", "x_$folder$", "y/_committed_1")


@pytest.mark.parametrize("place", ["", "/lang=en", "/*.parquet", "/**/*.parquet"])
def test_a_table_in_a_store_is_refused_by_name(bucket_url: str, place: str) -> None:
    for name in ("_delta_log/0.json", "a.parquet", "lang=en/b.parquet"):
        Location(f"{bucket_url}/t/{name}").write(b"")
    with pytest.raises(ConvertError, match=rf"{bucket_url}/t is a Delta table"):
        find_files(f"{bucket_url}/t{place}")


def test_a_signed_url_is_one_file_named_without_its_signature(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web/a.jsonl").write_text('{"text": "x"}\n')
    with web_server(tmp_path / "web") as url:
        signed = f"{url}/a.jsonl?X-Amz-Signature=0123abcd&b=[*]"
        convert_to_mds(signed, tmp_path / "out", **QUIET)
        (sample,) = read_dataset(str(tmp_path / "out"), tmp_path)
        assert sample["id"] == "a.jsonl:1"
        assert "0123abcd" not in (tmp_path / "out/convert-report.json").read_text()
        with pytest.raises(StoreError, match=r"gone\.jsonl"):
            convert_to_mds(f"{url}/gone.jsonl?sig=1", tmp_path / "out2", **QUIET)


def test_a_folder_that_a_file_system_cannot_list_is_an_error(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.local import LocalFileSystem

    class Locked(LocalFileSystem):  # type: ignore[misc]
        protocol = "locked"

        def ls(self, path: str, detail: bool = False, **options: object) -> object:
            if path.endswith("/secret"):
                raise PermissionError(f"{path} is locked")
            return super().ls(path, detail=detail, **options)

    fsspec.register_implementation("locked", Locked, clobber=True)
    for name in ("a/b", "a/secret/c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    with pytest.raises(StoreError, match="secret is locked"):
        Location(f"locked://{tmp_path}").list_objects()
    assert len(Location(f"locked://{tmp_path}/a/b").list_objects()) == 1
