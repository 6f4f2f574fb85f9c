"""A plan matches the real run, and every estimate states how far off it may be.

A plan of a run that repeats its data many times plays a part of it, and extrapolates.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, Stream
from cloudload.errors import CacheError
from cloudload.forecast import RunPlan, plan_run
from cloudload.testing import Leg, run_leg
from cloudload.tools.forecast import budget
from cloudload.tools.forecast.budget import parse_tokens
from cloudload.tools.forecast.plan_report import describe_plan
from testkit.corpora import write_mds
from testkit.noted_calls import note_calls
from testkit.plans import check_figures, check_unlisted, options_of, plan, read_run, write_zipped

WORLDS = [(1, 2), (2, 2), (2, 4)]  # (nodes, ranks per node); 8 ranks cannot share 12 lanes
SAMPLES = 240


@pytest.fixture(scope="module")
def corpora(module_folder: Path) -> list[str]:
    """Three compressed datasets with token lengths."""
    kinds = enumerate(((30, 20), (8, 12), (60, 30)))
    lines = [f"{shard},{index}" for shard in range(0, 30, 2) for index in range(8) if index % 3]
    (module_folder / "keep.csv").write_text("\n".join(["shard,index", *lines]))
    return [
        write_zipped(module_folder / f"{seed}", seed, SAMPLES, shards, max_words=words)
        for seed, (words, shards) in kinds
    ]


Case = tuple[str, dict[str, Any], dict[str, Any]]
"""The data, the options of the loader, and the length of the run."""

CASES: list[Case] = [
    ("one", {"epochs": 1}, {}),
    ("one", {"epochs": 2, "tail": "drop"}, {}),
    ("one", {"epochs": 1, "row_bos": 7}, {}),
    ("one", {}, {"tokens": 20_000}),
    ("small", {"packing": "one_per_row", "epochs": 1, "overflow": "rows"}, {}),
    ("small", {"packing": "one_per_row"}, {"tokens": 9_000}),
    ("joined", {"min_tokens": 60, "max_tokens": 300, "epochs": 2}, {}),
    ("mixed", {}, {"tokens": "30k"}),
]


def data_of(name: str, corpora: list[str]) -> Any:
    large, small, other = corpora
    return {
        "one": large,
        "small": small,
        "joined": [Stream(small, repeat=2), Stream(other)],
        "mixed": [Stream(large, proportion=0.7), Stream(other, proportion=0.3)],
        "selected": Stream(other, select=f"{Path(other).parent}/keep.csv"),
    }[name]


SELECTED: list[Case] = [
    ("selected", {"epochs": 1}, {}),
    ("selected", {"packing": "best_fit", "epochs": 2}, {}),
    ("selected", {"shuffle_algo": "seekable", "shuffle_block_size": 20}, {"tokens": 20_000}),
]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", CASES + SELECTED)
def test_with_lengths_a_plan_is_what_the_run_reads(
    corpora: list[str], tmp_path: Path, world: tuple[int, int], case: Case
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
    corpora: list[str], tmp_path: Path, case: Case
) -> None:
    data, settings, length = case
    options = options_of(data_of(data, corpora), **settings)
    exact = plan(tmp_path, options, **length)
    for sample in (0.3, 1.0):
        found = plan(tmp_path, {**options, "lengths": "off"}, sample=sample, **length)
        for name in ("rows", "steps", "tokens", "epochs", "bytes_downloaded"):
            figure = getattr(found, name)
            assert figure.low <= getattr(exact, name).value <= figure.high, (name, figure)


def test_a_plan_says_what_a_sparse_selection_costs(corpora: list[str], tmp_path: Path) -> None:
    found = plan(tmp_path, options_of(data_of("selected", corpora), epochs=1))
    whole = plan(tmp_path, options_of(corpora[2], epochs=1))
    [stream], [other] = found.streams, whole.streams
    assert (stream.samples, stream.selected) == (SAMPLES, 75)
    assert stream.egress == pytest.approx(8 / 5)
    assert (other.selected, other.egress) == (SAMPLES, 1)
    assert 0.4 < found.bytes_downloaded.value / whole.bytes_downloaded.value < 0.6
    assert found.least_cache_bytes <= whole.least_cache_bytes
    text = "\n".join(describe_plan(found))
    assert "75 of 240 documents selected" in text
    assert "1.60 times as many are fetched" in text


def test_ranks_without_lengths_also_read_what_their_lanes_have_left(
    corpora: list[str], tmp_path: Path
) -> None:
    """At the end of a finite run without lengths, each rank reads the documents that are left in
    its lanes to learn their sizes. A plan counts the shards of these documents."""
    options = options_of(corpora[0], epochs=1, lengths="off")
    found = plan(tmp_path, options, nodes=2, sample=1.0)

    def make(**rank: Any) -> CloudLoader:
        return CloudLoader(**{**options, **rank, "local": tmp_path / f"real-{rank['dp_rank']}"})

    run_leg(make, Leg(ranks=2, batch_size=3, batches=None, ranks_per_node=1))
    for node in found.node_plans:
        real = list((tmp_path / f"real-{node.node}").glob("*/*.mds"))
        assert node.shards.is_exact
        assert node.shards.value == len(real)


@pytest.mark.parametrize("lengths", ["require", "off"])
def test_best_fit_rows_are_as_full_as_the_plan_says(
    corpora: list[str], tmp_path: Path, lengths: str
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
    corpora: list[str], tmp_path: Path, world: tuple[int, int], case: Case
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
    corpora: list[str], tmp_path: Path
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
    options |= {"seq_len": 48, "num_lanes": 12, "batch_size": 3, "epochs": 1, "download_threads": 1}
    least = plan(tmp_path, options).least_cache_bytes
    fast = plan(tmp_path, {**options, "num_workers": 1}).least_cache_bytes
    assert least == fast < plan(tmp_path, {**options, "num_workers": 4}).least_cache_bytes
    most, too_many = (plan(tmp_path, {**options, "num_workers": count}) for count in (12, 99))
    assert most.least_cache_bytes == too_many.least_cache_bytes
    rank: dict[str, Any] = {"dp_rank": 0, "dp_world_size": 1, "local": tmp_path / "real"}
    with CloudLoader(**options, **rank, cache_limit=least) as loader:
        assert loader.worker_plan().share.num_workers == 1
    with pytest.raises(CacheError), CloudLoader(**options, **rank, cache_limit=least - 1) as loader:
        loader.worker_plan()


def test_beyond_the_documents_that_are_listed_shuffle_blocks_bound_the_figures(
    corpora: list[str], tmp_path: Path
) -> None:
    """A plan does not list the documents of a very long run."""
    options = options_of(data_of("mixed", corpora), shuffle_algo="seekable", shuffle_block_size=20)
    nodes = check_unlisted(lambda: plan(tmp_path, options, tokens=30_000, nodes=2))
    assert all(node.all_bytes.value <= 1.3 * exact.all_bytes.value for node, exact in nodes)


def test_the_length_of_a_run_is_checked(corpora: list[str], tmp_path: Path) -> None:
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
    for text, tokens in (("300B", 3 * 10**11), ("1.5t", 15 * 10**11), ("2_000", 2_000), (7, 7)):
        assert parse_tokens(text) == tokens
    with pytest.raises(ValueError, match="such as 300B"):
        parse_tokens("many")


def test_a_plan_counts_the_requests_and_bytes_of_each_node(
    corpora: list[str], tmp_path: Path
) -> None:
    found = plan(tmp_path, options_of(corpora[0], epochs=1), nodes=2)
    real = read_run(options_of(corpora[0], epochs=1), tmp_path, 2, 1, None)
    nodes = found.as_dict()["node_plans"]
    assert [each["requests"]["value"] for each in nodes] == [each.shards for each in real.nodes]
    assert found.requests.value == sum(each.shards for each in real.nodes)
    assert found.bytes_downloaded.value == sum(each.bytes_downloaded for each in real.nodes)


def test_the_reader_is_measured_and_workers_follow(corpora: list[str], tmp_path: Path) -> None:
    options = options_of(corpora[0], local=tmp_path)
    found = plan_run(**options, steps=10, gpu_tokens_per_s=1e9)
    assert found.first_batch_s is not None
    assert found.first_batch_s.value > 0
    assert found.tokens_per_worker_s is not None
    assert found.workers is not None
    rate = found.tokens_per_worker_s
    assert found.workers.low <= found.workers.value <= found.workers.high
    assert found.workers.value == pytest.approx(1e9 / rate.value, abs=1)


def test_a_run_without_a_batch_has_no_speed(corpora: list[str], tmp_path: Path) -> None:
    options = options_of(corpora[1], local=tmp_path, epochs=1, tail="drop", batch_size=100_000)
    found = plan_run(**options, gpu_tokens_per_s=1e9)
    assert (found.steps.value, found.rows.value) == (0, 0)
    assert (found.first_batch_s, found.tokens_per_worker_s, found.workers) == (None, None, None)
    assert list(describe_plan(found))


def test_the_command_takes_a_loaders_arguments_from_files_and_flags(
    corpora: list[str], tmp_path: Path, cli: Any, tokenizer_folder: Path
) -> None:
    config = {"data": corpora[0], "seq_len": 48, "batch_size": 3, "num_lanes": 12}
    config |= {"tokenizer": str(tokenizer_folder), "num_workers": 0, "tokenizer_backend": "hf"}
    yaml, python, listed = (tmp_path / name for name in ("run.yaml", "run.py", "list.json"))
    yaml.write_text(json.dumps(config))
    listed.write_text("[1, 2]")
    python.write_text(f"config = dict({config!r})")
    common = ["--steps", "20", "--no-measure", "--local", tmp_path, "--quiet"]
    shown = cli("plan", "--config", yaml, *common, "--json")
    assert json.loads(shown.out)["steps"] == {"value": 20, "low": 20, "high": 20, "is_exact": True}
    flags = ["--seq-len", "96", "--nodes", "2"]
    shown = cli("plan", "--config", python, *common, *flags).out
    assert "rows     120, of 96 tokens each" in shown
    assert "2 ranks on 2 nodes" in shown
    for wrong, message in (
        (["--steps", "20", "--option", "seqlen=3"], "Did you mean --seq-len?"),
        (["--config", listed], "does not contain CloudLoader arguments"),
    ):
        error = cli("plan", "--config", yaml, *wrong, "--quiet", status=1).err
        assert message in error


# ---------------------------------------------------------------- many epochs


@pytest.fixture(scope="module")
def small(module_folder: Path) -> list[str]:
    """Two small datasets with token lengths."""
    root = module_folder / "small"
    return [write_zipped(root / f"{seed}", seed, samples=60, shards=6) for seed in (0, 1)]


def plan_small(data: Any, **settings: Any) -> RunPlan:
    own = {"seq_len": 64, "num_lanes": 4, "batch_size": 4, "measure": False, **settings}
    return plan_run(**options_of(data, **own))


def play_few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extrapolate from 10 epochs on."""
    monkeypatch.setattr(budget, "FEWEST_EPOCHS", 10)
    monkeypatch.setattr(budget, "MOST_WORK", 0)


def is_extrapolated(found: RunPlan) -> bool:
    return any("the rest was extrapolated" in each for each in found.warnings)


@pytest.mark.parametrize(
    "settings",
    [
        {"tokens": "400k"},
        {"steps": 1_500},
        {"tokens": "300k", "packing": "best_fit"},
        {"tokens": "300k", "packing": "one_per_row", "overflow": "rows"},
        {"tokens": "300k", "lengths": "off"},
        {"tokens": "400k", "nodes": 2, "cache_limit": 20_000},
    ],
)
def test_an_extrapolated_plan_has_the_figures_of_the_whole_run(
    small: list[str], monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    whole = plan_small(small[0], **settings)
    play_few_epochs(monkeypatch)
    found = plan_small(small[0], **settings)
    assert (is_extrapolated(whole), is_extrapolated(found)) == (False, True)
    for name in ("steps", "rows", "tokens", "epochs", "bytes_downloaded"):
        expected = getattr(whole, name).value
        assert getattr(found, name).value == pytest.approx(expected, rel=0.02), name
    assert found.node_plans[0].shards.value == whole.node_plans[0].shards.value
    if settings.get("packing", "concat") == "concat":
        assert (found.steps, found.tokens) == (whole.steps, whole.tokens)
        assert found.tokens.is_exact
    assert not found.epochs.is_exact


def test_the_streams_of_an_extrapolated_mixture_keep_their_shares(
    small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [Stream(small[0], proportion=0.8), Stream(small[1], proportion=0.2)]
    whole = plan_small(data, tokens="600k")
    play_few_epochs(monkeypatch)
    found = plan_small(data, tokens="600k")
    assert is_extrapolated(found)
    for own, expected in zip(found.streams, whole.streams, strict=True):
        assert own.share.value == pytest.approx(expected.share.value, abs=0.01)
        assert own.epochs.low <= expected.epochs.value <= own.epochs.high


@pytest.mark.parametrize("length", [{"tokens": "300B"}, {"steps": 99_999_999_999}])
def test_a_run_of_millions_of_epochs_plays_only_some_of_them(
    small: list[str], monkeypatch: pytest.MonkeyPatch, length: dict[str, Any]
) -> None:
    played: list[int] = []
    note_calls(monkeypatch, budget, "count_at", lambda *args: played.append(args[2]))
    found = plan_small(small[0], **length)
    assert max(played) < 20_000
    assert any("reads its data " in each for each in found.warnings)
    assert found.steps.is_exact
    assert found.epochs.value > 1_000_000


def test_more_steps_than_tokens_can_be_counted_are_refused(small: list[str]) -> None:
    with pytest.raises(ValueError, match=r"steps is 99,999,999,999,999,999, with 256 tokens each"):
        plan_small(small[0], steps=99_999_999_999_999_999)


def test_a_reader_that_ends_before_it_is_measured_has_no_known_speed(small: list[str]) -> None:
    found = plan_small(small[0], epochs=1, measure=True, gpu_tokens_per_s=1e9)
    lines = list(describe_plan(found))
    assert "unknown, because there is too little data to measure it" in "\n".join(lines)
    assert not any("nan" in line.split() for line in lines)
    assert found.workers is None


def test_a_plan_does_not_measure_a_reader_whose_steps_repeat_the_data(small: list[str]) -> None:
    found = plan_small(small[0], steps=8, batch_size=512, measure=True)
    assert found.tokens_per_worker_s is None
    assert any("speed of the reader was not measured" in each for each in found.warnings)
