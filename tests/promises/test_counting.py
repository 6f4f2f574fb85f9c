"""Counting writes the same bytes on any number of processes and machines, even if it is killed,
and its report is correct."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from cloudload.errors import DatasetError
from cloudload.rows.packing.tables import Size
from cloudload.run.lengths import lengths_index
from cloudload.tools.count import group as group_module
from cloudload.tools.count import length_report
from cloudload.tools.count.count import count_tokens, estimate_tokens
from cloudload.tools.count.length_report import LengthCounter
from testkit.corpora import byte_tokenizer, random_documents, write_mds
from testkit.counted import count
from testkit.loaders import ids_of, make_loader

DOCUMENTS = random_documents(0, 900, max_words=60)


@functools.cache
def word_tokenizer() -> Tokenizer:
    """Make a tokenizer with one token per word, so that token counts differ from byte counts."""
    words = sorted({word for text in random_documents(0, 500) for word in text.split()})
    vocabulary = {"?": 0, **{word: number for number, word in enumerate(words, 1)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<eos>"])
    return tokenizer


def keep_odd(sample: dict[str, Any]) -> str | None:
    """A transform that filters out even-numbered documents."""
    text = str(sample["text"])
    return text if int(text.partition(":")[0]) % 2 else None


def repeat(sample: dict[str, Any]) -> str:
    """A transform that repeats each text and fails on bytes that are not UTF-8."""
    return str(sample["text"], "utf-8") * 2


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count in groups of at least 100 samples."""
    monkeypatch.setattr(lengths_index, "GROUP_SAMPLES", 100)


@pytest.fixture
def dataset(tmp_path: Path, small_groups: None) -> Path:  # noqa: ARG001
    """A dataset of about 30 shards."""
    write_mds(tmp_path / "mds", DOCUMENTS, shard_bytes=8_000)
    return tmp_path / "mds"


def digest_of(folder: Path) -> str:
    """Hash the names and bytes of all files in a folder with SHA-256.

    Leaves out hidden files, because a killed process cannot remove its temporary copies.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def count_part(dataset: Path, out: Path, worker: str) -> Any:
    """Count the share of one job of an array."""
    options: dict[str, Any] = {"tokenizer": byte_tokenizer(), "processes": 1, "progress": False}
    return count_tokens(dataset, out=out, worker=worker, **options)


def test_processes_machines_and_order_do_not_change_a_byte(dataset: Path, tmp_path: Path) -> None:
    report = count(dataset, out=tmp_path / "one")
    assert report.groups > 5
    with ThreadPoolExecutor(3) as threads:
        count(dataset, out=tmp_path / "threads", executor=threads)
    for worker in ("2/4", "0/4", "3/4"):
        assert count_part(dataset, tmp_path / "array", worker) is None
        assert not list((tmp_path / "array").rglob("index*"))
    assert count(dataset, out=tmp_path / "array", worker="1/4").tokens == report.tokens
    count(dataset, out=tmp_path / "two", processes=2)
    digests = {digest_of(tmp_path / name) for name in ("one", "threads", "array", "two")}
    assert len(digests) == 1


@pytest.mark.parametrize("most", [5, pytest.param(20, marks=pytest.mark.long)])
def test_counting_that_is_killed_resumes_and_writes_the_same_bytes(
    tmp_path: Path, most: int
) -> None:
    write_mds(tmp_path / "mds", DOCUMENTS, shard_bytes=8_000)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    program = f"""
import sys
from cloudload.run.lengths import lengths_index
lengths_index.GROUP_SAMPLES = 40
from cloudload.tools.count.count import count_tokens, estimate_tokens
count_tokens({str(tmp_path / "mds")!r}, tokenizer={str(tmp_path / "tokenizer.json")!r},
             out=sys.argv[1], processes=1, progress=False)
"""
    (tmp_path / "count.py").write_text(program)
    whole = tmp_path / "whole"
    subprocess.run([sys.executable, tmp_path / "count.py", whole], check=True)
    killed, chance = tmp_path / "killed", random.Random(0)
    num_kills = 0
    while num_kills < most:
        process = subprocess.Popen([sys.executable, tmp_path / "count.py", killed])
        before = len(list(killed.rglob("*.lengths")))
        # wait until the process has written at least one more group, and then kill it
        while process.poll() is None and len(list(killed.rglob("*.lengths"))) <= before:
            time.sleep(chance.uniform(0, 0.01))
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        num_kills += 1
    assert num_kills > most // 2
    subprocess.run([sys.executable, tmp_path / "count.py", killed], check=True)
    assert digest_of(whole) == digest_of(killed)


def test_the_report_counts_documents_tokens_and_what_was_left_out(
    dataset: Path, tmp_path: Path
) -> None:
    report = count(dataset, out=tmp_path / "out", transform=keep_odd)
    kept = [text for number, text in enumerate(DOCUMENTS) if number % 2]
    sizes = sorted(len(text.encode()) for text in kept)
    assert (report.samples, report.documents, report.filtered) == (900, 450, 450)
    assert report.tokens == report.text_bytes == sum(sizes)
    assert report.stats.longest == sizes[-1]
    assert report.stats.percentiles["50"] == sizes[224]
    assert sum(each.documents for each in report.stats.histogram) == 450
    for each in report.stats.fits:
        assert each.documents == sum(size <= each.seq_len for size in sizes) / 450


def test_the_bytes_of_text_are_those_that_were_tokenized(tmp_path: Path) -> None:
    """The byte count excludes other columns and documents that were left out."""
    documents = ["été", b"\xff\xfe", "狐", "", "plain"]
    values = [text.encode() if isinstance(text, str) else text for text in documents]
    extra = {"id": ("str", ["a" * 99] * 5)}
    write_mds(tmp_path / "mds", values, encoding="bytes", extra=extra)
    report = count(tmp_path / "mds", out=tmp_path / "out", on_error="skip")
    assert (report.documents, report.empty, report.failed) == (3, 1, 1)
    assert report.text_bytes == report.tokens == 5 + 3 + 5
    upper = count(tmp_path / "mds", out=tmp_path / "out", on_error="skip", transform=repeat)
    assert upper.text_bytes == upper.tokens == 10 + 6 + 10


@pytest.mark.usefixtures("small_groups")
def test_a_dataset_that_grew_keeps_the_files_of_its_first_shards(tmp_path: Path) -> None:
    data, out = tmp_path / "mds", tmp_path / "out"
    write_mds(data, DOCUMENTS[:600], shard_samples=[50] * 12)
    count(data, out=out)
    write_mds(data, DOCUMENTS, shard_samples=[50] * 18)
    report = count(data, out=out)
    assert (report.groups, report.counted_groups) == (9, 3)


def test_a_damaged_file_of_lengths_is_named(dataset: Path, tmp_path: Path) -> None:
    count(dataset, out=tmp_path / "out")
    victim = sorted((tmp_path / "out").rglob("*.lengths"))[2]
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(DatasetError, match=rf"{victim.name} is damaged.*Remove the file"):
        count(dataset, out=tmp_path / "out")
    victim.unlink()
    assert count(dataset, out=tmp_path / "out").counted_groups == 1


Flags = list[Any]


@pytest.fixture
def flags(tokenizer_file: str) -> Flags:
    return ["--tokenizer", tokenizer_file, "--processes", "1", "--quiet"]


def test_the_command_prints_the_report(dataset: Path, cli: Any, flags: Flags) -> None:
    report = json.loads(cli("count", dataset, *flags, "--json").out)
    assert report["tokens"] == sum(len(text.encode()) for text in DOCUMENTS)
    shown = cli("count", dataset, *flags).out
    assert f"{report['tokens']:,} tokens" in shown
    assert "documents that fit in one row" in shown


SOURCES = ["web", "books", "wéb\x1b[31m"]


@pytest.fixture
def sourced(tmp_path: Path, small_groups: None) -> Path:  # noqa: ARG001
    """A dataset with the columns `source`, `part`, and `number`; every fifth document is empty."""
    documents = ["" if number % 5 == 0 else text for number, text in enumerate(DOCUMENTS)]
    extra: dict[str, tuple[str, list[Any]]] = {
        "source": ("str", [SOURCES[number // 7 % 3] for number in range(900)]),
        "part": ("json", [None if number % 2 else {"n": number % 4} for number in range(900)]),
        "number": ("int", list(range(900))),
    }
    write_mds(tmp_path / "mds", documents, shard_bytes=8_000, extra=extra)
    return tmp_path / "mds"


def expected_values(names: dict[int, str]) -> list[tuple[str, int, int]]:
    """Compute (value, documents, tokens) for each name from all samples, most tokens first."""
    counts: dict[str, list[int]] = {name: [] for name in names.values()}
    for number, text in enumerate(DOCUMENTS):
        if number % 5:
            counts[names[number]].append(len(text.encode()))
    found = [(name, len(sizes), sum(sizes)) for name, sizes in counts.items()]
    return sorted(found, key=lambda each: -each[2])


@pytest.mark.parametrize("before", ["nothing", "some groups", "all groups"])
def test_a_column_divides_documents_and_tokens(sourced: Path, tmp_path: Path, before: str) -> None:
    out = tmp_path / "out"
    if before != "nothing":
        count(sourced, out=out)
    if before == "some groups":
        for victim in sorted(out.rglob("*.lengths"))[1:3]:
            victim.unlink()
    found = {}
    with ThreadPoolExecutor(3) as threads:
        for column, settings in {"source": {"executor": threads}, "part": {}}.items():
            report = count(sourced, out=out, by=column, **settings)
            assert (report.by, report.groups) == (column, len(list(out.rglob("*.lengths"))))
            assert sum(each.share for each in report.values) == pytest.approx(1)
            found[column] = [(each.value, each.documents, each.tokens) for each in report.values]
    parts = {number: "None" if number % 2 else str({"n": number % 4}) for number in range(900)}
    assert found["source"] == expected_values({n: SOURCES[n // 7 % 3] for n in range(900)})
    assert found["part"] == expected_values(parts)
    count(sourced, out=tmp_path / "plain")
    assert digest_of(out) == digest_of(tmp_path / "plain")


def test_a_column_that_cannot_divide_is_refused(
    sourced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with pytest.raises(DatasetError, match=r"no column 'sourc' in .* are: number, part, source"):
        count(sourced, out=out, by="sourc")
    with pytest.raises(ValueError, match=r"by \(--by\) needs all groups"):
        count(sourced, out=out, by="source", worker="0/2")
    monkeypatch.setattr(length_report, "MOST_VALUES", 500)
    many = "column 'number' has more than 500 different values, such as"
    with pytest.raises(DatasetError, match=many):
        count(sourced, out=out, by="number")


def test_the_command_prints_the_values_of_a_column(sourced: Path, cli: Any, flags: Flags) -> None:
    command = ["count", sourced, *flags]
    shown = cli(*command, "--processes", "2", "--by", "source").out
    table = r"by source\n +documents +tokens +share\n( +[\d,]+ +[\d,]+ +[\d.]+%  \S+\n)+"
    assert re.search(table, shown)
    assert "wéb\\x1b[31m" in shown
    assert "(850 other values, in --json)" in cli(*command, "--by", "number").out
    values = json.loads(cli(*command, "--by", "source", "--json").out)["values"]
    assert sorted(each["value"] for each in values) == sorted(SOURCES)
    cli(*command, "--by", "source", "--sample", "1%", status=1)


@pytest.mark.parametrize("more", [[], ["--sample", "50%"]])
def test_the_command_draws_the_histogram(
    dataset: Path, tmp_path: Path, cli: Any, flags: Flags, more: list[str]
) -> None:
    pictures = [tmp_path / name for name in ("one.png", "two.png")]
    for picture in pictures:
        cli("count", dataset, *flags, "--png", picture, *more)
    one, two = (picture.read_bytes() for picture in pictures)
    assert one == two
    assert one.startswith(b"\x89PNG")
    assert struct.unpack(">II", one[16:24]) == (1280, 720)


def test_a_picture_that_cannot_be_drawn_is_refused_before_counting(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any, flags: Flags
) -> None:
    command = ["count", dataset, *flags, "--png"]
    assert "no folder" in cli(*command, tmp_path / "no" / "a.png", status=1).err
    monkeypatch.setattr("cloudload.system.reports.find_spec", lambda _: None)
    error = cli(*command, tmp_path / "a.png", status=1).err
    assert "matplotlib package. Run: pip install matplotlib" in error
    assert not (dataset / "lengths").exists()


def test_an_estimate_is_as_exact_as_it_says(tmp_path: Path) -> None:
    """For 20 datasets with dissimilar shards, at most 3 of the 95% intervals miss the truth."""
    misses = 0
    for seed in range(20):
        documents = [
            text
            for shard in range(30)
            for text in random_documents(100 * seed + shard, 150, max_words=5 + 3 * shard % 40)
        ]
        write_mds(tmp_path / str(seed), documents, shard_samples=[150] * 30)
        found = estimate_tokens(tmp_path / str(seed), 0.1, tokenizer=word_tokenizer())
        exact = sum(len(each.ids) for each in word_tokenizer().encode_batch(documents))
        assert found.samples_read < 2_100
        misses += abs(found.tokens - exact) > found.error * found.tokens
    assert misses <= 3


def test_an_estimate_from_all_documents_is_exact(dataset: Path) -> None:
    found = estimate_tokens(dataset, 1.0, tokenizer=byte_tokenizer())
    assert (found.tokens, found.error) == (sum(len(text.encode()) for text in DOCUMENTS), 0.0)


LENGTHS = st.lists(
    st.one_of(
        st.integers(0, 300),
        st.sampled_from(
            [Size.FILTERED, Size.FAILED, 65_533, 65_534, 65_535, 65_536, (1 << 32) - 3]
        ),
    ),
    max_size=50,
)


@given(parts=st.lists(LENGTHS, max_size=3))
def test_percentiles_and_histogram_are_exact(parts: list[list[int]]) -> None:
    spread = LengthCounter()
    for part in parts:
        spread.add(np.array(part, np.int64))
    found, sizes = spread.summarize(), sorted(n for part in parts for n in part if n > 0)
    assert sum(each.tokens for each in found.histogram) == sum(sizes)
    for each in found.histogram:
        assert each.documents == sum(each.low <= size < each.high for size in sizes)
    for name, length in found.percentiles.items():
        if sizes:
            assert sum(size <= length for size in sizes) >= len(sizes) * float(name) / 100 - 1e-9
            assert length in sizes


CUT = 0


def cut(sample: dict[str, Any]) -> str:
    """A transform whose output changes although its `transform_id` does not."""
    return str(sample["text"])[CUT:]


def test_counting_again_is_the_way_out_of_lengths_that_differ_from_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_mds(tmp_path / "mds", DOCUMENTS[:200], shard_bytes=4_000)
    monkeypatch.setattr(lengths_index, "GROUP_BYTES", 8_000)
    options: dict[str, Any] = {"transform": cut, "transform_id": "v1"}

    def count_groups(**more: Any) -> int:
        return count(data, **options, **more).counted_groups

    def read() -> list[Any]:
        with make_loader(data, **options, packing="best_fit", lengths="require") as loader:
            loader.seek(40)
            return ids_of(loader.take(3))

    groups = count_groups()
    assert groups > 2
    before = read()
    monkeypatch.setattr(sys.modules[__name__], "CUT", 5)
    with pytest.raises(DatasetError, match=r"now has .*run cloudload count --again"):
        read()
    assert (count_groups(), count_groups(again=True)) == (0, groups)
    counted = read()
    with make_loader(data, **options, packing="best_fit", lengths="off") as plain:
        plain.seek(40)
        assert ids_of(plain.take(3)) == counted != before
    assert (count_groups(), count_groups(again=True)) == (0, groups)


def test_a_count_again_that_is_stopped_leaves_no_old_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_mds(tmp_path / "mds", DOCUMENTS[:200], shard_bytes=4_000)
    monkeypatch.setattr(lengths_index, "GROUP_BYTES", 8_000)
    options: dict[str, Any] = {"transform": cut, "transform_id": "v2"}
    count(data, **options)
    monkeypatch.setattr(sys.modules[__name__], "CUT", 5)
    expected = count(data, out=tmp_path / "apart", **options)
    write, written = group_module.write_group, [0]

    def stop_early(*arguments: Any) -> None:
        written[0] += 1
        if written[0] == 2:
            raise KeyboardInterrupt
        write(*arguments)

    with monkeypatch.context() as stopped:
        stopped.setattr(group_module, "write_group", stop_early)
        with pytest.raises(KeyboardInterrupt):
            count(data, again=True, **options)
    assert not list(Path(data).glob("lengths/*/index-*.json"))
    resumed = count(data, **options)
    assert (resumed.tokens, resumed.counted_groups) == (expected.tokens, expected.groups - 1)


def test_counting_again_is_refused_where_it_could_remove_what_another_job_has_counted(
    tmp_path: Path, cli: Any, flags: Flags
) -> None:
    data = write_mds(tmp_path / "mds", ["a text"])
    with pytest.raises(ValueError, match=r"again .*Remove the folder .*/mds/lengths/"):
        count(data, worker="0/2", again=True)
    command = ["count", data, *flags, "--again"]
    error = cli(*command, "--sample", "1%", status=1).err
    assert "--again requires a full count. Remove --sample" in error
    kept = Path(data, "lengths", "notes.txt")
    cli(*command)
    kept.write_text("ours")
    [index] = Path(data).glob("lengths/*/index-*.json")
    index.with_name("notes.json").write_text("ours, too")
    cli(*command)
    assert kept.exists()
    assert index.with_name("notes.json").exists()
