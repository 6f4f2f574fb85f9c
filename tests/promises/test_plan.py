"""A plan matches the real run, and every estimate states how far off it may be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, Stream, count_tokens
from cloudload.cli import main
from cloudload.errors import CacheError
from cloudload.forecast import RunPlan, plan_run
from cloudload.testing import Leg, run_leg
from cloudload.tools.cli.plan_command import describe_plan
from cloudload.tools.forecast.budget import parse_tokens
from cloudload.tools.forecast.page import render_plan
from cloudload.tools.forecast.request import read_prices
from testkit.corpora import EOS, byte_tokenizer, random_documents, write_mds
from testkit.loaders import make_loader
from testkit.plans import check_figures, read_run

WORLDS = [(1, 2), (2, 2), (2, 4)]  # (nodes, ranks per node); 8 ranks cannot share 12 lanes
SAMPLES = 240


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three compressed datasets with token lengths."""
    folder = tmp_path_factory.mktemp("plan")
    for number, (max_words, shards) in enumerate(((30, 20), (8, 12), (60, 30))):
        texts = random_documents(number, SAMPLES, max_words=max_words)
        sizes = [SAMPLES // shards] * shards
        data = write_mds(folder / str(number), texts, shard_samples=sizes, compression="zstd")
        count_tokens(data, tokenizer=byte_tokenizer(), processes=1, progress=False)
    return [folder / str(number) for number in range(3)]


def options_of(data: Any, **settings: Any) -> dict[str, Any]:
    """Return the options of a loader with 12 lanes."""
    if isinstance(data, Path):
        data = str(data)
    defaults = {"tokenizer": byte_tokenizer(), "eos": EOS, "seq_len": 48, "num_lanes": 12}
    defaults["tokenizer_backend"] = "hf"
    return {"data": data, **defaults, "batch_size": 3, "num_workers": 0, **settings}


def plan(folder: Path, options: dict[str, Any], **length: Any) -> RunPlan:
    return plan_run(**options, **length, measure=False, local=folder / "plan")


Case = tuple[str, dict[str, Any], dict[str, Any]]
"""The data, the options of the loader, and the length of the run."""

CASES: list[Case] = [
    ("one", {"epochs": 1}, {}),
    ("one", {"epochs": 2, "tail": "drop"}, {}),
    ("one", {}, {"tokens": 20_000}),
    ("small", {"packing": "one_per_row", "epochs": 1, "overflow": "rows"}, {}),
    ("small", {"packing": "one_per_row"}, {"tokens": 9_000}),
    ("joined", {"min_tokens": 60, "epochs": 2}, {}),
    ("mixed", {}, {"tokens": "30k"}),
]


def data_of(name: str, corpora: list[Path]) -> Any:
    large, small, other = map(str, corpora)
    return {
        "one": large,
        "small": small,
        "joined": [Stream(small, repeat=2), Stream(other)],
        "mixed": [Stream(large, proportion=0.7), Stream(other, proportion=0.3)],
    }[name]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", CASES)
def test_with_lengths_a_plan_is_what_the_run_reads(
    corpora: list[Path],
    tmp_path: Path,
    world: tuple[int, int],
    case: Case,
) -> None:
    (data, settings, length), (nodes, ranks) = case, world
    options = options_of(data_of(data, corpora), **settings)
    found = plan(tmp_path, options, nodes=nodes, ranks_per_node=ranks, **length)
    steps = None if "epochs" in settings else int(found.steps.value)
    real = read_run(options, tmp_path, nodes, ranks, steps)
    figures = check_figures(found, real, settings)
    exact = {name for name, figure, _ in figures if figure.is_exact}
    assert exact >= {"rows", "steps", "tokens"}
    if "epochs" in settings and nodes == 1:
        assert len(exact) == len(figures)


@pytest.mark.parametrize("case", CASES)
def test_without_lengths_the_stated_error_holds(
    corpora: list[Path], tmp_path: Path, case: Case
) -> None:
    data, settings, length = case
    options = options_of(data_of(data, corpora), **settings)
    exact = plan(tmp_path, options, **length)
    for sample in (0.3, 1.0):
        found = plan(tmp_path, {**options, "lengths": "off"}, sample=sample, **length)
        for name in ("rows", "steps", "tokens", "epochs", "bytes_downloaded"):
            figure = getattr(found, name)
            assert figure.low <= getattr(exact, name).value <= figure.high, (name, figure)


def test_ranks_without_lengths_also_read_what_their_lanes_have_left(
    corpora: list[Path], tmp_path: Path
) -> None:
    """At the end of a finite run without lengths, each rank reads the documents that are left in
    its lanes to learn their sizes. A plan counts the shards of these documents."""
    options = options_of(corpora[0], epochs=1, lengths="off")
    found = plan(tmp_path, options, nodes=2, sample=1.0)

    def make(**rank: Any) -> Any:
        local = tmp_path / f"real-{rank['dp_rank']}"
        return make_loader(**{**options, **rank, "local": local})

    run_leg(make, Leg(ranks=2, batch_size=3, batches=None, ranks_per_node=1))
    for node in found.node_plans:
        real = list((tmp_path / f"real-{node.node}").glob("*/*.mds"))
        assert node.shards.is_exact
        assert node.shards.value == len(real)


@pytest.mark.parametrize("lengths", ["require", "off"])
def test_best_fit_rows_are_as_full_as_the_plan_says(
    corpora: list[Path], tmp_path: Path, lengths: str
) -> None:
    options = options_of(corpora[2], packing="best_fit", lengths=lengths, open_rows=1)
    options["seq_len"] = 256
    found = plan(tmp_path, options, steps=20, sample=1.0)
    real = read_run(options, tmp_path, 1, 1, 20)
    assert (found.rows.value, found.rows.is_exact) == (real.rows, True)
    assert found.tokens.is_exact == (lengths == "require")
    assert found.tokens.low <= real.tokens <= found.tokens.high
    assert 0 < found.padding.value < 0.5
    assert found.any_world == (lengths == "require")


BEST_FIT: list[Case] = [
    ("one", {"epochs": 2}, {}),
    ("one", {"open_rows": 2}, {"tokens": 20_000}),
    ("joined", {"min_tokens": 60, "epochs": 1}, {}),
    ("mixed", {}, {"steps": 30}),
]


@pytest.mark.parametrize("world", WORLDS[:2])
@pytest.mark.parametrize("case", BEST_FIT)
def test_with_lengths_the_length_of_a_best_fit_run_is_exact(
    corpora: list[Path], tmp_path: Path, world: tuple[int, int], case: Case
) -> None:
    data, settings, length = case
    options = options_of(data_of(data, corpora), packing="best_fit", **settings)
    options["seq_len"] = 300
    found = plan(tmp_path, options, nodes=world[0], ranks_per_node=world[1], **length)
    steps = None if "epochs" in settings else int(found.steps.value)
    real = read_run(options, tmp_path, *world, steps)
    figures = [each for each in check_figures(found, real, settings) if each[1].is_exact]
    streams = {f"tokens of {each.name}" for each in found.streams}
    assert {name for name, _, _ in figures} >= {"rows", "steps", "tokens"} | streams
    padding = 1 - real.tokens / (real.rows * 300)
    assert found.padding.is_exact
    assert found.padding.value == pytest.approx(padding)
    assert found.basis == "token lengths"


def test_a_small_cache_downloads_again_within_the_stated_range(
    corpora: list[Path], tmp_path: Path
) -> None:
    options = options_of(corpora[2], download_threads=1, num_canonical_nodes=4)
    free = plan(tmp_path, options, tokens=120_000)
    [node] = free.node_plans
    limit = (free.least_cache_bytes + int(node.all_bytes.value)) // 2
    assert node.working_set_bytes.value < limit < node.all_bytes.value
    options["cache_limit"] = limit
    found = plan(tmp_path, options, tokens=120_000)
    real = read_run(options, tmp_path, 1, 1, int(found.steps.value))
    downloaded = found.node_plans[0].bytes_downloaded
    assert downloaded.low <= real.nodes[0].bytes_downloaded <= downloaded.high
    assert real.nodes[0].peak_bytes <= limit
    assert found.warnings == ()
    for too_small, warning in (
        (free.least_cache_bytes - 1, "refuse to start"),
        (free.least_cache_bytes, "downloaded repeatedly"),
    ):
        options["cache_limit"] = too_small
        [shown] = plan(tmp_path, options, tokens=120_000).warnings or ("",)
        assert warning in shown or too_small >= node.working_set_bytes.value


def test_the_least_cache_is_that_of_the_default_workers(tmp_path: Path) -> None:
    ids = [bytes(range(number % 60 + 9)) for number in range(SAMPLES)]
    stored: dict[str, Any] = {"encoding": "bytes", "compression": "zstd"}
    data = write_mds(tmp_path / "data", ids, shard_samples=[4] * 60, **stored)
    options: dict[str, Any] = {"data": data, "tokens_key": "text", "tokens_dtype": "uint8"}
    options["seq_len"] = 48
    options |= {"num_lanes": 12, "batch_size": 3, "epochs": 1, "download_threads": 1}
    least = plan(tmp_path, options).least_cache_bytes
    fast = plan(tmp_path, {**options, "num_workers": 1}).least_cache_bytes
    assert least == fast < plan(tmp_path, {**options, "num_workers": 4}).least_cache_bytes
    assert plan(tmp_path, {**options, "num_workers": 99}).least_cache_bytes == (
        plan(tmp_path, {**options, "num_workers": 12}).least_cache_bytes
    )
    rank: dict[str, Any] = {"dp_rank": 0, "dp_world_size": 1, "local": tmp_path / "real"}
    with CloudLoader(**options, **rank, cache_limit=least) as loader:
        assert loader.worker_plan().num_workers == 1
    with pytest.raises(CacheError), CloudLoader(**options, **rank, cache_limit=least - 1) as loader:
        loader.worker_plan()


def test_beyond_the_documents_that_are_listed_shuffle_blocks_bound_the_figures(
    corpora: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan does not list the documents of a very long run. Its figures are compared with those of
    a plan that lists them."""
    options = options_of(data_of("mixed", corpora), shuffle_algo="seekable", shuffle_block_size=20)
    length: dict[str, Any] = {"tokens": 30_000, "nodes": 2}
    listed = plan(tmp_path, options, **length)
    monkeypatch.setattr("cloudload.tools.forecast.shard_uses._MOST_LISTED", 0)
    found = plan(tmp_path, options, **length)
    assert (found.rows, found.streams, found.steps) == (listed.rows, listed.streams, listed.steps)
    for node, exact in zip(found.node_plans, listed.node_plans, strict=True):
        assert node.shards.value >= exact.shards.value
        assert node.all_bytes.value <= 1.3 * exact.all_bytes.value
        assert not node.working_set_bytes.is_exact
        ratio = node.working_set_bytes.value / exact.working_set_bytes.value
        assert 0.9 < ratio < 2


def test_the_length_of_a_run_is_checked(corpora: list[Path], tmp_path: Path) -> None:
    options = options_of(corpora[0])
    with pytest.raises(ValueError, match="endless, so its length is unknown"):
        plan(tmp_path, options)
    with pytest.raises(ValueError, match="Set only one of them"):
        plan(tmp_path, options, tokens=5, steps=5)
    shortened = plan(tmp_path, {**options, "epochs": 1}, tokens="1B")
    assert shortened.steps == plan(tmp_path, {**options, "epochs": 1}).steps
    assert "the data ends after" in shortened.warnings[0]
    repeated = plan(tmp_path, options, tokens=int(5 * shortened.tokens.value))
    assert repeated.epochs.value == pytest.approx(5, abs=0.1)
    assert "is repeated 5.0 times, which is more than 4" in repeated.warnings[0]
    assert (repeated.any_world, repeated.worlds) == (True, (1, 2, 3, 4, 6, 12))
    with pytest.raises(ValueError, match="8 ranks cannot share 12 lanes"):
        plan(tmp_path, {**options, "lengths": "off"}, tokens=5, ranks_per_node=8)
    assert [parse_tokens(text) for text in ("300B", "1.5t", "2_000", 7)] == [
        *(300 * 10**9, 1_500 * 10**9, 2_000, 7)
    ]
    with pytest.raises(ValueError, match="such as 300B"):
        parse_tokens("many")


def test_downloads_cost_what_the_table_says(s3_url: str, tmp_path: Path) -> None:
    write_mds(s3_url, random_documents(1, 60), shard_samples=[10] * 6)
    table = tmp_path / "prices.json"
    store = {"per_1000_requests": 1.5, "per_gb": {"moon": 2.0}}
    table.write_text(json.dumps({"currency": "EUR", "stores": {"s3": store}}))
    options = options_of(s3_url, epochs=1)
    found = plan(tmp_path, options, prices=table, sample=1.0)
    assert found.requests.value == 6
    expected = 6 / 1_000 * 1.5 + found.bytes_downloaded.value / 2**30 * 2.0
    assert found.costs["s3, moon"].value == pytest.approx(expected)
    assert found.currency == "EUR"
    listed = plan(tmp_path, options, sample=1.0).costs
    assert set(listed) == {f"s3, {route}" for route in read_prices().stores["s3"].per_gb}
    table.write_text('{"stores": {"s3": {"per_gb": {"moon": -1}, "per_1000_requests": 0}}}')
    with pytest.raises(ValueError, match="not a price table"):
        plan(tmp_path, options, prices=table)


def test_the_reader_is_measured_and_workers_follow(corpora: list[Path], tmp_path: Path) -> None:
    options = options_of(corpora[0], local=tmp_path)
    found = plan_run(**options, steps=10, gpu_tokens_per_s=1e9)
    assert found.first_batch_s is not None
    assert found.first_batch_s.value > 0
    assert found.tokens_per_worker_s is not None
    assert found.workers is not None
    rate = found.tokens_per_worker_s
    assert found.workers.low <= found.workers.value <= found.workers.high
    assert found.workers.value == pytest.approx(1e9 / rate.value, abs=1)


def test_a_run_without_a_batch_has_no_speed(corpora: list[Path], tmp_path: Path) -> None:
    options = options_of(corpora[1], local=tmp_path, epochs=1, tail="drop", batch_size=100_000)
    found = plan_run(**options, gpu_tokens_per_s=1e9)
    assert (found.steps.value, found.rows.value) == (0, 0)
    assert (found.first_batch_s, found.tokens_per_worker_s, found.workers) == (None, None, None)
    assert list(describe_plan(found))


def test_the_command_takes_a_loaders_arguments_from_files_and_flags(
    corpora: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], tokenizer_folder: Path
) -> None:
    config = {"data": str(corpora[0]), "seq_len": 48, "batch_size": 3, "num_lanes": 12}
    config |= {"tokenizer": str(tokenizer_folder), "num_workers": 0, "tokenizer_backend": "hf"}
    yaml, python = tmp_path / "run.yaml", tmp_path / "run.py"
    yaml.write_text(json.dumps(config))
    listed = tmp_path / "list.json"
    listed.write_text("[1, 2]")
    python.write_text(f"config = dict({config!r})")
    common = ["--steps", "20", "--no-measure", "--local", str(tmp_path), "--quiet"]
    page, png = tmp_path / "plan.html", tmp_path / "plan.png"
    outputs = ["--html", str(page), "--png", str(png)]
    assert main(["plan", "--config", str(yaml), *common, *outputs, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["steps"] == {"value": 20, "low": 20, "high": 20, "is_exact": True}
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert png.read_bytes()[1:4] == b"PNG"
    flags = ["--option", "seq_len=96", "--nodes", "2"]
    assert main(["plan", "--config", str(python), *common, *flags]) == 0
    shown = capsys.readouterr().out
    assert "rows     120, of 96 tokens each" in shown
    assert "2 ranks on 2 nodes" in shown
    for wrong, message in (
        (["--steps", "20", "--option", "seqlen=3"], "seq_len"),
        (["--config", str(listed)], "does not contain CloudLoader arguments"),
    ):
        assert main(["plan", "--config", str(yaml), *wrong, "--quiet"]) == 1
        assert message in capsys.readouterr().err


def test_no_text_of_a_plan_becomes_markup(corpora: list[Path], tmp_path: Path) -> None:
    name = "<script>alert(1)</script><b>&amp;"
    data = Stream(str(corpora[0]), name=name, proportion=1.0)
    page = render_plan(plan(tmp_path, options_of(data), steps=5))
    assert name not in page
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&lt;b&gt;&amp;amp;" in page
