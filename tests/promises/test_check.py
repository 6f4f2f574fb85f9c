"""`check_dataset` names the readers that damage affects, as reading the datasets confirms."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from cloudload.tools.check import check_dataset
from cloudload.tools.check.document_rules import DOCUMENT_RULES
from cloudload.tools.check.rules import BOTH, CLOUDLOAD, ERROR, RULES, STREAMING
from testkit.both_readers import read_by_cloudload, streaming_dataset
from testkit.corpora import write_mds
from testkit.damaged_datasets import (
    SECOND,
    SHARDS,
    TEXTS,
    Damage,
    add_md5,
    append,
    change_encoding,
    drop_column,
    edit,
    edit_entry,
    exceed_32_bits,
    flip_middle,
    keep_raw_alone,
    patch,
    rename,
    replace_bytes,
    truncate,
    update,
    update_raw,
    write_json_shards,
    write_raw_beside,
)

pytestmark = pytest.mark.usefixtures("alone_with_streaming")


def read_by_streaming(folder: Path, cache: Path, options: dict[str, Any]) -> list[str]:
    """Read every sample by index with a StreamingDataset, and return the texts."""
    if options.pop("in_place", False):
        where: dict[str, Any] = {"local": str(folder)}
    else:
        where = {"remote": str(folder), "local": str(cache)}
    is_collated = options.pop("collated", False)
    dataset = streaming_dataset(**where, download_retry=1, **options)
    samples = [dataset[number] for number in range(dataset.num_samples)]
    if is_collated:
        torch.utils.data.default_collate(samples)
    return [sample["text" if "text" in sample else "content"] for sample in samples]


def is_affected(read: Callable[[], list[str]]) -> bool:
    """Whether a reader fails or returns anything other than `TEXTS`."""
    try:
        return read() != TEXTS
    except Exception as error:
        print(f"affected: {error!r}")  # shown if the test fails
        return True


@dataclass(frozen=True)
class Case:
    """A damaged dataset, and the settings (`streaming`) with which Streaming reads it."""

    damage: Damage
    streaming: dict[str, Any] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)
    readers: tuple[str, ...] | None = None
    also: tuple[str, ...] = ()
    """Kinds of the other findings in the report. The case's name starts with the main kind."""
    harm: Callable[[], bool] = lambda: False
    """Whether Streaming wrote where it should not. Called in the test's folder."""


ZSTD = {"compression": "zstd"}
CHECKED = {"validate_hash": "xxh64"}
IN_PLACE = {"in_place": True}


def column(encoding: str, values: list[Any], name: str = "more") -> dict[str, Any]:
    return {"extra": {name: (encoding, values)}}


def add_unknown_hash(folder: Path) -> None:
    for number in (0, 1):
        edit_entry(lambda entry: entry["raw_data"]["hashes"].update(crc32c="0"), number)(folder)


FLOATS = column("float64", [0.5] * 70)
CASES: dict[str, Case] = {
    "index-missing": Case(lambda folder: (folder / "index.json").unlink()),
    "index-invalid": Case(lambda folder: (folder / "index.json").write_text("{")),
    "index-invalid version": Case(edit(lambda index: index.update(version=1))),
    "index-invalid shards": Case(edit(lambda index: index.update(shards=[{}]))),
    "index-invalid null": Case(edit(lambda index: index["shards"].append(None))),
    "empty": Case(edit(lambda index: index.update(shards=[])), also=("unlisted",)),
    "format": Case(write_json_shards),
    "entry-invalid": Case(update_raw(bytes=10)),
    "entry-invalid type": Case(update_raw(bytes="12"), readers=BOTH),
    "entry-invalid format": Case(update(format="x"), readers=BOTH),
    "entry-fields": Case(update(language="en")),
    "entry-fields lacking": Case(edit_entry(lambda entry: entry.pop("size_limit"))),
    "entry-fields of file": Case(update_raw(etag="x")),
    "entry-fields version": Case(update(version=1)),
    "too-large": Case(exceed_32_bits, IN_PLACE),
    "name-escapes": Case(rename("../outside.mds"), harm=lambda: Path("outside.mds").exists()),
    "name-refused": Case(rename("a*b.mds")),
    "name-repeated": Case(
        edit(lambda index: index["shards"].append(index["shards"][0])), also=("text-repeated",)
    ),
    "name-clash": Case(rename("SHARD.00000.mds")),
    "compression-unknown": Case(update(compression="lz4"), dataset=ZSTD),
    "compression-unknown None": Case(update(compression=None), dataset=ZSTD),
    "compression-level": Case(update(compression="zstd:99"), dataset=ZSTD),
    "compression-unused": Case(update(compression="zstd"), IN_PLACE),
    "hash-absent": Case(patch(0, b""), CHECKED),
    "hash-unknown": Case(add_unknown_hash, {"validate_hash": "crc32c"}),
    "hash-partial": Case(add_md5, {"validate_hash": "md5"}),
    "pickle": Case(change_encoding("pkl"), dataset=FLOATS, also=("hash-absent",)),
    "encoding-unknown": Case(change_encoding("complex"), dataset=FLOATS, also=("hash-absent",)),
    "columns-differ": Case(drop_column, {"collated": True}, FLOATS),
    "text-column": Case(patch(0, b""), dataset={"column": "content"}, also=("hash-absent",)),
    "shard-missing": Case(lambda folder: (folder / SECOND).unlink()),
    "raw-alone": Case(keep_raw_alone, IN_PLACE, ZSTD, also=("shard-missing",)),
    "raw-unverified": Case(write_raw_beside, IN_PLACE, ZSTD),
    "size": Case(truncate(SECOND, 5)),
    "size compressed": Case(truncate(f"{SECOND}.zstd", 5), dataset=ZSTD),
    "size raw": Case(
        edit_entry(lambda entry: entry["raw_data"].update(bytes=entry["raw_data"]["bytes"] + 5)),
        dataset=ZSTD,
        readers=(CLOUDLOAD,),
    ),
    "size longer": Case(append(SECOND), readers=(CLOUDLOAD,)),
    "size longer zstd": Case(append(f"{SECOND}.zstd"), dataset=ZSTD),
    "size longer bz2": Case(
        append(f"{SECOND}.bz2"), dataset={"compression": "bz2"}, readers=(CLOUDLOAD,)
    ),
    "hash-mismatch": Case(flip_middle(SECOND), CHECKED),
    "decompress": Case(flip_middle(f"{SECOND}.zstd"), dataset=ZSTD, also=("hash-mismatch",)),
    "sample-count": Case(update(samples=29)),
    "offsets": Case(patch(8, struct.pack("<I", 1 << 31)), also=("hash-absent",)),
    "header": Case(replace_bytes(b'["text"]', b'["tent"]'), also=("hash-absent",)),
    "sample-layout": Case(
        replace_bytes(struct.pack("<I", 11) + b"document-50", struct.pack("<I", 4)),
        also=("hash-absent",),
    ),
    "not-utf8": Case(replace_bytes(b"document-50", b"docum\xff"), also=("hash-absent",)),
    "not-utf8 other column": Case(
        replace_bytes(b"note 50", b"\xff"),
        dataset=column("str", [f"note {number}" for number in range(70)]),
        readers=(STREAMING,),
        also=("hash-absent",),
    ),
    "value": Case(
        replace_bytes(b"[50]", b"[50["),
        dataset=column("json", [[number] for number in range(70)]),
        also=("hash-absent",),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_readers_that_are_named_are_affected_and_no_others(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, kind = CASES[name], name.partition(" ")[0]
    folder = tmp_path / "data" / "set"
    monkeypatch.chdir(tmp_path)
    write_mds(folder, TEXTS, shard_samples=SHARDS, **case.dataset)
    case.damage(folder)
    report = check_dataset(folder, progress=False)
    assert report.counts.keys() == {kind, *case.also}
    finding = next(finding for finding in report.findings if finding.kind == kind)
    readers = RULES[kind].readers if case.readers is None else case.readers
    assert finding.readers == readers
    assert report.is_sound == (RULES[kind].severity != ERROR and "shard-missing" not in case.also)
    ours = is_affected(lambda: read_by_cloudload(folder, tmp_path / "ours"))
    theirs = is_affected(lambda: read_by_streaming(folder, tmp_path / "theirs", {**case.streaming}))
    assert (theirs or case.harm()) == (STREAMING in readers)
    if RULES[kind].severity == ERROR:
        assert ours == (CLOUDLOAD in readers)


def test_a_sound_dataset_has_no_findings(tmp_path: Path) -> None:
    for compression in (None, "zstd"):
        folder = tmp_path / str(compression)
        write_mds(folder, TEXTS, shard_samples=SHARDS, compression=compression)
        report = check_dataset(folder, progress=False)
        assert (report.findings, report.is_sound) == ((), True)
        assert (report.shards, report.shards_read, report.samples) == (2, 2, 70)
        assert read_by_cloudload(folder, tmp_path / "ours") == TEXTS
        assert read_by_streaming(folder, folder / "local", CHECKED) == TEXTS


def test_few_samples_are_repeated_by_streaming(tmp_path: Path) -> None:
    write_mds(tmp_path / "data", TEXTS[:10])
    report = check_dataset(tmp_path / "data", progress=False)
    assert report.counts == {"few-samples": 1}
    dataset = streaming_dataset(local=str(tmp_path / "data"), num_canonical_nodes=64, batch_size=1)
    with pytest.warns(UserWarning, match="samples being repeated"):
        assert len(list(dataset)) > 10


@pytest.mark.parametrize("kind", ["compression-unused", "raw-alone"])
def test_streaming_deletes_the_only_copy_of_a_shard(tmp_path: Path, kind: str) -> None:
    case, folder = CASES[kind], tmp_path / "data"
    write_mds(folder, TEXTS, shard_samples=SHARDS, **case.dataset)
    case.damage(folder)
    assert check_dataset(folder, progress=False).counts.keys() == {kind, *case.also}
    assert (folder / SECOND).exists()
    streaming_dataset(local=str(folder))
    assert not (folder / SECOND).exists()


ELSEWHERE = {
    # tests/unit/tools/check
    *("codec-missing", "encoding-unread", "unlisted", "leftover"),
    # tests/promises/test_check_after_tools.py
    *("unfinished", "lengths-damaged", "lengths-old"),
    # tests/stores
    *("url", "shard-unreachable", "not-listed"),
    # tests/promises/test_document_rules.py
    *(*DOCUMENT_RULES, "framing-differs"),
}


def test_every_kind_of_finding_has_a_damaged_dataset() -> None:
    kinds = {name.partition(" ")[0] for name in CASES}
    assert kinds | {"few-samples"} | ELSEWHERE == RULES.keys()
    assert not kinds & ELSEWHERE
