"""A notebook shows the values of a run, and never renders text of the data as markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from cloudload import Stream
from cloudload.provenance import start_run, view_rows
from testkit.corpora import EOS, byte_tokenizer, write_mds
from testkit.loaders import make_loader

HOSTILE = "<script>alert('x')</script><img src=x onerror=1>&amp;\u202e"


class _Reader(HTMLParser):
    """A parser that collects the tags and the text of an HTML fragment."""

    def __init__(self, fragment: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(fragment)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


OWN_TAGS = {"table", "caption", "tr", "th", "td", "bdi", "div", "span"}


def test_tables_have_the_values_and_only_their_own_elements(tmp_path: Path) -> None:
    texts = [f"{number} {HOSTILE}" for number in range(40)]
    ids = [f"{HOSTILE} {number}" for number in range(40)]
    data = write_mds(tmp_path / "mds", texts, extra={"id": ("str", ids)})
    streams = [Stream(data, name=HOSTILE, proportion=1.0)]
    with make_loader(streams, seq_len=96) as loader:
        batch = next(iter(loader))
        stats, description, spans = loader.stats(), loader.describe(), loader.trace(batch)
    options: Any = {"tokenizer": byte_tokenizer(), "eos": EOS, "seq_len": 96, "num_lanes": 12}
    run = start_run(4, data=streams, **options)
    [row, *_] = view_rows(run, range(1, 2), local=tmp_path / "cache", num_workers=0)
    for shown in (stats, description, spans[0], row):
        read = _Reader(shown._repr_html_())
        assert read.tags <= OWN_TAGS
        assert HOSTILE in read.text
    table = _Reader(stats._repr_html_()).text
    assert f"tokens{stats.tokens:,}" in table
    assert f"rows{stats.rows}" in table
    assert spans[0].text in _Reader(spans[0]._repr_html_()).text
    shown_row = re.sub(r"<table.*", "", row._repr_html_(), flags=re.DOTALL)
    text = "".join(row.texts[: row.num_tokens]).encode("utf-8", "surrogateescape")
    assert text.decode("utf-8", "replace").startswith(_Reader(shown_row).text[:8])
    long = spans[0].__class__(**{**spans[0].as_dict(), "text": "a" * 5_000})
    assert "(5,000 characters)" in long._repr_html_()
