"""Small corpora of each kind of input, interrupted conversions, and the objects that a conversion
stores."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard

from cloudload.convert import convert_to_mds
from cloudload.data.mds.codecs import decompress
from cloudload.data.mds.hashes import SAMPLES_HASH
from cloudload.data.mds.shard import Shard
from cloudload.data.mds.shard_table import parse_index
from cloudload.data.mds.writer import encode_index
from cloudload.data.storage.locations import Location
from cloudload.errors import ConvertError, StoreError
from cloudload.tools.convert.conversion_report import ConvertReport

FORMS = ("jsonl", "gz", "bz2", "xz", "zst", "lines", "text", "parquet", "dataset", "iterable")
"""The forms of input that `make_input` can write."""

QUIET: dict[str, Any] = {"progress": False, "processes": 1}
SETTINGS: dict[str, Any] = {**QUIET, "shard_bytes": 2000, "block_bytes": 3000}
"""Converter options under which even a small corpus has many shards (2 KB) and blocks (3 KB)."""

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}
"""The compression function for each file extension."""


def documents(number: int) -> list[str]:
    """Documents of 1 to 17 repetitions of their name."""
    return [f"document {place} " * (place % 17 + 1) for place in range(number)]


def make_input(
    folder: Path, form: str, texts: Sequence[str]
) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Write `texts` in this form.

    Returns a function that returns the converter's input on each call, and the input's options.
    """
    folder.mkdir()
    rows = [{"text": text} for text in texts]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if form == "iterable":
        return lambda: iter(rows), {}
    if form == "dataset":
        import datasets

        return lambda: datasets.Dataset.from_list(rows), {}
    if form == "lines":
        (folder / "a.txt").write_text("\n".join(texts))
        return lambda: folder, {"format": "lines"}
    if form == "text":
        for number, text in enumerate(texts):
            (folder / f"{number:04}.txt").write_text(text)
    elif form == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist(rows), folder / "a.parquet", row_group_size=70
        )
    elif form == "jsonl":
        (folder / "a.jsonl").write_bytes(lines)
    else:
        # concatenate two compressed parts, because tools such as bgzip and pbzip2 write such files
        compress = COMPRESSORS[f".{form}"]
        (folder / f"a.json.{form}").write_bytes(compress(lines[:5000]) + compress(lines[5000:]))
    return lambda: folder, {}


def leave_out_samples_hashes(folder: Path) -> None:
    """Remove the hashes that cloudload adds to an index, so that it equals MDSWriter's."""
    index = json.loads((folder / "index.json").read_text())
    for entry in index["shards"]:
        entry["raw_data"]["hashes"].pop(SAMPLES_HASH, None)
    (folder / "index.json").write_bytes(encode_index(index["shards"]))


def digest(folder: Path) -> str:
    """A hash of the names and bytes of a dataset's files, except the report, because it contains
    times."""
    hashed = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "convert-report.json":
            data = path.read_bytes()
            hashed.update(f"{path.relative_to(folder)} {len(data)} ".encode() + data)
    return hashed.hexdigest()


def stop_after(monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    """Make the converter fail when it has stored this many shards."""
    left, write = [shards], Location.write

    def failing(location: Location, data: bytes) -> None:
        left[0] -= Path(location.url).name.startswith("shard.")
        if left[0] < 0:
            raise StoreError("no room")
        write(location, data)

    monkeypatch.setattr(Location, "write", failing)


def note_each_write(monkeypatch: pytest.MonkeyPatch, note: Callable[[str], object]) -> None:
    """Call `note` with the URL of each stored object."""
    upload = Location.upload

    def noting(location: Location, path: Path) -> None:
        upload(location, path)
        note(location.url)

    monkeypatch.setattr(Location, "upload", noting)


def convert_until(shards: int, *args: Any, **options: Any) -> None:
    """Start a conversion, which fails when it has stored this many shards."""
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, shards)
        with pytest.raises(StoreError, match="no room"):
            convert_to_mds(*args, **options)


def convert_until_write(ending: str, *args: Any, **options: Any) -> None:
    """Start a conversion, which fails when it has stored an object whose URL has this ending."""

    def stop(url: str) -> None:
        if url.endswith(ending):
            raise StoreError("killed")

    with pytest.MonkeyPatch.context() as patch:
        note_each_write(patch, stop)
        with pytest.raises(StoreError, match="killed"):
            convert_to_mds(*args, **options)


def write_lines(path: Path, rows: Iterable[str | Mapping[str, Any]]) -> Path:
    """Write texts or records as JSON Lines, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = ({"text": row} if isinstance(row, str) else row for row in rows)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_corpus(folder: Path, files: int = 3, lines: int = 400, seed: int = 1) -> Path:
    """Write JSON Lines with very different line lengths, in nested folders. One file is gzipped."""
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
    """The hash of each file of a dataset, by name, except the report, because it contains times."""
    found = {
        item.url.removeprefix(url): hashlib.sha256(Location(item.url).read()).hexdigest()
        for item in Location(url).list_objects()
    }
    return {
        name: digest for name, digest in found.items() if not name.endswith("convert-report.json")
    }


def read_dataset(url: str, scratch: Path) -> list[dict[str, Any]]:
    """All samples of a dataset, read by cloudload. `scratch` is a folder for local copies."""
    samples = []
    for info in parse_index(Location(f"{url}/index.json").read(), url):
        path = scratch / info.raw.name
        path.parent.mkdir(parents=True, exist_ok=True)
        stored = Location(f"{url}/{info.stored.name}").read()
        path.write_bytes(
            decompress(info.compression, stored, info.raw.bytes) if info.compression else stored
        )
        shard = Shard(path, info)
        samples += [shard.read(number) for number in range(info.samples)]
    return samples


def texts(url: str, scratch: Path) -> list[str]:
    """The texts of all samples of a dataset, in order."""
    return [sample["text"] for sample in read_dataset(url, scratch)]


def convert(source: Any, out: str | Path | None = None, **options: Any) -> ConvertReport:
    """Convert in this process, without progress. By default, the output is `out` beside a path."""
    return convert_to_mds(source, out or Path(source).parent / "out", **(QUIET | options))


def convert_and_read(source: Any, out: Path | None = None, **options: Any) -> list[dict[str, Any]]:
    """Convert, and return all samples."""
    out = out or Path(source).parent / "out"
    convert(source, out, **options)
    return read_dataset(str(out), out.parent)


def convert_texts(source: Any, out: Path | None = None, **options: Any) -> list[str]:
    """Convert, and return the texts of all samples."""
    return [sample["text"] for sample in convert_and_read(source, out, **options)]


def refuse(
    match: str,
    source: Any,
    out: str | Path | None = None,
    error: type[Exception] = ConvertError,
    **options: Any,
) -> str:
    """Check that a conversion fails, with a message that matches unless `match` is empty, and
    return the message."""
    with pytest.raises(error, match=match or None) as caught:
        convert(source, out, **options)
    return str(caught.value)


def refuse_lines(
    match: str,
    tmp_path: Path,
    lines: Sequence[str | bytes],
    error: type[Exception] = ConvertError,
    **options: Any,
) -> str:
    """Check that `convert_lines` fails, like `refuse`, and return the message."""
    with pytest.raises(error, match=match or None) as caught:
        convert_lines(tmp_path, lines, **options)
    return str(caught.value)


def convert_lines(tmp_path: Path, lines: Sequence[str | bytes], **options: Any) -> ConvertReport:
    """Write these lines to `in/a.jsonl`, convert that file to `out`, and return the report."""
    path = tmp_path / "in" / "a.jsonl"
    path.parent.mkdir(exist_ok=True)
    data = b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines)
    if not path.exists() or path.read_bytes() != data:  # writing it again would change its time
        path.write_bytes(data)
    return convert_to_mds(path.parent, tmp_path / "out", **(QUIET | options))
