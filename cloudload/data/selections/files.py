"""The files of a compiled selection, which are beside the dataset.

    <dataset>/selections/good/selection.json       the rule, and all groups; written last
    <dataset>/selections/good/00000-<digest>.bits  the samples of consecutive shards
    <dataset>/selections/good/00001-<digest>.bits

A group has the samples of whole shards, or of whole Parquet files, and its name has a digest of
them and of the rule. If shards are appended, the groups before the last one stay the same. Samples
after those of all groups have the default of the rule: a rule that keeps samples leaves them out,
and a rule that drops samples reads them.

    bytes    0  magic "CLSELECT", version 1 as uint32, size of the header as uint32
            16  header: JSON with sorted keys: samples, selected
             …  bits, the first sample in the lowest bit of the first byte
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from cloudload.data.mds import own_objects, shard_entries
from cloudload.data.mds.dataset import Dataset
from cloudload.data.selections.bits import Selection, count_packed
from cloudload.data.storage.locations import Location
from cloudload.errors import DatasetError
from cloudload.system import Flags, map_in_order

GROUP_SAMPLES, GROUP_BYTES = 1 << 20, 1 << 30
INDEX_NAME = "selection.json"
_VERSION, _MAGIC = 1, b"CLSELECT"
_START = struct.Struct("<8sII")
_READ_AT_ONCE, _MOST_INDEX_BYTES, _MOST_HEADER_BYTES = 16, 1 << 28, 1 << 16


class ShardUnit(NamedTuple):
    """Consecutive shards that a group has or lacks together: one shard, or those of a file."""

    first: int
    stop: int
    samples: int
    raw_bytes: int
    identity: str


@dataclass(frozen=True)
class SelectionRange:
    """The consecutive shards of a group that is compiled."""

    index: int
    """Index of the group."""
    first: int
    stop: int
    """The group has the shards [first, stop) of the dataset."""
    samples: int
    digest: str
    """16 hex digits that identify the rule, and the group's shards."""

    @property
    def name(self) -> str:
        """The name of the group's file."""
        return f"{self.index:05}-{self.digest}.bits"


@dataclass(frozen=True)
class SelectionGroup:
    """A group as the index lists it."""

    name: str
    hash: str
    """SHA-256 of the file, in hex digits."""
    bytes: int
    """Size of the file, in bytes."""
    samples: int
    selected: int
    digest: str
    """See `SelectionRange`."""


@dataclass(frozen=True)
class SelectionIndex:
    """The rule of a selection, and its groups in the order of the dataset's shards."""

    rule: Mapping[str, str]
    """What the selection was compiled from, such as `where`; see `cloudload select`."""
    default: bool
    """Whether samples are selected that no group has."""
    groups: tuple[SelectionGroup, ...]

    @property
    def samples(self) -> int:
        """Number of samples in all groups."""
        return sum(group.samples for group in self.groups)

    @property
    def selected(self) -> int:
        """Number of selected samples in all groups."""
        return sum(group.selected for group in self.groups)

    def encode(self) -> bytes:
        """The bytes of the index's file."""
        values = {"version": _VERSION, **asdict(self)}
        return json.dumps(values, sort_keys=True, indent=1).encode()

    @staticmethod
    def decode(data: bytes) -> SelectionIndex:
        """Decode the file. Raises a `ValueError` that says what is wrong if it is damaged."""

        def read(values: Any) -> SelectionIndex:
            rule = {str(name): str(value) for name, value in values["rule"].items()}
            return SelectionIndex(rule, values["default"] is True, _read_groups(values["groups"]))

        return own_objects.decode_index(data, _VERSION, "the index of a selection", read)


def _read_groups(listed: Sequence[Mapping[str, Any]]) -> tuple[SelectionGroup, ...]:
    groups = tuple(SelectionGroup(**values) for values in listed)
    for group in groups:
        for name, value in asdict(group).items():
            is_text = name in ("name", "hash", "digest")
            is_valid = isinstance(value, str) if is_text else type(value) is int and value >= 0
            if not is_valid:
                raise ValueError(f"a group has an invalid value for {name!r}, {value!r}")
        if "/" in group.name or not group.name.endswith(".bits"):
            raise ValueError(f"a group has the invalid name {group.name!r}")
    return groups


def selection_location(dataset: Dataset, name: str) -> Location:
    """The folder of a compiled selection: one of the dataset's, or the URL of a folder."""
    if own_objects.SELECTION_NAME.fullmatch(name):
        return dataset.location.join(f"{own_objects.SELECTIONS_FOLDER}/{name}")
    return dataset.location.at(name)


def read_selection(folder: Location) -> tuple[SelectionIndex, bytes] | None:
    """Read the index of a compiled selection, and its bytes. None if there is no selection.

    Raises `StoreError` if it cannot be read, and `DatasetError` if it is damaged.
    """
    location = folder.join(INDEX_NAME)
    if (data := location.read_if_exists(_MOST_INDEX_BYTES)) is None:
        return None
    try:
        return SelectionIndex.decode(data), data
    except ValueError as error:
        raise _damaged(location, error) from error


def list_selections(dataset: Dataset) -> dict[str, SelectionIndex]:
    """The indexes of the selections beside a dataset, by name.

    Raises `StoreError` if they cannot be listed, and the errors of `read_selection`.
    """
    folder = dataset.location.join(own_objects.SELECTIONS_FOLDER)
    names = {
        item.url.split("/")[-2]
        for item in folder.list_if_exists()
        if item.url.endswith(f"/{INDEX_NAME}")
    }
    found = {name: read_selection(selection_location(dataset, name)) for name in sorted(names)}
    return {name: each[0] for name, each in found.items() if each is not None}


def _damaged(location: Location, error: Exception) -> DatasetError:
    return DatasetError(
        f"cannot use the selection in {location}: {error}. Remove its folder and run cloudload "
        "select again"
    )


# ---------------------------------------------------------------- groups of shards


def cut_selection(dataset: Dataset, rule: Mapping[str, str]) -> Iterator[SelectionRange]:
    """Group consecutive shards. A group ends after 1,048,576 samples or 1 GiB of raw bytes."""
    units, samples, raw_bytes, index = list[ShardUnit](), 0, 0, 0
    for unit in _list_units(dataset):
        units.append(unit)
        samples, raw_bytes = samples + unit.samples, raw_bytes + unit.raw_bytes
        if samples >= GROUP_SAMPLES or raw_bytes >= GROUP_BYTES:
            yield _join(index, units, rule)
            units, samples, raw_bytes, index = [], 0, 0, index + 1
    if units:
        yield _join(index, units, rule)


def _join(index: int, units: Sequence[ShardUnit], rule: Mapping[str, str]) -> SelectionRange:
    samples = sum(unit.samples for unit in units)
    return SelectionRange(index, units[0].first, units[-1].stop, samples, _identify(units, rule))


def _identify(units: Sequence[ShardUnit], rule: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(dict(rule), sort_keys=True).encode())
    for unit in units:
        digest.update(f"{unit.samples} {unit.identity}\n".encode())
    return digest.hexdigest()[:16]


def _list_units(dataset: Dataset) -> Iterator[ShardUnit]:
    """Yield the units of a dataset, in order. They do not depend on the columns that are read."""
    shards, before = dataset.table, None
    for index, (shard, samples, size) in enumerate(
        zip(shards, shards.samples.tolist(), shards.raw_bytes.tolist(), strict=True)
    ):
        unit = ShardUnit(index, index + 1, samples, size, _identity_of(shard))
        if before is not None and shard.is_virtual and before.identity == unit.identity:
            merged = before.samples + samples, before.raw_bytes + size
            before = ShardUnit(before.first, index + 1, *merged, unit.identity)
            continue
        if before is not None:
            yield before
        before = unit
    if before is not None:
        yield before


def _identity_of(shard: shard_entries.ShardInfo) -> str:
    if shard.part is not None:
        return f"{shard.part.file} {shard.part.digest}"
    columns = [(column.name, column.encoding) for column in shard.columns]
    return f"{shard.identity} {columns}"


# ---------------------------------------------------------------- the file of a group


def encode_bits(flags: Flags) -> bytes:
    """Encode the file of a group: whether each of its samples is selected, bool [samples]."""
    header = {"samples": len(flags), "selected": int(flags.sum())}
    text = json.dumps(header, sort_keys=True).encode()
    packed = np.packbits(flags, bitorder="little").tobytes()
    return _START.pack(_MAGIC, _VERSION, len(text)) + text + packed


def decode_bits(data: bytes) -> Selection:
    """Decode the file of a group. Raises a `ValueError` that says what is wrong with it."""
    if len(data) < _START.size:
        raise ValueError(f"the file has {len(data):,} bytes, which is too short")
    magic, version, size = _START.unpack_from(data)
    if magic != _MAGIC or size > _MOST_HEADER_BYTES:
        raise ValueError("the file does not contain a selection")
    if version != _VERSION:
        raise ValueError(f"the file has format version {version}, not {_VERSION}")
    try:
        header = json.loads(data[_START.size : _START.size + size])
        samples, selected = int(header["samples"]), int(header["selected"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"the file's header is damaged ({error!r:.200})") from None
    bits = np.frombuffer(data, np.uint8, offset=_START.size + size)
    if samples < 0 or len(bits) != count_packed(samples):
        raise ValueError(f"the file has {len(bits):,} bytes of bits for {samples:,} samples")
    found = Selection(bits, samples)
    if found.num_selected != selected:
        raise ValueError(f"the file has {found.num_selected:,} selected samples, not {selected:,}")
    return found


def list_group(shards: SelectionRange, data: bytes) -> SelectionGroup:
    """The entry of a group in the index, given its file. Raises `ValueError` if it is damaged."""
    found = decode_bits(data)
    if found.num_samples != shards.samples:
        raise ValueError(
            f"the file has {found.num_samples:,} samples, but its shards have {shards.samples:,}"
        )
    digest = hashlib.sha256(data).hexdigest()
    return SelectionGroup(
        shards.name, digest, len(data), shards.samples, found.num_selected, shards.digest
    )


def read_selected(folder: Location, index: SelectionIndex, dataset: Dataset) -> Iterator[Flags]:
    """Read and verify the groups of a selection, and yield whether each sample is selected.

    Yields a bool [samples] for each group, and the default for samples after them. Raises
    `DatasetError` for a selection of other data, and for a damaged or missing group, and
    `StoreError` if a group cannot be read.
    """
    left = _check_groups(folder, index, dataset)

    def read(group: SelectionGroup) -> Flags:
        location = folder.join(group.name)
        data = location.read(group.bytes)
        try:
            if len(data) != group.bytes or hashlib.sha256(data).hexdigest() != group.hash:
                raise ValueError("the size or hash of the file differs from the one in the index")
            found = decode_bits(data)
            if found.num_samples != group.samples:
                raise ValueError(f"the file has {found.num_samples:,} samples")
            return found.read(0, group.samples)
        except ValueError as error:
            raise _damaged(location, error) from error

    yield from map_in_order(read, index.groups, _READ_AT_ONCE, "cloudload-select")
    for start in range(0, left, GROUP_SAMPLES):
        yield np.full(min(GROUP_SAMPLES, left - start), index.default)


def _check_groups(folder: Location, index: SelectionIndex, dataset: Dataset) -> int:
    """Check that the dataset begins with the shards of a selection's groups.

    Returns the number of samples after them. Raises `DatasetError` otherwise.
    """
    units = _list_units(dataset)
    for group in index.groups:
        own, samples = list[ShardUnit](), 0
        while samples < group.samples and (unit := next(units, None)) is not None:
            own.append(unit)
            samples += unit.samples
        if samples != group.samples or _identify(own, index.rule) != group.digest:
            raise DatasetError(
                f"the selection in {folder} was compiled for other data than {dataset.location}, "
                f"because {group.name} does not match its shards. Run cloudload select again"
            )
    return sum(unit.samples for unit in units)
