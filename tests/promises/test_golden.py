"""A run has the same rows in every release. Hashes pin the first 1,000 rows of each packing.

If a hash changes, runs that resume from an earlier release's state read different rows. Do not
change one without a new state version.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, Stream
from cloudload.count import count_tokens
from tests.support.corpora import EOS, byte_tokenizer, random_documents, write_mds

TWO = {"num_canonical_nodes": 2}
GOLDEN: dict[str, tuple[dict[str, Any], str]] = {
    "concat": ({"packing": "concat", **TWO}, "66f5e4efbca4de0c"),
    "best_fit": ({"packing": "best_fit", **TWO}, "19db67c29bcc95a3"),
    "one_per_row": ({"packing": "one_per_row", **TWO}, "b0b576655adfb1b0"),
    "one_per_row, overflow": (
        {"packing": "one_per_row", "overflow": "rows", **TWO},
        "741481d97a34d04c",
    ),
    "mixed": ({"packing": "best_fit", "mixed": True}, "c85ffe07db1dc00a"),
    "repeated": ({"repeat": 1.5, **TWO}, "57769374aa8851d3"),
    "to the end": ({"packing": "best_fit", "epochs": 1, **TWO}, "72f84a6ccdcc4563"),
    "mixed to the end": ({"mixed": True, "epochs": 1}, "1933d7afc2ce716f"),
    "one canonical node": ({}, "6057e9eccbc0784f"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("golden")
    return [
        write_mds(
            folder / str(seed), random_documents(seed, count, max_words=60), shard_bytes=20_000
        )
        for seed, count in ((1, 1_500), (2, 200))
    ]


@pytest.mark.parametrize("name", GOLDEN)
def test_the_first_thousand_rows_are_what_they_always_were(
    folders: list[str], tmp_path: Path, name: str
) -> None:
    settings, expected = GOLDEN[name]
    settings = dict(settings)
    streams = [Stream(folders[0], repeat=settings.pop("repeat", None))]
    if settings.pop("mixed", False):
        streams = [
            Stream(folders[0], proportion=2, name="a"),
            Stream(folders[1], proportion=1, name="b"),
        ]
        if "epochs" in settings:
            settings["lengths"] = place = str(tmp_path / "lengths")
            for folder in folders:
                options: dict[str, Any] = {"processes": 1, "progress": False, "out": place}
                count_tokens(folder, tokenizer=byte_tokenizer(), **options)
    loader = CloudLoader(
        streams,
        local=tmp_path,
        tokenizer=byte_tokenizer(),
        eos=EOS,
        seq_len=128,
        batch_size=100,
        num_workers=0,
        **settings,
    )
    digest = hashlib.sha256()
    for batch in loader.take(10):
        digest.update(batch["input_ids"].numpy().astype("<i8").tobytes())
        digest.update(batch["labels"].numpy().astype("<i8").tobytes())
        digest.update(batch.spans.astype("<i8").tobytes())
    assert loader.rows == 1_000
    assert digest.hexdigest()[:16] == expected
