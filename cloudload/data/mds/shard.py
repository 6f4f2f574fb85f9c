"""Read samples from a raw shard that is mapped into memory. `cloudload.data.mds` shows the format.

The file is untrusted. Its size, and its header if it has one, must match the index. Its offsets
must be ascending and within the file, and a sample's columns must fill the sample exactly.
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

from cloudload.data.mds import array_values, shard_entries
from cloudload.data.mds.hashes import SAMPLES_HASH, hash_samples
from cloudload.errors import DatasetError
from cloudload.system import Ints

_MOST_HEADER_BYTES = 1 << 20

ID_KEY = "id"

NULL_TEXT = b"\xffnull"
"""The text of a sample whose document is null in a file that is read where it is. It is not valid
UTF-8, so that every reader of the text fails on it as on any other bad document."""
BAD_RECORD = b"\xffbad: "
"""The start of each value of a sample whose record is bad in such a file. The problem follows."""

REPAIR_ADVICE = (
    "If the shard is in the cache, delete the cached file to fetch the shard again. If the shard "
    "is damaged in the dataset, copy it again, or delete it and run the same conversion again"
)

SKIP_ADVICE = "To leave such documents out and count them, pass on_error='skip'"


class BadDocumentError(DatasetError):
    """An error in the content of one document of a valid shard.

    Every reader fails on the document in the same way. on_error="skip" leaves such documents out.
    """

    def __init__(self, message: str, *, summary: str = "") -> None:
        super().__init__(message)
        self.summary = summary or message
        """A short message for logs, without the advice."""


class Shard:
    """A raw shard, mapped into memory. It stays readable after its file is deleted.

    With `data`, the shard consists of these bytes, and `path` is only its name. Raises
    `FileNotFoundError` if there is no file, and `DatasetError` if the file cannot be opened or does
    not match `info`.
    """

    def __init__(
        self, path: Path, info: shard_entries.ShardInfo, data: memoryview | None = None
    ) -> None:
        self.path, self.info = path, info
        self.url = ""
        """The shard's redacted URL, for error messages; empty until the cache sets it."""
        self._map: mmap.mmap | memoryview = _map_file(path, info) if data is None else data
        self._offsets = np.ascontiguousarray(self._read_offsets(), np.uint32)
        self._starts = self._offsets.data
        self._header = self._read_header()
        variable = [column.bytes is None for column in info.columns]
        self._sizes = struct.Struct(f"<{sum(variable)}I")
        # a column begins after the sizes and the previous columns. For each column, store the fixed
        # part of that offset and the number of variable-sized columns before it
        fixed = [column.bytes or 0 for column in info.columns]
        self._fixed_bytes = self._sizes.size + sum(fixed)
        self._before = [
            (self._sizes.size + sum(fixed[:c]), sum(variable[:c])) for c in range(len(fixed))
        ]

    @property
    def name(self) -> str:
        """The shard's URL, or its path if the URL is not set."""
        return self.url or str(self.path)

    def _read_offsets(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        count, end = self.info.samples, len(self._map)
        start = 4 * (count + 2)
        if end < start or struct.unpack_from("<I", self._map)[0] != count:
            raise DatasetError(
                f"{self.name} does not contain the {count:,} samples that its index lists. "
                f"{REPAIR_ADVICE}"
            )
        offsets = np.frombuffer(self._map, "<u4", count + 1, 4)
        is_descending = (np.diff(offsets.astype(np.int64)) < 0).any()
        if offsets[0] < start or offsets[-1] != end or is_descending:
            raise DatasetError(
                f"{self.name} has sample offsets that decrease or are outside the shard. "
                f"{REPAIR_ADVICE}"
            )
        return offsets

    def _read_header(self) -> dict[str, Any]:
        """Read the header, which some writers omit.

        Raises `DatasetError` if it contradicts the index.
        """
        start, stop = 4 * (self.info.samples + 2), self._starts[0]
        if start == stop:
            return {}
        try:
            if stop - start > _MOST_HEADER_BYTES:
                raise ValueError(
                    f"the header has {stop - start:,} bytes, more than the limit of "
                    f"{_MOST_HEADER_BYTES:,}"
                )
            header = json.loads(bytes(self._map[start:stop]))
            found = [header[f"column_{field}"] for field in ("names", "encodings", "sizes")]
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise DatasetError(
                f"{self.name} has a header without valid columns ({error!r:.200}). {REPAIR_ADVICE}"
            ) from error
        columns = [(column.name, column.encoding, column.bytes) for column in self.info.columns]
        expected = [list(values) for values in zip(*columns, strict=True)]
        if found != expected:
            raise DatasetError(
                f"{self.name} has the columns {str(found)[:300]}, but its index says "
                f"{str(expected)[:300]}. {REPAIR_ADVICE}"
            )
        known: dict[str, Any] = header
        return known

    def column_index(self, name: str) -> int:
        """The index of a column. Raises `DatasetError` if there is no such column."""
        for position, column in enumerate(self.info.columns):
            if column.name == name:
                return position
        names = ", ".join(column.name for column in self.info.columns)
        raise DatasetError(f"{self.name} has no column {name!r}. Use one of its columns: {names}")

    def read_bytes(self, sample: int, column: int) -> bytes:
        """Read the bytes of one column of one sample. `sample` and `column` are indices.

        Raises `DatasetError` if the sample is damaged.
        """
        start, stop = self._starts[sample], self._starts[sample + 1]
        if start + self._fixed_bytes > stop:
            raise self._broken(sample)
        sizes = self._sizes.unpack_from(self._map, start)
        if start + self._fixed_bytes + sum(sizes) != stop:
            raise self._broken(sample)
        fixed, variable = self._before[column]
        start += fixed + sum(sizes[:variable])
        width = self.info.columns[column].bytes
        return bytes(self._map[start : start + (sizes[variable] if width is None else width)])

    @property
    def data(self) -> memoryview:
        """All bytes of the shard, without copying them."""
        return memoryview(self._map)

    @property
    def samples_hash(self) -> str:
        """The `SAMPLES_HASH` of the shard, in hex digits."""
        return hash_samples(self.sample_bytes(), self.samples)

    @property
    def samples(self) -> memoryview:
        """The bytes of all samples, one after another, without copying them."""
        return self.data[self._starts[0] :]

    @property
    def listed_samples_hash(self) -> str | None:
        """The `SAMPLES_HASH` in the shard's header; None if it has none. Only virtual shards do."""
        return self._header.get(SAMPLES_HASH)

    def sample_bytes(self) -> Ints:
        """The size of each sample in bytes, all columns included: int64 [samples]."""
        return np.diff(self._offsets.astype(np.int64))

    def find_values(self, samples: Ints, column: int) -> tuple[Ints, Ints]:
        """Find the value of the column with index `column` in each of `samples`.

        Returns the byte offsets in the shard at which the values start and stop. They and `samples`
        are int64 [samples]. Raises `DatasetError` if a sample is damaged.
        """
        starts = self._offsets[samples].astype(np.int64)
        stops = self._offsets[samples + 1].astype(np.int64)
        is_whole = starts + self._fixed_bytes <= stops
        # a sample begins with the sizes of its variable-sized values. They and the fixed bytes must
        # add up to the sample
        if is_whole.all():
            at = starts[:, None] + np.arange(self._sizes.size)
            sizes = np.frombuffer(self._map, np.uint8)[at].view("<u4").astype(np.int64)
            is_whole = starts + self._fixed_bytes + sizes.sum(axis=1) == stops
        if not is_whole.all():
            raise self._broken(int(samples[np.flatnonzero(~is_whole)[0]]))
        fixed, variable = self._before[column]
        starts += fixed + sizes[:, :variable].sum(axis=1)
        width = self.info.columns[column].bytes
        return starts, starts + (sizes[:, variable] if width is None else width)

    def read_texts(self, samples: Iterable[int], column: int) -> list[str]:
        """Read the column with index `column` of each of `samples`, in order, as text.

        Raises `DatasetError` if a sample is damaged, and `BadDocumentError` if it is not UTF-8.
        """
        texts = []
        # `read_bytes` is inlined because this runs per document, where a call would double the time
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
            if error.object == NULL_TEXT:
                name = self.info.columns[column].name
                summary = f"{self.where(sample)} has null in column {name!r}"
                raise BadDocumentError(f"{summary}. {SKIP_ADVICE}", summary=summary) from error
            self._refuse_bad_record(sample, error)
            advice = "Convert the corpus again"
            if self.info.columns[column].encoding == "bytes":
                advice = (
                    "If the column contains token IDs, pass "
                    f"tokens_key={self.info.columns[column].name!r} and tokens_dtype. If the text "
                    "has another encoding, pass a `transform` that decodes it"
                )
            summary = f"{self.where(sample)} is not UTF-8 ({_explain(error)})"
            raise BadDocumentError(
                f"{summary}. {advice}. {SKIP_ADVICE}", summary=summary
            ) from error
        except struct.error:
            raise self._broken(sample) from None
        return texts

    def read(self, sample: int) -> dict[str, Any]:
        """Read all columns of a sample. Returns a dict from column name to value.

        Raises `DatasetError` as `read_columns` does.
        """
        return self.read_columns(sample, [column.name for column in self.info.columns])

    def read_columns(self, sample: int, names: Iterable[str]) -> dict[str, Any]:
        """Read the columns `names` of a sample. Returns a dict from column name to value.

        Names that are not columns are ignored.

        Raises `BadDocumentError` if a value is not valid text or JSON, and `DatasetError` if the
        sample is damaged, or if an encoding is not supported, such as pkl.
        """
        columns = self.info.columns
        indices = {column.name: index for index, column in enumerate(columns)}
        parts = {name: self.read_bytes(sample, indices[name]) for name in names if name in indices}
        try:
            return {
                name: decode_value(columns[indices[name]].encoding, data)
                for name, data in parts.items()
            }
        except (ValueError, struct.error, RecursionError) as error:
            self._refuse_bad_record(sample, error)
            what = f"sample {sample} of {self.name} does not match its columns ({_explain(error)})"
            message = f"{what}. Convert the corpus again"
            if not isinstance(error, ValueError):
                # the bytes have the wrong size, or the JSON is nested too deeply for the stack
                raise DatasetError(message) from error
            raise BadDocumentError(f"{message}. {SKIP_ADVICE}", summary=what) from error

    def read_values(self, name: str) -> list[Any]:
        """Read a column of all samples; None for null.

        Raises `DatasetError` if there is no such column, if its encoding is not supported, or if a
        value is damaged.
        """
        index = self.column_index(name)
        encoding = self.info.columns[index].encoding
        starts, stops = self.find_values(np.arange(self.info.samples), index)
        if (form := shard_entries.FIXED_FORMATS.get(encoding)) is not None and len(starts):
            at = starts[:, None] + np.arange(np.dtype(form).itemsize)
            numbers = np.frombuffer(self._map, np.uint8)[at].view(np.dtype(form))
            return list(numbers[:, 0].tolist())
        values = []
        for sample, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            data = bytes(self._map[start:stop])
            try:
                values.append(None if data == NULL_TEXT else decode_value(encoding, data))
            except (ValueError, struct.error, RecursionError) as error:
                raise DatasetError(
                    f"{self.where(sample)} has a value in column {name!r} that is not {encoding} "
                    f"({_explain(error)}). Convert the corpus again"
                ) from error
        return values

    def has_id(self, sample: int, identifier: str) -> bool:
        """Whether a sample's value in the column `id`, as text, is `identifier`.

        A sample without the column, or with null in it, has no ID.
        """
        value = self.read_columns(sample, [ID_KEY]).get(ID_KEY)
        return value is not None and str(value) == identifier

    def where(self, sample: int) -> str:
        """Describe a sample for a message: its index, the shard, and the ID if it can be read."""
        try:
            identifier = self.read_columns(sample, [ID_KEY]).get(ID_KEY)
        except DatasetError:
            identifier = None
        known = "" if identifier is None else f" (id {str(identifier)[:200]!r})"
        return f"sample {sample} of {self.name}{known}"

    def _refuse_bad_record(self, sample: int, error: Exception) -> None:
        """Raise `BadDocumentError` with the problem of a bad record, if a value says one."""
        if (problem := find_problem(error)) is not None:
            summary = f"{self.where(sample)} is a bad record: {problem}"
            raise BadDocumentError(f"{summary}. {SKIP_ADVICE}", summary=summary) from None

    def _broken(self, sample: int) -> DatasetError:
        return DatasetError(
            f"sample {sample} of {self.name} has column sizes that do not add up to its size. "
            f"{REPAIR_ADVICE}"
        )


def _map_file(path: Path, info: shard_entries.ShardInfo) -> mmap.mmap | memoryview:
    with _open_regular(path) as file:
        size = file.seek(0, 2)
        # the offsets of a virtual shard tell its size
        if size != info.raw.bytes and not info.is_virtual:
            raise DatasetError(
                f"{path} has {size:,} bytes, but the index says {info.raw.bytes:,}. {REPAIR_ADVICE}"
            )
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else memoryview(b"")


def _open_regular(path: Path) -> BinaryIO:
    """Open a regular file, without blocking on a pipe.

    Raises `FileNotFoundError` if there is no file, and `DatasetError` if it cannot be opened or is
    not a regular file.
    """
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"{path} cannot be opened as a shard ({error}). Check the file and its permissions. If "
            "the file is damaged, copy it again, or delete it and convert it again"
        ) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise DatasetError(f"{path} is not a regular file. Convert or copy the shard again")
    return file


def find_problem(error: Exception) -> str | None:
    """The problem of a bad record, if `error` is from decoding a value of it; otherwise None."""
    if isinstance(error, UnicodeDecodeError) and error.object.startswith(BAD_RECORD):
        return error.object.removeprefix(BAD_RECORD).decode()
    return None


def _explain(error: Exception) -> str:
    # a decoder's message may contain its entire input
    return str(error)[:300]


def decode_value(encoding: str, data: bytes) -> Any:
    """Decode the bytes of a value in a column. A value of an ndarray is a read-only array.

    A null text is None, so that code which gets a whole sample may read its other columns.
    Raises `DatasetError` for an encoding other than str, bytes, json, ndarray, and `FIXED_FORMATS`.
    Raises `ValueError`, `RecursionError` or `struct.error` if the bytes do not fit the encoding.
    """
    if encoding == "str":
        return None if data == NULL_TEXT else data.decode("utf-8")
    if encoding == "bytes":
        return data
    if encoding == "json":
        return json.loads(data)
    if encoding in shard_entries.FIXED_FORMATS:
        return struct.unpack(shard_entries.FIXED_FORMATS[encoding], data)[0]
    if encoding.partition(":")[0] == "ndarray":
        return array_values.decode_array(encoding, data)
    raise DatasetError(
        f"cannot read a column with the encoding {encoding!r}. cloudload reads the encodings str, "
        f"bytes, json, ndarray, {', '.join(shard_entries.FIXED_FORMATS)}. Convert the corpus again "
        "without this column"
    )
