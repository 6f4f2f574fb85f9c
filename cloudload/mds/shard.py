"""The MDS format: shards that hold samples, and an index that lists them.

    index.json    see `index`
    shard         uint32 count | uint32 offsets[count + 1] | JSON header | samples
    sample        uint32 sizes of the variable-sized columns | the columns' bytes, columns in order of their names

The format is MosaicML Streaming's (`streaming/base/format/mds`); shards written here are the bytes
that its `MDSWriter` writes, and a test says so. Nothing here trusts its input: names may not leave
their folder, sizes are bounded by the index.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cloudload.errors import DatasetError
from cloudload.mds.index import FIXED_FORMATS, ShardInfo

_MOST_HEADER_BYTES = 1 << 20

# ---------------------------------------------------------------- read

ID_KEY = "id"

MEND = (
    "If it lies in the cache, delete it to fetch it again; if it is the dataset's own, convert "
    "or copy it again"
)


class Shard:
    """A raw shard, mapped into memory; it stays readable when its file is deleted."""

    def __init__(self, path: Path, info: ShardInfo) -> None:
        self.path, self.info = path, info
        self.url = ""
        """Where it is from, for errors, once somebody who knows has said so."""
        with _open_regular(path) as file:
            size = file.seek(0, 2)
            if size != info.raw.bytes:
                raise DatasetError(
                    f"{path} has {size:,} bytes where the index has {info.raw.bytes:,}. {MEND}"
                )
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        self._starts = np.ascontiguousarray(self._read_offsets(), np.uint32).data
        self._check_header()
        variable = [column.bytes is None for column in info.columns]
        self._sizes = struct.Struct(f"<{sum(variable)}I")
        # a column begins after the sizes, the fixed columns before it, and the variable ones before
        # it
        fixed = [column.bytes or 0 for column in info.columns]
        self._fixed_bytes = self._sizes.size + sum(fixed)
        self._before = [
            (self._sizes.size + sum(fixed[:c]), sum(variable[:c])) for c in range(len(fixed))
        ]

    @property
    def name(self) -> str:
        """What errors call it."""
        return self.url or str(self.path)

    def _read_offsets(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        count, end = self.info.samples, len(self._map)
        start = 4 * (count + 2)
        if end < start or struct.unpack_from("<I", self._map)[0] != count:
            raise DatasetError(
                f"{self.name} is not a shard of {count:,} samples, as its index says. {MEND}"
            )
        offsets = np.frombuffer(self._map, "<u4", count + 1, 4)
        if (
            offsets[0] < start
            or offsets[-1] != end
            or (np.diff(offsets.astype(np.int64)) < 0).any()
        ):
            raise DatasetError(f"{self.name} has sample offsets outside the shard. {MEND}")
        return offsets

    def _check_header(self) -> None:
        """What a shard says of its columns must be what the index says; some writers leave it
        out."""
        start, stop = 4 * (self.info.samples + 2), self._starts[0]
        if start == stop:
            return
        try:
            if stop - start > _MOST_HEADER_BYTES:
                raise ValueError(f"it has {stop - start:,} bytes")
            header = json.loads(self._map[start:stop])
            found = [header[f"column_{field}"] for field in ("names", "encodings", "sizes")]
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise DatasetError(
                f"{self.name} has a header that tells no columns ({error!r:.200}). {MEND}"
            ) from error
        columns = self.info.columns
        expected = [
            [column.name for column in columns],
            [c.encoding for c in columns],
            [c.bytes for c in columns],
        ]
        if found != expected:
            raise DatasetError(
                f"{self.name} says its columns are {str(found)[:300]}, its index "
                f"{str(expected)[:300]}. {MEND}"
            )

    def column_index(self, name: str) -> int:
        """Where a column stands in a sample. Raises `DatasetError` where there is none of that
        name."""
        for position, column in enumerate(self.info.columns):
            if column.name == name:
                return position
        names = ", ".join(column.name for column in self.info.columns)
        raise DatasetError(f"{self.name} has no column {name!r}; its columns are: {names}")

    def read_bytes(self, sample: int, column: int) -> bytes:
        """The bytes of one column of one sample of this shard."""
        start, stop = self._starts[sample], self._starts[sample + 1]
        if start + self._fixed_bytes > stop:
            raise self._broken(sample)
        sizes = self._sizes.unpack_from(self._map, start)
        if start + self._fixed_bytes + sum(sizes) != stop:
            raise self._broken(sample)
        fixed, variable = self._before[column]
        start += fixed + sum(sizes[:variable])
        width = self.info.columns[column].bytes
        return self._map[start : start + (sizes[variable] if width is None else width)]

    def read_texts(self, samples: Iterable[int], column: int) -> list[str]:
        """One column of some samples as text. Raises `DatasetError` where one is not UTF-8."""
        texts = []
        # once a document of the corpus: written out, for a call costs as much as what it does
        starts, unpack, data, fixed_bytes = (
            self._starts,
            self._sizes.unpack_from,
            memoryview(self._map),
            self._fixed_bytes,
        )
        fixed, variable = self._before[column]
        width = self.info.columns[column].bytes
        sample = -1
        try:
            for sample in samples:
                start, stop = starts[sample], starts[sample + 1]
                sizes = unpack(data, start)
                if start + fixed_bytes + sum(sizes) != stop:
                    raise self._broken(sample)
                start += fixed + sum(sizes[:variable])
                texts.append(
                    str(
                        data[start : start + (sizes[variable] if width is None else width)], "utf-8"
                    )
                )
        except UnicodeDecodeError as error:
            advice = "Convert the corpus again"
            if self.info.columns[column].encoding == "bytes":
                advice = (
                    "A `transform` may decode it, for instance with "
                    "sample['text'].decode('latin-1')"
                )
            raise DatasetError(
                f"{self.where(sample)} is not UTF-8 ({_explain(error)}). {advice}"
            ) from error
        except struct.error:
            raise self._broken(sample) from None
        return texts

    def read(self, sample: int) -> dict[str, Any]:
        """The whole sample. Columns that would have to be unpickled are refused."""
        return self.read_columns(sample, [column.name for column in self.info.columns])

    def read_columns(self, sample: int, names: Iterable[str]) -> dict[str, Any]:
        """Those columns of a sample that are there. Raises `DatasetError` where one does not hold
        what its encoding says."""
        places = {column.name: place for place, column in enumerate(self.info.columns)}
        parts = {name: self.read_bytes(sample, places[name]) for name in names if name in places}
        try:
            return {
                name: decode_value(self.info.columns[places[name]].encoding, part)
                for name, part in parts.items()
            }
        except (ValueError, struct.error, RecursionError) as error:
            what = f"sample {sample} of {self.name} is not what its columns say"
            raise DatasetError(f"{what} ({_explain(error)}). Convert the corpus again") from error

    def where(self, sample: int) -> str:
        """A sample's place for a message, with its id where it has one that can be read."""
        try:
            identifier = self.read_columns(sample, [ID_KEY])
        except DatasetError:
            identifier = {}
        known = f" (id {str(identifier[ID_KEY])[:200]!r})" if identifier else ""
        return f"sample {sample} of {self.name}{known}"

    def _broken(self, sample: int) -> DatasetError:
        return DatasetError(
            f"sample {sample} of {self.name} has columns that do not fill it. {MEND}"
        )


def _open_regular(path: Path) -> BinaryIO:
    """Open a file to read. A pipe or a device would block, or never end: it is refused before a
    byte of it is read."""
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} cannot be opened as a shard: {error}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise DatasetError(f"{path} is not a regular file, as a shard is. Convert or copy it again")
    return file


def _explain(error: Exception) -> str:
    # a decoder's own text may hold all that it was to decode
    return str(error)[:300]


def decode_value(encoding: str, data: bytes) -> Any:
    """The value of a column's bytes. Raises `DatasetError` for an encoding that is not text, bytes,
    JSON or a number."""
    if encoding == "str":
        return data.decode("utf-8")
    if encoding == "bytes":
        return data
    if encoding == "json":
        return json.loads(data)
    if encoding in FIXED_FORMATS:
        return struct.unpack(FIXED_FORMATS[encoding], data)[0]
    raise DatasetError(
        f"a column of encoding {encoding!r} cannot be read; cloudload "
        "reads str, bytes, json and numbers"
    )
