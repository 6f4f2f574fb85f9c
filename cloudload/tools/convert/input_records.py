"""The output of readers: units of input, the blocks of a unit, and the records of a block.

    units    a file of lines │ a Parquet file │ a group of whole text files │ rows of a dataset
    blocks   8 MiB of whole lines │ a batch of rows │ a group of files
    records  one per line, row or file: its fields, or its problem

The blocks depend only on the data, `block_bytes`, and the fields that the conversion reads. They do
not depend on timing, on the process that reads them, or on the chunks that the store returns. One
process makes all blocks, in order. Any process may read their records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from cloudload.config import choices
from cloudload.data import file_content, file_kinds, record_values
from cloudload.tools.convert import input_files

T = TypeVar("T")

DEFAULT_BLOCK_BYTES = 8 << 20
MAX_BLOCK_ROWS = 8192
CONVERSATION_FIELDS = (
    *("messages", "conversations", "prompt", "completion", "chosen", "rejected"),
    *("instruction", "input", "output", "tools", "chat_template_kwargs"),
)
"""The usual fields of data for chat, fine-tuning, and preferences."""


class Named(Protocol):
    """A file or dataset. `name` is relative to its root, and `display_name` is for messages."""

    @property
    def name(self) -> str: ...
    @property
    def display_name(self) -> str: ...


class Record(NamedTuple):
    """A record. A bad record has a `problem`, and its `fields` are None."""

    source: Named
    place: str
    """The line, row, offset, or name of the record in its source. For a whole source, it is ""."""
    fields: Mapping[str, Any] | None
    problem: str | None = None
    raw: bytes | None = None
    """The bytes of the record, or None if the format does not store records as bytes."""
    own_name: str | None = None
    """The name that a sample of a tar archive has, or None in other formats."""
    is_replaced: bool = False
    """Whether bytes that are not UTF-8 were replaced."""

    @property
    def where(self) -> str:
        """The record's location, for messages."""
        name = self.source.display_name
        return f"{name}:{self.place}" if self.place else name

    @property
    def name(self) -> str:
        """The ID to use if the record has no usable ID."""
        if self.own_name is not None:
            return self.own_name
        return f"{self.source.name}:{self.place}" if self.place else self.source.name


@dataclass(frozen=True)
class BlockStart:
    """The start of a block in its unit, where a reader can begin. The journal stores all fields."""

    offset: int = 0
    """Offset of the block's first byte in the decompressed file. Formats without offsets use 0."""
    line: int = 1
    """Line or row number of the block's first record, from 1."""
    stored: int = 0
    """Stored bytes of the file that were read before the block; an estimate in a Parquet file."""


class Fields(tuple[str, ...]):
    """Names of the record fields that a conversion reads, the one with the document first.

    `encodings` maps kept fields to the encodings that the user set. Readers of formats
    without types convert the values of these fields. `quoting` applies to CSV and TSV. `has_text`
    says whether the document is a text.
    """

    encodings: Mapping[str, str]
    quoting: str
    has_text: bool

    def __new__(
        cls,
        names: Iterable[str],
        encodings: Mapping[str, str] | None = None,
        quoting: str = choices.CSV_QUOTING,
        *,
        has_text: bool = True,
    ) -> Fields:
        fields = super().__new__(cls, names)
        fields.encodings, fields.quoting = dict(encodings or {}), quoting
        fields.has_text = has_text
        return fields


class InputBlock(Protocol):
    """The unit of work: records that any process can read.

    `input_bytes` is the number of stored bytes to count for the block, or 0 for rows of a dataset.
    `text_key` is the field in which to return the text of a record that has only text. With
    `errors` as `replace`, bytes that are not UTF-8 are replaced instead of making a record bad.
    """

    @property
    def start(self) -> BlockStart: ...
    @property
    def input_bytes(self) -> int: ...
    def records(self, text_key: str, errors: str = choices.STRICT) -> Iterator[Record]: ...


@runtime_checkable
class TypedBlock(Protocol):
    """A block of a format with typed fields. By default, kept fields have the same encodings."""

    def column_encodings(self) -> Mapping[str, str]:
        """Return the MDS encoding of each field, by name."""
        ...


@runtime_checkable
class Utf8Block(Protocol):
    """A block of a format that stores texts as UTF-8."""

    def utf8_records(self, text_key: str, errors: str = choices.STRICT) -> Iterator[Record]:
        """Yield the same records as `records`. The field `text_key` may be `Utf8`, not a string."""
        ...


class InputUnit(Protocol):
    """A part of the input that can be read separately, identified by its name and size.

    `size` is in stored bytes, or in rows for a dataset. It is None if unknown. `blocks` yields the
    blocks, starting at `start`. `fields` are the record fields that the conversion reads, the text
    field first. A record without a text field contains all field names, so that an error can list
    them.
    """

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int | None: ...
    @property
    def files(self) -> tuple[input_files.InputFile, ...]: ...
    def blocks(
        self, start: BlockStart, block_bytes: int, fields: Fields
    ) -> Iterator[InputBlock]: ...


@dataclass(frozen=True, slots=True)
class FileUnit:
    """A unit that consists of one file, or of a range of a file that can be cut."""

    file: input_files.InputFile
    range: input_files.Range | None = None

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def size(self) -> int | None:
        return self.file.bytes

    @property
    def files(self) -> tuple[input_files.InputFile, ...]:
        return (self.file,)

    def open(self, start: BlockStart) -> tuple[Iterator[bytes], input_files.StoredByteCounter]:
        """Return the decompressed bytes from a block on, and the counter of stored bytes."""
        counter = input_files.StoredByteCounter(start.stored)
        return input_files.read_decompressed(self.file, start.offset, counter), counter


@dataclass(frozen=True)
class FileBlock:
    """A block of a file."""

    file: input_files.InputFile
    start: BlockStart
    input_bytes: int

    def record(
        self, place: str | int, fields: Mapping[str, Any] | None, problem: str | None = None
    ) -> Record:
        """Return a record of the file, or describe a bad one."""
        return Record(self.file, str(place), fields, problem)

    def parse(
        self,
        place: str | int,
        raw: bytes,
        errors: str,
        parse: Callable[[bytes], record_values.Parsed],
    ) -> Record:
        """Return the record that `parse` finds in bytes. With `errors` as `replace`, in UTF-8."""
        data, is_replaced = make_utf8(raw, errors)
        fields, problem = parse(data)
        return Record(self.file, str(place), fields, problem, raw, None, is_replaced)


ItemGroup = tuple[BlockStart, int, tuple[T, ...], str | None]
"""Where a block starts, the stored bytes that it takes, its items, and why what follows them is not
read, or None."""


def group_items(
    items: Iterator[tuple[int, int, T]],
    start: BlockStart,
    block_bytes: int,
    counter: input_files.StoredByteCounter,
) -> Iterator[ItemGroup[T]]:
    """Group the items of a file into blocks, which end when their items have `block_bytes`.

    `items` yields (offset, size in bytes, item), starting at `start`. Each item counts as a line.
    """
    group, size, damage = list[T](), 0, None
    try:
        for offset, item_bytes, item in items:
            if size >= block_bytes:
                end = BlockStart(offset, start.line + len(group), counter.bytes)
                yield start, end.stored - start.stored, tuple(group), None
                group, size, start = [], 0, end
            group.append(item)
            size += item_bytes
    except file_content.DamagedError as error:
        damage = str(error)
    if group or damage:
        yield start, counter.bytes - start.stored, tuple(group), damage


def has_field(names: Iterable[str], name: str) -> bool:
    """Whether a record with these top-level fields may have the field `name`, nested or not."""
    return any(name == found or name.startswith(f"{found}.") for found in names)


def is_read(name: str, fields: Iterable[str]) -> bool:
    """Whether one of the fields that a conversion reads is the field `name`, or is nested in it."""
    return any(has_field([name], each) for each in fields)


_IDS_OF_FILES = {"blob_id", "src_encoding"}


def advise_on_text(names: Iterable[str]) -> str:
    """Say what to do if records with these fields lack the field with the text."""
    outer = {name.partition(".")[0] for name in names}
    found = [name for name in CONVERSATION_FIELDS if name in outer]
    if outer >= _IDS_OF_FILES:
        return (
            "Such records, as in The Stack v2, only name files of the Software Heritage archive. "
            "Download the files first, as the dataset's card explains, and convert them"
        )
    advice = "Set text_key (--text-key) to the name of the field that has the text"
    if not found:
        return advice
    flags = " ".join(f"--keep {name}" for name in found)
    return f"{advice}. To keep conversations, set text_key=None and keep {found} ({flags})"


def sum_bytes(files: Iterable[input_files.InputFile]) -> int:
    """Return the sum of the files' stored bytes; a file of unknown size counts as 0."""
    return sum(file.bytes or 0 for file in files)


def make_utf8(data: bytes, errors: str) -> tuple[bytes, bool]:
    """Return (the data of a record, whether bytes that are not UTF-8 were replaced with U+FFFD).

    They are not replaced with `errors` as `strict`, or if the data is in a format that is not text.
    """
    if errors == choices.REPLACE:
        try:
            data.decode()
        except UnicodeDecodeError:
            if file_kinds.recognize(data) is None:
                return data.decode("utf-8", "replace").encode(), True
    return data, False
