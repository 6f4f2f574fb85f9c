"""A glob selects files by name, enters only folders that it may match, and exists only by need."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudload.data.storage.globs import Glob, find_glob


def split(location: str) -> tuple[str, str] | None:
    """The folder and the pattern of a location, or None if it is no glob."""
    glob = find_glob(location)
    return (glob.folder, glob.pattern) if glob else None


def test_a_glob_is_cut_before_the_first_folder_with_a_wildcard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert split("a/b/c*/d") == ("a/b", "c*/d")
    assert split("*.jsonl") == split("./*.jsonl") == (".", "*.jsonl")
    assert split("/x?") == ("/", "x?")
    assert split("a/b") is None


@pytest.mark.parametrize("name", ["[br]ack.jsonl", "a*", "b?/"])
def test_a_local_file_or_folder_of_that_name_is_not_a_glob(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("/"):
        path.mkdir()
    else:
        path.touch()
    assert find_glob(str(path)) is None


def test_the_query_of_a_signed_url_is_not_a_glob() -> None:
    assert find_glob("https://127.0.0.1:1/a.jsonl?X-Amz-Signature=a*[b]") is None


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*.jsonl", "a.jsonl", "x/a.jsonl"),
        ("**/*.jsonl", "x/y/a.jsonl", "a.json"),
        ("[!ab]x", "cx", "ax"),
        ("[^]x", "^x", "ax"),
        ("[[]x]", "[x]", "x"),
        ("a?", "a\n", "a/"),
        ("**", "a\nb", ""),
    ],
)
def test_a_glob_matches_whole_names(pattern: str, matching: str, other: str) -> None:
    glob = Glob(".", pattern)
    assert glob.matches(matching)
    assert not glob.matches(other or "x") or other == ""


@pytest.mark.parametrize(
    ("pattern", "folder", "expected"),
    [
        ("*.jsonl", "a", False),
        ("a*/x/*.jsonl", "ab", True),
        ("a*/x/*.jsonl", "b", False),
        ("a*/x/*.jsonl", "ab/x", True),
        ("a*/x/*.jsonl", "ab/y", False),
        ("a*/x/*.jsonl", "ab/x/c", False),
        ("a/**/x", "a/b/c/d", True),
        ("a/**/x", "b", False),
        ("[a/]b/x", "q", True),
    ],
)
def test_only_folders_that_may_have_a_match_are_entered(
    pattern: str, folder: str, expected: bool
) -> None:
    assert Glob(".", pattern).may_match_below(folder) is expected


@pytest.mark.parametrize("pattern", ["[z-a].jsonl", "x/[b-a]/*"])
def test_a_set_that_is_not_valid_is_an_error_that_shows_it(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not a valid glob"):
        find_glob(pattern)
