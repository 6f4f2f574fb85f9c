"""The converter reads corpora from every store, and writes datasets to every store."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from cloudload.data.storage.base import Retry
from cloudload.data.storage.objects import list_objects, read_object, upload_file, write_object
from cloudload.tools.convert.convert import convert_to_mds
from testkit.conversions import QUIET, convert_until, dataset_bytes, documents, write_corpus
from testkit.input_kinds import INPUT_KINDS


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


def test_a_conversion_to_any_store_resumes(store_url: str, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    convert_until(4, corpus, store_url, shard_bytes=50_000, **QUIET)
    assert not any(item.url.endswith("index.json") for item in list_objects(store_url))
    assert convert_to_mds(corpus, store_url, shard_bytes=50_000, **QUIET).resumed_shards == 4
    convert_to_mds(corpus, tmp_path / "whole", shard_bytes=50_000, **QUIET)
    assert dataset_bytes(store_url) == dataset_bytes(str(tmp_path / "whole"))


def test_every_format_is_read_from_every_store(store_url: str, tmp_path: Path) -> None:
    rows = [{"text": text, "n": number} for number, text in enumerate(documents(300))]
    for kind, write in INPUT_KINDS.items():
        source, stored = tmp_path / kind, f"{store_url}/{kind}"
        if kind != "mds":  # MDSWriter creates the folder
            source.mkdir()
        write(source, rows)
        for path in source.iterdir():
            write_object(f"{stored}/{path.name}", path.read_bytes())
        options: dict[str, Any] = {**QUIET, "keep": ["n:int"], "block_bytes": 5000}
        convert_to_mds(source, tmp_path / f"local-{kind}", **options)
        report = convert_to_mds(stored, tmp_path / f"stored-{kind}", **options)
        assert report.documents == 300
        assert dataset_bytes(report.out) == dataset_bytes(str(tmp_path / f"local-{kind}"))


def measure(folder: Path) -> int:
    """The total size of a folder's files in bytes. Skips files that a thread removes meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total


@pytest.mark.parametrize("kind", ["csv", "parquet", "mds"])
def test_the_disk_holds_one_shard_and_one_input_at_a_time(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    rows = [{"text": text * 40, "n": number} for number, text in enumerate(documents(600))]
    source, scratch = tmp_path / "in", tmp_path / "scratch"
    scratch.mkdir()
    if kind != "mds":
        source.mkdir()
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), source / "a.parquet")
    else:
        INPUT_KINDS[kind](source, rows)
    for path in source.iterdir():
        write_object(f"{s3_url}/in/{path.name}", path.read_bytes())
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    used: list[int] = []

    def upload(path: Path, url: str, retry: Retry | None = None) -> None:
        used.append(measure(scratch))
        upload_file(path, url, retry)

    monkeypatch.setattr("cloudload.data.storage.objects.upload_file", upload)
    report = convert_to_mds(
        f"{s3_url}/in",
        f"{s3_url}/out",
        splits="train=0.9,val=0.1",
        compression=None,
        shard_bytes=100_000,
        block_bytes=20_000,
        segment_bytes=1 << 20,
        skip_bad=True,
        rejects=f"{s3_url}/rejects",
        **QUIET,
    )
    copied = max(path.stat().st_size for path in source.iterdir()) if kind != "csv" else 0
    assert report.shards > 20
    assert len(used) > report.shards
    assert 80_000 < max(used) <= 100_000 + copied
    assert not list(scratch.iterdir())
