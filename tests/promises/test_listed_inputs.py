"""The files of a list are converted in its order, from web servers as from any store."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudload.convert import convert_to_mds
from cloudload.errors import ConvertError, StoreError
from testkit.conversions import QUIET, convert, convert_until, dataset_bytes, read_dataset, texts
from testkit.web_server import Fault, Site, start_site

NAMES = ("crawl/b.jsonl.gz", "crawl/a.jsonl", "other/a.jsonl")


def write_site(folder: Path) -> list[str]:
    """Write the files of `NAMES`, with 300 documents each, and return the documents in order."""
    written = []
    for name in NAMES:
        rows = [{"text": f"{name} {number} " * (number % 9 + 1)} for number in range(300)]
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data, mtime=0) if name.endswith("gz") else data)
        written += [row["text"] for row in rows]
    return written


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with start_site(tmp_path / "web") as found:
        yield found


@pytest.mark.parametrize("is_zipped", [False, True])
@pytest.mark.parametrize("base", ["", "base", "host"])
def test_a_list_is_read_in_its_order(
    site: Site, tmp_path: Path, base: str, is_zipped: bool
) -> None:
    expected = write_site(site.folder)
    prefix = f"{site.url}/" if base != "base" else ""
    lines = "# the files\n\n" + "".join(f"  {prefix}{name}\r\n" for name in NAMES)
    data = lines.encode()
    (site.folder / "paths").write_bytes(gzip.compress(data) if is_zipped else data)
    inputs: Any = site.url if base else []
    report = convert(inputs, tmp_path / "out", inputs_from=f"{site.url}/paths")
    assert texts(str(tmp_path / "out"), tmp_path) == expected
    assert (report.files, report.hidden) == (3, 0)
    ids = [sample["id"] for sample in read_dataset(str(tmp_path / "out"), tmp_path)]
    assert ids[0] == "crawl/b.jsonl.gz:1"


def test_a_list_of_paths_is_the_same_as_its_files(tmp_path: Path, cli: Any) -> None:
    write_site(tmp_path / "in")
    (tmp_path / "list").write_text("\n".join(NAMES))
    convert([tmp_path / "in" / name for name in NAMES], tmp_path / "named")
    command = ["convert", tmp_path / "in", tmp_path / "listed", "--inputs-from", tmp_path / "list"]
    said = cli(*command, "--plan").out
    assert "jsonl (gz)" in said
    assert "is complete" in cli(*command, "--processes", "1").out
    assert texts(str(tmp_path / "listed"), tmp_path) == texts(str(tmp_path / "named"), tmp_path)


def test_a_changed_list_is_refused_by_reruns_and_workers(tmp_path: Path) -> None:
    write_site(tmp_path / "in")
    paths, out = tmp_path / "list", tmp_path / "out"
    paths.write_text("\n".join(NAMES))
    options: dict[str, Any] = {"inputs_from": paths, "segment_bytes": 4_000, "shard_bytes": 4_000}
    convert_to_mds(tmp_path / "in", out, worker="0/2", **options, **QUIET)
    paths.write_text("# a comment changes nothing\n" + "\n".join(NAMES))
    convert_to_mds(tmp_path / "in", tmp_path / "out", worker="0/2", **options, **QUIET)
    paths.write_text("\n".join(NAMES[:2]))
    with pytest.raises(ConvertError, match=r"inputs_from was .* and is now"):
        convert_to_mds(tmp_path / "in", out, worker="1/2", **options, **QUIET)
    with pytest.raises(ConvertError, match=r"different inputs.*other/a.jsonl is gone"):
        convert_to_mds(tmp_path / "in", out, **options, **QUIET)
    paths.write_text("\n".join(NAMES))
    convert_to_mds(tmp_path / "in", out, worker="1/2", **options, **QUIET)
    convert_to_mds(tmp_path / "in", tmp_path / "whole", **options, **QUIET)
    assert dataset_bytes(str(out)) == dataset_bytes(str(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("# nothing\n", "names no files"),
        ("a.jsonl", "line 1 of .* is 'a.jsonl', which is relative"),
        ("\nhttps://h/a.jsonl?sig=0123", r"line 2 of .* has a query, https://h/a.jsonl\?…"),
        ("/x/a\n/x/a", "has /x/a twice"),
        ("/x/nothing.jsonl", "there is no file /x/nothing.jsonl"),
        ("FOLDER", "the listed file .*/web is a folder"),
        ("a\xff", "is not text"),
    ],
)
def test_a_list_that_cannot_be_read_says_which_line(tmp_path: Path, lines: str, says: str) -> None:
    write_site(tmp_path / "web")
    lines = lines.replace("FOLDER", str(tmp_path / "web"))
    (tmp_path / "list").write_bytes(lines.encode("latin-1"))
    with pytest.raises((ConvertError, StoreError), match=says):
        convert([], tmp_path / "out", inputs_from=tmp_path / "list")


# ---------------------------------------------------------------- web servers


def test_a_cut_connection_resumes_where_it_was_cut(site: Site, tmp_path: Path) -> None:
    expected = [f"{number} " * 100 for number in range(2_000)]
    lines = [json.dumps({"text": text}) + "\n" for text in expected]
    (site.folder / "moved").mkdir(parents=True)
    (site.folder / "moved/a.jsonl").write_text("".join(lines))
    site.moved["/a.jsonl"] = "/moved/a.jsonl"
    site.faults += [Fault("HEAD", status=503), Fault("GET /a", status=503)]
    site.faults += [Fault("GET /moved", cut_at=size) for size in (300_000, 0, 150_000)]
    convert(f"{site.url}/a.jsonl", tmp_path / "out")
    assert texts(str(tmp_path / "out"), tmp_path) == expected
    starts = [int(line.partition("bytes=")[2][:-1]) for line in site.lines if "bytes=" in line]
    assert 0 < min(starts) <= 300_000 < max(starts) <= 450_000


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_server_may_lack_ranges_heads_and_tags(
    site: Site, tmp_path: Path, has_ranges: bool
) -> None:
    expected = write_site(site.folder)[300:600]
    site.has_ranges, site.has_head, site.has_etags, site.has_dates = has_ranges, False, False, False
    convert(f"{site.url}/crawl/a.jsonl", tmp_path / "out", segment_bytes=20_000)
    assert texts(str(tmp_path / "out"), tmp_path) == expected


@pytest.mark.parametrize("has_etags", [True, False])
def test_a_file_that_changed_is_an_error_with_both_versions(
    site: Site, tmp_path: Path, has_etags: bool
) -> None:
    write_site(site.folder)
    site.has_etags = has_etags
    url, path = f"{site.url}/crawl/a.jsonl", site.folder / "crawl/a.jsonl"
    options: dict[str, Any] = {"segment_bytes": 20_000, "shard_bytes": 4_000}
    convert_until(2, url, str(tmp_path / "out"), **options, **QUIET)
    before = path.stat().st_mtime
    data = path.read_bytes()
    path.write_bytes(data.replace(b"crawl/a", b"crawl/z"))
    os.utime(path, (before + 10, before + 10))
    with pytest.raises(ConvertError, match=r"a.jsonl changed after the conversion was planned"):
        convert_to_mds(url, tmp_path / "out", **options, **QUIET)
    with pytest.raises(StoreError, match=r"its version was .*, and is now "):
        convert_to_mds(url, tmp_path / "out", worker="0/1", **options, **QUIET)


def test_a_busy_server_is_asked_again_when_it_says(site: Site, tmp_path: Path) -> None:
    write_site(site.folder)
    site.faults.append(Fault("a.jsonl", status=429, headers={"Retry-After": "2"}))
    began = time.monotonic()
    convert(f"{site.url}/crawl/a.jsonl", tmp_path / "out")
    assert time.monotonic() - began >= 2


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("crawl", "is a folder or a page of a web server"),
        ("crawl/", "is a folder or a page of a web server"),
        ("crawl/*.jsonl", "--inputs-from"),
        ("crawl/c.jsonl", "does not exist|nothing is stored"),
    ],
)
def test_what_a_web_server_cannot_list_names_the_option(
    site: Site, tmp_path: Path, location: str, says: str
) -> None:
    write_site(site.folder)
    with pytest.raises((ConvertError, StoreError), match=says):
        convert(f"{site.url}/{location}", tmp_path / "out")
