"""Check that a release is what it says: its version, its changelog, and the files of its wheel.

    python -m scripts.check_release tag v0.1.0       also prints the section of the changelog
    python -m scripts.check_release wheel FILE       a wheel that was built from this repository

The exit status is 1 if something is wrong. Only the standard library is needed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

from scripts.pypi_readme import describe

ROOT = Path(__file__).resolve().parents[1]
_FROM_CLONE = re.compile(r"(Until the first release|pip install (--no-deps )?'?\.(?![\w/])).*")
"""What pages for users say about the installation before the first release."""
_INFO = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")


class ReleaseError(Exception):
    """The repository or the wheel is not ready for the release. The message says what to do."""


def read_version() -> str:
    """Return the version in pyproject.toml."""
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    assert found is not None
    return found[1]


def read_url() -> str | None:
    """Return the repository's URL in pyproject.toml, to which the links of the description lead."""
    found = re.search(r'^Repository = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    return found and found[1]


def check_tag(tag: str) -> str:
    """Return the changelog's section for a tag.

    Raises `ReleaseError` unless the tag is that of the version, the section has a date, the
    repository has a URL, and the pages no longer say how to install cloudload before its first
    release.
    """
    version = read_version()
    if tag != f"v{version}":
        raise ReleaseError(
            f"the tag is {tag}, but pyproject.toml has the version {version}. Delete the tag, and "
            "set the version first, or tag the right commit"
        )
    if read_url() is None:
        raise ReleaseError(
            "pyproject.toml has no URL of the repository, so the README has no links on PyPI. Add "
            'Repository = "https://…" to its table [project.urls]'
        )
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.M)[1:]
    heading = re.compile(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)\n")
    found = [each for each in sections if heading.match(each)]
    if len(found) != 1:
        raise ReleaseError(
            f"CHANGELOG.md has {len(found)} sections with a heading such as '## {version} "
            "(2026-12-31)'. Replace 'unreleased' by the date"
        )
    for page in [ROOT / "README.md", ROOT / "SKILL.md", *sorted((ROOT / "docs").rglob("*.*"))]:
        is_for_users = page.suffix in (".md", ".txt") and page.parent.name != "contributing"
        if is_for_users and (said := _FROM_CLONE.search(page.read_text("utf-8"))):
            raise ReleaseError(
                f"{page.relative_to(ROOT)} still says {said[0]!r}. Say how to install cloudload "
                "from PyPI"
            )
    return heading.sub("", found[0]).strip() + "\n"


def check_wheel(wheel: Path) -> None:
    """Raise `ReleaseError` unless a wheel has exactly the files and the metadata that it should."""
    version = read_version()
    folder = f"cloudload-{version}.dist-info"
    package = [path for path in (ROOT / "cloudload").rglob("*") if path.is_file()]
    own = {path.relative_to(ROOT).as_posix() for path in package if path.suffix != ".pyc"}
    expected = {*own, *(f"{folder}/{name}" for name in _INFO)}
    with ZipFile(wheel) as archive:
        found = set(archive.namelist())
        if found != expected:
            more, fewer = sorted(found - expected), sorted(expected - found)
            raise ReleaseError(f"{wheel.name} has also {more}, and lacks {fewer}")
        metadata = Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
        entry_points = archive.read(f"{folder}/entry_points.txt").decode()
    readme = describe((ROOT / "README.md").read_text("utf-8"), read_url(), version)
    facts = {
        "the version": (metadata["Version"], version),
        "the license": (metadata["License-Expression"], "Apache-2.0"),
        "the description": (metadata.get_payload(), readme),
        "its type": (metadata["Description-Content-Type"], "text/markdown"),
        "the command": ("cloudload = cloudload.cli:main" in entry_points, True),
        "py.typed": ("cloudload/py.typed" in found, True),
    }
    for name, (value, right) in facts.items():
        if value != right:
            raise ReleaseError(f"in {wheel.name}, {name} is {value!r:.100}, not {right!r:.100}")


def main(arguments: Sequence[str]) -> int:
    what, value = arguments
    try:
        if what == "tag":
            print(check_tag(value), end="")
        else:
            check_wheel(Path(value))
    except ReleaseError as error:
        print(f"not ready: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
