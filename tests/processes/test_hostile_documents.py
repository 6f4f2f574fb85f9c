"""Worker processes handle hostile documents and transforms, and a document of 100 MB."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudload.errors import DatasetError
from testkit import ROOT
from testkit.awkward import tokenize
from testkit.corpora import EOS, write_mds
from testkit.whole_documents import open_epoch, read_all

EOS_ID = 256


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
def test_every_kind_of_document_is_delivered_whole(
    tmp_path: Path, packing: str, num_workers: int
) -> None:
    texts = [
        "",
        "a",
        "\0",
        "\0" * 40,
        "a\0b",
        "",
        "é\ufeff\u202e",
        "x" * 5_000,
        "\r\n\x1b[31m",
        EOS,
        f"{EOS}a{EOS}",
        "\U0010ffff",
    ]
    data = write_mds(tmp_path / "mds", texts, shard_bytes=300, compression="zstd")
    settings = {"packing": packing, "overflow": "rows", "num_workers": num_workers}
    found = read_all(open_epoch(data, tmp_path / "cache", **settings))
    assert found == {(0, number): [*tokenize(text), EOS_ID] for number, text in enumerate(texts)}


@pytest.mark.long
@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
def test_a_document_of_100_mb_is_delivered_whole_in_less_than_6_gb(
    tmp_path: Path, packing: str
) -> None:
    size = 100_000_000
    code = f"import sys; from {__name__} import read_book; read_book(*sys.argv[1:])"
    write_mds(tmp_path / "mds", ["a", "ab cd é狐. " * (size // 13), "b"], compression="zstd")
    command = [sys.executable, "-c", code, str(tmp_path), packing]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    tokens, peak_mb = map(int, done.stdout.split())
    # the tokenizer has one token per byte, and each of the three documents has an eos
    assert tokens == size // 13 * 13 + 2 + 3
    assert peak_mb < 6_000


def read_book(folder: str, packing: str) -> None:
    """Print the total number of tokens and this process's peak memory in MB."""
    settings = {"packing": packing, "overflow": "rows", "seq_len": 8192, "batch_size": 64}
    with open_epoch(f"{folder}/mds", Path(folder, "cache"), **settings) as loader:
        print(sum(int((batch["labels"] != -100).sum()) for batch in loader), end=" ")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)


def leave(sample: dict[str, Any]) -> str:
    raise SystemExit(len(sample))


class _Unspeakable(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


def fail_unspeakably(sample: dict[str, Any]) -> str:
    raise _Unspeakable(sample)


def leave_generator(sample: dict[str, Any]) -> str:
    raise GeneratorExit(sample)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("transform", [leave, fail_unspeakably, leave_generator])
def test_however_a_transform_fails_it_does_not_look_like_a_dead_worker(
    tmp_path: Path, transform: Callable[[dict[str, Any]], str], num_workers: int
) -> None:
    data = write_mds(tmp_path / "mds", ["a"])
    with pytest.raises(
        DatasetError,
        match=rf"(?s)the transform \S+ failed on sample 0 of .*shard.*in {transform.__name__}",
    ):
        read_all(open_epoch(data, tmp_path / "cache", transform=transform, num_workers=num_workers))
