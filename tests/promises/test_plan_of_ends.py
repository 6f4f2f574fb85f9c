"""A plan of a mixture whose streams end matches the real run, on an S3 server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, Stream
from cloudload.run.saved import read_state
from cloudload.tools.forecast.plan_report import describe_plan
from testkit import plans
from testkit.plans import check_figures, check_unlisted, plan, read_run, write_zipped
from testkit.servers import BUCKET, S3Server

TEXTS = {"web": (72, 30, 9), "code": (72, 8, 6), "books": (72, 60, 12), "archive": (300, 60, 100)}
"""For each dataset: the number of documents, the most words in one, and the number of shards."""
WEIGHTS = {"web": 0.5, "code": 0.2, "books": 0.3}
ONE_NODE, EVEN, UNEVEN = (1, 2), (3, 1), (5, 1)
"""Pairs (nodes, ranks per node). The 12 lanes are not divisible by the 5 ranks of `UNEVEN`."""


@pytest.fixture(scope="module")
def urls(s3_server: S3Server) -> dict[str, str]:
    """Compressed datasets with token lengths, on an S3 server."""
    assert s3_server.endpoint
    root = f"s3://{BUCKET}/plan-of-ends"
    return {
        name: write_zipped(f"{root}/{name}", seed, samples, shards, max_words=words)
        for seed, (name, (samples, words, shards)) in enumerate(TEXTS.items())
    }


def options_of(
    urls: dict[str, str], caps: dict[str, int] | None = None, **settings: Any
) -> dict[str, Any]:
    """Return the options of a loader of mixed streams. `caps` maps stream names to `max_epochs`."""
    streams = [
        Stream(urls[name], name=name, proportion=weight, max_epochs=(caps or {}).get(name))
        for name, weight in settings.pop("weights", WEIGHTS).items()
    ]
    return plans.options_of(streams, **{"seq_len": 96, **settings})


Case = tuple[dict[str, int], dict[str, Any], dict[str, Any]]
"""The `max_epochs` of streams, the options of the loader, and the length of the run."""

WHOLE: list[Case] = [
    ({}, {"epochs": 1}, {}),
    ({"code": 3}, {"epochs": 1, "min_tokens": 40}, {}),
    ({}, {"epochs": 2, "packing": "best_fit"}, {}),
    ({}, {"epochs": 1, "packing": "one_per_row", "overflow": "rows"}, {}),
]
SKEWED = {"code": 0.9, "archive": 0.1}
CUT: list[Case] = [
    ({}, {"epochs": 1, "stopping": "first"}, {}),
    ({"code": 12}, {"epochs": 1, "stopping": "first", "weights": SKEWED, "predownload": 12}, {}),
    ({"books": 1}, {"packing": "best_fit", "stopping": "first", "tail": "drop"}, {}),
    ({"web": 1}, {"packing": "one_per_row"}, {"steps": 40}),
    ({"web": 1, "code": 1}, {}, {"tokens": "30k"}),
    ({"web": 2}, {"packing": "best_fit", "epochs": 1}, {"steps": 20}),
]


RUNS = [(case, ONE_NODE) for case in WHOLE] + [(case, EVEN) for case in (WHOLE[3], *CUT)]
RUNS += [(case, UNEVEN) for case in (WHOLE[1], WHOLE[2], CUT[0])]


@pytest.mark.parametrize(("case", "world"), RUNS)
def test_a_plan_of_a_finite_mixture_is_what_the_run_reads(
    urls: dict[str, str], tmp_path: Path, case: Case, world: tuple[int, int]
) -> None:
    (caps, settings, length), (nodes, ranks) = case, world
    options = options_of(urls, caps, **settings)
    found = plan(tmp_path, options, nodes=nodes, ranks_per_node=ranks, **length)
    real = read_run(options, tmp_path, nodes, ranks, int(found.steps.value) if length else None)
    figures = check_figures(found, real, settings)
    estimates = {name for name, figure, _ in figures if not figure.is_exact}
    on_nodes = ("shards", "peak cache", "bytes downloaded")
    assert all(name.startswith("node") and name.endswith(on_nodes) for name in estimates)
    if "tail" not in settings:  # tail="drop" drops the last rows of the stream that ends
        assert any(name.startswith("last step") for name, _, _ in figures)
    if case in WHOLE and nodes == 1:
        assert not estimates


def test_a_plan_knows_the_tails_of_streams(urls: dict[str, str], tmp_path: Path) -> None:
    options = options_of(urls, {"code": 1}, packing="best_fit", epochs=2, stopping="first")
    found = plan(tmp_path, options)
    ends = {each.name: each.last_step for each in found.streams if each.last_step is not None}
    assert ends == {"code": found.steps}
    [code] = [each for each in found.streams if each.name == "code"]
    with CloudLoader(**options, dp_rank=0, dp_world_size=1, local=tmp_path / "real") as loader:
        list(loader)
        position = read_state(loader.state_dict()).position
    assert code.tail_rows is not None
    assert code.tail_rows.value == sum(rows for _, rows in position.stages_of(1))
    assert code.tail_rows.is_exact


def test_a_plan_shows_where_streams_end(urls: dict[str, str], tmp_path: Path) -> None:
    found = plan(tmp_path, options_of(urls, {"web": 1}), steps=100, nodes=2)
    [web, code, _] = found.streams
    assert web.last_step is not None
    assert (web.epochs.value, code.last_step, code.tail_rows) == (1, None, None)
    shown = "\n".join(describe_plan(found))
    assert f"; 1 epoch; ends in step {web.last_step}, with a tail of {web.tail_rows} row" in shown
    assert shown.count("does not end") == 2
    whole = plan(tmp_path, options_of(urls, epochs=1, stopping="first"))
    assert whole.description.endswith("until the first stream ends")


def test_a_mixture_with_an_endless_stream_needs_a_length(
    urls: dict[str, str], tmp_path: Path
) -> None:
    options = options_of(urls, {"web": 1})
    with pytest.raises(ValueError, match=r"endless.*no max_epochs\), or use stopping='first'"):
        plan(tmp_path, options)
    assert plan(tmp_path, {**options, "stopping": "first"}).steps.is_exact
    with pytest.raises(ValueError, match="needs token lengths to know"):
        plan(tmp_path, {**options, "lengths": "off"}, steps=5)


def test_beyond_the_documents_that_are_listed_the_ends_stay_exact(
    urls: dict[str, str], tmp_path: Path
) -> None:
    options = options_of(urls, epochs=2, shuffle_algo="seekable", shuffle_block_size=20)
    nodes = check_unlisted(lambda: plan(tmp_path, options, nodes=2))
    assert {len(node.bytes_by_epoch) for node, _ in nodes} == {2}
