"""Check the bytes of a shard: sizes, hashes, offsets, header, and the values of its samples.

    stored file ─ size, hashes ─► decompressed ─ size, hashes ─► header, offsets ─► values

While a compressed shard is decompressed, its stored and raw bytes are both in memory. The raw shard
is then kept in a temporary file. A local, uncompressed shard is read in place.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

from cloudload.data import (
    REPAIR_ADVICE,
    Location,
    Shard,
    codecs,
    hashes,
    shard_entries,
    urls,
)
from cloudload.errors import DatasetError, StoreError
from cloudload.system import temp_files
from cloudload.tools.check.findings import Finding, find
from cloudload.tools.check.rules import BOTH, CLOUDLOAD, STREAMING
from cloudload.tools.check.stored_objects import size_finding

_CHUNK_BYTES, _CHUNK_SAMPLES = 1 << 20, 256

_DECODERS: dict[str, Callable[[str], Any]] = {
    "json": json.loads,
    "str_int": int,
    "str_float": float,
    "str_decimal": Decimal,
}


def check_shard(
    folder: Location,
    info: shard_entries.ShardInfo,
    text_key: str | None,
    look: Callable[[Shard], object] | None = None,
) -> list[Finding]:
    """Read a shard of the dataset in `folder`, and return its findings.

    If its samples are intact, the shard is passed to `look`. Values are decoded in columns of text,
    JSON, and numbers stored as text, and at most one value per column is reported. For other
    encodings, only the sizes of values are checked. If the shard's codec is not installed here, the
    missing codec is the only finding.
    """
    if found := check_codecs([info.compression], info.stored.name):
        return found
    try:
        if folder.is_local and info.zipped is None:
            path = urls.local_path(folder.join(info.raw.name).url)
            return list(_check_in_place(path, info, text_key, look))
        with _fetched(folder, info) as (path, of_bytes):
            if any(finding.kind in ("size", "decompress") for finding in of_bytes):
                return of_bytes
            return [*of_bytes, *_check_raw(path, info, text_key, look)]
    except StoreError as error:
        kind = "shard-missing" if error.is_missing else "shard-unreachable"
        return [find(kind, info.stored.name, str(error))]


def name_samples(
    folder: Location, info: shard_entries.ShardInfo, samples: Sequence[int]
) -> list[str]:
    """Describe each of `samples` by its index, and by its ID if the shard can be read again."""
    try:
        if folder.is_local and info.zipped is None:
            shard = Shard(urls.local_path(folder.join(info.raw.name).url), info)
        else:
            with _fetched(folder, info) as (path, _):
                shard = Shard(path, info)
    except (StoreError, DatasetError, OSError):
        return [f"sample {sample}" for sample in samples]
    return [name_sample(shard, sample) for sample in samples]


def name_sample(shard: Shard, sample: int) -> str:
    """Describe a sample by its index in the shard, and by its ID if the sample has an ID."""
    return shard.where(sample).replace(f" of {shard.name}", "", 1)


def check_codecs(compressions: Iterable[str | None], where: str = "") -> list[Finding]:
    """Return a finding for each compression whose codec is not installed here."""
    findings = []
    for compression in sorted(filter(None, set(compressions))):
        try:
            codecs.check_codec(compression)
        except DatasetError as error:
            what, _, advice = str(error).rpartition(". ")
            findings.append(find("codec-missing", where, what, advice=advice))
    return findings


def _check_in_place(
    path: Path,
    info: shard_entries.ShardInfo,
    text_key: str | None,
    look: Callable[[Shard], object] | None,
) -> Iterator[Finding]:
    if not path.is_file():
        yield find("shard-missing", info.raw.name, f"{path} is not a file")
        return
    try:
        with path.open("rb") as file:
            found = list(_check_file(file, info.raw))
    except OSError as error:
        yield find("shard-unreachable", info.raw.name, str(error))
        return
    yield from found
    if not any(finding.kind == "size" for finding in found):
        yield from _check_raw(path, info, text_key, look)


@contextlib.contextmanager
def _fetched(
    folder: Location, info: shard_entries.ShardInfo
) -> Iterator[tuple[Path, list[Finding]]]:
    """Yield the path of a temporary file with the raw shard, and findings about its bytes."""
    with (
        temp_files.explained_full_disk(),
        tempfile.NamedTemporaryFile(prefix="cloudload-check-") as file,
    ):
        found = list(_fetch(folder, info, file))  # type: ignore[arg-type]
        file.flush()
        yield Path(file.name), found


def _fetch(folder: Location, info: shard_entries.ShardInfo, file: BinaryIO) -> Iterator[Finding]:
    """Write the raw shard to `file`, and yield findings about the stored and the raw bytes."""
    stored = folder.join(info.stored.name)
    if info.zipped is None or info.compression is None:
        stored.download(file, info.raw.bytes)
        yield from _check_file(file, info.raw)
        return
    zipped = io.BytesIO()
    stored.download(zipped, info.zipped.bytes)
    yield from _check_file(zipped, info.zipped, info.compression)
    try:
        raw = codecs.decompress(info.compression, zipped.getvalue(), info.raw.bytes)
    except Exception as error:
        yield find("decompress", info.zipped.name, f"cannot be decompressed: {error}")
        return
    file.write(raw)
    for finding in _check_file(file, info.raw):
        # Streaming verifies only the stored file, so these findings affect only cloudload
        what = f"{finding.what}, after decompression"
        if finding.kind == "hash-mismatch":
            what += ', which cloudload checks with verify="always"'
        yield find(finding.kind, finding.where, what, readers=(CLOUDLOAD,))


def _check_file(
    file: BinaryIO, expected: shard_entries.FileInfo, compression: str | None = None
) -> Iterator[Finding]:
    """Compare a file with the index: its size, and each hash that Python can compute."""
    size = file.seek(0, os.SEEK_END)
    if size != expected.bytes:
        yield size_finding(expected, size, compression)
        return
    known = [name for name in expected.hashes if hashes.fastest_hash({name: ""})]
    running = {name: hashes.new_hash(name) for name in known}
    file.seek(0)
    while running and (chunk := file.read(_CHUNK_BYTES)):
        for each in running.values():
            each.update(chunk)
    for name in known:
        if (found := running[name].hexdigest()) != expected.hashes[name]:
            what = f"has {name} {found}, but the index says {expected.hashes[name]}"
            yield find("hash-mismatch", expected.name, what)


def _check_raw(
    path: Path,
    info: shard_entries.ShardInfo,
    text_key: str | None,
    look: Callable[[Shard], object] | None,
) -> Iterator[Finding]:
    """Check the header, offsets, and values of a raw shard that has the right size."""
    with path.open("rb") as file:
        count = struct.unpack("<I", file.read(4))[0]
    if count != info.samples:
        what = f"contains {count:,} samples, but the index says {info.samples:,}"
        yield find("sample-count", info.raw.name, what)
        return
    try:
        shard = Shard(path, info)
    except DatasetError as error:
        fault = str(error).removeprefix(f"{path} ").removesuffix(f". {REPAIR_ADVICE}")
        kind = "offsets" if "sample offsets" in fault else "header"
        yield find(kind, info.raw.name, fault)
        return
    shard.url = info.raw.name
    if layout_fault := _layout_fault(shard):
        yield find("sample-layout", info.raw.name, layout_fault)
        return
    if info.samples_hash not in (None, found := shard.samples_hash):
        what = f"has {hashes.SAMPLES_HASH} {found}, but the index says {info.samples_hash}"
        yield find("hash-mismatch", info.raw.name, what, readers=(CLOUDLOAD,))
    for number, column in enumerate(info.columns):
        is_bytes_text = column.name == text_key and column.encoding == "bytes"
        if column.encoding in ("str", *_DECODERS) or is_bytes_text:
            yield from _check_column(shard, number, column, text_key)
    if look is not None:
        look(shard)


def _layout_fault(shard: Shard) -> str | None:
    """Describe the first sample whose columns do not add up to its size; None if there is none."""
    try:
        for sample in range(shard.info.samples):
            shard.read_bytes(sample, 0)
    except DatasetError as error:
        return str(error).removesuffix(f". {REPAIR_ADVICE}")
    return None


def _check_column(
    shard: Shard, number: int, column: shard_entries.Column, text_key: str | None
) -> Iterator[Finding]:
    """Yield a finding for the first value of a column that cannot be decoded."""
    decode = _DECODERS.get(column.encoding)
    sample = 0
    try:
        for start in range(0, shard.info.samples, _CHUNK_SAMPLES):
            samples = range(start, min(start + _CHUNK_SAMPLES, shard.info.samples))
            if decode is None:
                shard.read_texts(samples, number)
                continue
            for sample in samples:
                decode(shard.read_bytes(sample, number).decode("utf-8"))
    except DatasetError as error:
        what, _, advice = str(error).rpartition("). ")
        if column.name != text_key:
            readers: tuple[str, ...] = (STREAMING,)
        else:
            readers = BOTH if column.encoding == "str" else (CLOUDLOAD,)
        what = f"column {column.name[:100]!r} of {what})"
        yield find("not-utf8", shard.info.raw.name, what, readers=readers, advice=advice)
    except (ValueError, ArithmeticError, RecursionError) as error:
        what = f"column {column.name[:100]!r} of sample {sample} is not {column.encoding}: {error}"
        yield find("value", shard.info.raw.name, what)
