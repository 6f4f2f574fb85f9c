"""A release is refused unless its tag, changelog, pages, and wheel are right."""

from __future__ import annotations

import re
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

from scripts import check_release
from scripts.check_release import ReleaseError, check_tag, check_wheel, main
from scripts.pypi_readme import describe
from testkit import ROOT

CHANGELOG = """# Changelog

## 0.3.0 (2026-12-31)

### Train

- **New.** It works.

## 0.2.0 (2026-10-01)

Old.
"""
PROJECT = """[project]
name = "cloudload"
version = "0.3.0"
[project.urls]
Repository = "https://host/cloudload"
"""
README = "Run `pip install cloudload`. See [its limits](https://host/cloudload/blob/v0.3.0/docs/limits.md)."
INFO = "cloudload-0.3.0.dist-info"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository that is ready for the release of version 0.3.0."""
    files = {
        "pyproject.toml": PROJECT,
        "CHANGELOG.md": CHANGELOG,
        "README.md": "Run `pip install cloudload`. See [its limits](docs/limits.md).\n",
        "SKILL.md": "pip install 'cloudload[parquet]'\n",
        "docs/guides/page.md": "A page.\n",
        "docs/contributing/release.md": "Until the first release, pip install .\n",
        "cloudload/__init__.py": "",
        "cloudload/py.typed": "",
        "cloudload/__pycache__/__init__.cpython-311.pyc": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(check_release, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.usefixtures("repository")
def test_the_notes_of_a_release_are_the_section_of_its_version(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["tag", "v0.3.0"]) == 0
    assert capsys.readouterr().out == "### Train\n\n- **New.** It works.\n"


@pytest.mark.parametrize("tag", ["v0.2.0", "0.3.0", "v0.3.0rc1"])
@pytest.mark.usefixtures("repository")
def test_a_tag_of_another_version_is_refused(tag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tag", tag]) == 1
    assert f"the tag is {tag}, but pyproject.toml has the version 0.3.0" in capsys.readouterr().err


@pytest.mark.parametrize("heading", ["0.3.0 (unreleased)", "0.3.01 (2026-12-31)", "0.3.0"])
def test_a_changelog_without_a_date_is_refused(repository: Path, heading: str) -> None:
    text = CHANGELOG.replace("0.3.0 (2026-12-31)", heading)
    (repository / "CHANGELOG.md").write_text(text)
    with pytest.raises(ReleaseError, match="has 0 sections"):
        check_tag("v0.3.0")


@pytest.mark.parametrize("page", ["README.md", "SKILL.md", "docs/guides/page.md"])
@pytest.mark.parametrize(
    "text",
    [
        "Until the first release is on PyPI, clone it",
        "pip install .",
        "pip install '.[parquet]'",
        "pip install --no-deps .",
    ],
)
def test_pages_that_install_from_a_clone_are_refused(
    repository: Path, page: str, text: str
) -> None:
    (repository / page).write_text(f"Run this: `{text}`\n")
    with pytest.raises(ReleaseError, match=f"{page} still says"):
        check_tag("v0.3.0")


def test_a_release_without_the_url_of_the_repository_is_refused(repository: Path) -> None:
    (repository / "pyproject.toml").write_text(PROJECT.partition("[project.urls]")[0])
    with pytest.raises(ReleaseError, match="has no URL of the repository"):
        check_tag("v0.3.0")


def test_the_description_of_the_package_has_no_relative_links() -> None:
    """On PyPI, relative links lead nowhere."""
    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(list_links(readme)) > len(list_links(describe(readme, None, "0.3.0"))) == 0
    url = "https://host/owner/cloudload"
    links = list_links(describe(readme, url, "0.3.0"), is_relative=False)
    assert f"{url}/blob/v0.3.0/docs/limits.md" in links
    assert f"{url}/raw/v0.3.0/docs/figures/throughput.svg" in links
    for link in links:
        path = re.sub(rf"{url}/(blob|raw)/v0.3.0/|#.*", "", link)
        assert path.startswith("https://") or (ROOT / path).exists()
    assert not list_links(describe(readme, url, "0.3.0"))


def list_links(text: str, *, is_relative: bool = True) -> list[str]:
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", text)
    found = [one or other for one, other in links]
    return [each for each in found if not is_relative or not re.match("https://|#", each)]


@pytest.mark.parametrize(
    ("text", "with_url", "without"),
    [
        ("[a](b.md#c)", "[a](u/blob/v1/b.md#c)", "a"),
        ("![a](b.svg)", "![a](u/raw/v1/b.svg)", "a"),
        ("[![a](b.svg)](c.md)", "[![a](u/raw/v1/b.svg)](u/blob/v1/c.md)", "a"),
        ("[a](#b) [c](https://d/e)", None, None),
    ],
)
def test_links_become_absolute_or_text(
    text: str, with_url: str | None, without: str | None
) -> None:
    assert describe(text, "u/", "1") == (with_url or text)
    assert describe(text, None, "1") == (without or text)


def write_wheel(repository: Path, **changed: str | None) -> Path:
    """Write a wheel of the small repository, with other files where `changed` says so."""
    files: dict[str, str | None] = {
        "cloudload/__init__.py": "",
        "cloudload/py.typed": "",
        f"{INFO}/METADATA": "Version: 0.3.0\nLicense-Expression: Apache-2.0\n"
        f"Description-Content-Type: text/markdown\n\n{README}\n",
        f"{INFO}/entry_points.txt": "[console_scripts]\ncloudload = cloudload.cli:main\n",
        **{f"{INFO}/{name}": "" for name in ("RECORD", "WHEEL", "licenses/LICENSE")},
    }
    wheel = repository / "cloudload-0.3.0-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        for name, text in {**files, **changed}.items():
            if text is not None:
                archive.writestr(name, text)
    return wheel


def test_a_wheel_with_the_files_of_the_package_and_the_license_is_right(repository: Path) -> None:
    check_wheel(write_wheel(repository))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tests/test_a.py": ""}, r"has also \['tests/test_a.py'\]"),
        ({"cloudload/py.typed": None}, r"lacks \['cloudload/py.typed'\]"),
        ({f"{INFO}/licenses/LICENSE": None}, "lacks .*LICENSE"),
        ({f"{INFO}/entry_points.txt": ""}, "the command is False"),
        ({f"{INFO}/METADATA": "Version: 0.2.0\n\n"}, "the version is '0.2.0', not '0.3.0'"),
        ({f"{INFO}/METADATA": "Version: 0.3.0\n\n"}, "the license is None"),
    ],
)
def test_a_wheel_that_has_other_files_or_facts_is_refused(
    repository: Path, changed: dict[str, str | None], said: str
) -> None:
    with pytest.raises(ReleaseError, match=said):
        check_wheel(write_wheel(repository, **changed))


def test_the_workflow_publishes_what_was_tested_after_an_approval_and_without_a_token() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text("utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    assert set(jobs["publish"]["needs"]) == {"tests", "build"}
    assert jobs["publish"]["environment"] == "pypi"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in text
    commands = " ".join(step.get("run", "") for step in jobs["build"]["steps"])
    assert "scripts.check_release tag" in commands
    assert "scripts/test-wheel" in commands
    assert "scripts.check_release wheel" in (ROOT / "scripts/test-wheel").read_text("utf-8")
