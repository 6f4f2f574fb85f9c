"""A conversion that counts tokens writes the same lengths as `count_tokens`, on every engine and
after any interruption."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudload import Chat
from cloudload.errors import ConvertError
from cloudload.run.lengths import lengths_index
from cloudload.tools.convert import convert_to_mds, finish
from testkit.conversations import chat_tokenizer, conversations
from testkit.conversions import convert_until, dataset_bytes, write_lines
from testkit.corpora import byte_tokenizer
from testkit.counted import count
from testkit.loaders import make_loader
from testkit.segments import SETTINGS, LastFirst, Twice, mixed_corpus

COUNTING: dict[str, Any] = {**SETTINGS, "tokenizer": byte_tokenizer()}


def keep_odd(sample: dict[str, Any]) -> str | None:
    """A transform that keeps records with an odd `n`, and appends `!` to their text."""
    return sample["text"] + "!" if sample["n"] % 2 else None


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use groups of at least 100 samples, which do not line up with segments."""
    monkeypatch.setattr(lengths_index, "GROUP_SAMPLES", 100)


@pytest.fixture(scope="module")
def corpus(module_folder: Path) -> Path:
    """A corpus of about 40 segments in four formats."""
    return mixed_corpus(module_folder / "corpus", part=2)


def count_again(out: Path, elsewhere: Path, **options: Any) -> dict[str, str]:
    """Count a finished dataset, write the lengths to `elsewhere`, and return their hashes."""
    count(out, out=elsewhere, **options)
    return dataset_bytes(str(elsewhere))


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
    found = dataset_bytes(str(out / "lengths"))
    assert len(found) > 5
    assert found == count_again(out, tmp_path / "again")
    assert without_lengths(dataset_bytes(str(out))) == dataset_bytes(str(tmp_path / "plain"))


def without_lengths(objects: dict[str, str]) -> dict[str, str]:
    return {name: objects[name] for name in objects if not name.startswith("/lengths/")}


def test_one_segment_leaves_the_lengths_of_a_later_count(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert_to_mds(corpus, out, **{**COUNTING, "segment_bytes": 1 << 30})
    assert not (out / "00000").exists()
    assert dataset_bytes(str(out / "lengths")) == count_again(out, tmp_path / "again")


def test_a_transform_is_counted_with_all_columns(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = convert_to_mds(corpus, out, transform=keep_odd, **COUNTING)
    again = count_again(out, tmp_path / "again", transform=keep_odd)
    assert dataset_bytes(str(out / "lengths")) == again
    assert report.tokens is not None
    assert 0 < report.tokens < report.text_bytes


@pytest.mark.parametrize("processes", [1, 2])
def test_conversations_are_counted_with_the_chat_of_a_run(tmp_path: Path, processes: int) -> None:
    rows = [{"id": f"{n}", "messages": each} for n, each in enumerate(conversations(300))]
    write_lines(tmp_path / "chats.jsonl", rows)
    options: dict[str, Any] = {**SETTINGS, "text_key": None, "keep": ["messages"]}
    plain = convert_to_mds(tmp_path / "chats.jsonl", tmp_path / "plain", **options)
    counting = {"tokenizer": chat_tokenizer(), "chat": Chat(train="last", max_tokens=120)}
    options |= {**counting, "processes": processes, "segment_bytes": 9_000}
    report = convert_to_mds(tmp_path / "chats.jsonl", tmp_path / "out", **options)
    assert plain.documents == report.documents == 300
    found = dataset_bytes(str(tmp_path / "out" / "lengths"))
    assert found == count_again(tmp_path / "out", tmp_path / "again", **counting)
    loader = {"epochs": 1, "packing": "best_fit", "seq_len": 120, "eos": "auto", **counting}
    with make_loader(str(tmp_path / "out"), **loader, lengths="require") as counted:
        assert len(counted) == sum(1 for _ in counted)


def test_the_most_tokens_of_conversations_must_be_known(tmp_path: Path) -> None:
    options: dict[str, Any] = {**SETTINGS, "text_key": None, "keep": ["messages"]}
    with pytest.raises(ValueError, match=r"Pass Chat\(max_tokens=N\) with the run's seq_len"):
        convert_to_mds("x", tmp_path, **options, tokenizer=chat_tokenizer(), chat=Chat())
    with pytest.raises(ValueError, match=r"Pass chat=Chat\(\) for conversations"):
        convert_to_mds("x", tmp_path, **options, tokenizer=chat_tokenizer())
    with pytest.raises(ValueError, match="chat applies only when tokens are counted"):
        convert_to_mds("x", tmp_path, **options, chat=Chat(max_tokens=9))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("size", [12_000, 1 << 30])
def test_an_interrupted_conversion_has_no_index_and_finishes_to_the_same_lengths(
    corpus: Path, tmp_path: Path, size: int
) -> None:
    options = {**COUNTING, "segment_bytes": size}
    convert_to_mds(corpus, tmp_path / "whole", **options)
    for shards in (3, 20, 0, 33):
        convert_until(shards, corpus, tmp_path / "out", **options)
        assert not (tmp_path / "out" / "lengths").exists()
    convert_to_mds(corpus, tmp_path / "out", **options)
    assert dataset_bytes(str(tmp_path / "out")) == dataset_bytes(str(tmp_path / "whole"))


@pytest.mark.parametrize("size", [12_000, 1 << 30])
def test_rejects_and_lengths_are_kept_together_wherever_it_stops(tmp_path: Path, size: int) -> None:
    bad = mixed_corpus(tmp_path / "bad", part=2)
    rows = [{"body" if n % 9 == 4 else "text": f"{n}", "n": n} for n in range(900)]
    for name in ("a-bad", "e-bad"):
        write_lines(bad / f"{name}.jsonl", rows)
    options = {**COUNTING, "segment_bytes": size, "skip_bad": True, "block_bytes": 1_000}
    out, rejects, plain = tmp_path / "out", tmp_path / "rejects", tmp_path / "plain"
    convert_to_mds(bad, out, **{**options, "tokenizer": None}, rejects=plain)
    without = dataset_bytes(str(out))
    convert_to_mds(bad, out, overwrite=True, **options)
    whole = dataset_bytes(str(out))
    assert without == without_lengths(whole)
    for shards in (3, 20):
        convert_until(shards, bad, tmp_path / "again", rejects=rejects, **options)
    report = convert_to_mds(bad, tmp_path / "again", rejects=rejects, **options)
    assert dataset_bytes(str(tmp_path / "again")) == whole
    assert rejects.read_bytes() == plain.read_bytes()
    assert report.bad == len(rejects.read_bytes().splitlines()) == 200
    assert report.tokens == report.text_bytes


def test_a_worker_that_another_overtakes_leaves_its_lengths_alone(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker joins the segments and removes their notes before this worker reads them."""
    out, read = tmp_path / "out", finish._read_lengths
    convert_to_mds(corpus, out, worker="0/2", **COUNTING)

    def read_late(*args: Any) -> Iterator[str]:
        monkeypatch.undo()
        assert convert_to_mds(corpus, out, finish=True, **COUNTING).tokens
        yield from read(*args)

    monkeypatch.setattr(finish, "_read_lengths", read_late)
    monkeypatch.setattr(lengths_index, "GROUP_SAMPLES", 100)
    report = convert_to_mds(corpus, out, worker="1/2", **COUNTING)
    assert report.already_complete
    assert report.tokens == report.text_bytes
    assert dataset_bytes(str(out / "lengths")) == count_again(out, tmp_path / "again")


def test_a_dataset_with_an_index_has_its_lengths(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop between the two index writes shows that the index of the lengths is written first."""
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("cloudload.tools.convert.run.finish_dataset", None)
        with pytest.raises(TypeError):
            convert_to_mds(corpus, out, **COUNTING)
    assert list(out.glob("lengths/*/index-*.json"))
    assert not (out / "index.json").exists()
    convert_to_mds(corpus, out, **COUNTING)
    assert dataset_bytes(str(out / "lengths")) == count_again(out, tmp_path / "again")


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
    found = dataset_bytes(str(out / "lengths"))
    assert {name: found.get(name) for name in again} == again
    assert report.tokens == report.text_bytes


def test_another_tokenizer_on_resume_is_refused(corpus: Path, tmp_path: Path) -> None:
    convert_until(9, corpus, tmp_path / "out", **COUNTING)
    for options in (SETTINGS, {**COUNTING, "transform": keep_odd}):
        refused = r"belongs to a conversion with different .*: lengths was"
        with pytest.raises(ConvertError, match=refused):
            convert_to_mds(corpus, tmp_path / "out", **options)


def test_overwriting_a_dataset_removes_its_lengths(corpus: Path, tmp_path: Path) -> None:
    convert_to_mds(corpus, tmp_path / "out", **COUNTING)
    convert_to_mds(corpus, tmp_path / "out", overwrite=True, **SETTINGS)
    assert not (tmp_path / "out" / "lengths").exists()


def test_overwriting_splits_removes_their_lengths(corpus: Path, tmp_path: Path) -> None:
    out, splits = tmp_path / "out", "train=0.5,val=0.5"
    convert_to_mds(corpus, out, splits=splits, **SETTINGS)
    count(out / "val")
    assert (out / "val" / "lengths").exists()
    convert_to_mds(corpus, out, splits=splits, overwrite=True, **SETTINGS)
    assert not (out / "val" / "lengths").exists()


def test_counting_splits_is_refused_before_anything_is_written(
    corpus: Path, tmp_path: Path, cli: Any
) -> None:
    out, splits = tmp_path / "out", {"train": 0.5, "val": 0.5}
    message = r"splits .* and tokenizer \(--tokenizer\) cannot be combined yet"
    with pytest.raises(ValueError, match=message):
        convert_to_mds(corpus, out, splits=splits, **COUNTING)
    command = ["convert", corpus, out, "--split", "train=0.5,val=0.5"]
    refused = cli(*command, "--tokenizer", "no such tokenizer", status=1)
    assert "then run cloudload count on each split" in refused.err
    assert not out.exists()


def test_a_transform_without_a_tokenizer_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="transform applies only when tokens are counted"):
        convert_to_mds(corpus, tmp_path / "out", transform=keep_odd, **SETTINGS)


def test_the_command_counts_and_a_loader_finds_the_lengths(
    corpus: Path, tmp_path: Path, cli: Any, tokenizer_file: str
) -> None:
    command = ["convert", corpus, tmp_path / "out", "--tokenizer", tokenizer_file]
    assert "  tokens     " in cli(*command, "--processes", "1", "--keep", "n").out
    options = {"tokenizer": tokenizer_file, "epochs": 1, "lengths": "require"}
    with make_loader(str(tmp_path / "out"), **options) as loader:
        assert len(loader) > 0  # unknown without lengths


def test_finishing_an_append_needs_the_tokenizer_if_older_shards_are_not_counted(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, more = tmp_path / "out", mixed_corpus(tmp_path / "more", part=2)
    (more / "e00.jsonl").unlink()
    convert_to_mds(corpus, out, **SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr(finish, "write_groups", None)
        with pytest.raises(TypeError):
            convert_to_mds(more, out, append=True, worker="0/1", **COUNTING)
    with pytest.raises(ConvertError, match=r"older shards without token lengths.*--tokenizer NAME"):
        convert_to_mds(more, out, append=True, finish=True, **SETTINGS)
    assert convert_to_mds(more, out, append=True, finish=True, **COUNTING).tokens
    again = count_again(out, tmp_path / "again")
    found = dataset_bytes(str(out / "lengths"))
    assert {name: found.get(name) for name in again} == again
