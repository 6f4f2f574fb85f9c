"""A transform changes documents or leaves them out, and statistics count those left out."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cloudload import Batch, CloudLoader
from cloudload.errors import DatasetError
from cloudload.testing import Leg, run_leg
from testkit import loaders
from testkit.awkward import tokenize
from testkit.corpora import EOS, random_documents, write_mds
from testkit.counted import write_counted

TEXTS = ["", "a", "bb", "ccc", *random_documents(1, 60)]
LANGUAGES = ["en" if number % 3 else "de" for number in range(len(TEXTS))]


@pytest.fixture(scope="module")
def folder(module_folder: Path) -> Path:
    numbers = range(len(TEXTS))
    extra: dict[str, tuple[str, list[Any]]] = {
        "language": ("str", LANGUAGES),
        "score": ("float64", [number / 10 for number in numbers]),
        "meta": ("json", [{"n": number} for number in numbers]),
        "id": ("str", [f"doc-{number}" for number in numbers]),
    }
    write_mds(module_folder / "mds", TEXTS, shard_bytes=2_000, extra=extra)
    return module_folder


def open_documents(folder: Path, **settings: Any) -> CloudLoader:
    settings = {"seq_len": 32, "num_lanes": 6, "local": folder / "cache", **settings}
    return loaders.make_loader(folder / "mds", **settings)


def samples_read(loader: Iterable[Batch]) -> set[int]:
    return {sample for batch in loader for sample in batch.spans[:, 3].tolist()}


def only(language: str, sample: dict[str, Any]) -> str | None:
    return sample["text"] if sample["language"] == language else None


only_english = functools.partial(only, "en")


def tell(sample: dict[str, Any]) -> str:
    return f"{sample['id']} {sample['score']} {sample['meta']['n']}"


def broken(sample: dict[str, Any]) -> str:
    return str(1 / (sample["meta"]["n"] - 5))


@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_transform_leaves_documents_out_and_they_are_counted(
    folder: Path, packing: str, num_workers: int
) -> None:
    options = {"packing": packing, "transform": only_english, "num_workers": num_workers}
    with open_documents(folder, epochs=2, **options) as loader:
        kept = {number for number, language in enumerate(LANGUAGES) if language == "en"}
        assert samples_read(loader) == kept
        stats = loader.stats()
        assert (stats.documents, stats.empty) == (2 * len(kept), 0)
        assert stats.filtered == 2 * (len(TEXTS) - len(kept))


def test_a_transform_sees_every_column_and_gives_the_text(folder: Path) -> None:
    options = {"shuffle": False, "num_canonical_nodes": 1, "num_lanes": 1}
    loader = open_documents(folder, transform=tell, epochs=1, **options)
    found = [batch["input_ids"][batch["labels"] != -100].tolist() for batch in loader]
    expected = [
        token
        for number in range(len(TEXTS))
        for token in (*tokenize(f"doc-{number} {number / 10} {number}"), 256)
    ]
    assert [token for tokens in found for token in tokens] == expected


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_an_error_in_a_transform_names_the_sample_and_shows_the_traceback(
    folder: Path, start_method: str
) -> None:
    expected = r"(?s)the transform \S+\.broken failed on sample 5 of .*shard.*\(id 'doc-5'\): "
    expected += r"ZeroDivisionError.*in broken"
    with (
        open_documents(
            folder, transform=broken, num_workers=1, start_method=start_method
        ) as loader,
        pytest.raises(DatasetError, match=expected),
    ):
        list(loader.take(100))


def test_a_lane_of_which_all_is_left_out_is_an_error_not_a_wait(folder: Path) -> None:
    endless = r"has no tokens\. Its last [\d,]+ documents, .* filtered out, .* or left"
    with pytest.raises(DatasetError, match=endless):
        next(iter(open_documents(folder, min_tokens=10_000)))
    finite = "has any tokens, because all documents are empty, filtered out, or left out"
    with pytest.raises(DatasetError, match=finite):
        list(open_documents(folder, min_tokens=10_000, epochs=1))
    with pytest.raises(DatasetError, match=finite):
        list(open_documents(folder, bos=EOS, max_tokens=1, epochs=1))


def test_max_tokens_below_min_tokens_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="max_tokens is 8, but min_tokens is 9, so all documents"):
        open_documents(folder, min_tokens=9, max_tokens=8)


@pytest.mark.parametrize("size", [5, 13])
@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
def test_a_lane_that_misses_the_only_document_with_tokens_for_some_epochs_reads_on(
    tmp_path: Path, packing: str, size: int
) -> None:
    """With 13 documents in 12 lanes, nearly half of the ordinals are holes."""
    write_counted(tmp_path / "mds", ["long " * 20, *(size - 1) * ["short"]])
    options: dict[str, Any] = {"min_tokens": 20, "packing": packing, "num_lanes": 12}
    for lengths in ("off", "require"):
        loader = open_documents(tmp_path, batch_size=12, lengths=lengths, **options)
        assert samples_read(loader.take(4)) == {0}
    loader.seek(480)
    assert samples_read(loader.take(1)) == {0}


def read_after_seek(loader: CloudLoader) -> Batch:
    loader.seek(48)
    return next(iter(loader))


def test_a_stream_without_tokens_is_refused_with_and_without_lengths(tmp_path: Path) -> None:
    write_counted(tmp_path / "mds", 5 * ["short"])
    for packing in ("concat", "best_fit", "one_per_row"):
        options: dict[str, Any] = {"min_tokens": 20, "packing": packing, "num_lanes": 12}
        with pytest.raises(DatasetError, match="no tokens"):
            next(iter(open_documents(tmp_path, **options)))
        with pytest.raises(DatasetError, match="no tokens"):
            read_after_seek(open_documents(tmp_path, lengths="require", **options))


def test_the_state_carries_the_counts(folder: Path) -> None:
    make_rank = functools.partial(open_documents, folder, min_tokens=20)
    _, states = run_leg(make_rank, Leg(3, 2, 4, batches=3))
    _, more = run_leg(make_rank, Leg(2, batch_size=3, batches=2), states[-1])
    _, straight = run_leg(make_rank, Leg(batch_size=48, batches=1))
    assert more[-1]["counts"] == straight[-1]["counts"]
    assert json.loads(more[-1]["counts"])[0][0] == 48 * 32
