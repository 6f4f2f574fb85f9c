"""Conversions, counts, and checks run on Ray. Tasks that are killed do not change the output."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudload import cli
from cloudload.convert import convert_to_mds
from cloudload.errors import ConvertError
from cloudload.run.lengths import lengths_index as lengths_index
from cloudload.tools.check import check_dataset, groups
from cloudload.tools.count import count_tokens
from cloudload.tools.engines.ray import RayExecutor, parse_resources
from cloudload.tools.engines.units import run_units
from testkit.conversions import dataset_bytes
from testkit.corpora import byte_tokenizer
from testkit.segments import SETTINGS, mixed_corpus

ray = pytest.importorskip("ray")

KILLS = 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of two nodes on this machine, one with resource `a` and one with `b`."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"a": 2}})
    cluster.add_node(num_cpus=2, resources={"b": 2})
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of about 60 segments in four formats."""
    return mixed_corpus(tmp_path_factory.mktemp("mixed") / "corpus")


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The hash of every object that a conversion in one process writes."""
    out = tmp_path_factory.mktemp("whole") / "out"
    convert_to_mds(corpus, out, **SETTINGS)
    return dataset_bytes(str(out))


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("options", [{}, {"resources": {"a": 1}}, {"resources": {"b": 1}}])
def test_a_cluster_writes_the_same_objects(
    corpus: Path, tmp_path: Path, whole: dict[str, str], options: dict[str, Any]
) -> None:
    with RayExecutor(**options) as executor:
        convert_to_mds(corpus, tmp_path / "out", executor=executor, **SETTINGS)
    assert dataset_bytes(str(tmp_path / "out")) == whole


def run_and_kill(number: int) -> int:
    """A unit of work that takes 0.2 s, so that its process or node can be killed meanwhile."""
    time.sleep(0.2)
    return number


def kill_workers(until: threading.Event, killed: list[int], kills: int = KILLS) -> None:
    """Kill the process of a random Ray task every 0.3 to 1 s, at most `kills` times."""
    draw = random.Random(4)
    while len(killed) < kills and not until.wait(draw.uniform(0.3, 1.0)):
        pids = [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if b"ray::_call" in read(path)
        ]
        if pids:
            os.kill(draw.choice(pids), signal.SIGKILL)
            killed.append(1)


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.usefixtures("cluster")
def test_tasks_that_are_killed_run_again_and_write_the_same_objects(
    corpus: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    until, killed = threading.Event(), list[int]()
    thread = threading.Thread(target=kill_workers, args=(until, killed))
    thread.start()
    try:
        with RayExecutor() as executor:
            convert_to_mds(corpus, tmp_path / "out", executor=executor, **SETTINGS)
            # 60 units of 0.2 s, so that several are killed
            assert dict(run_units(run_and_kill, range(60), executor)) == {n: n for n in range(60)}
    finally:
        until.set()
        thread.join()
    assert killed
    assert dataset_bytes(str(tmp_path / "out")) == whole


def test_a_node_that_dies_takes_no_segment_with_it(
    cluster: Any, corpus: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    node = cluster.add_node(num_cpus=2, resources={"c": 2})
    timer = threading.Timer(3, cluster.remove_node, args=(node, False))
    timer.start()
    try:
        with RayExecutor() as executor:
            convert_to_mds(corpus, tmp_path / "out", executor=executor, **SETTINGS)
            assert len(list(run_units(run_and_kill, range(60), executor))) == 60
    finally:
        timer.join()
    assert dataset_bytes(str(tmp_path / "out")) == whole


@pytest.mark.usefixtures("cluster")
def test_an_error_of_a_task_is_raised_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 10 + "nonsense\n")
    options: dict[str, Any] = {"segment_bytes": 50, "progress": False}
    message = r"a\.jsonl:@140: the record is invalid JSON"
    with RayExecutor() as executor, pytest.raises(ConvertError, match=message):
        convert_to_mds(tmp_path / "a.jsonl", tmp_path / "out", executor=executor, **options)


def read_report(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Parse the report that a command printed, and skip lines that Ray printed before it."""
    printed = capsys.readouterr().out
    report: dict[str, Any] = json.loads(printed[printed.index("{\n") :])
    return report


@pytest.mark.usefixtures("cluster")
def test_a_cluster_finds_the_damage_that_one_process_finds(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    convert_to_mds(corpus, tmp_path / "out", **SETTINGS)
    for shard in sorted(tmp_path.glob("out/*/shard.00001.*"))[:30]:
        shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(groups, "GROUP_BYTES", 50_000)
    expected = check_dataset("out", processes=1, progress=False)
    assert expected.counts["hash-mismatch"] == 30
    with RayExecutor() as executor:
        found = check_dataset("out", executor=executor, progress=False)
    assert (found.findings, found.counts) == (expected.findings, expected.counts)
    cli("check", "out", "--engine", "ray", "--quiet", status=1)


@pytest.mark.usefixtures("cluster")
def test_the_command_line_runs_on_ray(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 10)
    arguments = [str(tmp_path / "a.jsonl"), str(tmp_path / "out"), "--segment-bytes", "50"]
    arguments += ["--engine", "ray", "--task-resources", "cpus=0.5,memory=100m,b=1", "--json"]
    assert cli.main(["convert", *arguments]) == 0
    report = read_report(capsys)
    assert (report["documents"], report["segments"]) == (10, 3)


@pytest.fixture
def counted(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, dict[str, str]]:
    """A dataset that is counted in groups of at least 20 samples, and the hash of every length file
    that one process writes."""
    monkeypatch.setattr(lengths_index, "GROUP_SAMPLES", 20)
    convert_to_mds(corpus, tmp_path / "mds", **SETTINGS)
    out = tmp_path / "by-one-process"
    count_tokens(tmp_path / "mds", tokenizer=byte_tokenizer(), out=out, processes=1, progress=False)
    return tmp_path / "mds", dataset_bytes(str(out))


@pytest.mark.usefixtures("cluster")
def test_a_cluster_counts_to_the_same_files(
    counted: tuple[Path, dict[str, str]], tmp_path: Path, corpus: Path
) -> None:
    dataset, files = counted
    assert len(files) > 100
    options: dict[str, Any] = {"tokenizer": byte_tokenizer(), "progress": False}
    with RayExecutor() as executor:
        out = tmp_path / "by-ray"
        report = count_tokens(dataset, out=out, executor=executor, by="n", **options)
        assert dataset_bytes(str(out)) == files
        assert report is not None
        assert sum(each.documents for each in report.values) == report.documents
        again = tmp_path / "converted"
        convert_to_mds(corpus, again, executor=executor, **SETTINGS, tokenizer=byte_tokenizer())
    assert dataset_bytes(str(again / "lengths")) == files


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long)])
def test_a_count_whose_tasks_are_killed_ends_in_the_same_files(
    counted: tuple[Path, dict[str, str]], tmp_path: Path, kills: int
) -> None:
    dataset, files = counted
    until, killed = threading.Event(), list[int]()
    thread = threading.Thread(target=kill_workers, args=(until, killed, kills))
    thread.start()
    rounds = 0
    try:
        with RayExecutor() as executor:
            while len(killed) < kills:
                out = tmp_path / f"by-ray-{rounds}"
                count_tokens(
                    dataset, tokenizer=byte_tokenizer(), out=out, executor=executor, progress=False
                )
                assert dataset_bytes(str(out)) == files
                rounds += 1
    finally:
        until.set()
        thread.join()


@pytest.mark.usefixtures("cluster")
def test_the_command_counts_on_ray(
    counted: tuple[Path, dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset, files = counted
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    arguments = [str(dataset), "--tokenizer", str(tmp_path / "tokenizer.json")]
    arguments += ["--out", str(tmp_path / "out"), "--engine", "ray", "--quiet", "--json"]
    assert cli.main(["count", *arguments, "--task-resources", "cpus=1,a=1"]) == 0
    assert read_report(capsys)["documents"] > 1_000
    assert dataset_bytes(str(tmp_path / "out")) == files


def test_resources_are_those_of_ray() -> None:
    assert parse_resources("cpus=2,memory=1g,disk=0.5") == {
        "num_cpus": 2.0,
        "memory": 1 << 30,
        "resources": {"disk": 0.5},
    }
    with pytest.raises(ValueError, match="the resource 'cpus' does not have the form NAME=NUMBER"):
        parse_resources("cpus")
