"""The rejects file has the same bytes on every engine and after any interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudload.convert import convert_to_mds
from cloudload.errors import ConvertError
from testkit.conversions import QUIET, convert_until, dataset_bytes, write_lines
from testkit.segments import convert_every_way

SEGMENTS = 6
OPTIONS: dict[str, Any] = {**QUIET, "shard_bytes": 1_200, "block_bytes": 500}
OPTIONS |= {"segment_bytes": 4_000, "skip_bad": True}


def write_files(folder: Path, names: str) -> Path:
    """Write files of 100 lines. Six lines are bad in each file except `c.jsonl`."""
    for name in names:
        rows = [{"text": f"{name} {number} " * 9} for number in range(100)]
        for place in () if name == "c" else range(3, 100, 17):
            rows[place] = {"body": f"{name} {place}"}
        write_lines(folder / f"{name}.jsonl", rows)
    return folder


@pytest.fixture(scope="module")
def corpus(module_folder: Path) -> Path:
    return write_files(module_folder / "corpus", "abc")


@pytest.fixture(scope="module", params=[4_000, 1 << 20], ids=["segments", "one segment"])
def whole(
    corpus: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[dict[str, Any], bytes, dict[str, str]]:
    """Convert in one process. Returns the options, the rejects, and the hash of each object."""
    folder, options = tmp_path_factory.mktemp("whole"), OPTIONS | {"segment_bytes": request.param}
    report = convert_to_mds(corpus, folder / "out", rejects=folder / "rejects", **options)
    assert report.segments == (SEGMENTS if request.param == 4_000 else 1)
    assert report.bad_files == {"a.jsonl": 6, "b.jsonl": 6}
    rejects = (folder / "rejects").read_bytes()
    records = [json.loads(line)["record"] for line in rejects.splitlines()]
    expected = [f'{{"body": "{name} {place}"}}' for name in "ab" for place in range(3, 100, 17)]
    assert records == expected
    return options, rejects, dataset_bytes(str(folder / "out"))


def test_processes_and_executors_write_the_same_rejects(
    corpus: Path, tmp_path: Path, whole: Any
) -> None:
    options, rejects, objects = whole
    options = {**options, "rejects": tmp_path / "rejects"}
    for out, _ in convert_every_way(corpus, str(tmp_path), SEGMENTS, **options):
        assert (tmp_path / "rejects").read_bytes() == rejects
        assert dataset_bytes(out) == objects
        (tmp_path / "rejects").unlink()


def test_the_last_worker_of_an_array_writes_them(
    corpus: Path, tmp_path: Path, store_url: str, whole: Any
) -> None:
    options, rejects, objects = whole
    target = f"{store_url}-rejects.jsonl"
    for worker in ("2/3", "1/3", "0/3"):
        convert_to_mds(corpus, store_url, rejects=target, worker=worker, **options)
    convert_to_mds(corpus, store_url, rejects=target, finish=True, **options)
    (found,) = dataset_bytes(target).values()
    convert_to_mds(corpus, tmp_path / "again", rejects=tmp_path / "rejects", **options)
    assert [found] == list(dataset_bytes(str(tmp_path / "rejects")).values())
    assert (tmp_path / "rejects").read_bytes() == rejects
    assert dataset_bytes(store_url) == objects


@pytest.mark.parametrize("first", [None, "first"])
def test_a_conversion_that_stopped_anywhere_writes_them_all(
    corpus: Path, tmp_path: Path, whole: Any, first: str | None
) -> None:
    options, rejects, objects = whole
    out, target = tmp_path / "out", tmp_path / "rejects"
    for shards in (1, 7, 0, 3):
        convert_until(shards, corpus, out, **options, rejects=first and tmp_path / first)
    report = convert_to_mds(corpus, out, rejects=target, **options)
    assert target.read_bytes() == rejects
    assert dataset_bytes(str(out)) == objects
    assert report.bad == 12
    assert report.bad_files == {"a.jsonl": 6, "b.jsonl": 6}
    assert list(report.bad_records) == [
        f"{corpus}/{line['file']}:{line['place']}: {line['error']}"
        for line in map(json.loads, rejects.splitlines())
    ]


def test_shards_that_are_stored_are_not_stored_again_for_the_rejects(
    corpus: Path, tmp_path: Path
) -> None:
    options = OPTIONS | {"segment_bytes": 1 << 20, "rejects": tmp_path / "rejects"}
    convert_until(7, corpus, tmp_path / "out", **options)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("shard.*")}
    report = convert_to_mds(corpus, tmp_path / "out", **options)
    assert report.resumed_shards == len(before) == 7
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_segments_without_rejects_are_converted_again_or_named(
    corpus: Path, tmp_path: Path
) -> None:
    out, target = tmp_path / "out", tmp_path / "rejects"
    convert_to_mds(corpus, out, worker="0/3", **OPTIONS)
    for worker in ("1/3", "2/3"):
        report = convert_to_mds(corpus, out, worker=worker, rejects=target, **OPTIONS)
        assert report.unfinished_segments
    with pytest.raises(ConvertError, match=r"segments 0, 3 of .* left out bad records without sto"):
        convert_to_mds(corpus, out, finish=True, rejects=target, **OPTIONS)
    report = convert_to_mds(corpus, out, worker="0/3", rejects=target, **OPTIONS)
    assert report.unfinished_segments == 0
    assert len(target.read_bytes().splitlines()) == 12


def test_an_append_writes_the_rejects_of_what_it_appends(corpus: Path, tmp_path: Path) -> None:
    convert_to_mds(corpus, tmp_path / "out", rejects=tmp_path / "first", **OPTIONS)
    more, target = write_files(tmp_path / "more", "cd"), tmp_path / "second"
    report = convert_to_mds(more, tmp_path / "out", append=True, rejects=target, **OPTIONS)
    assert report.bad_files == {"a.jsonl": 6, "b.jsonl": 6, f"+{SEGMENTS}/d.jsonl": 6}
    records = [json.loads(line)["record"] for line in target.read_bytes().splitlines()]
    assert records == [f'{{"body": "d {place}"}}' for place in range(3, 100, 17)]
