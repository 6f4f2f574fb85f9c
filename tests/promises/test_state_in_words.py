"""A checkpoint's description matches the position of its run, however the state was saved."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from cloudload import Stream
from cloudload.errors import StreamChangedError
from cloudload.provenance import compare_states, compare_with_loader, describe_state, load_state
from testkit.corpora import random_documents, write_mds
from testkit.loaders import make_loader


@pytest.fixture(scope="module")
def streams(module_folder: Path) -> list[str]:
    return [
        write_mds(module_folder / name, random_documents(seed, 60), shard_bytes=2_000)
        for seed, name in enumerate(("web", "code"))
    ]


RUNS: list[dict[str, Any]] = [
    {},
    {"mixed": True},
    {"packing": "best_fit"},
    {"epochs": 1, "batches": 10_000},
    {"packing": "one_per_row", "min_tokens": 40},
    {"batches": 0},
]


def save_run(streams: list[str], run: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Run a loader, and return its last state and its statistics at that state."""
    options = dict(run)
    batches = options.pop("batches", 17)
    data: Any = [Stream(url) for url in streams]
    if options.pop("mixed", False):
        shares = zip(streams, (0.7, 0.3), strict=True)
        data = [Stream(url, proportion=share) for url, share in shares]
    with make_loader(data, **options) as loader:
        list(loader.take(batches))
        return loader.state_dict(), loader.stats()


@pytest.mark.parametrize("run", RUNS)
def test_the_words_are_the_statistics_of_the_run(streams: list[str], run: dict[str, Any]) -> None:
    state, stats = save_run(streams, run)
    found = describe_state(state)
    for name in ("rows", "tokens", "padding", "failed"):
        assert getattr(found, name) == getattr(stats, name), name
    assert [each.name for each in found.streams] == list(stats.streams)
    for each in found.streams:
        own = stats.streams[each.name]
        assert (each.tokens, each.documents) == (own.tokens, own.documents)
        assert (each.share, each.epoch) == pytest.approx((own.share, own.epoch))
    assert found.steps * 4 == found.rows
    assert found.worlds == (1, 2, 3, 4, 6, 12)
    assert found.is_in_tail == ("epochs" in run)
    for lane in found.lanes:
        epochs = [each.epoch for each in found.streams if each.name in lane.streams]
        assert lane.first_epoch - 0.3 <= epochs[0] <= lane.last_epoch + 0.3
    assert found.data == tuple(streams)


def test_the_command_reads_a_state_however_it_was_saved(
    streams: list[str], tmp_path: Path, cli: Any
) -> None:
    state, stats = save_run(streams, {})
    whole = {"model": {"weight": torch.ones(3)}, "step": 17, "data": [{"loader": state}]}
    (tmp_path / "plain.json").write_text(json.dumps(state))
    torch.save(state, tmp_path / "state.pt")
    torch.save(whole, tmp_path / "whole.pt")
    names = ("plain.json", "state.pt", "whole.pt")
    [shown] = {cli("state", "show", tmp_path / name).out for name in names}
    assert f"after 17 steps: 68 rows of 16 tokens, {stats.tokens:,} tokens" in shown
    assert "1, 2, 3, 4, 6, 12 ranks; any with token lengths" in shown
    printed = cli("state", "show", tmp_path / "whole.pt", "--json").out
    assert json.loads(printed) == describe_state(state).as_dict()


def test_fields_that_streams_do_not_have_are_shown_as_none(
    streams: list[str], tmp_path: Path, cli: Any
) -> None:
    state, _ = save_run(streams, {"mixed": True})
    path = tmp_path / "state.json"
    path.write_text(json.dumps({**state, "max_epochs": ",3"}))
    shown = {line.strip() for line in cli("state", "show", path).out.splitlines()}
    assert any(re.fullmatch(r"tokens_key +none( .*)?", line) for line in shown)
    assert any(re.fullmatch(r"max_epochs +none, 3( .*)?", line) for line in shown)
    assert any(line.startswith("web   12 lanes from epoch") for line in shown)
    assert "tokenizer none, or an object without a name" in shown


def test_a_selection_is_shown_with_the_documents_that_it_left_out(
    streams: list[str], tmp_path: Path, cli: Any
) -> None:
    (tmp_path / "drop.csv").write_text("shard,index\n0,0\n0,3\n1,1\n")
    data = [Stream(streams[0]), Stream(streams[1], drop=str(tmp_path / "drop.csv"))]
    with make_loader(data, epochs=1, local=tmp_path / "cache") as loader:
        list(loader)
        state, path = loader.state_dict(), tmp_path / "state.json"
    path.write_text(json.dumps(state))
    assert [each.deselected for each in describe_state(state).streams] == [0, 3]
    shown = cli("state", "show", path).out
    [web, code] = [line for line in shown.splitlines() if line.startswith(("  web", "  code"))]
    assert "not selected" not in web
    assert " 57 documents, 3 not selected, epoch 1.000" in code
    digest = state["select"].split(",")[1]
    assert re.search(rf"  select +none, {digest}  \(digests of the documents that are read", shown)


def test_a_difference_says_what_a_resume_does_about_it(
    streams: list[str], tmp_path: Path, cli: Any
) -> None:
    before, _ = save_run(streams, {"batches": 3})
    later, _ = save_run(streams, {"batches": 5})
    other, _ = save_run(streams, {"batches": 3, "seed": 4, "min_tokens": 2, "seq_len": 32})
    assert compare_states(before, before) == []
    moved = {each.name: each.rule for each in compare_states(before, later)}
    assert moved.keys() >= {"rows", "batches", "cursors"}
    assert {rule for rule in moved.values() if not rule.startswith("position")} == set()
    rules = {each.name: each.rule for each in compare_states(before, other)}
    assert rules["seed"].startswith("held: a resume rejects")
    assert "on_change={'min_tokens': 'accept'}" in rules["min_tokens"]
    assert rules["seq_len"].startswith("may change")
    paths = [tmp_path / f"{number}.json" for number in range(3)]
    for path, state in zip(paths, (before, later, other), strict=True):
        path.write_text(json.dumps(state))
    diff = ["state", "diff", paths[0]]
    assert "+2 steps, +8 rows and +128 tokens" in cli(*diff, paths[1]).out
    held = "seed: 17 → 4 (held: a resume rejects a different value)"
    assert held in cli(*diff, paths[2], status=1).out
    assert cli(*diff, paths[0]).out == "the states are equal\n"
    assert "Pass one for show, two for diff" in cli(*diff, status=1).err


@pytest.mark.parametrize(
    ("settings", "changed", "refusal"),
    [
        ({"batch_size": 2}, [], None),
        ({"seq_len": 32}, ["seq_len"], None),
        ({"seed": 4}, ["seed"], "seed: saved 17, found 4"),
        ({"eos": None}, ["bos_eos", "sources"], "bos_eos"),
    ],
)
def test_a_state_is_compared_with_a_loader(
    streams: list[str], settings: dict[str, Any], changed: list[str], refusal: str | None
) -> None:
    state, _ = save_run(streams, {})
    with make_loader([Stream(url) for url in streams], **settings) as loader:
        found, reason = compare_with_loader(state, loader)
        assert (loader.rows == 68) == (refusal is None)
    assert sorted(each.name for each in found) == changed
    assert (reason is None) if refusal is None else (reason is not None and refusal in reason)


def test_the_command_compares_a_checkpoint_with_a_config(
    streams: list[str], tmp_path: Path, tokenizer_folder: Path, cli: Any
) -> None:
    config = {"data": streams[0], "tokenizer": str(tokenizer_folder), "seq_len": 16}
    with make_loader(**{**config, "num_lanes": None, "eos": "auto"}, local=tmp_path) as loader:
        next(iter(loader))
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    diff = ["state", "diff", tmp_path / "state.json", "--config", tmp_path / "run.yaml"]
    assert cli(*diff).out.endswith("a loader with these options continues from it\n")
    found = json.loads(cli(*diff, "--seed", "4", "--json", status=1).out)
    assert [each["name"] for each in found["differences"]] == ["seed"]
    assert "seed: saved 17, found 4" in found["refusal"]


def test_a_file_without_a_state_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text('{"model": 1}')
    with pytest.raises(StreamChangedError, match="has no cloudload state"):
        describe_state(load_state(tmp_path / "none.json"))
