"""Every command ends with an answer if its input is damaged: it neither hangs nor crashes.

Files of each format are cut off, emptied, and changed at random places. Commands and a loader read
them.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import random
import shutil
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow
import pyarrow.feather
import pytest
import zstandard

from cloudload.errors import CloudloadError
from testkit.corpora import byte_tokenizer, random_documents, write_mds
from testkit.counted import count
from testkit.loaders import make_loader
from testkit.parquet_files import write_corpus

TEXTS = random_documents(3, 60, max_words=20)
ROUNDS = 2


def _write_lines(folder: Path, name: str, pack: Callable[[bytes], bytes] = bytes) -> None:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    (folder / name).write_bytes(pack(lines.encode()))


def _write_array(folder: Path) -> None:
    (folder / "a.json").write_text(json.dumps([{"text": text} for text in TEXTS]))


def _write_csv(folder: Path) -> None:
    rows = "".join('"' + text.replace('"', '""') + '",1\n' for text in TEXTS)
    (folder / "a.csv").write_text("text,n\n" + rows)


def _write_arrow(folder: Path) -> None:
    pyarrow.feather.write_feather(pyarrow.table({"text": TEXTS}), folder / "a.feather")


def _write_archive(folder: Path) -> None:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for number, text in enumerate(TEXTS):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))


def _write_wet(folder: Path) -> None:
    records = (
        b"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Record-ID: <urn:%d>\r\n"
        b"Content-Length: %d\r\n\r\n%s\r\n\r\n" % (number, len(text.encode()), text.encode())
        for number, text in enumerate(TEXTS)
    )
    (folder / "a.warc.wet.gz").write_bytes(b"".join(map(gzip.compress, records)))


def _write_shards(folder: Path, compression: str | None) -> None:
    write_mds(folder / "mds", TEXTS, shard_bytes=2_000, compression=compression, hashes=["xxh64"])
    count(folder / "mds")
    for path in [*(folder / "mds").rglob("*")]:
        if path.is_file():
            path.rename(folder / path.name)
    shutil.rmtree(folder / "mds")


FORMATS: dict[str, Callable[[Path], object]] = {
    "jsonl": lambda folder: _write_lines(folder, "a.jsonl"),
    "gz": lambda folder: _write_lines(folder, "a.jsonl.gz", gzip.compress),
    "zst": lambda folder: _write_lines(folder, "a.jsonl.zst", zstandard.compress),
    "bz2": lambda folder: _write_lines(folder, "a.jsonl.bz2", bz2.compress),
    "json": _write_array,
    "csv": _write_csv,
    "parquet": lambda folder: write_corpus(folder, TEXTS, num_files=1),
    "arrow": _write_arrow,
    "tar": _write_archive,
    "wet": _write_wet,
    "mds": lambda folder: _write_shards(folder, None),
    "mds.zstd": lambda folder: _write_shards(folder, "zstd"),
}


def _cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def _change(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice([1, 3, 30])):
        changed[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(changed)


def _raise_digits(data: bytes, draw: random.Random) -> bytes:
    """Make a number larger, such as a size."""
    places = [place for place, byte in enumerate(data) if 48 <= byte < 58] or [0]
    place = draw.choice(places)
    return data[:place] + b"9" * draw.choice([1, 4, 12]) + data[place + 1 :]


DAMAGES: list[Callable[[bytes, random.Random], bytes]] = [
    _cut,
    _change,
    _raise_digits,
    lambda data, _: data + data[: len(data) // 2],
    lambda *_: b"",
    lambda data, draw: draw.randbytes(len(data)),
]


@pytest.mark.parametrize("kind", FORMATS)
def test_commands_that_read_damaged_files_end_with_an_answer(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from cloudload.cli import main

    (tmp_path / "sound").mkdir()
    FORMATS[kind](tmp_path / "sound")
    tokenizer = tmp_path / "tokenizer.json"
    byte_tokenizer().save(str(tokenizer))
    names = sorted(path.name for path in (tmp_path / "sound").iterdir())
    draw = random.Random(kind)
    for number, damage in enumerate(DAMAGES * ROUNDS):
        data = tmp_path / f"in-{number}"
        shutil.copytree(tmp_path / "sound", data)
        damaged = data / draw.choice(names)
        damaged.write_bytes(damage(damaged.read_bytes(), draw))
        out, of_index = str(tmp_path / f"out-{number}"), str(tmp_path / f"index-{number}")
        for command in (
            ["convert", str(data), out, "--processes", "1"],
            ["convert", str(data), f"{out}-b", "--processes", "1", "--skip-bad"],
            ["index", str(data), of_index, "--processes", "1"],
            ["info", str(data)],
            ["head", str(data), "--grep", "zzzz"],
            ["check", str(data), "--processes", "1"],
            ["count", str(data), "--tokenizer", str(tokenizer), "--processes", "1"],
        ):
            capsys.readouterr()
            status = main([*command, "--quiet"])
            said = capsys.readouterr()
            shown = f"damage {number} of {damaged.name}: {' '.join(command)}\n{said.err}"
            assert status in (0, 1), shown
            assert "unexpected error" not in said.err, shown
            assert status == 0 or said.err or said.out, shown
        with suppress(CloudloadError), make_loader(str(data), local=tmp_path / "cache") as loader:
            list(loader.take(100))
