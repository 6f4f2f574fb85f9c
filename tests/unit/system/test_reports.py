"""Tables for a terminal fit in 80 columns, and lose no text."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudload import Stream
from cloudload.system.reports import list_values, render_columns, wrap_text
from testkit.corpora import random_documents, write_mds
from testkit.loaders import make_loader

LONG_NAME = "s3://my-bucket/a-stream-without-a-name/whose-location-is-longer-than-a-line-of-text"


def squeeze(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [""]),
        ("aaa", ["aaa"]),
        ("aaa bb", ["aaa", "bb"]),
        ("aaaa bb cc", ["aaaa", "bb cc"]),
        ("aaaaaa", ["", "aaaaaa"]),
        ("a bbbbbbbb c", ["a", "bbbbbb", "bb c"]),
        ("aaaaaaaaaaaaa", ["", "aaaaaa", "aaaaaa", "a"]),
    ],
)
def test_a_word_is_split_only_if_it_is_longer_than_a_line(text: str, lines: list[str]) -> None:
    assert wrap_text(text, 6, 4) == lines


def test_a_long_value_continues_below_its_remark() -> None:
    words = " ".join(["word"] * 30)
    shown = list_values("title", [("short", "1", "default"), ("long", words, "from the data")])
    assert shown == (
        "title\n"
        "  short  1" + " " * 57 + "default\n"
        "  long   word word word word word word word word word word word    from the data\n"
        "         word word word word word word word word word word word word word word\n"
        "         word word word word word"
    )


def test_columns_that_do_not_fit_continue_in_a_table_below() -> None:
    heads = ["stream", *(f"count {number}" for number in range(12))]
    shown = render_columns("streams", heads, [["web", *"123456789012"], [LONG_NAME, *"0" * 12]])
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    for head in heads[1:]:
        assert shown.count(f"{head} ") + shown.count(f"{head}\n") == 1
    assert [line.split()[0] for line in lines].count("web") == 3
    assert squeeze(shown).count(squeeze(LONG_NAME)) == 3


@pytest.mark.parametrize("packing", ["concat", "one_per_row", "best_fit"])
def test_a_loader_and_its_statistics_print_in_80_columns_without_a_loss(
    tmp_path: Path, packing: str
) -> None:
    names = ["web", LONG_NAME, *(f"s{number}" for number in range(12))]
    streams = [
        Stream(
            write_mds(tmp_path / ("d" * 90) / str(number), random_documents(number, 20)),
            name=name,
            proportion=1,
        )
        for number, name in enumerate(names)
    ]
    with make_loader(streams, packing=packing) as loader:
        list(loader.take(4))
        description, stats = loader.describe(), loader.stats()
    for shown in (str(description), repr(description), str(stats)):
        assert max(map(len, shown.splitlines())) <= 80, shown
    for setting in description.settings:
        assert squeeze(setting.name) in squeeze(str(description))
        assert setting.origin in str(description)
    for word in str(description["local"]).split():
        assert word in squeeze(str(description))
    for name, stream in stats.streams.items():
        assert squeeze(name) in squeeze(str(stats))
        assert f" {stream.tokens:,} " in str(stats)
    for name in stats.as_dict():
        assert name.rpartition("/")[2] in str(stats)
    waiting = f"documents{stats.documents:,}includesthosethatwaitinopenrows"
    assert (waiting in squeeze(str(stats))) == (packing == "best_fit")
    assert ("wait in open rows" in stats._repr_html_()) == (packing == "best_fit")
    assert len(repr(stats).splitlines()) == 1


def test_a_logger_gets_at_most_ten_values_if_it_asks_for_the_brief_form(tmp_path: Path) -> None:
    streams = [
        Stream(write_mds(tmp_path / name, random_documents(1, 60)), name=name, proportion=1)
        for name in "abcde"
    ]
    with make_loader(streams, packing="one_per_row", min_tokens=20) as loader:
        list(loader.take(20))
        stats = loader.stats()
    brief, every = stats.as_dict("x/", brief=True), stats.as_dict("x/")
    assert list(brief) == [
        *("x/rows", "x/tokens", "x/delivery/stall_s"),
        *(f"x/streams/{name}/epoch" for name in "abc"),
        *("x/truncated", "x/filtered"),
    ]
    assert brief.items() <= every.items()
