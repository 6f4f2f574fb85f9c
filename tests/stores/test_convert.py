"""Corpora are read from every store, and datasets written to every store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudload.convert.convert import convert_to_mds
from cloudload.errors import StoreError
from cloudload.storage.objects import list_objects, read_object, write_object
from tests.support.conversions import (
    QUIET,
    dataset_bytes,
    documents,
    stop_after,
    write_corpus,
)
from tests.support.input_kinds import INPUT_KINDS


def test_every_store_is_read_and_written(store_url: str, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    for item in list_objects(str(corpus)):
        write_object(f"{store_url}/in/{Path(item.url).relative_to(corpus)}", read_object(item.url))
    options: dict[str, Any] = {"shard_bytes": 100_000, "processes": 2, "progress": False}
    convert_to_mds(corpus, tmp_path / "local", **options)
    report = convert_to_mds(f"{store_url}/in", f"{store_url}/out", **options)
    assert report.documents == 1200
    assert dataset_bytes(f"{store_url}/out") == dataset_bytes(str(tmp_path / "local"))
    assert convert_to_mds(f"{store_url}/in", f"{store_url}/out", **options).already_complete
    assert (
        convert_to_mds(f"{store_url}/in/*/*.jsonl", f"{store_url}/globbed", **options).documents
        == 800
    )


def test_a_conversion_to_any_store_goes_on(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    stop_after(monkeypatch, 4)
    with pytest.raises(StoreError, match="no room"):
        convert_to_mds(corpus, store_url, shard_bytes=50_000, **QUIET)
    monkeypatch.undo()
    assert not any(item.url.endswith("index.json") for item in list_objects(store_url))
    assert convert_to_mds(corpus, store_url, shard_bytes=50_000, **QUIET).resumed_shards == 4
    convert_to_mds(corpus, tmp_path / "whole", shard_bytes=50_000, **QUIET)
    assert dataset_bytes(store_url) == dataset_bytes(str(tmp_path / "whole"))


def test_every_format_is_read_from_every_store(store_url: str, tmp_path: Path) -> None:
    rows = [{"text": text, "n": number} for number, text in enumerate(documents(300))]
    for kind, write in INPUT_KINDS.items():
        source, stored = tmp_path / kind, f"{store_url}/{kind}"
        if kind != "mds":  # MDSWriter wants to make the folder
            source.mkdir()
        write(source, rows)
        for path in source.iterdir():
            write_object(f"{stored}/{path.name}", path.read_bytes())
        options: dict[str, Any] = {**QUIET, "keep": ["n:int"], "block_bytes": 5000}
        convert_to_mds(source, tmp_path / f"local-{kind}", **options)
        report = convert_to_mds(stored, tmp_path / f"stored-{kind}", **options)
        assert report.documents == 300
        assert dataset_bytes(report.out) == dataset_bytes(str(tmp_path / f"local-{kind}"))
