"""`describe()` shows every setting, and where each value comes from."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import CloudLoader, Stream
from cloudload.data.storage.locations import Location
from cloudload.loading.delivery.working_set import measure_working_set
from cloudload.order.lanes import Lanes
from cloudload.system import counted
from testkit.corpora import random_documents, write_mds
from testkit.counted import count
from testkit.loaders import list_settings, make_loader
from testkit.reference_order import order_of


def origins(loader: CloudLoader) -> dict[str, str]:
    return {setting.name: setting.origin for setting in loader.describe().settings}


def test_values_are_given_or_from_data_state_or_default(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "mds", random_documents(7, 60), shard_bytes=2_000)
    loader = make_loader(folder, seed=5, num_lanes=None)
    found = origins(loader)
    assert found["seq_len"] == found["seed"] == found["tokenizer"] == "given"
    assert (found["num_workers"], found["packing"]) == ("given", "default")
    assert found["num_lanes"] == found["num_canonical_nodes"] == "from the data"
    assert loader.describe()["num_lanes"] == loader.num_lanes

    resumed = make_loader(folder, seed=5, num_lanes=None)
    resumed.load_state_dict(loader.state_dict())
    assert origins(resumed)["num_lanes"] == "from the state"
    assert origins(make_loader(folder, num_lanes=24))["num_lanes"] == "given"


def test_streams_are_listed_with_samples_and_shards(tmp_path: Path) -> None:
    streams = [
        Stream(
            write_mds(tmp_path / name, random_documents(seed, 40), shard_bytes=2_000),
            name=name,
            proportion=weight,
        )
        for seed, (name, weight) in enumerate([("web", 3.0), ("code", 1.0)])
    ]
    description = make_loader(streams, num_lanes=12).describe()
    assert description["stream web"] == description["stream code"] == 40
    assert any("weight 3" in str(setting) for setting in description.settings)
    assert "weight 3" in description._repr_html_()


def test_streams_say_what_their_documents_are_made_of(tmp_path: Path) -> None:
    texts = random_documents(1, 20)
    folder = write_mds(tmp_path / "data", texts, extra={"body": ("str", texts)})
    streams = [
        Stream(folder, name="plain", proportion=1),
        Stream(folder, name="body", text_key="body", proportion=1),
        Stream(folder, name="code", transform=str, transform_id="v2", proportion=1),
    ]
    loader = make_loader(streams)
    notes = {each.name: each.note.split(" in 1 shard")[0] for each in loader.describe().settings}
    assert notes["stream plain"] == "samples"
    assert notes["stream body"] == "samples of text in column 'body'"
    assert notes["stream code"] == "samples for transform transform_id=v2"


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(1, "rank", "1 rank"), (0, "rank", "0 ranks"), (2_000, "shard", "2,000 shards")],
)
def test_one_of_a_thing_is_singular(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text


def test_a_loader_of_one_rank_and_one_shard_is_described_as_such(tmp_path: Path) -> None:
    text = list_settings(make_loader(write_mds(tmp_path / "mds", random_documents(7, 60))))
    assert "rows on 1 rank\n" in text
    assert "in 1 shard, from" in text


def test_the_global_batch_follows_from_batch_size_and_ranks(tmp_path: Path) -> None:
    loader = make_loader(write_mds(tmp_path / "mds", random_documents(7, 60)))
    assert origins(loader)["global_batch"] == "from batch_size and ranks"


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (0, "0 (this process makes the rows)"),
        (2, "2 per rank"),
        (99, "12 per rank, not 99, because a rank has no more lanes"),
    ],
)
def test_the_number_of_workers_is_the_one_that_a_rank_starts(
    folder: str, asked: int, shown: str
) -> None:
    settings = make_loader(folder, num_workers=asked, num_lanes=12).describe().settings
    [found] = [each for each in settings if each.name == "num_workers"]
    assert (str(found), found.origin) == (shown, "given")


def test_lengths_are_described_by_the_place_where_they_were_found(tmp_path: Path) -> None:
    folder = str(write_mds(tmp_path / "mds", random_documents(7, 60)))
    places = [f"{folder}/lengths", str(tmp_path / "elsewhere")]
    for place, lengths in zip(places, ["auto", places[1]], strict=True):
        count(folder, out=place)
        [found] = [
            each
            for each in make_loader(folder, lengths=lengths).describe().settings
            if each.name == "lengths"
        ]
        assert str(found) == f"{found.value} from {place}"


def test_an_unknown_setting_is_answered_with_the_one_that_was_meant(tmp_path: Path) -> None:
    description = make_loader(write_mds(tmp_path / "mds", random_documents(7, 60))).describe()
    with pytest.raises(
        KeyError,
        match=r"describe\(\) has no setting 'working_set'\. Did you mean working_set_bytes\?",
    ):
        description["working_set"]
    with pytest.raises(KeyError, match=r"'zzz'\. Use num_lanes, "):
        description["zzz"]


def test_a_description_is_plain_values_text_and_a_table(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "<mds>", random_documents(7, 60), shard_bytes=2_000)
    description = make_loader(folder).describe()
    assert json.loads(json.dumps(description.as_dict()))["seq_len"] == 16
    lines = str(description).splitlines()
    assert lines[0].startswith("CloudLoader(")
    assert len(lines) > len(description.settings)
    assert "<mds>" not in description._repr_html_()
    assert "&lt;mds&gt;" in description._repr_html_()


# ---------------------------------------------------------------- the working set


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any),
    num_nodes=st.sampled_from([1, 2, 3, 4, 6]),
    block_size=st.integers(2, 60),
    hosts=st.sampled_from([1, 2, 3]),
)
def test_the_working_set_is_told_without_building_the_order(
    sizes: list[int], num_nodes: int, block_size: int, hosts: int
) -> None:
    order = order_of(sizes, min(num_nodes, sum(sizes)), block_size)
    told, built = (
        needed_bytes(sizes, array, min(num_nodes, sum(sizes)), hosts) for array in (order, order[:])
    )
    # `told` counts a shard once per node that uses it. `built` counts the shard once, but from its
    # first use on any node to its last
    assert built <= told + max(sizes) * 100 * (num_nodes - 1)
    assert told <= sum(sizes) * 100 + max(sizes) * 100 * num_nodes


def test_the_working_set_of_a_large_order_is_close_to_the_real_one() -> None:
    sizes = [100] * 1_000
    order = order_of(sizes, 4, 400)
    told, built = (needed_bytes(sizes, array, 4, 1) for array in (order, order[:]))
    assert built <= told <= 1.1 * built


def needed_bytes(sizes: list[int], order: Any, num_nodes: int, hosts: int) -> int:
    """Return the peak bytes in use on one host, without downloads, at 100 bytes per sample."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    table = SimpleNamespace(raw_bytes=100 * np.array(sizes), is_zipped=np.zeros(len(sizes), bool))
    corpus: Any = SimpleNamespace(
        datasets=[SimpleNamespace(location=Location("s3://x"), table=table)],
        shard_sizes=np.array(sizes),
        shards_of=lambda samples: np.searchsorted(starts, samples, side="right") - 1,
    )
    component: Any = SimpleNamespace(
        sampling=None,
        first_sample=0,
        shard_sizes=np.array(sizes),
        order=SimpleNamespace(num_canonical_nodes=num_nodes),
        lanes=Lanes(num_nodes, sum(sizes), None, num_nodes),
    )
    lanes = np.arange(0, num_nodes, hosts)
    recipe: Any = SimpleNamespace(
        corpus=corpus, components=[component], selection=None, read_of_shards=corpus.shard_sizes
    )
    needed = measure_working_set(recipe, [order], lanes, 1)
    return needed - 100 * max(sizes)
