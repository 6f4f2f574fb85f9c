"""A check returns the same report on every engine."""

from __future__ import annotations

import json
import shutil
import sys
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudload import cli
from cloudload.data.mds.shard_table import parse_index
from cloudload.data.storage.locations import Location
from cloudload.tools.check import check_dataset, groups
from cloudload.tools.check.document_rules import choose_rules
from cloudload.tools.check.findings import MOST_LISTED, CheckReport
from cloudload.tools.check.groups import DuplicateFinder
from cloudload.tools.check.shard_contents import check_shard
from testkit.corpora import write_mds
from testkit.segments import LastFirst, Twice

SHARDS = 60
GROUPS = 20


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 shards of 10 documents: 30 shards have a wrong byte, 5 are missing, 1 is too short, and 1
    has invalid UTF-8. The index has an unknown field, and 2 objects are not in the index."""
    folder = tmp_path_factory.mktemp("damaged") / "data"
    texts = [f"document {number:03}" for number in range(10 * SHARDS)]
    write_mds(folder, texts, shard_samples=[10] * SHARDS)
    index = json.loads((folder / "index.json").read_text())
    for number in range(0, SHARDS, 2):
        change(folder / f"shard.{number:05}.mds", b"document", b"dokument")
    for number in (41, 43, 45, 47, 49):
        (folder / f"shard.{number:05}.mds").unlink()
    (folder / "shard.00051.mds").write_bytes(b"short")
    change(folder / "shard.00053.mds", b"document", b"docum\xffnt")
    index["shards"][53]["raw_data"]["hashes"] = {}
    index["shards"][55]["language"] = "en"
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "notes.txt").write_text("notes")
    shutil.copy(folder / "shard.00001.mds", folder / "more.mds")
    return folder


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch, damaged: Path) -> None:
    """Check the dataset in 20 groups of 3 shards, so that several processes get work."""
    three = 3 * (damaged / "shard.00000.mds").stat().st_size
    monkeypatch.setattr(groups, "GROUP_BYTES", three)


def change(path: Path, old: bytes, new: bytes) -> None:
    path.write_bytes(path.read_bytes().replace(old, new, 1))


def check(folder: Path, **options: Any) -> CheckReport:
    """Check a dataset, and return the report with its duration set to 0."""
    return replace(check_dataset(folder, progress=False, **options), seconds=0.0)


COUNTS = {
    "entry-fields": 1,
    "hash-absent": 1,
    "hash-partial": 1,
    "shard-missing": 5,
    "size": 1,
    "unlisted": 1,
    "leftover": 1,
    "hash-mismatch": 30,
    "not-utf8": 1,
}


def test_one_process_finds_all_damage_in_order(damaged: Path) -> None:
    report = check(damaged, processes=1)
    assert report.counts == COUNTS
    assert (report.shards, report.shards_read) == (SHARDS, SHARDS - 6)
    wrong = [finding.where for finding in report.findings if finding.kind == "hash-mismatch"]
    assert wrong == [f"shard.{number:05}.mds" for number in range(0, 2 * MOST_LISTED, 2)]


@pytest.mark.parametrize("sample", [None, 7])
def test_processes_and_executors_have_the_report_of_one_process(
    damaged: Path, sample: int | None
) -> None:
    expected = check(damaged, processes=1, sample=sample)
    assert check(damaged, processes=3, sample=sample) == expected
    executors: list[Executor] = [ThreadPoolExecutor(4), LastFirst(-(-(sample or 54) // 3)), Twice()]
    for executor in executors:
        assert check(damaged, executor=executor, sample=sample) == expected


def test_the_workers_of_an_array_find_together_what_one_process_finds(damaged: Path) -> None:
    whole = check(damaged, processes=1)
    reports = [check(damaged, worker=f"{number}/7", processes=1) for number in range(7)]
    assert sum(report.shards_read for report in reports) == whole.shards_read
    counts = {kind: sum(report.counts.get(kind, 0) for report in reports) for kind in whole.counts}
    assert counts == whole.counts
    found = {finding for report in reports for finding in report.findings}
    assert found >= set(whole.findings)
    assert all(report.counts.keys() <= {"hash-mismatch", "not-utf8"} for report in reports[1:])


def test_a_worker_without_a_codec_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mds(tmp_path, ["a text"], compression="gz")
    data = (tmp_path / "index.json").read_bytes().replace(b'"gz"', b'"snappy"')
    monkeypatch.setitem(sys.modules, "cramjam", None)
    [info] = parse_index(data, str(tmp_path))
    [finding] = check_shard(Location(str(tmp_path)), info, "text")
    assert (finding.kind, finding.where) == ("codec-missing", info.stored.name)


def test_the_bytes_of_all_shards_are_reported(damaged: Path) -> None:
    shards = parse_index((damaged / "index.json").read_bytes(), "x")
    whole = [info for number, info in enumerate(shards) if number % 2 == 0]
    rules = choose_rules("all", "1mb")
    for processes in (1, 2):
        sizes: list[int] = []
        for _ in groups.check_shards(
            groups.CheckWork(Location(str(damaged)), "text", None, rules),
            whole,
            DuplicateFinder(rules.hashed, 0),
            processes=processes,
            executor=None,
            on_bytes=sizes.append,
        ):
            pass
        assert sum(sizes) == sum(info.stored.bytes for info in whole)


def test_the_command_takes_a_share_and_processes(
    damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["check", str(damaged), "--quiet", "--json", "--processes"]
    assert cli.main([*command, "2"]) == 1
    assert json.loads(capsys.readouterr().out)["counts"] == COUNTS
    assert cli.main([*command, "1", "--worker", "1/60"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["counts"], report["shards_read"]) == ({}, 1)
    for wrong in (["1", "--worker", "3/3"], ["1", "--address", "auto"]):
        assert cli.main([*command, *wrong]) == 1
    printed = capsys.readouterr().err
    assert "numbered from 0" in printed
    assert "--address and --task-resources require --engine ray" in printed


def test_shards_are_grouped_in_order() -> None:
    [shard] = parse_index(one_shard(), "x")
    sizes = [10, 10, 10, 50, 10, 10]
    shards = [replace(shard, raw=replace(shard.raw, bytes=size)) for size in sizes]
    found = [[info.raw.bytes for info in group] for group in groups.group_shards(shards, 20)]
    assert found == [[10, 10], [10, 50], [10, 10]]
    assert groups.group_shards([], 20) == []


def one_shard() -> bytes:
    file = {"basename": "shard.00000.mds", "bytes": 100, "hashes": {}}
    columns = {"column_names": ["text"], "column_encodings": ["str"], "column_sizes": [None]}
    entry = {"format": "mds", "version": 2, "samples": 1, "raw_data": file, "zip_data": None}
    entry |= {"compression": None, "hashes": [], "size_limit": 1000} | columns
    return json.dumps({"version": 2, "shards": [entry]}).encode()
