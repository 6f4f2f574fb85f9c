"""A plan of a run that repeats its data many times plays a part of it, and extrapolates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudload import Stream, count_tokens
from cloudload.tools.forecast import RunPlan, budget, plan_run
from testkit.corpora import EOS, byte_tokenizer, random_documents, write_mds

SAMPLES = 60


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two small datasets with token lengths, in compressed shards, which nodes download."""
    folder = tmp_path_factory.mktemp("plan")
    for number in range(2):
        texts = random_documents(number, SAMPLES)
        data = write_mds(folder / str(number), texts, shard_samples=[10] * 6, compression="zstd")
        count_tokens(data, tokenizer=byte_tokenizer(), processes=1, progress=False)
    return [folder / str(number) for number in range(2)]


def plan(data: Any, **settings: Any) -> RunPlan:
    options = {"tokenizer": byte_tokenizer(), "eos": EOS, "seq_len": 64, "num_lanes": 4}
    options |= {"tokenizer_backend": "hf", "batch_size": 4, "measure": False}
    return plan_run(data, **{**options, **settings})


def play_few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extrapolate from 10 epochs on."""
    monkeypatch.setattr(budget, "_FEWEST_EPOCHS", 10)
    monkeypatch.setattr(budget, "_MOST_WORK", 0)


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
    corpora: list[Path], monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    whole = plan(str(corpora[0]), **settings)
    play_few_epochs(monkeypatch)
    found = plan(str(corpora[0]), **settings)
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
    corpora: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [Stream(str(corpora[0]), proportion=0.8), Stream(str(corpora[1]), proportion=0.2)]
    whole = plan(data, tokens="600k")
    play_few_epochs(monkeypatch)
    found = plan(data, tokens="600k")
    assert is_extrapolated(found)
    for own, expected in zip(found.streams, whole.streams, strict=True):
        assert own.share.value == pytest.approx(expected.share.value, abs=0.01)
        assert own.epochs.low <= expected.epochs.value <= own.epochs.high


@pytest.mark.parametrize("length", [{"tokens": "300B"}, {"steps": 99_999_999_999}])
def test_a_run_of_millions_of_epochs_plays_only_some_of_them(
    corpora: list[Path], monkeypatch: pytest.MonkeyPatch, length: dict[str, Any]
) -> None:
    played: list[int] = []
    count_at = budget.count_at

    def noting(lengths: Any, start: Any, row: int) -> Any:
        played.append(row)
        return count_at(lengths, start, row)

    monkeypatch.setattr(budget, "count_at", noting)
    found = plan(str(corpora[0]), **length)
    assert max(played) < 20_000
    assert any("reads its data " in each for each in found.warnings)
    assert found.steps.is_exact
    assert found.epochs.value > 1_000_000


def test_more_steps_than_tokens_can_be_counted_are_refused(corpora: list[Path]) -> None:
    with pytest.raises(ValueError, match=r"steps is 99,999,999,999,999,999, with 256 tokens each"):
        plan(str(corpora[0]), steps=99_999_999_999_999_999)


def test_a_plan_does_not_measure_a_reader_whose_steps_repeat_the_data(corpora: list[Path]) -> None:
    found = plan(str(corpora[0]), steps=8, batch_size=512, measure=True)
    assert found.tokens_per_worker_s is None
    assert any("speed of the reader was not measured" in each for each in found.warnings)
