"""A stand-in for the Hugging Face Hub with datasets, whose main branches can be moved.

with fake_hub("owner/name", {"a" * 40: {"data/0.parquet": b"…"}}) as hub:
    hub.main = "b" * 40              the commit of its branch
    hub.requests                     ["GET /datasets/owner/name/resolve/aaa…/data/0.parquet"]
    hub.add("owner/other", {"README.md": b"…"})
    hub.site.faults.append(Fault("/tree/", status=429, headers={"Retry-After": "1"}))
    hub.site.token = "hf_secret"     every request needs it

Files are redirected to a CDN, which is another path of the server.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from testkit.web_server import Fault, Site, SiteHandler, start_site

Commits = Mapping[str, Mapping[str, bytes]]
"""The files of each commit, by the commit's hash and the file's name."""

_INFO = re.compile(r"/api/datasets/([\w-]+/[\w.-]+)(?:/revision/(\w+))?")
_TREE = re.compile(r"/api/datasets/([\w-]+/[\w.-]+)/tree/(\w+)/?(.*)")
_FILE = re.compile(r"/(datasets|cdn)/([\w-]+/[\w.-]+)/resolve/(\w+)/(.*)")


@dataclass
class FakeHub:
    """A running server. `repo` is its first dataset."""

    repo: str
    site: Site
    datasets: dict[str, Commits]
    mains: dict[str, str] = field(default_factory=dict)
    """The commit of each dataset's main branch."""

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        return self.site.url

    @property
    def main(self) -> str:
        """The commit of the first dataset's main branch."""
        return self.mains[self.repo]

    @main.setter
    def main(self, commit: str) -> None:
        self.mains[self.repo] = commit

    @property
    def requests(self) -> list[str]:
        """The requests so far, as method and path, without those to the CDN."""
        lines = (line.partition(" ") for line in self.site.lines)
        found = [f"{method} {unquote(urlsplit(rest).path)}" for method, _, rest in lines]
        return [line for line in found if " /cdn/" not in line]

    def add(self, repo: str, files: Mapping[str, bytes]) -> str:
        """Add a commit to a dataset, as its main branch, and return the commit's hash."""
        commit = sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.datasets[repo] = {**self.datasets.get(repo, {}), commit: files}
        self.mains[repo] = commit
        return commit

    def find(self, repo: str, revision: str) -> Mapping[str, bytes] | None:
        """The files of a revision, or None if there is no such revision."""
        commit = self.mains.get(repo, "") if revision == "main" else revision
        return self.datasets.get(repo, {}).get(commit)


class _Handler(SiteHandler):
    def __init__(self, *arguments: object, hub: FakeHub, site: Site) -> None:
        self.hub = hub
        super().__init__(*arguments, site=site)

    def answer_api(self, path: str, fault: Fault | None) -> bool:
        path = unquote(path)
        if found := _FILE.fullmatch(path):
            data = (self.hub.find(found[2], found[3]) or {}).get(found[4])
            if data is None:
                self.answer_bytes(b"", 404, X_Error_Code="EntryNotFound")
            elif found[1] == "cdn":
                self.send_data(data, fault)
            else:
                tag, size = f'"{_oid(data)}"', str(len(data))
                headers = {"X_Repo_Commit": found[3], "ETag": tag, "X_Linked_Size": size}
                self.answer_bytes(b"", 302, Location=path.replace("datasets", "cdn", 1), **headers)
        elif found := _TREE.fullmatch(path) or _INFO.fullmatch(path):
            self._answer_json(found, is_tree="/tree/" in path)
        elif path == "/":
            self.answer_bytes(b"{}")
        else:
            self.answer_bytes(b"", 404)
        return True

    def _answer_json(self, found: re.Match[str], *, is_tree: bool) -> None:
        repo, revision = found[1], found[2] or "main"
        files = self.hub.find(repo, revision)
        if files is None:
            return self.answer_bytes(b"{}", 404, X_Error_Code="RepoNotFound")
        if not is_tree:
            commit = self.hub.mains[repo] if revision == "main" else revision
            siblings = [{"rfilename": name} for name in files]
            body: Any = {"id": repo, "sha": commit, "siblings": siblings, "tags": []}
        else:
            query = parse_qs(urlsplit(self.path).query)
            is_deep = query.get("recursive", ["false"])[0].lower() == "true"
            body = _list(files, f"{found[3]}/" if found[3] else "", is_deep)
        return self.answer_bytes(json.dumps(body).encode(), Content_Type="application/json")


def _list(files: Mapping[str, bytes], prefix: str, is_deep: bool) -> list[dict[str, Any]]:
    names = set[str]()
    for name in files:
        parts = name.removeprefix(prefix).split("/")
        depths = range(1, len(parts) + 1) if is_deep else [1]
        if name.startswith(prefix):
            names |= {prefix + "/".join(parts[:depth]) for depth in depths}
    return [
        {"type": "file", "path": name, "size": len(files[name]), "oid": _oid(files[name])}
        if name in files
        else {"type": "directory", "path": name, "size": 0, "oid": "0" * 40}
        for name in sorted(names)
    ]


def _oid(data: bytes) -> str:
    return sha1(data).hexdigest()


@contextmanager
def fake_hub(repo: str, commits: Commits) -> Iterator[FakeHub]:
    """Serve commits of a dataset on a loopback port. The first one is that of the main branch."""
    with tempfile.TemporaryDirectory() as folder:
        hub = FakeHub(repo, Site(Path(folder)), {repo: commits}, {repo: next(iter(commits))})
        with start_site(Path(folder), partial(_Handler, hub=hub)) as hub.site:
            yield hub


@contextmanager
def as_the_hub(hub: FakeHub) -> Iterator[None]:
    """Point the Hub's client in this process to a stand-in."""
    import huggingface_hub
    from huggingface_hub import constants, file_download

    from cloudload.data.storage import hub as hub_module

    with pytest.MonkeyPatch.context() as patch:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE
        template = template.replace(constants.ENDPOINT, hub.endpoint)
        for module in (constants, file_download):  # each may have its own
            patch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        patch.setattr(constants, "ENDPOINT", hub.endpoint)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        hub_module.check_connection.cache_clear()
        huggingface_hub.HfFileSystem.clear_instance_cache()
        yield
    hub_module.check_connection.cache_clear()
    huggingface_hub.HfFileSystem.clear_instance_cache()
