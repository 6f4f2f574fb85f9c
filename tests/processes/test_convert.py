"""The converter's promises: the same bytes whoever converts and whatever interrupts it; every
format; nothing lost in silence."""

from __future__ import annotations

import bz2
import functools
import gzip
import hashlib
import itertools
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudload import cli
from cloudload.convert.convert import convert_to_mds
from cloudload.convert.journal import ConvertReport
from cloudload.errors import ConvertError, StoreError
from cloudload.mds.codecs import decompress
from cloudload.mds.index import parse_index
from cloudload.mds.shard import Shard
from cloudload.storage.objects import list_objects, read_object, write_object
from tests.support import ROOT

QUIET = {"progress": False, "processes": 1}


def write_corpus(folder: Path, files: int = 3, lines: int = 400, seed: int = 1) -> Path:
    """JSON lines of very unequal lengths, in nested folders, one file gzipped."""
    draw = random.Random(seed)
    words = ["stone", "water", "Füchse", "狐", "🦊", "\x00", "<|endoftext|>", "\r\n"]
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        records = [
            {"text": " ".join(draw.choices(words, k=draw.randint(1, 200))), "n": row}
            for row in range(lines)
        ]
        data = "".join(
            json.dumps(record, ensure_ascii=row % 2 == 0) + "\n"
            for row, record in enumerate(records)
        ).encode()
        if number == 1:
            (folder / "b.jsonl.gz").write_bytes(gzip.compress(data))
        else:
            (folder / f"sub{number}").mkdir(exist_ok=True)
            (folder / f"sub{number}" / "part.jsonl").write_bytes(data)
    return folder


def dataset_bytes(url: str) -> dict[str, str]:
    """The hash of every file of a dataset but the report, which tells the time."""
    found = {
        item.url.removeprefix(url): hashlib.sha256(read_object(item.url)).hexdigest()
        for item in list_objects(url)
    }
    return {
        name: digest for name, digest in found.items() if not name.endswith("convert-report.json")
    }


def read_dataset(url: str, scratch: Path) -> list[dict[str, Any]]:
    """Every sample, by our own reader."""
    samples = []
    for info in parse_index(read_object(f"{url}/index.json"), url):
        path = scratch / info.raw.name
        stored = read_object(f"{url}/{info.stored.name}")
        path.write_bytes(
            decompress(info.compression, stored, info.raw.bytes) if info.compression else stored
        )
        shard = Shard(path, info)
        samples += [shard.read(number) for number in range(info.samples)]
    return samples


def texts(url: str, scratch: Path) -> list[str]:
    return [sample["text"] for sample in read_dataset(url, scratch)]


def convert_lines(tmp_path: Path, lines: Sequence[str | bytes], **options: Any) -> ConvertReport:
    """Convert `in/a.jsonl` of these lines to `out`."""
    path = tmp_path / "in" / "a.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(
        b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines)
    )
    return convert_to_mds(path.parent, tmp_path / "out", **(QUIET | options))


# ---------------------------------------------------------------- the same bytes


def test_any_number_of_processes_writes_the_same_bytes(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    for processes in (1, 2, 5):
        convert_to_mds(
            corpus,
            tmp_path / f"out{processes}",
            processes=processes,
            progress=False,
            shard_bytes=20_000,
            block_bytes=9_000,
        )
    one = dataset_bytes(str(tmp_path / "out1"))
    assert len(one) > 20
    assert dataset_bytes(str(tmp_path / "out2")) == one
    assert dataset_bytes(str(tmp_path / "out5")) == one


def test_the_block_size_does_not_show_in_the_output(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    for size in (1, 1000, 1 << 20):
        convert_to_mds(
            corpus, tmp_path / f"out{size}", block_bytes=size, shard_bytes=50_000, **QUIET
        )
    assert (
        dataset_bytes(str(tmp_path / "out1"))
        == dataset_bytes(str(tmp_path / "out1000"))
        == dataset_bytes(str(tmp_path / f"out{1 << 20}"))
    )


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_raw_shards_and_index_are_those_of_mdswriter(
    tmp_path: Path, compression: str | None
) -> None:
    from streaming import MDSWriter

    corpus = write_corpus(tmp_path / "corpus")
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    convert_to_mds(
        corpus,
        ours,
        keep=["n"],
        compression=compression,
        hashes=("sha1", "xxh64"),
        shard_bytes=30_000,
        **QUIET,
    )
    columns = {"text": "str", "id": "str", "n": "int"}
    with MDSWriter(
        out=str(theirs),
        columns=columns,
        compression=compression,
        hashes=["sha1", "xxh64"],
        size_limit=30_000,
    ) as writer:
        for sample in read_dataset(str(ours), tmp_path):
            writer.write(sample)
    indexes = [json.loads((folder / "index.json").read_text()) for folder in (ours, theirs)]
    for one, other in zip(*(index["shards"] for index in indexes), strict=True):
        raw = [_raw_shard(folder, entry) for folder, entry in ((ours, one), (theirs, other))]
        assert raw[0] == raw[1]
        for entry in (one, other):
            # the zstd of another library version compresses a little differently
            (entry["zip_data"] or {}).update(bytes=0, hashes={})
    assert indexes[0] == indexes[1]
    if compression is None:
        assert (ours / "index.json").read_bytes() == (theirs / "index.json").read_bytes()


def _raw_shard(folder: Path, entry: dict[str, Any]) -> bytes:
    if entry["zip_data"] is None:
        return (folder / entry["raw_data"]["basename"]).read_bytes()
    return decompress(
        "zstd", (folder / entry["zip_data"]["basename"]).read_bytes(), entry["raw_data"]["bytes"]
    )


def test_streaming_reads_it_with_hashes_checked(tmp_path: Path) -> None:
    from streaming import Stream
    from streaming.base.world import World

    corpus = write_corpus(tmp_path / "corpus")
    report = convert_to_mds(
        corpus, tmp_path / "remote", shard_bytes=100_000, hashes=("sha256", "xxh64"), **QUIET
    )
    stream = Stream(remote=str(tmp_path / "remote"), local=str(tmp_path / "local"))
    defaults = {
        "split": "",
        "download_retry": 2,
        "download_timeout": 60,
        "validate_hash": "xxh64",
        "keep_zip": False,
    }
    stream.apply_default({"remote": stream.remote, "local": stream.local} | defaults)
    found = []
    for reader in stream.get_shards(World(1, 1, 1, 0), allow_unsafe_types=False):
        stream.prepare_shard(reader)
        found += [reader[number] for number in range(reader.samples)]
    assert found == read_dataset(str(tmp_path / "remote"), tmp_path)
    assert len(found) == report.documents == 1200


def test_a_document_larger_than_a_shard_has_a_shard_to_itself(tmp_path: Path) -> None:
    convert_lines(
        tmp_path,
        [json.dumps({"text": text}) for text in ("x" * 5000, "a", "b", "y" * 5000)],
        shard_bytes=1500,
    )
    assert [
        info.samples for info in parse_index((tmp_path / "out" / "index.json").read_bytes(), "out")
    ] == [1, 2, 1]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lines=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=30
    ),
    ends=st.sampled_from(["\n", "\r\n"]),
    last_end=st.booleans(),
    block_bytes=st.integers(1, 200),
    shard_bytes=st.integers(1024, 1400),
)
def test_every_document_comes_out_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    lines: list[str],
    ends: str,
    last_end: bool,
    block_bytes: int,
    shard_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    documents = [json.dumps({"text": "x" + line}, ensure_ascii=False) for line in lines]
    (folder / "a.jsonl").write_bytes((ends.join(documents) + (ends if last_end else "")).encode())
    convert_to_mds(
        folder / "a.jsonl",
        folder / "out",
        block_bytes=block_bytes,
        shard_bytes=shard_bytes,
        **QUIET,
    )
    assert texts(str(folder / "out"), folder) == ["x" + line for line in lines]


# ---------------------------------------------------------------- killed


def start_cli(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cloudload.cli", "convert", *arguments, "--quiet"]
    # a shell's background jobs ignore Ctrl-C, and so would what they start
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed
    )


def kill_and_finish(corpus: Path, out: str, kills: int, seed: int) -> None:
    """Run the CLI, kill it at random moments, and run it until it is finished."""
    draw = random.Random(seed)
    for attempt in itertools.count():
        process = start_cli(
            str(corpus), out, "--shard-bytes", "64k", "--processes", str(draw.choice([1, 2, 3]))
        )
        if attempt < kills:
            _wait_for_progress(process, out, draw.randint(1, 6))
            time.sleep(draw.random() * 0.05)
            process.kill()
        printed, errors = process.communicate(timeout=120)
        if process.returncode == 0:
            assert attempt == kills, (
                f"finished after {attempt} kills of {kills}; the corpus is too small"
            )
            return
        assert process.returncode == -signal.SIGKILL, (printed, errors)
        assert not Path(out, "index.json").exists()


def _wait_for_progress(process: subprocess.Popen[bytes], out: str, shards: int) -> None:
    """Until that many further shards are in the journal, so that every run gets somewhere."""
    before = _journal_length(out)
    while process.poll() is None and _journal_length(out) < before + shards:
        time.sleep(0.002)


def _journal_length(out: str) -> int:
    return len(list(Path(out, ".convert").glob("0*.json")))


def check_kills(tmp_path: Path, kills: int, seed: int) -> None:
    corpus = write_corpus(tmp_path / "corpus", files=4, lines=1000 * kills)
    convert_to_mds(corpus, tmp_path / "whole", shard_bytes=64 << 10, **QUIET)
    kill_and_finish(corpus, str(tmp_path / "killed"), kills, seed)
    assert dataset_bytes(str(tmp_path / "killed")) == dataset_bytes(str(tmp_path / "whole"))
    reports = [
        json.loads((tmp_path / name / "convert-report.json").read_text())["report"]
        for name in ("whole", "killed")
    ]
    for report in reports:
        for name in ("seconds", "out", "resumed_shards"):
            del report[name]
    assert reports[0] == reports[1]


def test_a_conversion_killed_again_and_again_ends_in_the_same_bytes(tmp_path: Path) -> None:
    check_kills(tmp_path, kills=4, seed=7)


@pytest.mark.long
def test_twenty_kills_end_in_the_same_bytes(tmp_path: Path) -> None:
    check_kills(tmp_path, kills=20, seed=11)


def test_the_index_appears_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    for module in ("shards", "journal"):
        monkeypatch.setattr(
            f"cloudload.convert.{module}.write_object",
            lambda url, data: (written.append(Path(url).name), write_object(url, data)),
        )
    convert_to_mds(write_corpus(tmp_path / "corpus"), tmp_path / "out", shard_bytes=50_000, **QUIET)
    assert written[-1] == "index.json"
    assert written.count("index.json") == 1


def stop_after(monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    """Let `write_object` fail after that many shards."""
    left = [shards]

    def failing(url: str, data: bytes) -> None:
        left[0] -= Path(url).name.startswith("shard.")
        if left[0] < 0:
            raise StoreError("no room")
        write_object(url, data)

    monkeypatch.setattr("cloudload.convert.shards.write_object", failing)


@pytest.mark.parametrize("form", ["jsonl", "gz", "lines", "text", "parquet", "dataset", "iterable"])
def test_every_format_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    expected = [f"document {number} " * (number % 17 + 1) for number in range(300)]
    source, options = make_input(tmp_path, form, expected)
    options |= {"shard_bytes": 2000, "block_bytes": 3000} | QUIET
    convert_to_mds(source(), tmp_path / "whole", **options)
    for shards in (0, 3, 9):
        stop_after(monkeypatch, shards)
        with pytest.raises(StoreError, match="no room"):
            convert_to_mds(source(), tmp_path / "out", **options)
        monkeypatch.undo()
    report = convert_to_mds(source(), tmp_path / "out", **options)
    assert report.resumed_shards == 12
    assert report.documents == 300
    assert dataset_bytes(str(tmp_path / "out")) == dataset_bytes(str(tmp_path / "whole"))
    assert texts(str(tmp_path / "out"), tmp_path) == expected


def make_input(tmp_path: Path, form: str, documents: list[str]) -> tuple[Any, dict[str, Any]]:
    """A function that gives the same input again, and the options that it needs."""
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [{"text": text} for text in documents]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if form == "iterable":
        return lambda: iter(rows), {}
    if form == "dataset":
        import datasets

        return lambda: datasets.Dataset.from_list(rows), {}
    if form == "jsonl":
        (folder / "a.jsonl").write_bytes(lines)
    elif form == "gz":
        (folder / "a.json.gz").write_bytes(
            gzip.compress(lines[:5000]) + gzip.compress(lines[5000:])
        )
    elif form == "lines":
        (folder / "a.txt").write_text("\n".join(documents))
    elif form == "text":
        for number, text in enumerate(documents):
            (folder / f"{number:04}.txt").write_text(text)
    elif form == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist(rows), folder / "a.parquet", row_group_size=70
        )
    return lambda: folder, {"format": "lines"} if form == "lines" else {}


def test_a_killed_worker_is_an_error_in_seconds(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", files=4, lines=20_000)
    process = start_cli(
        str(corpus), str(tmp_path / "out"), "--shard-bytes", "64k", "--processes", "2"
    )
    _wait_for_progress(process, str(tmp_path / "out"), 3)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [
        child for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()
    ]
    os.kill(int(workers[0]), signal.SIGKILL)
    began = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - began < 20
    assert process.returncode == 1
    assert b"was killed by SIGKILL" in errors
    assert b"Traceback" not in errors
    assert not (tmp_path / "out" / "index.json").exists()


def test_workers_do_not_outlive_their_parent(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", files=4, lines=20_000)
    process = start_cli(
        str(corpus), str(tmp_path / "out"), "--shard-bytes", "64k", "--processes", "2"
    )
    _wait_for_progress(process, str(tmp_path / "out"), 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while any(map(_is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_is_running, children))


def _is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", files=4, lines=20_000)
    process = start_cli(
        str(corpus), str(tmp_path / "out"), "--shard-bytes", "64k", "--processes", "2"
    )
    _wait_for_progress(process, str(tmp_path / "out"), 2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (
        errors.decode().strip().splitlines()[-1]
        == "cloudload: interrupted. Run the same command again to resume"
    )


# ---------------------------------------------------------------- running again


def test_a_finished_conversion_is_left_alone(tmp_path: Path) -> None:
    first = convert_lines(tmp_path, ['{"text": "a"}', '{"text": ""}'])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    again = convert_lines(tmp_path, ['{"text": "a"}', '{"text": ""}'], processes=2)
    assert again.already_complete
    assert (again.documents, again.empty, again.shards) == (1, 1, first.shards)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


def test_another_conversion_is_refused_until_told_to_overwrite(tmp_path: Path) -> None:
    convert_lines(tmp_path, ['{"text": "a"}'] * 400, shard_bytes=1500)
    with pytest.raises(
        ConvertError,
        match=r"begun with other recipe: text_key was 'text' and is 'body'.*--overwrite",
    ):
        convert_lines(tmp_path, ['{"text": "a"}'] * 400, shard_bytes=1500, text_key="body")
    with pytest.raises(ConvertError, match="begun with other inputs"):
        convert_lines(tmp_path, ['{"text": "b"}'], shard_bytes=1500)
    convert_lines(tmp_path, ['{"text": "b"}'], overwrite=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "convert-report.json",
        "index.json",
        "shard.00000.mds.zstd",
    ]


def stopped_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int) -> list[str]:
    """The lines of a conversion that stopped after some shards."""
    lines = [json.dumps({"text": f"document {number}"}) for number in range(400)]
    stop_after(monkeypatch, shards)
    with pytest.raises(StoreError, match="no room"):
        convert_lines(tmp_path, lines, shard_bytes=2000)
    monkeypatch.undo()
    return lines


def test_a_changed_input_is_noticed_when_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = stopped_conversion(tmp_path, monkeypatch, 2)
    with pytest.raises(ConvertError, match="inputs: names and sizes was"):
        convert_lines(tmp_path, [*lines, '{"text": "more"}'], shard_bytes=2000)


def test_a_dataset_of_another_tool_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "index.json").write_text("{}")
    with pytest.raises(ConvertError, match="holds a dataset already"):
        convert_lines(tmp_path, ['{"text": "a"}'])
    (tmp_path / "out" / "index.json").rename(tmp_path / "out" / "shard.00000.mds")
    with pytest.raises(ConvertError, match="holds shards of something else"):
        convert_lines(tmp_path, ['{"text": "a"}'])


def test_a_shard_that_is_gone_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = stopped_conversion(tmp_path, monkeypatch, 5)
    (tmp_path / "out" / "shard.00002.mds.zstd").write_bytes(b"half")
    assert convert_lines(tmp_path, lines, shard_bytes=2000).resumed_shards == 2
    assert texts(str(tmp_path / "out"), tmp_path) == [json.loads(line)["text"] for line in lines]


# ---------------------------------------------------------------- inputs

COMPRESSORS = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.mark.parametrize("extension", COMPRESSORS)
def test_json_lines_are_read_under_every_compression(tmp_path: Path, extension: str) -> None:
    halves = ['{"text": "a"}\n\n{"text": "b"}\r\n', '{"text": "c", "id": 7}']
    stored = b"".join(COMPRESSORS[extension](half.encode()) for half in halves)
    (tmp_path / f"x.json{extension}").write_bytes(stored)
    report = convert_to_mds(str(tmp_path / "x.json*"), tmp_path / "out", **QUIET)
    assert read_dataset(str(tmp_path / "out"), tmp_path) == [
        {"id": f"x.json{extension}:1", "text": "a"},
        {"id": f"x.json{extension}:3", "text": "b"},
        {"id": "7", "text": "c"},
    ]
    assert report.input_bytes == len(stored)


def test_text_files_are_a_document_each_and_sorted(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "x.md").write_bytes(b"\xef\xbb\xbf# b\r\n")
    (folder / "a.py").write_text("print()\n")
    (folder / "c.txt.gz").write_bytes(gzip.compress(b"c"))
    (folder / ".hidden").write_text("no")
    convert_to_mds(folder, tmp_path / "out", **QUIET)
    assert [
        (sample["id"], sample["text"]) for sample in read_dataset(str(tmp_path / "out"), tmp_path)
    ] == [
        ("a.py", "print()\n"),
        ("b/x.md", "# b\r\n"),
        ("c.txt.gz", "c"),
    ]


def test_inputs_keep_the_order_of_the_arguments(tmp_path: Path) -> None:
    for name in ("z", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.txt").write_text(f"{name}1")
        (tmp_path / name / "2.jsonl").write_text(f'{{"text": "{name}2"}}')
    convert_to_mds([tmp_path / "z", tmp_path / "a"], tmp_path / "out", **QUIET)
    samples = read_dataset(str(tmp_path / "out"), tmp_path)
    assert [sample["text"] for sample in samples] == ["z1", "z2", "a1", "a2"]
    assert [sample["id"] for sample in samples] == [
        "0/1.txt",
        "0/2.jsonl:1",
        "1/1.txt",
        "1/2.jsonl:1",
    ]


def test_globs_stay_within_a_folder_unless_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.txt", "b.md", "sub/c.txt", "sub/deep/d.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(name)
    monkeypatch.chdir(tmp_path / "in")
    for number, (glob, found) in enumerate(
        {
            "*.txt": ["a.txt"],
            "**/*.txt": ["a.txt", "sub/c.txt", "sub/deep/d.txt"],
            "sub/[!d].*": ["sub/c.txt"],
        }.items()
    ):
        convert_to_mds(glob, tmp_path / f"relative{number}", **QUIET)
        assert texts(str(tmp_path / f"relative{number}"), tmp_path) == found
        convert_to_mds(str(tmp_path / "in" / glob), tmp_path / f"absolute{number}", **QUIET)
        assert texts(str(tmp_path / f"absolute{number}"), tmp_path) == found


def test_lines_of_text_are_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\r\nthree")
    report = convert_to_mds(tmp_path / "a.txt", tmp_path / "out", format="lines", **QUIET)
    assert texts(str(tmp_path / "out"), tmp_path) == ["one", "two", "three"]
    assert report.empty == 1


def test_parquet_rows_keep_their_columns(tmp_path: Path) -> None:
    import datetime

    import pyarrow
    import pyarrow.parquet

    rows = [
        {
            "text": f"t{n}",
            "id": n,
            "day": datetime.date(2024, 1, n + 1),
            "score": n / 2,
            "image": b"\xff",
        }
        for n in range(9)
    ]
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=4
    )
    report = convert_to_mds(
        tmp_path / "a.parquet", tmp_path / "out", keep=["day", "score"], processes=2, progress=False
    )
    samples = read_dataset(str(tmp_path / "out"), tmp_path)
    assert samples[8] == {"text": "t8", "id": "8", "day": "2024-01-09", "score": 4.0}
    assert len(samples) == 9
    assert report.input_bytes == (tmp_path / "a.parquet").stat().st_size


def test_datasets_objects_are_read(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_list([{"text": f"t{n}", "n": n} for n in range(30)])
    convert_to_mds(
        datasets.DatasetDict(test=rows, train=rows.select(range(3))),
        tmp_path / "out",
        split="train",
        keep=["n"],
        **QUIET,
    )
    assert read_dataset(str(tmp_path / "out" / "train"), tmp_path)[2] == {
        "text": "t2",
        "id": "train:3",
        "n": 2,
    }
    convert_to_mds(rows.to_iterable_dataset(), tmp_path / "stream", processes=2, progress=False)
    assert len(texts(str(tmp_path / "stream"), tmp_path)) == 30


def test_a_dataset_is_loaded_by_name(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()
    (tmp_path / "name" / "train.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    convert_to_mds(f"hf://{tmp_path}/name?split=train", tmp_path / "out", **QUIET)
    assert [sample["id"] for sample in read_dataset(str(tmp_path / "out"), tmp_path)] == [
        "name:1",
        "name:2",
    ]
    with pytest.raises(ConvertError, match=r"cannot load .*\(split 'test'\)"):
        convert_to_mds(f"hf://{tmp_path}/name?split=test", tmp_path / "out2", **QUIET)


def test_stdin_is_json_lines_and_goes_on_when_given_again(tmp_path: Path) -> None:
    lines = "".join(
        json.dumps({"text": f"document {number}"}) + "\n" for number in range(500)
    ).encode()
    command = [
        sys.executable,
        "-m",
        "cloudload.cli",
        "convert",
        "-",
        str(tmp_path / "out"),
        "--quiet",
        "--shard-bytes",
        "2k",
    ]
    broken = subprocess.run(
        command, cwd=ROOT, input=lines + b"nonsense\n", capture_output=True, check=False
    )
    assert broken.returncode == 1
    assert b"stdin:501: broken JSON" in broken.stderr
    done = subprocess.run(
        [*command, "--skip-bad", "--json"],
        cwd=ROOT,
        input=lines + b"nonsense\n",
        capture_output=True,
        check=True,
    )
    report = json.loads(done.stdout)
    assert (report["documents"], report["bad"]) == (500, 1)
    assert len(texts(str(tmp_path / "out"), tmp_path)) == 500


def test_a_line_may_be_longer_than_any_block(tmp_path: Path) -> None:
    long = "long " * 1_000_000
    report = convert_lines(
        tmp_path,
        [json.dumps({"text": text}) for text in ("a", long, "b")],
        block_bytes=1000,
        processes=2,
    )
    assert report.documents == 3
    assert texts(str(tmp_path / "out"), tmp_path) == ["a", long, "b"]


def test_a_split_is_a_folder_below_the_output(tmp_path: Path) -> None:
    convert_lines(tmp_path, ['{"text": "a"}'], split="train")
    convert_lines(tmp_path, ['{"text": "b"}'], split="test")
    assert texts(str(tmp_path / "out" / "train"), tmp_path) == ["a"]
    assert texts(str(tmp_path / "out" / "test"), tmp_path) == ["b"]


# ---------------------------------------------------------------- bad records

BAD_LINES = {
    '{"text": "a"': "broken JSON",
    "[1]": "a JSON list, not an object",
    '{"body": "a"}': "no text field 'text'; it has: body",
    '{"text": 7}': "'text' is int, not a string",
    '{"text": null}': "'text' is NoneType, not a string",
    b'{"text": "\xff"}': "not UTF-8",
    '{"text": "\\ud800", "n": 1}': "not UTF-8",
    "[" * 100_000: "broken JSON",
    '{"text": "a", "n": "one"}': "the field 'n' is str, not int",
    '{"text": "a", "n": 99999999999999999999}': "a kept field does not fit",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=str)
def test_a_bad_record_stops_the_run_and_is_named(tmp_path: Path, line: str | bytes) -> None:
    good = '{"text": "good", "n": 1}'
    with pytest.raises(ConvertError) as raised:
        convert_lines(tmp_path, [good, good, line, good], keep=["n"])
    assert f"in/a.jsonl:3: {BAD_LINES[line]}" in str(raised.value)
    assert not (tmp_path / "out" / "index.json").exists()
    report = convert_lines(tmp_path, [good, good, line, good], keep=["n"], skip_bad=True)
    assert (report.documents, report.bad) == (3, 1)
    assert f"in/a.jsonl:3: {BAD_LINES[line]}" in report.bad_records[0]


def test_bad_and_empty_records_are_counted_alike_by_any_number_of_processes(tmp_path: Path) -> None:
    lines = ['{"text": ""}', '{"text": "a"}', "x", '{"text": "b"}', ""] * 50
    reports = [
        convert_lines(tmp_path, lines, skip_bad=True, overwrite=True, block_bytes=40, processes=n)
        for n in (1, 3)
    ]
    for report in reports:
        assert (report.documents, report.empty, report.bad, report.text_bytes) == (100, 50, 50, 100)
        assert [record.split(": ")[0].rpartition(":")[2] for record in report.bad_records] == [
            str(3 + 5 * n) for n in range(20)
        ]


def test_a_binary_file_among_texts_is_named(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "image.png").write_bytes(b"\x89PNG\r\n")
    (tmp_path / "in" / "a.txt").write_text("a")
    with pytest.raises(ConvertError, match=r"in/image.png:1: not UTF-8 \(byte 0x89 at 0\)"):
        convert_to_mds(tmp_path / "in", tmp_path / "out", **QUIET)


@pytest.mark.parametrize("extension", [".gz", ".zst", ".bz2", ".xz"])
def test_a_truncated_file_is_named_and_its_whole_lines_are_kept(
    tmp_path: Path, extension: str
) -> None:
    draw = random.Random(0)
    lines = [json.dumps({"text": f"{draw.random()}"}) + "\n" for _ in range(40_000)]
    stored = COMPRESSORS[extension]("".join(lines).encode())
    (tmp_path / f"a.jsonl{extension}").write_bytes(stored[: len(stored) - 20])
    with pytest.raises(ConvertError, match=rf"a.jsonl{extension}:\d+: the \w+ data ends too early"):
        convert_to_mds(tmp_path / f"a.jsonl{extension}", tmp_path / "out", **QUIET)
    report = convert_to_mds(
        tmp_path / f"a.jsonl{extension}", tmp_path / "out", skip_bad=True, **QUIET
    )
    assert report.bad == 1
    kept = texts(str(tmp_path / "out"), tmp_path)
    assert kept == [json.loads(line)["text"] for line in lines[: len(kept)]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": ["text"]}, "cannot keep"),
        ({"keep": ["n:pkl"]}, "cannot keep 'n' as 'pkl'"),
        ({"compression": "lz4"}, "compression is 'lz4'"),
        ({"hashes": ["md6"]}, "no hash named 'md6'"),
        ({"shard_bytes": 1 << 32}, "shard_bytes is 4,294,967,296"),
        ({"processes": -1}, "processes is -1"),
        ({"split": "../x"}, "split is '../x'"),
        ({"format": "xml"}, "no format named 'xml'"),
    ],
)
def test_a_wrong_argument_is_a_value_error_that_names_it(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        convert_lines(tmp_path, ['{"text": "a"}'], **options)


def test_what_cannot_be_converted_at_all_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no-such"):
        convert_to_mds(tmp_path / "no-such", tmp_path / "out", **QUIET)
    with pytest.raises(ConvertError, match=r"no documents in a\.jsonl: 1 empty, 0 bad"):
        convert_lines(tmp_path, ['{"text": ""}'])
    with pytest.raises(ConvertError, match="has a field 'nope'"):
        convert_lines(tmp_path, ['{"text": "a"}'], keep=["nope"])
    with pytest.raises(ValueError, match="lies within the input"):
        convert_to_mds(tmp_path / "in", tmp_path / "in" / "mds", **QUIET)
    with pytest.raises(ValueError, match="is given twice"):
        convert_to_mds([tmp_path / "in", tmp_path / "in" / "a.jsonl"], tmp_path / "out2", **QUIET)


def test_kept_fields_may_be_missing_only_as_json(tmp_path: Path) -> None:
    lines = ['{"text": "a"}', '{"text": "b", "meta": {"k": [1]}}']
    convert_lines(tmp_path, lines, keep=["meta"])
    assert [sample["meta"] for sample in read_dataset(str(tmp_path / "out"), tmp_path)] == [
        None,
        {"k": [1]},
    ]
    with pytest.raises(
        ConvertError, match="'meta' is missing, not str; meta:json would keep any value"
    ):
        convert_lines(tmp_path, lines, keep=["meta:str"], overwrite=True)


# ---------------------------------------------------------------- stores


def test_every_store_is_read_and_written(store_url: str, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    for item in list_objects(str(corpus)):
        write_object(f"{store_url}/in/{Path(item.url).relative_to(corpus)}", read_object(item.url))
    options = {"shard_bytes": 100_000, "processes": 2, "progress": False}
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


# ---------------------------------------------------------------- the command line


def test_the_command_line_and_the_script_are_the_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_corpus(tmp_path / "corpus", lines=20)
    arguments = [
        str(corpus),
        str(tmp_path / "cli"),
        "--keep",
        "n:int32",
        "--hashes",
        "xxh64,sha1",
        "--compression",
        "none",
    ]
    arguments += ["--shard-bytes", "8k", "--split", "train", "--processes", "1", "--quiet"]
    assert cli.main(["convert", *arguments, "--report", str(tmp_path / "report.json")]) == 0
    assert "is complete\n  documents  60 (" in capsys.readouterr().out
    options = {
        "keep": ["n:int32"],
        "hashes": ["sha1", "xxh64"],
        "compression": None,
        "shard_bytes": 8192,
        "split": "train",
    }
    report = convert_to_mds(corpus, tmp_path / "library", **options, **QUIET)
    assert dataset_bytes(str(tmp_path / "cli")) == dataset_bytes(str(tmp_path / "library"))
    written = ConvertReport.from_dict(json.loads((tmp_path / "report.json").read_text()))
    assert (written.documents, written.raw_bytes, written.shards) == (
        report.documents,
        report.raw_bytes,
        report.shards,
    )
    script = [sys.executable, "scripts/convert_to_mds.py", *arguments, "--json"]
    again = subprocess.run(script, cwd=ROOT, capture_output=True, check=True)
    assert json.loads(again.stdout)["already_complete"]


def test_an_error_is_one_line_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["convert", str(tmp_path / "none"), str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("cloudload: cannot list ")
    assert printed.err.count("\n") == 1


def test_help_is_instant_and_ends_with_an_example() -> None:
    code = (
        "import sys; from cloudload import cli\ntry: cli.main(['convert', '--help'])\nexcept "
        "SystemExit: print(*sys.modules)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    usage, modules = printed.rsplit("\n", 2)[:2]
    assert usage.splitlines()[-1].startswith("  cloudload convert ")
    assert not {"torch", "numpy", "boto3", "streaming", "datasets", "tqdm"} & set(modules.split())
