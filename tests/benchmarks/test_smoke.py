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

import benchmarks
from benchmarks.throughput.catalogue import RACES
from benchmarks.throughput.convert_inputs import FORMS
from cloudload.tools.check.document_rules import TEXT_RULES
from testkit import ROOT
from testkit.corpora import random_documents
from testkit.warm_start import stand_in

pytestmark = pytest.mark.timeout(900)

TOKENIZER = ("--tokenizer", str(ROOT / "examples" / "tokenizer"))
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
    command = [*stand_in(), f"benchmarks.{name}", "--quick", *arguments]
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


def commands() -> set[str]:
    """The names of all benchmarks, such as `scale.order`."""
    folder = ROOT / "benchmarks"
    files = [path for path in folder.glob("*/*.py") if "Options(__doc__" in path.read_text()]
    names = {".".join(path.relative_to(folder).with_suffix("").parts) for path in files}
    return {name.removesuffix(".__main__") for name in names}


def test_every_benchmark_has_a_test() -> None:
    code = Path(__file__).read_text()
    tested = set(re.findall(r'run(?:_json)?\(\s*"([\w.]+)"', code))
    assert {name.removesuffix(".__main__") for name in tested} == commands()


def test_the_table_of_benchmarks_lists_each_command() -> None:
    listed = re.findall(r"^    (\w+\.\w+|scale) ", benchmarks.__doc__ or "", re.MULTILINE)
    assert sorted(listed) == sorted(commands())


@pytest.mark.long
def test_first_batches_from_parquet_files_are_timed(corpus: Path) -> None:
    tables = run_json("start.parquet", "--corpus", str(corpus), "--loaders", "cloudload")
    [first], [speed] = tables["first batch"], tables["speed"]
    assert all(min(first[name]) > 0 for name in ("s to the first batch", "CPU s", "MB"))
    assert min(speed["million tokens per CPU second"]) > 0
    alone, shared = tables["epoch"]
    assert 0.9 < float(alone["all nodes"]) <= float(shared["all nodes"])


@pytest.mark.long
def test_the_index_of_many_parquet_files_is_measured() -> None:
    tables = run_json("scale.parquet_files")
    [index], (empty, kept) = tables["index"], tables["open"]
    assert (index["files"], empty["files"], kept["cache"]) == (20, 20, "kept")
    assert index["requests"] >= index["files"]
    assert index["samples"] == 20 * 8 * 1_000


@pytest.mark.long
def test_packing_reports_fill(corpus: Path) -> None:
    drawn, of_corpus = run_json("quality.fill", "--corpus", str(corpus)).values()
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
    drawn, of_drawn, texts, of_texts = run_json("quality.fair", "--corpus", str(corpus)).values()
    for curves, summary in ((drawn, of_drawn), (texts, of_texts)):
        assert [row["fair start"] for row in summary] == ["with", "without"]
        assert curves[0]["rows of a lane from"] == 0


@pytest.mark.long
def test_resumes_are_timed_with_an_empty_and_a_filled_cache(corpus: Path) -> None:
    [resumes] = run_json("start.resume", "--corpus", str(corpus)).values()
    assert [(row["resumed at"], row["cache"]) for row in resumes] == [
        ("50%", "empty"),
        ("50%", "filled"),
    ]
    assert all(row["s to the first batch"][0] > 0 for row in resumes)


@pytest.mark.long
def test_orders_report_their_cost() -> None:
    [rows] = run_json("scale.order", "--documents", "200000").values()
    assert len(rows) == 6
    assert all(row["build, s"] > 0 and row["peak RSS, MB"] > 0 for row in rows)


@pytest.mark.long
def test_windows_and_drift_report_open_shards() -> None:
    [window] = run_json("quality.window").values()
    assert all(row["seekable: open at once"] >= 1 for row in window)
    few, many = run_json("quality.drift").values()
    assert all(row["GB in total"] > 0 for row in (*few, *many))


def test_balance_reports_what_a_step_would_save() -> None:
    for rows in run_json("quality.balance", "--tokens", "3000000").values():
        assert {row["packing"] for row in rows} == {"concat", "best_fit"}
        assert all(row["attention / rest"] > 0 for row in rows)


def test_balance_reports_what_it_costs_a_worker(corpus: Path) -> None:
    [rows] = run_json("throughput.balance", "--corpus", str(corpus)).values()
    assert {row["packing"] for row in rows} == {"concat", "best_fit"}
    assert all(row["on / off"] > 0 for row in rows)


def test_uneven_worlds_reports_what_is_read_twice() -> None:
    [[even, uneven, *_]] = run_json("scale.uneven_worlds").values()
    assert (even["ranks"], uneven["ranks"]) == (6, 7)
    assert even["rows_moved"] == 0 < uneven["rows_moved"] < 0.1
    assert 0.9 < even["tokenized"] < uneven["tokenized"] < 1.2


@pytest.mark.long
def test_components_report_the_start_and_the_state() -> None:
    for rows in run_json("scale.components").values():
        assert [row["components"] for row in rows] == [2, 3]
        assert all(row["batches/s"] > 0 and row["state, MB"] > 0 for row in rows)


@pytest.mark.long
def test_lengths_report_the_cost_of_tables_and_rows() -> None:
    tables, best_fit = run_json("scale.lengths").values()
    assert [row["shuffle_algo"] for row in tables] == ["py1e", "seekable"]
    assert all(row["length_bytes_per_document"] >= 2 for row in tables)
    assert best_fit[0]["us_per_document"] > 0


@pytest.mark.long
def test_selections_report_what_passing_documents_costs(corpus: Path) -> None:
    tables = run_json("throughput.selected", "--corpus", str(corpus))
    for packing, (name, [row]) in zip(("concat", "best_fit"), tables.items(), strict=True):
        assert name.startswith(f"selected, {packing}: ")
        assert all(row[f"{side}, M tokens per CPU s"][0] > 0 for side in ("100%", "50%", "1%"))


@pytest.mark.long
def test_count_reports_both_sides(corpus: Path) -> None:
    [[row]] = run_json("throughput.count", "--corpus", str(corpus)).values()
    assert row["count / bare"] > 0
    assert row["bytes of lengths per document"] > 1


@pytest.mark.long
def test_files_in_place_are_measured_in_each_format(corpus: Path) -> None:
    tables = run_json("throughput.in_place", "--corpus", str(corpus))
    assert [name.split(",")[0] for name in tables] == [*FORMS, "mds"]
    assert all(speed > 0 for [row] in tables.values() for speed in row["fetch"])


@pytest.mark.long
def test_the_first_pass_is_compared_with_the_third(corpus: Path) -> None:
    [[row]] = run_json("throughput.first_pass", "--corpus", str(corpus)).values()
    assert 0 < row["first pass"] < row["third pass"]


@pytest.mark.long
def test_membership_reports_the_time_to_the_next_step() -> None:
    [[row]] = run_json("start.membership").values()
    assert row["s to the next step"][0] > 0


@pytest.mark.long
def test_convert_scale_reports_each_process() -> None:
    [rows] = run_json("scale.conversion").values()
    assert [row["step"] for row in rows] == ["plan", "worker", "finish"]
    assert all(row["CPU s"] > 0 for row in rows)


def test_scale_reports_the_cost_of_downloads_caches_and_states() -> None:
    parts = ("downloads", "cache", "states")
    downloads, cache, states = run_json("scale.__main__", "--only", *parts, "--ranks=8").values()
    assert [row["downloads of each shard"] for row in downloads] == [625, 20.34375, 25, 1]
    [row] = cache
    assert row["shards in the cache"] == 1_000
    assert all(value > 0 for value in row.values())
    assert [row["lanes"] for row in states] == [64, 960]
    assert all(10 < row["bytes of JSON"] / row["lanes"] < 40 for row in states)


@pytest.mark.long
def test_scale_reports_the_requests_and_plans_of_a_node() -> None:
    parts = ("opening", "hub", "plans")
    starts, hub, plans = run_json("scale.__main__", "--only", *parts).values()
    assert [row["start"] for row in starts] == ["first", "later", "resume"]
    for row in starts:
        assert row["of the index"] > 0 < row["of lengths"]
        assert row["of the index, 1,250 nodes"] == 1_250 * row["of the index"]
    assert starts[0]["of shards"] > 0 == starts[1]["of shards"]
    empty, filled = hub
    assert empty["of a rank"] > filled["of a rank"] > 0
    assert len(plans) == 3
    assert all(row["CPU s"] > 0 for row in plans)


@pytest.mark.long
def test_a_large_index_is_parsed_by_one_rank() -> None:
    [index] = run_json("scale.index").values()
    assert [(row["start"], row["ranks"]) for row in index] == [
        *[("first", 2), ("first", 2), ("later", 2), ("later", 2), ("later", 1)]
    ]
    assert all(row["PSS of the rank and its worker, MB"] > 10 for row in index)
    parsing, *others = [row["CPU s"] for row in index]
    assert parsing > max(others)
    assert index[0]["file in the cache, MB"] > 1


def test_exchange_reports_its_cost_for_thousands_of_ranks() -> None:
    *_, predicted = run_json("scale.exchange")["predicted"]
    assert (predicted["processes"], predicted["bytes each"]) == (10_000, 320)


def test_trace_finds_what_the_run_read(corpus: Path) -> None:
    [[row]] = run_json("start.trace", "--corpus", str(corpus), "--steps", "40").values()
    assert row["tokens of the run"] == 51 * 8 * 256
    assert row["rows of a document"] > 0
    assert row["s to trace 10 steps"] > 0


def test_items_reports_documents_from_a_store_and_from_the_cache(corpus: Path) -> None:
    [rows] = run_json("start.items", "--corpus", str(corpus)).values()
    assert [row["documents"] for row in rows] == [300] * 6
    assert all(row["cold documents/s"] > 0 and row["warm documents/s"] > 0 for row in rows)
    assert all(row["MB"] > 0.1 for row in rows)


@pytest.mark.long
def test_losses_reports_costs_and_sizes(corpus: Path) -> None:
    training, log = run_json(
        "throughput.losses", "--corpus", str(corpus), "--steps=3", "--logged=3"
    ).values()
    assert 0 < training[0]["of a step, %"] < 100
    assert 0 < log[0]["bytes per record"] < 100


def test_a_gpt_trains_alike_on_batches_of_cloudload_and_of_memory(
    corpus: Path, tmp_path: Path
) -> None:
    where = ("--corpus", str(corpus), *TOKENIZER, "--output", str(tmp_path))
    run("gpu.train", *where, "--workers", "1")
    results = json.loads((tmp_path / "gpu.json").read_text())
    trainings = results["trainings"]
    losses = {name: training["losses"] for name, training in trainings.items()}
    assert len(losses["memory"]) == len(set(losses["memory"])) == 8
    assert losses["cloudload"] == losses["memory"] != losses["Streaming"]
    for figures in results["figures"]:
        assert figures["tokens/s"] > 0
        assert 0 <= figures["waiting, % of all steps"] < 100
        assert figures["s to the first batch"] > 0
    for training in trainings.values():
        assert len(training["wait_s"]) == len(training["step_s"]) == 7
        assert training["losses"][-1] < training["losses"][0]


@pytest.mark.long
def test_forecasts_are_reported_beside_real_values(corpus: Path) -> None:
    first, rows = run_json("quality.forecast", "--files", str(corpus / "part.jsonl.gz")).values()
    assert first[0]["value"] > 0 < first[0]["real"]
    assert {row["figure"] for row in rows} >= {"rows", "tokens"}
    exact = [row for row in rows if row["is_exact"] == "True"]
    assert len(exact) > 10
    assert all(row["real_error"] == 0 for row in exact)


@pytest.mark.long
def test_check_rules_reports_each_rule(corpus: Path) -> None:
    [rows] = run_json("throughput.check_rules", "--corpus", str(corpus), "--rounds=2").values()
    assert [row["rule"] for row in rows] == ["none", *TEXT_RULES, "all"]
    assert all(row["MB per CPU s"] > 0 for row in rows)


@pytest.mark.long
def test_chats_reports_the_speed_of_each_side(corpus: Path) -> None:
    arguments = ("--corpus", str(corpus), "--conversations", "8", *TOKENIZER)
    for rows in run_json("throughput.chats", *arguments).values():
        names = ["cloudload", "cloudload, later epoch", "TRL", "transformers"]
        assert [row["side"] for row in rows] == names
        assert all(min(row["million tokens per CPU s"]) > 0 for row in rows)


@pytest.mark.long
def test_convert_reports_each_way(corpus: Path) -> None:
    arguments = ("--corpus", str(corpus), "--megabytes", "0.8", "--forms", "parquet")
    [race] = run_json("throughput.convert", *arguments).values()
    both = [(way, number) for way in ("cloudload", "MDSWriter") for number in (1, 2)]
    assert [(row["way"], row["processes"]) for row in race] == [*both, ("llm-foundry", 1)]
    for row in race:
        assert row["MB per CPU s"][0] > 0
        assert row["peak MB of memory"] > 10
        assert (row["coordinator's share"] is None) == (row["processes"] == 1)


@pytest.mark.long
def test_memory_reports_both_processes(corpus: Path, tmp_path: Path) -> None:
    where = ("--corpus", str(corpus), "--output", str(tmp_path), *TOKENIZER)
    run("scale.memory", *where)
    *_, row = (tmp_path / "MEMORY.md").read_text().splitlines()
    minutes, tokens, workers, _, trainers, _ = map(float, row.strip("| ").split(" | "))
    assert minutes == 0.05
    assert tokens > 0
    assert workers > 10
    assert trainers > 10


@pytest.mark.long
def test_node_reports_each_rank_and_the_node(corpus: Path) -> None:
    where = ("--corpus", str(corpus), *TOKENIZER)
    ranks, [node] = run_json("throughput.node", *where, "--tokens-per-s", "20000").values()
    assert [(row["rank"], row["workers"]) for row in ranks] == [(0, 1), (1, 1)]
    assert node["processes per rank"] == 2
    assert node["PSS of all workers, MB"] == sum(row["PSS of its workers, MB"] for row in ranks)
    assert all(row["PSS of its workers, MB"] > 10 for row in ranks)
    assert all(row["tokens per s"] > 0 < row["workers' CPU s per million tokens"] for row in ranks)


@pytest.mark.long
def test_store_reads_reports_the_clients_that_are_installed() -> None:
    tables = run_json("throughput.store_reads", "--rounds", "1", "--megabytes", "2")
    assert list(tables) == ["s3", "gcs"]
    for rows, other in zip(tables.values(), ("boto3", "google-cloud-storage"), strict=True):
        assert {"cloudload", other} <= {row["client"] for row in rows}
        assert all(row["MB/s"][0] > 0 and row["CPU s per GB"][0] > 0 for row in rows)


@pytest.mark.long
def test_cold_start_reports_first_batches_and_epochs(corpus: Path, tmp_path: Path) -> None:
    where = ("--corpus", str(corpus), "--output", str(tmp_path), *TOKENIZER)
    run("start.cold", *where)
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
def test_shard_sizes_reports_first_batches_and_epochs(corpus: Path) -> None:
    sizes = ("--shard-mb", "0.25", "1")
    [[small, large]] = run_json("start.shard_sizes", "--corpus", str(corpus), *sizes).values()
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
        "throughput.race",
        *("--corpus", str(corpus), *TOKENIZER, "--output", str(tmp_path)),
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
    assert importlib.import_module(f"benchmarks.peers.{script}").__doc__
