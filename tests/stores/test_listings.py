"""Inputs in stores: every key is read as it is, signed URLs are files, and tables are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudload.convert import convert_to_mds
from cloudload.data.storage.objects import list_objects, read_object, write_object
from cloudload.data.storage.urls import join_url, split_url
from cloudload.errors import ConvertError, StoreError
from cloudload.tools.convert.found_files import find_files
from testkit.conversions import QUIET, read_dataset
from testkit.web_server import web_server


@pytest.fixture(params=["s3", "gcs"])
def bucket_url(request: pytest.FixtureRequest) -> str:
    """An empty folder in S3, then in GCS."""
    return str(request.getfixturevalue(f"{request.param}_url"))


# these tests use GCS, because the S3 server of the tests makes one slash of two


def test_a_key_that_begins_with_a_slash_is_not_the_key_without_it(gcs_url: str) -> None:
    bucket, name = split_url(gcs_url)
    for slashes in ("/", "//"):
        write_object(f"gs://{bucket}{slashes}{name}/a.jsonl", slashes.encode())
    assert [item.url for item in list_objects(f"gs://{bucket}//{name}")] == [
        f"gs://{bucket}//{name}/a.jsonl"
    ]
    assert read_object(f"gs://{bucket}//{name}/a.jsonl") == b"//"
    with pytest.raises(ConvertError, match=rf"Did you mean gs://{bucket}/{name}/b\?"):
        find_files(f"gs://{bucket}/{name}//b")


def test_files_that_differ_by_a_slash_have_different_ids(gcs_url: str, tmp_path: Path) -> None:
    for name in ("x/a.jsonl", "x//a.jsonl"):
        write_object(join_url(gcs_url, name), b'{"text": "%s"}\n' % name.encode())
    for segment_bytes in (1, 1 << 20):
        out = tmp_path / str(segment_bytes)
        convert_to_mds(gcs_url, out, segment_bytes=segment_bytes, **QUIET)
        samples = read_dataset(str(out), tmp_path)
        assert {sample["text"] for sample in samples} == {"x/a.jsonl", "x//a.jsonl"}
        assert len({sample["id"] for sample in samples}) == 2


def test_a_key_with_brackets_is_itself_before_it_is_a_glob(bucket_url: str) -> None:
    for name in ("[br]ack.jsonl", "back.jsonl", "rack.jsonl", "[f]/a*", "f/b"):
        write_object(join_url(bucket_url, name), b"")
    assert [file.name for file in find_files(f"{bucket_url}/[br]ack.jsonl").files] == [
        "[br]ack.jsonl"
    ]
    assert [file.name for file in find_files(f"{bucket_url}/[f]").files] == ["a*"]
    assert [file.name for file in find_files(f"{bucket_url}/[r]ack.jsonl").files] == ["rack.jsonl"]


def test_hidden_keys_and_markers_of_folders_are_left_out(bucket_url: str) -> None:
    for name in ("a", "_temporary/0/b", "x_$folder$", "y/_committed_1", "_z=1/c"):
        write_object(join_url(bucket_url, name), b"")
    found = find_files(bucket_url)
    assert [file.name for file in found.files] == ["_z=1/c", "a"]
    assert found.hidden == ("_temporary/", "x_$folder$", "y/_committed_1")


@pytest.mark.parametrize("place", ["", "/lang=en", "/*.parquet", "/**/*.parquet"])
def test_a_table_in_a_store_is_refused_by_name(bucket_url: str, place: str) -> None:
    for name in ("_delta_log/0.json", "a.parquet", "lang=en/b.parquet"):
        write_object(f"{bucket_url}/t/{name}", b"")
    with pytest.raises(ConvertError, match=rf"{bucket_url}/t is a Delta table"):
        find_files(f"{bucket_url}/t{place}")


def test_a_signed_url_is_one_file_named_without_its_signature(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
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
        list_objects(f"locked://{tmp_path}")
    assert len(list_objects(f"locked://{tmp_path}/a/b")) == 1
