"""A stream has a short, unique name that stays the same when data moves or streams are added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload import Stream
from cloudload.config.stream import name_streams
from testkit.corpora import random_documents, write_mds
from testkit.loaders import list_settings, make_loader


def names_of(*streams: str | Stream) -> list[str]:
    listed = [each if isinstance(each, Stream) else Stream(each) for each in streams]
    return [stream.label for stream in name_streams(listed)]


@pytest.mark.parametrize(
    ("location", "name"),
    [
        (Stream("s3://bucket/corpora/web"), "web"),
        (Stream("s3://bucket/corpora/web", split="train"), "web"),
        (Stream("gs://other/corpora/web/train/"), "web"),
        (Stream("s3://bucket/code/v2.1/mds"), "code"),
        (Stream("/data/books/2024-11-01/validation"), "books"),
        (Stream("file:///data/books"), "books"),
        (Stream("s3://bucket/train"), "train"),
        (Stream("s3://web-corpus"), "web-corpus"),
        (Stream("s3://bucket/web", name="mine"), "mine"),
        (Stream("https://user:secret@host/web?sig=secret"), "web"),
    ],
)
def test_a_name_is_the_folder_that_says_most(location: Stream, name: str) -> None:
    assert names_of(location) == [name]


def test_names_are_numbered_in_order_and_keep_those_that_were_given() -> None:
    assert names_of("s3://a/web", "s3://b/web", "s3://c/web/train") == ["web", "web-2", "web-3"]
    assert names_of("s3://a/web", Stream("s3://b/x", name="web")) == ["web-2", "web"]
    assert names_of("s3://a/web-2", "s3://a/web", "s3://b/web") == ["web-2", "web", "web-3"]


_FOLDERS = st.lists(st.sampled_from(["web", "code", "train", "v2", "a b", "ü"]), max_size=3)


@given(paths=st.lists(_FOLDERS, min_size=1, max_size=6, unique_by=tuple), added=_FOLDERS)
def test_names_are_unique_and_stay_when_buckets_move_and_streams_are_added(
    paths: list[list[str]], added: list[str]
) -> None:
    paths = [[f"corpus{number % 2}", *path] for number, path in enumerate(paths)]
    before = names_of(*("/".join(["s3://old", *path]) for path in paths))
    assert len(set(before)) == len(before)
    assert not any("/" in name for name in before)
    moved = ["/".join(["gs://new", *path]) for path in paths]
    assert names_of(*moved) == before
    assert names_of(*moved, "/".join(["gs://new/added", *added]))[: len(before)] == before


def test_metrics_and_schedules_have_the_short_names(tmp_path: Path) -> None:
    web, code = (
        write_mds(tmp_path / name / "train", random_documents(1, 40)) for name in ("web", "code")
    )
    by_name: list[Any] = [(0, {"web": 2, "code": 1})]
    by_url: list[Any] = [(0, {web: 2, code: 1})]
    rows = []
    for schedule in (by_name, by_url):
        loader = make_loader([web, code], schedule=schedule)
        rows.append([batch["input_ids"].tolist() for batch in loader.take(4)])
        assert list(loader.stats().streams) == ["web", "code"]
        assert "streams/web/tokens" in loader.stats().as_dict()
        assert f"from {web}" in list_settings(loader)
    assert rows[0] == rows[1]


def test_a_state_with_urls_as_names_resumes(tmp_path: Path) -> None:
    web, code = (
        write_mds(tmp_path / name / "train", random_documents(1, 40)) for name in ("web", "code")
    )
    data = [Stream(web, proportion=2), Stream(code, proportion=1)]
    loader = make_loader(data)
    list(loader.take(3))
    state = loader.state_dict()
    rest = [batch["input_ids"].tolist() for batch in loader.take(3)]
    mixture = json.loads(state["mixture"])
    state["mixture"] = (
        json.dumps(mixture).replace('"web"', f'"{web}"').replace('"code"', f'"{code}"')
    )
    assert state["mixture"] != json.dumps(mixture)
    resumed = make_loader(data)
    resumed.load_state_dict(state)
    assert [batch["input_ids"].tolist() for batch in resumed.take(3)] == rest
