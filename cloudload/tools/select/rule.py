"""The rule of a selection: which documents it keeps.

    where       a condition on columns           ─┐
    keep_ids    documents whose ID a file lists   ├─ keep: later documents are left out
    keep        documents by shard and index     ─┘
    drop_ids    documents whose ID a file lists  ─┬─ drop: later documents are read
    drop        documents by shard and index     ─┘

A document is selected if everything that is given keeps it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cloudload.data import ID_KEY, Dataset, Location, Shard, selections
from cloudload.errors import DatasetError
from cloudload.system import Flags
from cloudload.tools.count.length_report import check_column
from cloudload.tools.select.expression import Expression, WrongTypeError, parse_expression


@dataclass(frozen=True)
class IdFile:
    """A file of IDs: a line for each, or a table with the column `id`."""

    location: Location
    digest: str
    """SHA-256 of the file, in hex digits."""

    @staticmethod
    def of(location: Location) -> IdFile:
        """Read a file to know what it contains. Raises `StoreError` if it cannot be read."""
        return IdFile(location, hashlib.sha256(location.read()).hexdigest())


@functools.lru_cache(2)
def load_ids(file: IdFile) -> frozenset[str]:
    """Load the IDs in a file, as text. Raises `DatasetError` if it changed or is damaged."""
    data = file.location.read()
    if hashlib.sha256(data).hexdigest() != file.digest:
        raise DatasetError(
            f"{file.location} changed while the selection was compiled. Run it again"
        )
    if selections.listed.is_listed(file.location.url):
        [ids] = selections.listed.read_listed_columns(file.location, data, [ID_KEY])
        return frozenset(map(str, ids))
    try:
        # not `splitlines`, because an ID may have other ends of lines, such as U+2028
        lines = data.decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{file.location} is not UTF-8 text. Use a file with an ID on each line, or a Parquet, "
            "JSON Lines or CSV file with the column id"
        ) from error
    # spaces at the ends may belong to an ID, or not
    return frozenset(each for line in lines for each in (line, line.strip()) if each.strip())


@dataclass(frozen=True)
class SelectionRule:
    """What a selection keeps. Every worker receives it, so files are only named."""

    where: str | None = None
    keep_ids: IdFile | None = None
    drop_ids: IdFile | None = None
    keep: selections.listed.ListedSamples | None = None
    drop: selections.listed.ListedSamples | None = None

    @property
    def default(self) -> bool:
        """Whether documents are selected that are appended later: if the rule only drops."""
        return self.where is None and self.keep_ids is None and self.keep is None

    def describe(self) -> dict[str, str]:
        """What the rule is, for the index and the names of groups."""
        found = {"where": self.where}
        for name in ("keep_ids", "drop_ids", "keep", "drop"):
            found[name] = getattr(getattr(self, name), "digest", None)
        return {name: value for name, value in found.items() if value is not None}

    @property
    def expression(self) -> Expression | None:
        """The condition, parsed. Raises `ValueError` if it is wrong."""
        return None if self.where is None else _parse_once(self.where)

    @property
    def of_shards(self) -> SelectionRule:
        """The part of the rule that depends on what is in the shards."""
        return replace(self, keep=None, drop=None)

    @property
    def reads_shards(self) -> bool:
        """Whether the rule depends on what is in the shards."""
        return self.where is not None or bool(self.keep_ids or self.drop_ids)

    def find_columns(self, dataset: Dataset) -> list[str]:
        """The columns to read. Raises `DatasetError` if the dataset lacks one of them."""
        wanted = [ID_KEY] if self.keep_ids or self.drop_ids else []
        for name in self.expression.columns if self.expression else ():
            names = {column.name for each in dataset.table.column_sets() for column in each}
            wanted.append(name if name in names else name.partition(".")[0])
        columns = list(dict.fromkeys(wanted))
        for column in columns:
            check_column(dataset, column)
        return columns

    def find_selected(self, shard: Shard, columns: Sequence[str]) -> Flags:
        """Whether the condition and the IDs select each sample of a shard: bool [samples].

        Raises `DatasetError` if a value is damaged, or does not suit the condition.
        """
        flags = np.ones(shard.info.samples, np.bool_)
        values = {name: shard.read_values(name) for name in columns}
        if self.keep_ids is not None:
            flags &= _are_in(values[ID_KEY], load_ids(self.keep_ids))
        if self.drop_ids is not None:
            flags &= ~_are_in(values[ID_KEY], load_ids(self.drop_ids))
        if (expression := self.expression) is not None:
            # documents that are left out anyway need not suit the condition
            for sample in np.flatnonzero(flags).tolist():
                row = {name: column[sample] for name, column in values.items()}
                try:
                    flags[sample] = expression.is_true(row)
                except WrongTypeError as error:
                    raise DatasetError(
                        f"{shard.where(sample)} does not suit the condition {self.where!r}: "
                        f"{error}. Change the condition"
                    ) from error
        return flags


@functools.lru_cache(1)
def _parse_once(text: str) -> Expression:
    return parse_expression(text)


def _are_in(values: Sequence[Any], ids: frozenset[str]) -> Flags:
    found = (value is not None and str(value) in ids for value in values)
    return np.fromiter(found, np.bool_, len(values))
