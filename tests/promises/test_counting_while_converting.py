"""A conversion that counts tokens writes the same lengths as `count_tokens`, on every engine and
after any interruption."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader
from cloudload.cli import main
from cloudload.errors import ConvertError, StoreError
from cloudload.run.lengths import lengths_index as lengths_index
from cloudload.tools.convert import convert_to_mds, run
from cloudload.tools.count.count import count_tokens
from testkit.conversions import dataset_bytes, stop_after
from testkit.corpora import EOS, byte_tokenizer
from testkit.segments import SETTINGS, LastFirst, Twice, mixed_corpus

COUNTING: dict[str, Any] = {**SETTINGS, "tokenizer": byte_tokenizer()}


def keep_odd(sample: dict[str, Any]) -> str | None:
    """A transform that keeps records with an odd `n`, and appends `!` to their text."""
    return sample["text"] + "!" if sample["n"] % 2 else None


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use groups of at least 100 samples, which do not line up with segments."""
    monkeypatch.setattr(lengths_index, "_GROUP_SAMPLES", 100)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of about 40 segments in four formats."""
    return mixed_corpus(tmp_path_factory.mktemp("mixed") / "corpus", part=2)


def lengths_of(folder: Path) -> dict[str, str]:
    """Map the name of each length file in a folder to its hash."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def count_again(out: Path, elsewhere: Path, **options: Any) -> dict[str, str]:
    """Count a finished dataset, write the lengths to `elsewhere`, and return their hashes."""
    options = {"tokenizer": byte_tokenizer(), "progress": False, "processes": 1} | options
    count_tokens(out, out=elsewhere, **options)
    return lengths_of(elsewhere)


@pytest.mark.parametrize("way", ["one", "two processes", "reversed", "twice", "array"])
def test_every_engine_leaves_the_lengths_of_a_later_count(
    corpus: Path, tmp_path: Path, way: str
) -> None:
    out = tmp_path / "out"
    plain = convert_to_mds(corpus, tmp_path / "plain", **SETTINGS)
    if way == "array":
        reports = [convert_to_mds(corpus, out, worker=f"{n}/5", **COUNTING) for n in (3, 0, 4, 2)]
        assert [report.tokens for report in reports] == [None] * 4
        assert not (out / "lengths").exists()
    engines: dict[str, dict[str, Any]] = {
        "two processes": {"processes": 2},
        "reversed": {"executor": LastFirst(plain.segments)},
        "twice": {"executor": Twice()},
        "array": {"worker": "1/5"},
    }
    report = convert_to_mds(corpus, out, **{**COUNTING, **engines.get(way, {})})
    assert report.tokens == report.text_bytes == plain.text_bytes
    found = lengths_of(out / "lengths")
    assert len(found) > 5
    assert found == count_again(out, tmp_path / "again")
    data = {
        name: digest
        for name, digest in dataset_bytes(str(out)).items()
        if not name.startswith("/lengths/")
    }
    assert data == dataset_bytes(str(tmp_path / "plain"))


def test_one_segment_leaves_the_lengths_of_a_later_count(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert_to_mds(corpus, out, **{**COUNTING, "segment_bytes": 1 << 30})
    assert not (out / "00000").exists()
    assert lengths_of(out / "lengths") == count_again(out, tmp_path / "again")


def test_a_transform_is_counted_with_all_columns(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = convert_to_mds(corpus, out, transform=keep_odd, **COUNTING)
    again = count_again(out, tmp_path / "again", transform=keep_odd)
    assert lengths_of(out / "lengths") == again
    assert report.tokens is not None
    assert 0 < report.tokens < report.text_bytes


@pytest.mark.parametrize("size", [12_000, 1 << 30])
def test_an_interrupted_conversion_has_no_index_and_finishes_to_the_same_lengths(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    options = {**COUNTING, "segment_bytes": size}
    convert_to_mds(corpus, tmp_path / "whole", **options)
    for shards in (3, 20, 0, 33):
        with monkeypatch.context() as patch:
            stop_after(patch, shards)
            with pytest.raises(StoreError, match="no room"):
                convert_to_mds(corpus, tmp_path / "out", **options)
        assert not (tmp_path / "out" / "lengths").exists()
    convert_to_mds(corpus, tmp_path / "out", **options)
    assert dataset_bytes(str(tmp_path / "out")) == dataset_bytes(str(tmp_path / "whole"))


@pytest.mark.parametrize("size", [12_000, 1 << 30])
def test_rejects_and_lengths_are_kept_together_wherever_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    bad = mixed_corpus(tmp_path / "bad", part=2)
    for name in ("a-bad", "e-bad"):
        lines = [f'{{"{"body" if n % 9 == 4 else "text"}": "{n}", "n": {n}}}\n' for n in range(900)]
        (bad / f"{name}.jsonl").write_text("".join(lines))
    options = {**COUNTING, "segment_bytes": size, "skip_bad": True, "block_bytes": 1_000}
    out, rejects, plain = tmp_path / "out", tmp_path / "rejects", tmp_path / "plain"
    convert_to_mds(bad, out, **{**options, "tokenizer": None}, rejects=plain)
    without = dataset_bytes(str(out))
    convert_to_mds(bad, out, overwrite=True, **options)
    whole = dataset_bytes(str(out))
    assert without == {name: whole[name] for name in whole if not name.startswith("/lengths/")}
    for shards in (3, 20):
        with monkeypatch.context() as patch:
            stop_after(patch, shards)
            with pytest.raises(StoreError, match="no room"):
                convert_to_mds(bad, tmp_path / "again", rejects=rejects, **options)
    report = convert_to_mds(bad, tmp_path / "again", rejects=rejects, **options)
    assert dataset_bytes(str(tmp_path / "again")) == whole
    assert rejects.read_bytes() == plain.read_bytes()
    assert report.bad == len(rejects.read_bytes().splitlines()) == 200
    assert report.tokens == report.text_bytes


def test_a_worker_that_another_overtakes_leaves_its_lengths_alone(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker joins the segments and removes their notes before this worker reads them."""
    out, read = tmp_path / "out", run._read_lengths
    convert_to_mds(corpus, out, worker="0/2", **COUNTING)

    def read_late(*args: Any) -> Iterator[str]:
        monkeypatch.undo()
        assert convert_to_mds(corpus, out, finish=True, **COUNTING).tokens
        yield from read(*args)

    monkeypatch.setattr(run, "_read_lengths", read_late)
    monkeypatch.setattr(lengths_index, "_GROUP_SAMPLES", 100)
    report = convert_to_mds(corpus, out, worker="1/2", **COUNTING)
    assert report.already_complete
    assert report.tokens == report.text_bytes
    assert lengths_of(out / "lengths") == count_again(out, tmp_path / "again")


def test_a_dataset_with_an_index_has_its_lengths(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop between the two index writes shows that the index of the lengths is written first."""
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("cloudload.tools.convert.journal.Journal.finish", None)
        with pytest.raises(TypeError):
            convert_to_mds(corpus, out, **COUNTING)
    assert list(out.glob("lengths/*/index-*.json"))
    assert not (out / "index.json").exists()
    convert_to_mds(corpus, out, **COUNTING)
    assert lengths_of(out / "lengths") == count_again(out, tmp_path / "again")


@pytest.mark.parametrize("base", ["counted", "not counted", "counted in part"])
def test_appending_leaves_the_lengths_of_the_longer_dataset(
    corpus: Path, tmp_path: Path, base: str
) -> None:
    out, more = tmp_path / "out", mixed_corpus(tmp_path / "more", part=2)
    (more / "e00.jsonl").unlink()
    convert_to_mds(corpus, out, **(SETTINGS if base == "not counted" else COUNTING))
    if base == "counted in part":
        groups = sorted((out / "lengths").rglob("*.lengths"))
        groups[2].unlink()
        groups[-1].unlink()
    report = convert_to_mds(more, out, append=True, **COUNTING)
    again = count_again(out, tmp_path / "again")
    found = lengths_of(out / "lengths")
    assert {name: found.get(name) for name in again} == again
    assert report.tokens == report.text_bytes


def test_another_tokenizer_on_resume_is_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 9)
        with pytest.raises(StoreError):
            convert_to_mds(corpus, tmp_path / "out", **COUNTING)
    for options in (SETTINGS, {**COUNTING, "transform": keep_odd}):
        with pytest.raises(
            ConvertError, match=r"belongs to a conversion with different .*: lengths was"
        ):
            convert_to_mds(corpus, tmp_path / "out", **options)


def test_overwriting_a_dataset_removes_its_lengths(corpus: Path, tmp_path: Path) -> None:
    convert_to_mds(corpus, tmp_path / "out", **COUNTING)
    convert_to_mds(corpus, tmp_path / "out", overwrite=True, **SETTINGS)
    assert not (tmp_path / "out" / "lengths").exists()


def test_overwriting_splits_removes_their_lengths(corpus: Path, tmp_path: Path) -> None:
    out, splits = tmp_path / "out", "train=0.5,val=0.5"
    convert_to_mds(corpus, out, splits=splits, **SETTINGS)
    count_tokens(out / "val", tokenizer=byte_tokenizer(), progress=False, processes=1)
    assert (out / "val" / "lengths").exists()
    convert_to_mds(corpus, out, splits=splits, overwrite=True, **SETTINGS)
    assert not (out / "val" / "lengths").exists()


def test_counting_splits_is_refused_before_anything_is_written(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, splits = tmp_path / "out", {"train": 0.5, "val": 0.5}
    message = r"splits .* and tokenizer \(--tokenizer\) cannot be combined yet"
    with pytest.raises(ValueError, match=message):
        convert_to_mds(corpus, out, splits=splits, **COUNTING)
    command = ["convert", str(corpus), str(out), "--split", "train=0.5,val=0.5"]
    assert main([*command, "--tokenizer", "no such tokenizer"]) == 1
    assert "then run cloudload count on each split" in capsys.readouterr().err
    assert not out.exists()


def test_a_transform_without_a_tokenizer_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="transform applies only when tokens are counted"):
        convert_to_mds(corpus, tmp_path / "out", transform=keep_odd, **SETTINGS)


def test_the_command_counts_and_a_loader_finds_the_lengths(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    out, tokenizer = str(tmp_path / "out"), str(tmp_path / "tokenizer.json")
    command = ["convert", str(corpus), out, "--tokenizer", tokenizer, "--processes", "1"]
    assert main([*command, "--keep", "n"]) == 0
    shown = capsys.readouterr().out
    loader = CloudLoader(
        out, tokenizer=tokenizer, eos=EOS, seq_len=64, batch_size=1, epochs=1, lengths="require"
    )
    with loader:
        assert len(loader) > 0  # unknown without lengths
    assert "  tokens     " in shown
