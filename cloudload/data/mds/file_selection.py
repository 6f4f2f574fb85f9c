"""Choose the data files of a folder or a glob: those that it selects, and that are not hidden.

corpus/   b.jsonl  a.jsonl  _temporary/0/a.jsonl  .git/…  _SUCCESS
files     a.jsonl  b.jsonl
hidden    .git/  _SUCCESS  _temporary/
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cloudload.data import file_kinds
from cloudload.data.storage import urls
from cloudload.data.storage.base import StoredObject
from cloudload.data.storage.globs import Glob


@dataclass
class FileListing:
    """The files of a folder or glob, sorted by URL, and what was left out."""

    files: list[StoredObject] = field(default_factory=list)
    hidden: set[str] = field(default_factory=set)
    tables: dict[str, str] = field(default_factory=dict)
    """Maps the folder of a table, below the root, to its kind, or to "" if it may be a table."""


class FileSelection:
    """Chooses files below `root` by name: those that the glob matches, if any, unless hidden."""

    def __init__(self, root: str, glob: Glob | None) -> None:
        self._root, self._glob = root, glob

    def wants(self, url: str) -> bool:
        """Whether to look at a file, or into a folder, whose URL ends in `/`."""
        name = urls.name_below(url, self._root)
        if self._find_hidden(name):
            return False
        if self._glob is None:
            return True
        if name.endswith("/"):
            return self._glob.may_match_below(name[:-1])
        return self._glob.matches(name)

    def collect(self, stored: Iterator[StoredObject]) -> FileListing:
        """Divide the objects of a listing into files, hidden names, and tables."""
        found = FileListing()
        for item in stored:
            name = urls.name_below(item.url, self._root)
            if table := file_kinds.find_table(name):
                found.tables[table[0]] = table[1]
            if hidden := self._find_hidden(name):
                found.hidden.add(urls.utf8_name(hidden))
            elif name.endswith("/"):
                if f"/{name}".endswith("/metadata/"):  # its files were not listed
                    found.tables.setdefault(name[: -len("metadata/")], "")
            elif self._glob is None or self._glob.matches(name):
                found.files.append(item)
        found.files.sort(key=lambda item: item.url)
        return found

    def _find_hidden(self, name: str) -> str:
        """The hidden part of a name, or "" if it has none, or if a part of the glob is like it."""
        hidden = file_kinds.hidden_part(name)
        sign = hidden.rstrip("/").rpartition("/")[2][:1]
        return "" if hidden and self._glob and self._glob.names_parts_with(sign) else hidden
