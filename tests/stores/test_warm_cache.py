"""A run does not download the shards that `cloudload fetch` has put into its cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader
from cloudload.warm import warm_cache
from testkit.corpora import random_documents, write_mds
from testkit.fault_proxy import FaultProxy

SHARDS = 20
Case = tuple[int, str]
"""The number of nodes, and the packing method."""


def loader_of(url: str, cache: Path, tokenizer: Path, **settings: Any) -> CloudLoader:
    defaults = {"seq_len": 32, "batch_size": 6, "num_lanes": 12, "num_workers": 0, "lengths": "off"}
    options = {**defaults, "tokenizer": str(tokenizer), "tokenizer_backend": "hf", **settings}
    return CloudLoader(url, local=cache, **options)


def write(url: str) -> None:
    write_mds(url, random_documents(3, 200), shard_samples=[10] * SHARDS, compression="zstd")


def count_requests(proxy: FaultProxy) -> int:
    return len(proxy.requests(".mds"))


@pytest.mark.parametrize("case", [(1, "best_fit"), (2, "concat")])
def test_a_resumed_run_downloads_nothing_for_the_shards_of_its_node(
    s3_proxy: FaultProxy,
    s3_url: str,
    tmp_path: Path,
    tokenizer_folder: Path,
    *,
    case: Case,
    cli: Any,
) -> None:
    nodes, packing = case
    write(s3_url)
    options: dict[str, Any] = {"packing": packing, "epochs": None, "num_canonical_nodes": 4}
    with loader_of(s3_url, tmp_path / "first", tokenizer_folder, **options) as loader:
        for _ in loader.take(5):
            pass
        state = loader.state_dict()
    (tmp_path / "state.json").write_text(json.dumps({"loader": state}))
    for node in range(nodes):
        cache, before = tmp_path / f"node-{node}", count_requests(s3_proxy)
        world = ["--nodes", str(nodes), "--node", str(node), "--local", str(cache)]
        cli("fetch", tmp_path / "state.json", *world, "--quiet")
        fetched = count_requests(s3_proxy)
        assert 0 < fetched - before <= SHARDS
        cli("fetch", tmp_path / "state.json", *world, "--quiet")
        rank = {"dp_rank": node, "dp_world_size": nodes}
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("WORLD_SIZE", str(nodes))
            environment.setenv("LOCAL_WORLD_SIZE", "1")
            with loader_of(s3_url, cache, tokenizer_folder, **options, **rank) as loader:
                loader.load_state_dict(state)
                for _ in loader.take(30 // nodes):
                    pass
                assert loader.stats().delivery.bytes_downloaded == 0
        assert count_requests(s3_proxy) == fetched


def test_the_first_shards_are_those_that_the_run_reads_first(
    s3_proxy: FaultProxy, s3_url: str, tmp_path: Path, tokenizer_folder: Path
) -> None:
    write(s3_url)
    cache = tmp_path / "cache"
    with loader_of(s3_url, cache, tokenizer_folder, predownload=1) as loader:
        report = warm_cache(loader, shards=6)
        assert (report.shards, report.shards_downloaded, report.is_all) == (6, 6, False)
        warmed = {path.name for path in cache.glob("*/*.mds")}
        before = count_requests(s3_proxy)
        next(iter(loader))
        read = {path.name for path in cache.glob("*/*.mds")}
        assert len(warmed) == 6
        # the first batch may download other shards, but none of the warmed ones again
        assert count_requests(s3_proxy) - before == len(read - warmed)
        first = loader.trace(next(iter(loader_of(s3_url, cache, tokenizer_folder))), row=0)
    assert any(Path(span.shard).stem.split(".mds")[0] in " ".join(warmed) for span in first)


def test_a_cache_is_warmed_up_to_its_limit(
    s3_url: str, tmp_path: Path, tokenizer_folder: Path, cli: Any
) -> None:
    write(s3_url)
    with loader_of(s3_url, tmp_path, tokenizer_folder) as loader:
        whole = warm_cache(loader)
        assert (whole.shards, whole.is_all) == (SHARDS, True)
        again = warm_cache(loader, threads=2)
        assert (again.shards, again.shards_downloaded, again.bytes_downloaded) == (SHARDS, 0, 0)
    limit = whole.bytes // 2
    config = tmp_path / "run.json"
    config.write_text(
        json.dumps({"data": s3_url, "tokenizer": str(tokenizer_folder), "seq_len": 32})
    )
    local = tmp_path / "limited"
    common = ["--config", str(config), "--local", str(local), "--json", "--quiet"]
    found = json.loads(cli("fetch", *common, "--cache-limit", limit).out)
    cached = sum(path.stat().st_size for path in local.glob("*/*.mds"))
    assert found["bytes"] == cached
    assert 0 < cached <= limit
    assert not found["is_all"]
    assert (
        "node is 1. Use an integer from 0 to 0"
        in cli("fetch", *common, "--node", "1", status=1).err
    )
    assert (
        "7 ranks cannot share 12 lanes"
        in cli("fetch", *common, "--nodes", "7", "--num-lanes", "12", status=1).err
    )


def test_a_local_dataset_needs_no_fetching(tmp_path: Path, tokenizer_folder: Path) -> None:
    write_mds(tmp_path / "data", random_documents(3, 60), shard_samples=[10] * 6)
    with loader_of(str(tmp_path / "data"), tmp_path / "cache", tokenizer_folder) as loader:
        report = warm_cache(loader)
    assert (report.shards, report.bytes_downloaded, report.is_all) == (0, 0, True)
