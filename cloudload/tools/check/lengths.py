"""Check the token lengths in a dataset's folder.

lengths/<key>/index-<data>.json     of the present data: complete, or else `lengths-damaged`
lengths/<key>/…                     anything that no such index lists: `lengths-old`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cloudload.data.mds.dataset import Corpus, Dataset
from cloudload.data.mds.own_objects import LENGTHS, LENGTHS_PLACE
from cloudload.data.storage.base import Retry
from cloudload.data.storage.objects import read_object
from cloudload.data.storage.urls import join_url
from cloudload.errors import DatasetError, StoreError
from cloudload.run.lengths.files import CountedDataset, verify_lengths
from cloudload.run.lengths.index import LengthsIndex, LengthsKey, index_name
from cloudload.tools.check.findings import Finding, find
from cloudload.tools.check.objects import sum_up


@dataclass
class LengthsCheck:
    """Checks the token lengths of a dataset. `sizes` maps all of its objects to bytes.

    With `reads_groups`, reads and verifies the lengths. Otherwise, compares sizes only.
    """

    dataset: Dataset
    sizes: Mapping[str, int]
    retry: Retry
    reads_groups: bool
    complete: set[str] = field(default_factory=set)
    """The fingerprints of the tokenizers whose lengths are complete; "" for token IDs."""

    def run(self) -> Iterator[Finding]:
        """Yield the findings, and fill `complete`."""
        rest = {name: size for name, size in self.sizes.items() if LENGTHS.fullmatch(name)}
        if not rest:
            return
        current = index_name(Corpus((self.dataset,)).fingerprint(range(1)))
        for name in [name for name in rest if name.endswith(f"/{current}")]:
            del rest[name]
            try:
                counted = self._open(name)
                names = self._list_groups(counted)
                if self.reads_groups:
                    verify_lengths(counted, self.retry)
            except (ValueError, DatasetError, StoreError) as error:
                yield find("lengths-damaged", name, str(error))
                folder = name.removesuffix(current)
                rest = {each: size for each, size in rest.items() if not each.startswith(folder)}
                continue
            self.complete.add(counted.key.tokenizer)
            rest = {name: size for name, size in rest.items() if name not in names}
        if rest:
            what = f"{sum_up(rest)} have token lengths of other data, or of an unfinished count"
            yield find("lengths-old", "", what)

    def _open(self, name: str) -> CountedDataset:
        url, digest = join_url(self.dataset.url, name), name.split("/")[1]
        index = LengthsIndex.decode(read_object(url, self.retry))
        try:
            key = LengthsKey(**index.key)
        except TypeError as error:
            raise ValueError(f"the file is not an index of token lengths ({error})") from None
        if (key.digest, index_name(index.data)) != (digest, name.split("/")[2]):
            raise ValueError("the file belongs to different data or a different tokenizer")
        return CountedDataset(self.dataset, key, join_url(self.dataset.url, LENGTHS_PLACE), index)

    def _list_groups(self, counted: CountedDataset) -> set[str]:
        """The names of the groups' objects. Raises `ValueError` if one does not have its size."""
        folder = f"{LENGTHS_PLACE}/{counted.key.digest}/"
        for group in counted.index.groups:
            size = self.sizes.get(folder + group.name)
            if size != group.bytes:
                fault = "is missing" if size is None else f"has {size:,} bytes"
                raise ValueError(f"{group.name} {fault}, but the file lists {group.bytes:,} bytes")
        return {folder + group.name for group in counted.index.groups}
