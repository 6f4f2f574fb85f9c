"""The shards of an index, as the input of a conversion that copies them (`like`).

    index    a.parquet#0-3   a.parquet#4-6   b.parquet#0-0    or an MDS dataset
    output   shard.00000     shard.00001     shard.00002      the same samples and columns

A run that began on the shards of the index continues on the copies, because they have the
identities of their originals (`ShardInfo.identity`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cloudload.data import ColumnChoice, Location, open_corpus, shard_entries
from cloudload.errors import ConvertError, DatasetError
from cloudload.tools.convert.found_files import FolderFiles
from cloudload.tools.convert.input_files import InputFile


@dataclass(frozen=True)
class ShardIndex:
    """An index whose shards are copied. It is an input, like a folder."""

    url: str
    """The location of a stored index, or of files of which a loader makes an index."""
    choice: ColumnChoice
    """The columns of an index that is made."""

    @property
    def urls(self) -> tuple[str, ...]:
        """The locations of the input."""
        return (self.url,)

    def find(self) -> FolderFiles:
        """Open the index, and list its shards as files of format `mds`.

        The tag of each is its identity. Raises `ConvertError` if the index is invalid, if it has no
        samples, or columns that are not sorted, and `StoreError` if it cannot be read.
        """
        try:
            [dataset] = open_corpus([Location(self.url)], choices=[self.choice]).datasets
        except DatasetError as error:
            raise ConvertError(str(error)) from error
        for columns in dataset.table.column_sets():
            if (names := [column.name for column in columns]) != sorted(names):
                raise ConvertError(
                    f"{dataset.location} has the columns {', '.join(names)}, which are not sorted "
                    "by name, as MDS requires, so its shards cannot be copied. Convert the dataset "
                    "without like"
                )
        files = [
            InputFile(
                dataset.locate(info).url,
                info.stored.name,
                info.stored.bytes,
                "mds",
                info.compression,
                info,
                info.identity,
            )
            for info in dataset.shards
        ]
        return FolderFiles((dataset.files or dataset.location).url, files)


def list_columns(folders: Iterable[FolderFiles]) -> tuple[shard_entries.Column, ...]:
    """Return the columns of all shards, sorted by name.

    A column may have another encoding in some shards.
    """
    shards = (file.shard for folder in folders for file in folder.files)
    columns = {each.name: each for shard in shards if shard for each in shard.columns}
    return tuple(columns[name] for name in sorted(columns))
