"""Every benchmark runs on tiny data, in seconds, and reports its figures.

Only `make bench` runs the loaders that need separate environments, because it installs them.
"""

from __future__ import annotations

import gzip
import importlib
import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.catalogue import RACES
from cloudload.tools.check.document_rules import DOCUMENT_RULES
from testkit import ROOT
from testkit.corpora import random_documents
from testkit.warm_start import stand_in

pytestmark = pytest.mark.timeout(900)

COVERED = {"cold_start", "convert", "loader", "memory", "order", "packing", "run", "shard_sizes"}
COVERED |= {"trace", "losses", "check_rules", "convert_scale", "node", "scale", "store_reads"}
COVERED |= {"epoch_end", "large_index", "tokenizer_ratio"}
TOKENIZERS = ("--tokenizers", str(ROOT / "examples"))
Tables = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a gzipped JSONL file of about 200 KB of text."""
    folder = tmp_path_factory.mktemp("corpus")
    texts = random_documents(5, 400, max_words=180)
    with gzip.open(folder / "part.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    return folder


def run(name: str, *arguments: str) -> str:
    """Run a benchmark with `--quick`, and return its output."""
    module = f"benchmarks.{name}"
    if (ROOT / "benchmarks" / name).is_dir():
        module += ".__main__"
    command = [*stand_in(), module, "--quick", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=850, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def run_json(name: str, *arguments: str) -> Tables:
    """Run a benchmark with `--json`, check that its numbers are finite, and return its tables."""
    tables: Tables = json.loads(run(name, "--json", *arguments))
    for rows in tables.values():
        assert rows
        for cell in [cell for row in rows for cell in row.values()]:
            for number in cell if isinstance(cell, list) else [cell]:
                assert not isinstance(number, float) or math.isfinite(number), rows
    return tables


def test_every_benchmark_is_here() -> None:
    folder = ROOT / "benchmarks"
    modules = {path.stem: path for path in folder.glob("*.py")}
    modules |= {path.parent.name: path for path in folder.glob("*/__main__.py")}
    found = {name for name, path in modules.items() if "Options(__doc__" in path.read_text()}
    assert found == COVERED


@pytest.mark.long
def test_packing_reports_fill(corpus: Path) -> None:
    drawn, of_corpus = run_json("packing", "--only", "fill", "--corpus", str(corpus)).values()
    for rows in (drawn, of_corpus):
        fills = {(row["rows by"], row["lanes"], row["seq_len"]): row for row in rows}
        assert all(0 < row["fill"] <= 1 for row in rows)
        for seq_len in ("2048", "4096"):
            best = fills["best_fit, 16 open", 1, seq_len]
            bound = fills["no padding but in the last row", None, seq_len]
            assert fills["one_per_row, rows", 1, seq_len]["with open rows"] < best["with open rows"]
            assert best["with open rows"] <= bound["with open rows"]
            assert best["left out"] == 0


@pytest.mark.long
def test_packing_reports_the_first_rows(corpus: Path) -> None:
    drawn, of_drawn, texts, of_texts = run_json(
        "packing", "--only", "fair", "--corpus", str(corpus)
    ).values()
    for curves, summary in ((drawn, of_drawn), (texts, of_texts)):
        assert [row["fair start"] for row in summary] == ["with", "without"]
        assert curves[0]["rows of a lane from"] == 0


@pytest.mark.long
def test_packing_reports_speed(corpus: Path) -> None:
    [speed] = run_json("packing", "--only", "speed", "--corpus", str(corpus)).values()
    assert [row["packing"] for row in speed] == [
        "concat",
        "best_fit",
        "one_per_row, rows",
        "one_per_row, cut",
    ]
    assert speed[0]["rows / concat"] == [1.0]
    assert all(row["rows/s, wall"][0] > 0 and row["worker µs/row"][0] > 0 for row in speed)


@pytest.mark.long
def test_loader_reports_resumes_and_states(corpus: Path) -> None:
    resumes, states = run_json("loader", "--corpus", str(corpus)).values()
    assert [(row["resumed at"], row["cache"]) for row in resumes] == [
        ("50%", "empty"),
        ("50%", "filled"),
    ]
    assert all(row["s to the first batch"][0] > 0 for row in resumes)
    concat, best_fit = states
    assert 1_000 < concat["bytes of JSON"] < best_fit["bytes of JSON"]
    assert concat["bytes of residues in it"] == 0 < best_fit["bytes of residues in it"]
    assert len(concat["CPU µs of state_dict()"]) == 200


@pytest.mark.long
def test_order_reports_all_parts() -> None:
    tables = run_json("order", "--documents", "200000")
    assert list(tables) == ["scale", "quality", "window", "drift"]
    scale, quality, window, drift = tables.values()
    assert len(scale) == 9
    assert all(row["build, s"] > 0 and row["peak RSS, MB"] > 0 for row in scale)
    assert [row["algorithm"] for row in quality] == ["py1e", "py1br", "seekable"]
    assert all(0 < row["mean / block"] < 1 for row in quality)
    assert all(row["seekable: open at once"] >= 1 for row in window)
    assert {row["dealt"] for row in drift} >= {"in turn", "bytes, to the least"}
    assert all(row["GB in total"] > 0 for row in drift)


def test_uneven_worlds_reports_what_is_read_twice() -> None:
    even, uneven = map(json.loads, run("uneven_worlds").splitlines()[:2])
    assert (even["ranks"], uneven["ranks"]) == (6, 7)
    assert even["rows_moved"] == 0 < uneven["rows_moved"] < 0.1
    assert 0.9 < even["tokenized"] < uneven["tokenized"] < 1.2


@pytest.mark.long
def test_convert_scale_reports_each_process() -> None:
    [rows] = run_json("convert_scale").values()
    assert [row["step"] for row in rows] == ["plan", "worker", "finish"]
    assert all(row["CPU s"] > 0 for row in rows)


def test_scale_reports_the_cost_of_orders_lengths_caches_and_downloads() -> None:
    parts = ("downloads", "order", "lengths", "cache", "states")
    tables = run_json("scale", "--only", *parts, "--ranks=8")
    downloads, order, lengths, cache, states = tables.values()
    assert [row["downloads of each shard"] for row in downloads] == [625, 20.34375, 25, 1]
    assert [(row["order"], row["how"]) for row in order] == [
        ("seekable", "measured"),
        ("py1e", "measured"),
        ("py1e", "predicted"),
    ]
    assert [row["how"] for row in lengths] == ["measured", "predicted"]
    assert all(row["GB of lengths"] > 0 for row in lengths)
    [row] = cache
    assert row["shards in the cache"] == 1_000
    assert all(value > 0 for value in row.values())
    assert [row["lanes"] for row in states] == [960, 960, 1_920]
    assert all(10 < row["bytes of JSON"] / row["lanes"] < 20 for row in states)


@pytest.mark.long
def test_scale_reports_the_requests_and_plans_of_a_node() -> None:
    parts = ("opening", "hub", "plans")
    starts, hub, plans = run_json("scale", "--only", *parts).values()
    assert [row["start"] for row in starts] == ["first", "later", "resume"]
    for row in starts:
        assert row["of the index"] > 0 < row["of lengths"]
        assert row["of the index, 1,250 nodes"] == 1_250 * row["of the index"]
    assert starts[0]["of shards"] > 0 == starts[1]["of shards"]
    empty, filled = hub
    assert empty["of a rank"] > filled["of a rank"] > 0
    assert len(plans) == 5
    assert all(row["CPU s"] > 0 for row in plans)


@pytest.mark.long
def test_large_index_reports_each_rank_and_the_requests() -> None:
    index, requests = run_json("large_index").values()
    assert [(row["start"], row["ranks"]) for row in index] == [
        *[("first", 2), ("first", 2), ("later", 2), ("later", 2), ("later", 1)]
    ]
    assert all(row["PSS of the rank and its worker, MB"] > 10 for row in index)
    parsing, *others = [row["CPU s"] for row in index]
    assert parsing > max(others)
    assert index[0]["file in the cache, MB"] > 1
    assert [(row["start"], row["of the index"]) for row in requests] == [("first", 3), ("later", 2)]


def test_exchange_reports_its_cost_for_thousands_of_ranks() -> None:
    *_, predicted = run("exchange", "--processes", "2", "3", "--rounds", "3").splitlines()
    assert re.search(r"^10,000 processes, +320 bytes each: +[-\d.]+ ms", predicted)


def test_trace_finds_what_the_run_read(corpus: Path) -> None:
    [[row]] = run_json("trace", "--corpus", str(corpus), "--steps", "40").values()
    assert row["tokens of the run"] == 51 * 8 * 256
    assert row["rows of a document"] > 0
    assert row["s to trace 10 steps"] > 0


@pytest.mark.long
def test_losses_reports_costs_and_sizes(corpus: Path) -> None:
    training, log = run_json("losses", "--corpus", str(corpus), "--steps=3", "--logged=3").values()
    assert 0 < training[0]["of a step, %"] < 100
    assert 0 < log[0]["bytes per record"] < 100


@pytest.mark.long
def test_epoch_end_reports_what_the_tail_costs(corpus: Path) -> None:
    [row] = run_json("epoch_end", "--corpus", str(corpus), "--cases", "2 workers")[
        "the end of an epoch"
    ]
    assert 0 < row["tail, % of tokens"][0] < 100


@pytest.mark.long
def test_plan_reports_forecasts_beside_real_values(corpus: Path) -> None:
    lines = [json.loads(line) for line in run("plan", str(corpus / "part.jsonl.gz")).splitlines()]
    assert {line["figure"] for line in lines} >= {"s to the first batch", "rows", "tokens"}
    exact = [line for line in lines if line["is_exact"]]
    assert len(exact) > 10
    assert all(line["real_error"] == 0 for line in exact)
    assert lines[0]["value"] > 0 < lines[0]["real"]


@pytest.mark.long
def test_check_rules_reports_each_rule(corpus: Path) -> None:
    [rows] = run_json("check_rules", "--corpus", str(corpus), "--rounds=2").values()
    assert [row["rule"] for row in rows] == ["none", *DOCUMENT_RULES, "all"]
    assert all(row["MB per CPU s"] > 0 for row in rows)


@pytest.mark.long
def test_convert_reports_each_way_and_hashes(corpus: Path) -> None:
    tables = run_json(
        "convert", "--corpus", str(corpus), "--megabytes", "0.8", "--forms", "parquet"
    )
    race, in_s3, hashes = tables.values()
    both = [(way, number) for way in ("cloudload", "MDSWriter") for number in (1, 2)]
    assert [(row["way"], row["processes"]) for row in race] == [*both, ("llm-foundry", 1)]
    for row in (*race, *in_s3):
        assert row["MB per CPU s"][0] > 0
        assert row["peak MB of memory"] > 10
        assert (row["coordinator's share"] is None) == (row["processes"] == 1)
    assert [row["processes"] for row in hashes] == [1, 2, 5]
    assert len({row["SHA-256"] for row in hashes}) == 1


@pytest.mark.long
def test_memory_reports_both_processes(corpus: Path, tmp_path: Path) -> None:
    where = ("--corpus", str(corpus), "--output", str(tmp_path), *TOKENIZERS)
    run("memory", *where, "--name", "tokenizer")
    *_, row = (tmp_path / "MEMORY.md").read_text().splitlines()
    minutes, tokens, workers, _, trainers, _ = map(float, row.strip("| ").split(" | "))
    assert minutes == 0.05
    assert tokens > 0
    assert workers > 10
    assert trainers > 10


@pytest.mark.long
def test_node_reports_each_rank_and_the_node(corpus: Path) -> None:
    where = ("--corpus", str(corpus), *TOKENIZERS, "--name", "tokenizer")
    ranks, [node] = run_json("node", *where, "--tokens-per-s", "20000").values()
    assert [(row["rank"], row["workers"]) for row in ranks] == [(0, 1), (1, 1)]
    assert node["processes per rank"] == 2
    assert node["PSS of all workers, MB"] == sum(row["PSS of its workers, MB"] for row in ranks)
    assert all(row["PSS of its workers, MB"] > 10 for row in ranks)
    assert all(row["tokens per s"] > 0 < row["workers' CPU s per million tokens"] for row in ranks)


@pytest.mark.long
def test_store_reads_reports_the_clients_that_are_installed() -> None:
    tables = run_json("store_reads", "--rounds", "1", "--megabytes", "2")
    assert list(tables) == ["s3", "gcs"]
    for rows, other in zip(tables.values(), ("boto3", "google-cloud-storage"), strict=True):
        assert {"cloudload", other} <= {row["client"] for row in rows}
        assert all(row["MB/s"][0] > 0 and row["CPU s per GB"][0] > 0 for row in rows)


@pytest.mark.long
def test_cold_start_reports_first_batches_and_epochs(corpus: Path, tmp_path: Path) -> None:
    where = ("--corpus", str(corpus), "--output", str(tmp_path), *TOKENIZERS)
    run("cold_start", *where, "--name", "tokenizer")
    results = json.loads((tmp_path / "cold_start.json").read_text())
    for part in ("first batch", "ranks"):
        firsts = {label: first for label, [first] in results[part].items()}
        assert len(firsts) == 5
        assert all(0 < first["seconds"] < first["process"] for first in firsts.values())
        downloaded = {label: first["bytes"] for label, first in firsts.items()}
        assert downloaded["cloudload"] == downloaded["cloudload, tokenizer known to the node"] > 0
        assert downloaded["cloudload, shards cached"] < downloaded["cloudload"] / 10
    shares = {(epoch["loader"], epoch["nodes"]): epoch["shares"] for epoch in results["epoch"]}
    assert len(shares) == 6
    for loader in ("cloudload", "cloudload_finite", "streaming"):
        [share] = shares[loader, 1]
        assert 0.9 < share < 2
        assert len(shares[loader, 2]) == 2
    assert "How it was measured" in (tmp_path / "COLD_START.md").read_text()


@pytest.mark.long
def test_the_tokenizer_ratio_is_reported_for_texts_read_once_and_repeated(corpus: Path) -> None:
    tables = run_json("tokenizer_ratio", "--corpus", str(corpus))
    assert set(tables) == {"once, tokenizer", "repeated, tokenizer"}
    for [row] in tables.values():
        assert row["ratio"][0] == pytest.approx(
            row["loader"][0] / row["million tokens per CPU s, bare"][0]
        )


@pytest.mark.long
def test_shard_sizes_reports_first_batches_and_epochs(corpus: Path) -> None:
    sizes = ("--shard-mb", "0.25", "1")
    [[small, large]] = run_json("shard_sizes", "--corpus", str(corpus), *sizes).values()
    assert (small["shards"], large["shards"]) == (17, 5)
    assert small["requests of an epoch"] >= large["requests of an epoch"] + 12
    for row in (small, large):
        assert row["s to the first batch"][0] > 0
        assert row["MB until then"][0] > 0
        assert 0.9 < row["bytes of an epoch / dataset"] < 2
        assert row["raw bytes per stored byte"] > 1


@pytest.mark.long
def test_the_race_reports_every_side_of_this_environment(corpus: Path, tmp_path: Path) -> None:
    sides = ("HF tokenizers, bare", "cloudload, HF", "Streaming, documents in groups")
    on_ids = ("cloudload, documents, no worker", "Streaming, rows of int64 bytes")
    run(
        "run",
        *("--corpus", str(corpus), *TOKENIZERS, "--names", "tokenizer", "--output", str(tmp_path)),
        *("--rounds", "2", "--seconds", "0.2", "--sides", *sides, *on_ids),
        *("--races", "peers", "pretokenized", "--ceiling-tokens", "100000"),
    )
    results = json.loads((tmp_path / "results.json").read_text())
    found = {result["entry"]["name"]: result for result in results["races"]["peers, tokenizer"]}
    assert set(found) == {*sides, "HF tokenizers, bare, same strings"}
    found |= {
        result["entry"]["name"]: result for result in results["races"]["pretokenized, tokenizer"]
    }
    assert found.keys() >= set(on_ids)
    for result in found.values():
        assert not result["failure"]
        assert len(result["turns"]) == 2
        assert all(turn["tokens"] > 0 and turn["cpu"] > 0 for turn in result["turns"])
    report = (tmp_path / "RESULTS.md").read_text()
    assert all(f"| {side} | " in report for side in (*sides, *on_ids))
    assert (tmp_path / "results.png").stat().st_size > 10_000


@pytest.mark.parametrize("script", sorted({e.script for race in RACES for e in race.entries}))
def test_every_side_can_be_imported_without_its_peer(script: str) -> None:
    assert importlib.import_module(f"benchmarks.{script}").__doc__
