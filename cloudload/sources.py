"""Raw corpora as one deterministic sequence of blocks, and blocks as records.

    inputs   corpus/  s3://b/more/*.jsonl.gz  -          files sorted within each input, the inputs in the order given
    units    a file of lines | a Parquet file | a group of whole text files | rows of a dataset
    blocks   8 MB of whole lines | a batch of rows | a group of files
    records  one a line, row or file: its fields, or what is wrong with it

A block depends on the data and `block_bytes` alone, never on who reads it, when, or how much the store returned at once: lines
end a block at the first line end at or after `block_bytes`. `Start` says where a block begins; a reader can begin there, too.
Blocks are made by one process, in order; their records are taken apart anywhere, by any number.
"""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qs, urlsplit

from cloudload.errors import ConvertError
from cloudload.source_files import DamagedError, SourceFile, StoredBytes, read_uncompressed, shown
from cloudload.storage.base import Retry
from cloudload.storage.objects import download_object, list_objects
from cloudload.storage.redaction import hide_secrets
from cloudload.storage.urls import check_location, is_local, local_path

DEFAULT_BLOCK_BYTES = 8 << 20
FORMATS = ("auto", "jsonl", "parquet", "text", "lines")

_MAX_FILES_A_BLOCK = 1024
_MAX_ROWS_A_BLOCK = 8192
_LONG_DOWNLOAD = Retry(deadline_s=3600.0)
_COMPRESSIONS = {".gz": "gz", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".xz": "xz"}
_FORMATS_BY_EXTENSION = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Record(NamedTuple):
    """One record: where it lies for people, its name as an id, and its fields or what is wrong with it."""

    where: str
    name: str
    fields: Mapping[str, Any] | None
    problem: str | None = None


@dataclass(frozen=True)
class Start:
    """Where a block begins in its unit: its ordinal, uncompressed byte, line or row, and the stored bytes read before it."""

    block: int = 0
    offset: int = 0
    line: int = 1
    stored: int = 0


class Block(Protocol):
    """A piece of work: records, read in any process."""

    @property
    def start(self) -> Start: ...
    @property
    def input_bytes(self) -> int: ...
    def records(self, text_key: str) -> Iterator[Record]: ...


class Unit(Protocol):
    """A part of the input that can be read on its own; its name and size (bytes, or rows) tell it from another."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int | None: ...
    @property
    def files(self) -> tuple[SourceFile, ...]: ...
    def blocks(self, start: Start, block_bytes: int, fields: Sequence[str]) -> Iterator[Block]: ...


# ---------------------------------------------------------------- inputs to units


def list_units(inputs: Any, format: str, split: str | None, block_bytes: int) -> list[Unit]:
    """What to read, in order. An input is a location, `-` for stdin, `hf://NAME`, a `datasets` object, or an iterable of rows."""
    if format not in FORMATS:
        raise ValueError(f"no format named {format!r}; use one of {', '.join(FORMATS)}")
    several = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if not several:
        raise ValueError("no inputs; name files, folders, globs, a dataset, or - for stdin")
    found: list[list[SourceFile] | Unit] = [_resolve(item, format, split) for item in several]
    named = iter(_unique_names([files for files in found if isinstance(files, list)]))
    units: list[Unit] = []
    for item in found:
        units.extend(_group(next(named), block_bytes) if isinstance(item, list) else [item])
    return units


def _resolve(item: Any, format: str, split: str | None) -> list[SourceFile] | Unit:
    if isinstance(item, str | Path):
        text = str(item)
        if text == "-":
            return [SourceFile("-", "stdin", None, "jsonl" if format == "auto" else format, None)]
        if text.startswith("hf://") and not text.startswith("hf://datasets/"):
            return _load_dataset(text, split)
        return [_source_file(url, name, size, format) for url, name, size in _find_files(text)]
    if isinstance(item, Mapping):
        return _split_of(item, split)
    if isinstance(item, Iterable):
        return RowsUnit(str(getattr(getattr(item, "info", None), "dataset_name", None) or "row"), item)
    raise ValueError(f"{type(item).__name__} is no input; give a location, a datasets object, or an iterable of rows")


def _split_of(datasets: Mapping[str, Any], split: str | None) -> Unit:
    if not all(hasattr(value, "__iter__") and not isinstance(value, str | bytes) for value in datasets.values()):
        raise ValueError("a dict is no input; for rows in memory give an iterator over them: iter([{...}, ...])")
    chosen = next(iter(datasets)) if split is None and len(datasets) == 1 else split
    if chosen is None or chosen not in datasets:
        raise ValueError(f"the dataset has no split {chosen!r}; set split to one of {sorted(datasets)}")
    return RowsUnit(chosen, datasets[chosen])


def _load_dataset(url: str, split: str | None) -> Unit:
    """`hf://owner/name?config=en&split=train`, streamed."""
    parts = urlsplit(url)
    name, query = parts.netloc + parts.path, parse_qs(parts.query)
    if unknown := sorted(set(query) - {"config", "split"}):
        raise ValueError(f"{url} asks for {unknown}; after the name only ?config= and &split= can follow")
    try:
        import datasets
    except ImportError:
        raise ConvertError(f"reading {url} needs the datasets package; pip install 'cloudload[datasets]'") from None
    chosen = query.get("split", [split or "train"])[0]
    try:
        loaded = datasets.load_dataset(name, query.get("config", [None])[0], split=chosen, streaming=True)
    except Exception as error:
        raise ConvertError(f"cannot load {url} (split {chosen!r}): {type(error).__name__}: {error}") from error
    return RowsUnit(PurePosixPath(name).name, loaded)


def _find_files(location: str) -> list[tuple[str, str, int]]:
    """The files of a file, folder or glob as (url, name below it, bytes), sorted; hidden files and `_SUCCESS` are passed over."""
    check_location(location)
    location = str(local_path(location)) if is_local(location) else location
    is_glob = any(sign in location for sign in "*?[") and not (is_local(location) and Path(location).exists())
    root = _folder_before_wildcard(location) if is_glob else location.rstrip("/")
    pattern = re.compile(_glob_pattern(location)) if is_glob else None
    files = []
    for item in list_objects(root):
        name = _name_below(item.url, root)
        if (_is_hidden(name) and item.url != root) or (pattern and not pattern.fullmatch(item.url)):
            continue
        files.append((item.url, name, item.bytes))
    if not files:
        raise ConvertError(f"no files in {hide_secrets(location)}; check the location (hidden files are passed over)")
    return files


def _name_below(url: str, root: str) -> str:
    if url == root:
        return PurePosixPath(url).name
    return PurePosixPath(url).relative_to(root).as_posix() if is_local(url) else url.removeprefix(root).lstrip("/")


def _folder_before_wildcard(location: str) -> str:
    head = re.split(r"[*?\[]", location, maxsplit=1)[0]
    return head.rpartition("/")[0] or ("/" if head.startswith("/") else ".")


def _glob_pattern(location: str) -> str:
    """A regular expression for a glob in which `*` stays within a folder and `**` does not."""
    signs = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", location)
    translated = [signs.get(part) or _glob_literal(part) for part in parts]
    # a listing of the current folder puts ./ in front, or nothing
    return r"(?:\./)?" + "".join(translated)


def _glob_literal(part: str) -> str:
    return part.replace("[!", "[^") if len(part) > 2 and part[0] == "[" and part[-1] == "]" else re.escape(part)


def _is_hidden(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return any(part.startswith(".") for part in parts) or parts[-1] == "_SUCCESS"


def _source_file(url: str, name: str, size: int, format: str) -> SourceFile:
    path = PurePosixPath(name.lower())
    compression = _COMPRESSIONS.get(path.suffix)
    extension = path.with_suffix("").suffix if compression else path.suffix
    return SourceFile(url, name, size, _FORMATS_BY_EXTENSION.get(extension, "text") if format == "auto" else format, compression)


def _unique_names(inputs: list[list[SourceFile]]) -> list[list[SourceFile]]:
    """Ids come from names: where two inputs have a file of the same name, each name gets its input's number in front."""
    urls = Counter(file.url for files in inputs for file in files)
    if twice := [url for url, count in urls.items() if count > 1]:
        raise ValueError(f"{hide_secrets(twice[0])} is given twice; its documents would be written twice")
    names = Counter(file.name for files in inputs for file in files)
    if max(names.values(), default=0) == 1:
        return inputs
    return [[replace(file, name=f"{number}/{file.name}") for file in files] for number, files in enumerate(inputs)]


def _group(files: list[SourceFile], block_bytes: int) -> Iterator[Unit]:
    """Line and Parquet files stand alone; neighbouring whole-text files share a unit of about `block_bytes`."""
    group: list[SourceFile] = []
    for file in files:
        full = len(group) == _MAX_FILES_A_BLOCK or sum_bytes(group) >= block_bytes
        if group and (full or file.format != "text"):
            yield TextUnit(tuple(group))
            group = []
        if file.format == "text":
            group.append(file)
        elif file.format == "parquet":
            yield ParquetUnit(file)
        else:
            yield LinesUnit(file)
    if group:
        yield TextUnit(tuple(group))


def sum_bytes(files: Iterable[SourceFile]) -> int:
    """The stored bytes of the files whose size is known."""
    return sum(file.bytes or 0 for file in files)


# ---------------------------------------------------------------- lines


@dataclass(frozen=True)
class _FileUnit:
    file: SourceFile

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def size(self) -> int | None:
        return self.file.bytes

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return (self.file,)


@dataclass(frozen=True)
class LinesUnit(_FileUnit):
    """A file of JSON lines, or of a document a line."""

    def blocks(self, start: Start, block_bytes: int, fields: Sequence[str]) -> Iterator[Block]:
        counter = StoredBytes(start.stored)
        chunks = read_uncompressed(self.file, start.offset, counter)
        for data, damage in _whole_lines(chunks, block_bytes):
            end = Start(start.block + 1, start.offset + len(data), start.line + data.count(b"\n"), counter.bytes)
            yield LinesBlock(self.file, start, end.stored - start.stored, data, damage)
            start = end


@dataclass(frozen=True)
class LinesBlock:
    """Whole lines, and the damage after them where the file is broken there."""

    file: SourceFile
    start: Start
    input_bytes: int
    data: bytes
    damage: str | None

    def records(self, text_key: str) -> Iterator[Record]:
        where, name = shown(self.file), self.file.name
        parse = _parse_json if self.file.format == "jsonl" else _parse_line
        for number, line in enumerate(_split_lines(self._text()), self.start.line):
            if self.file.format == "jsonl" and not line.strip():
                continue
            fields, problem = parse(line, text_key)
            yield Record(f"{where}:{number}", f"{name}:{number}", fields, problem)
        if self.damage:
            number = self.start.line + self.data.count(b"\n")
            yield Record(f"{where}:{number}", f"{name}:{number}", None, self.damage)

    def _text(self) -> bytes:
        return self.data.removeprefix(_BYTE_ORDER_MARK) if self.start.block == 0 else self.data


def _split_lines(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        yield data[position : end - 1] if data[end - 1 : end] == b"\r" and end > position else data[position:end]
        position = end + 1


def _parse_line(line: bytes, text_key: str) -> tuple[Mapping[str, Any] | None, str | None]:
    try:
        return {text_key: line.decode()}, None
    except UnicodeDecodeError as error:
        return None, _not_utf8(error)


def _parse_json(line: bytes, _: str) -> tuple[Mapping[str, Any] | None, str | None]:
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return None, _not_utf8(error)
    except json.JSONDecodeError as error:
        hint = "; write one object a line, not a list of them" if line.lstrip().startswith(b"[") else ""
        return None, f"broken JSON ({error.msg} at column {error.colno}){hint}"
    except (ValueError, RecursionError) as error:
        return None, f"broken JSON ({error})"
    if isinstance(value, dict):
        return value, None
    return None, f"a JSON {type(value).__name__}, not an object; write one object a line"


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"not UTF-8 (byte 0x{error.object[error.start]:02x} at {error.start})"


def _whole_lines(chunks: Iterator[bytes], block_bytes: int) -> Iterator[tuple[bytes, str | None]]:
    """Cut at the first line end at or after `block_bytes`, however the chunks fall; what damage leaves of a line is dropped."""
    pending, searched, damage = bytearray(), block_bytes - 1, None
    try:
        for chunk in chunks:
            pending += chunk
            while (cut := pending.find(b"\n", searched)) >= 0:
                yield bytes(pending[: cut + 1]), None
                del pending[: cut + 1]
                searched = block_bytes - 1
            searched = max(searched, len(pending))
    except DamagedError as error:
        damage = str(error)
        del pending[pending.rfind(b"\n") + 1 :]
    if pending or damage:
        yield bytes(pending), damage


# ---------------------------------------------------------------- whole files


@dataclass(frozen=True)
class TextUnit:
    """Some files, each of them a document; they are read where their records are."""

    group: tuple[SourceFile, ...]

    @property
    def name(self) -> str:
        return self.group[0].name

    @property
    def size(self) -> int | None:
        return sum_bytes(self.group)

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return self.group

    def blocks(self, start: Start, block_bytes: int, fields: Sequence[str]) -> Iterator[Block]:
        yield TextBlock(self.group, start, sum_bytes(self.group))


@dataclass(frozen=True)
class TextBlock:
    """The files of a unit."""

    group: tuple[SourceFile, ...]
    start: Start
    input_bytes: int

    def records(self, text_key: str) -> Iterator[Record]:
        for file in self.group:
            where = shown(file)
            try:
                data = b"".join(read_uncompressed(file)).removeprefix(_BYTE_ORDER_MARK)
                yield Record(where, file.name, {text_key: data.decode()})
            except UnicodeDecodeError as error:
                line = error.object.count(b"\n", 0, error.start) + 1
                yield Record(f"{where}:{line}", file.name, None, _not_utf8(error))
            except DamagedError as error:
                yield Record(where, file.name, None, str(error))


# ---------------------------------------------------------------- Parquet


@dataclass(frozen=True)
class ParquetUnit(_FileUnit):
    """A Parquet file; only the columns that are asked for are read."""

    def blocks(self, start: Start, block_bytes: int, fields: Sequence[str]) -> Iterator[Block]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise ConvertError(f"reading {self.name} needs pyarrow; pip install 'cloudload[parquet]'") from None
        with tempfile.TemporaryDirectory(prefix="cloudload-") as folder:
            path = _local_copy(self.file, Path(folder))
            try:
                with pyarrow.parquet.ParquetFile(path) as parquet:
                    yield from self._batches(parquet, start, block_bytes, fields)
            except (pyarrow.ArrowException, OSError) as error:
                where = shown(self.file)
                raise ConvertError(f"{where} cannot be read as Parquet: {error}. Mend the file or leave it out") from error

    def _batches(self, parquet: Any, start: Start, block_bytes: int, fields: Sequence[str]) -> Iterator[Block]:
        """Batches of rows that follow from the file's metadata alone."""
        rows, size = parquet.metadata.num_rows, self.file.bytes or 0
        columns = [name for name in parquet.schema_arrow.names if name in fields]
        groups = [parquet.metadata.row_group(number) for number in range(parquet.num_row_groups)]
        row_bytes = max(1, sum(group.total_byte_size for group in groups) // max(1, rows))
        batch_rows = min(max(1, block_bytes // row_bytes), _MAX_ROWS_A_BLOCK)
        ordinal, row = 0, 1
        for number, group in enumerate(groups):
            if row + group.num_rows <= start.line:
                ordinal, row = ordinal - (-group.num_rows // batch_rows), row + group.num_rows
                continue
            for batch in parquet.iter_batches(batch_rows, row_groups=[number], columns=columns):
                stored, end = size * (row - 1) // rows, size * (row - 1 + batch.num_rows) // rows
                if row >= start.line:
                    yield ParquetBlock(self.file, Start(ordinal, 0, row, stored), end - stored, batch.num_rows, _pack(batch))
                ordinal, row = ordinal + 1, row + batch.num_rows


def _local_copy(file: SourceFile, folder: Path) -> Path:
    """A path to the file's uncompressed bytes: Parquet is read from its end."""
    if file.url != "-" and is_local(file.url) and file.compression is None:
        return local_path(file.url)
    path = folder / "file.parquet"
    with path.open("w+b") as target:
        if file.url == "-" or file.compression:
            target.writelines(read_uncompressed(file))
        else:
            download_object(file.url, target, _LONG_DOWNLOAD)
    return path


def _pack(batch: Any) -> bytes:
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


@dataclass(frozen=True)
class ParquetBlock:
    """A batch of rows, packed as an Arrow stream."""

    file: SourceFile
    start: Start
    input_bytes: int
    num_rows: int
    packed: bytes

    def records(self, text_key: str) -> Iterator[Record]:
        import pyarrow

        where = shown(self.file)
        with pyarrow.ipc.open_stream(self.packed) as reader:
            batch = reader.read_next_batch()
        for position in range(self.num_rows):
            row = self.start.line + position
            try:
                fields = {name: column[position].as_py() for name, column in zip(batch.schema.names, batch.columns, strict=True)}
                yield Record(f"{where}:{row}", f"{self.file.name}:{row}", fields)
            except UnicodeDecodeError as error:
                yield Record(f"{where}:{row}", f"{self.file.name}:{row}", None, _not_utf8(error))


# ---------------------------------------------------------------- rows


@dataclass(frozen=True)
class RowsUnit:
    """A `datasets` object, or any iterable of mappings or strings."""

    name: str
    rows: Any

    @property
    def size(self) -> int | None:
        try:
            return len(self.rows)
        except TypeError:
            return None

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return ()

    def blocks(self, start: Start, block_bytes: int, fields: Sequence[str]) -> Iterator[Block]:
        rows = _select(self.rows, fields)
        skipped = start.line - 1
        if skipped:
            rows = rows.skip(skipped) if hasattr(rows, "skip") else itertools.islice(rows, skipped, None)
        for batch in _batched(self._iterate(rows), block_bytes, fields):
            yield RowsBlock(self.name, start, 0, batch)
            start = Start(start.block + 1, 0, start.line + len(batch))

    def _iterate(self, rows: Any) -> Iterator[Any]:
        try:
            yield from rows
        except (GeneratorExit, ConvertError):
            raise
        except Exception as error:
            message = f"cannot read the rows of {self.name}: {type(error).__name__}: {error}. Run again to go on"
            raise ConvertError(message) from error


def _select(rows: Any, fields: Sequence[str]) -> Any:
    """Columns that nobody asks for, such as images, are never decoded."""
    names = getattr(rows, "column_names", None)
    if names and hasattr(rows, "select_columns") and (wanted := [name for name in names if name in fields]):
        return rows.select_columns(wanted)
    return rows


def _batched(rows: Iterator[Any], block_bytes: int, fields: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Rows together until their text would fill a block."""
    batch: list[Any] = []
    size = 0
    for row in rows:
        kept = {name: row[name] for name in fields if name in row} if isinstance(row, Mapping) else row
        batch.append(kept)
        values = kept.values() if isinstance(kept, dict) else [kept]
        size += sum(len(value) for value in values if isinstance(value, str | bytes))
        if size >= block_bytes or len(batch) == _MAX_ROWS_A_BLOCK:
            yield tuple(batch)
            batch, size = [], 0
    if batch:
        yield tuple(batch)


@dataclass(frozen=True)
class RowsBlock:
    """Some rows, as they came."""

    name: str
    start: Start
    input_bytes: int
    rows: tuple[Any, ...]

    def records(self, text_key: str) -> Iterator[Record]:
        for number, row in enumerate(self.rows, self.start.line):
            name = f"{self.name}:{number}"
            if isinstance(row, Mapping):
                yield Record(name, name, row)
            elif isinstance(row, str):
                yield Record(name, name, {text_key: row})
            else:
                yield Record(name, name, None, f"a row is {type(row).__name__}, not a mapping or a string")
