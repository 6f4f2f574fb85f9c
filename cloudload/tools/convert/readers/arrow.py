"""Arrow IPC files and streams, which include Feather files; one document per row.

    file      ARROW1 │ schema, batch, batch, end │ footer
    stream             schema, batch, batch, end

A file is a stream between a marker and a footer. Therefore both are read as streams, with one batch
in memory and without a local copy. Some writers, such as polars 2, store the schema of a file so
that only the footer can be read; such a file is read by its footer, from a local copy. A block is a
slice of a batch. A restart reads all earlier batches again.
"""

from __future__ import annotations

import io
import itertools
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cloudload.data import file_content
from cloudload.errors import ConvertError
from cloudload.tools.convert import input_files, input_records
from cloudload.tools.convert.input_files import ChunkReader
from cloudload.tools.convert.input_records import BlockStart, Fields, InputBlock
from cloudload.tools.convert.readers import arrow_block

_FILE_MARK, _END_MARK, _FEATHER_1_MARK = b"ARROW1\0\0", b"ARROW1", b"FEA1"
_FOOTER_END = struct.Struct("<i6s")  # the size of the footer, and the end mark
_MOST_PADDING_BYTES = 64


@dataclass(frozen=True, slots=True)
class ArrowUnit(input_records.FileUnit):
    """An Arrow IPC file or stream. Only the columns that the conversion reads are kept."""

    def blocks(self, start: BlockStart, block_bytes: int, fields: Fields) -> Iterator[InputBlock]:
        arrow_block.check_pyarrow(self.name)
        import pyarrow

        counter = input_files.StoredByteCounter(start.stored)
        chunks = input_files.read_decompressed(self.file, counter=counter)
        try:
            yield from self._blocks(chunks, counter, start, block_bytes, fields)
        except file_content.DamagedError as error:
            reason = str(error)
        except (pyarrow.ArrowException, OSError) as error:
            reason = f"it is damaged or incomplete ({str(error).rstrip(chr(10) + '.')})"
        else:
            return
        raise ConvertError(
            f"{self.file.display_name} cannot be read as Arrow: {reason}. Repair the file or leave "
            "it out"
        )

    def _blocks(
        self,
        chunks: Iterator[bytes],
        counter: input_files.StoredByteCounter,
        start: BlockStart,
        block_bytes: int,
        fields: Fields,
    ) -> Iterator[InputBlock]:
        waiting: tuple[BlockStart, Any, tuple[str, ...]] | None = None
        stored = start.stored
        with tempfile.TemporaryDirectory(prefix="cloudload-") as folder:
            schema, found = self._read(chunks, counter, Path(folder))
            columns, paths = arrow_block.choose_columns(
                self.file, schema.names, _list_paths(schema), fields
            )
            batches = arrow_block.cut_batches(_select(found, columns), block_bytes)
            for row, batch in arrow_block.skip_rows(batches, 1, start.line):
                if waiting is not None:
                    yield self._block(*waiting, stored)
                waiting = BlockStart(0, row, stored), batch, paths
                stored = counter.bytes
        if waiting is not None:
            yield self._block(*waiting, counter.bytes)

    def _read(
        self, chunks: Iterator[bytes], counter: input_files.StoredByteCounter, folder: Path
    ) -> tuple[Any, Iterator[Any]]:
        """Return (the schema, the batches)."""
        import pyarrow

        is_file, file = self._open(chunks)
        try:
            stream = pyarrow.ipc.open_stream(file)
        except (pyarrow.ArrowException, OSError):
            if not is_file or self.file.url == "-":
                raise
        else:
            return stream.schema, _read_stream(stream, file, is_file)
        reader = pyarrow.ipc.open_file(
            pyarrow.memory_map(str(arrow_block.local_copy(self.file, folder)))
        )
        return reader.schema, self._read_by_footer(reader, counter)

    def _read_by_footer(self, reader: Any, counter: input_files.StoredByteCounter) -> Iterator[Any]:
        num_batches = reader.num_record_batches
        for index in range(num_batches):
            yield reader.get_batch(index)
            counter.reach((self.file.bytes or 0) * (index + 1) // num_batches)
        counter.reach(self.file.bytes or 0)

    def _block(
        self, start: BlockStart, batch: Any, schema: tuple[str, ...], stored: int
    ) -> arrow_block.ArrowBlock:
        return arrow_block.ArrowBlock(self.file, start, stored - start.stored, batch, schema)

    def _open(self, chunks: Iterator[bytes]) -> tuple[bool, BinaryIO]:
        """Return (whether `chunks` are a file and not only a stream, a reader of the stream).

        Raises `ConvertError` for version 1 of Feather.
        """
        head = b""
        while len(head) < len(_FILE_MARK) and (chunk := next(chunks, b"")):
            head += chunk
        if head.startswith(_FEATHER_1_MARK):
            raise ConvertError(
                f"{self.file.display_name} is a Feather version 1 file, which cloudload cannot "
                "read. Convert it to Parquet, for example with pandas.read_feather and "
                "DataFrame.to_parquet"
            )
        rest = itertools.chain([head.removeprefix(_FILE_MARK)], chunks)
        return head.startswith(_FILE_MARK), io.BufferedReader(ChunkReader(rest), 1 << 16)


def _select(batches: Iterable[Any], columns: Sequence[str]) -> Iterator[Any]:
    """Check the batches, and yield them with only these columns."""
    for batch in batches:
        _check(batch)
        yield batch.select(columns)


def _read_stream(stream: Iterable[Any], file: BinaryIO, is_file: bool) -> Iterator[Any]:
    """Yield the batches of a stream, and check the bytes after it.

    Raises `OSError` if a file does not end with its footer, and `DamagedError` if more data follows
    the stream or file.
    """
    yield from stream
    size, end = 0, b""
    while chunk := file.read(1 << 16):
        size, end = size + len(chunk), (end + chunk)[-_FOOTER_END.size :]
    footer_bytes = 0
    if is_file:
        if not end.endswith(_END_MARK):
            raise OSError("the footer after the last batch is missing")
        footer_bytes = _FOOTER_END.unpack(end)[0] + _FOOTER_END.size + _MOST_PADDING_BYTES
    if size > footer_bytes:
        raise file_content.DamagedError(
            "more data follows its end. If several files were joined, convert each one separately"
        )


def _check(batch: Any) -> None:
    """Raise `ArrowInvalid` if a batch has offsets outside its buffers, which pyarrow would follow.

    Text that is not UTF-8 makes only its own record bad.
    """
    import pyarrow

    binary = {pyarrow.string(): pyarrow.binary(), pyarrow.large_string(): pyarrow.large_binary()}
    for column in batch.columns:
        column.validate()
        as_bytes = binary.get(column.type)
        (column.view(as_bytes) if as_bytes else column).validate(full=True)


def _list_paths(fields: Any, prefix: str = "") -> Iterator[str]:
    """Yield the names of all fields of a schema or struct. A nested name looks like `meta.url`."""
    for field in fields:
        if str(field.type).startswith("struct<"):
            yield from _list_paths(field.type, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"
