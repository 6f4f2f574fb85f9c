"""A block of rows of an Arrow table, from any format that pyarrow reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cloudload.convert.input_files import InputFile
from cloudload.convert.records import BlockStart, Record, describe_not_utf8, has_field
from cloudload.errors import ConvertError


def check_pyarrow(name: str) -> None:
    """Raise `ConvertError` if pyarrow, which reads the file `name`, is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise ConvertError(
            f"reading {name} needs pyarrow. Run: pip install 'cloudload[parquet]'"
        ) from None


def choose_columns(
    names: Iterable[str], paths: Iterable[str], fields: Sequence[str]
) -> tuple[list[str], tuple[str, ...]]:
    """Return the columns to read, and, if none has the text, the names to list in an error.

    `paths` are the names of all fields, with nested fields written as `meta.url`.
    """
    columns = [name for name in names if any(has_field([name], field) for field in fields)]
    schema = tuple(paths)
    has_text = any(f"{path}.".startswith(f"{fields[0]}.") for path in schema)
    return columns, () if has_text else schema


@dataclass(frozen=True)
class ArrowBlock:
    """A batch of rows, serialized as an Arrow stream."""

    file: InputFile
    start: BlockStart
    input_bytes: int
    num_rows: int
    packed: bytes
    schema: tuple[str, ...] = ()
    """The names of all columns, if none has the text."""

    @staticmethod
    def of(
        file: InputFile, start: BlockStart, input_bytes: int, batch: Any, schema: tuple[str, ...]
    ) -> ArrowBlock:
        """Create a block of all rows of a record batch."""
        return ArrowBlock(file, start, input_bytes, batch.num_rows, _pack(batch), schema)

    def records(self, text_key: str) -> Iterator[Record]:
        import pyarrow

        with pyarrow.ipc.open_stream(self.packed) as reader:
            batch = reader.read_next_batch()
        for position in range(self.num_rows):
            row = self.start.line + position
            try:
                fields: dict[str, Any] = dict.fromkeys(self.schema)
                fields |= {
                    name: column[position].as_py()
                    for name, column in zip(batch.schema.names, batch.columns, strict=True)
                }
                yield Record(self.file, str(row), fields)
            except UnicodeDecodeError as error:
                yield Record(self.file, str(row), None, describe_not_utf8(error))


def _pack(batch: Any) -> bytes:
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
