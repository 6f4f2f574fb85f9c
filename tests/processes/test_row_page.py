"""In a real browser, the page of rows shows hostile documents as text, and search and keys work.

Needs Chromium (apt-get install chromium). The tests are skipped without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudload import Text
from cloudload.provenance import render_rows, start_run, view_rows
from testkit.browser import BROWSER, Browser, open_browser
from testkit.corpora import EOS, byte_tokenizer, random_documents, write_mds

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium (apt-get install chromium)")

OWN = "document.title='owned'"
HOSTILE = [
    f"</script><script>{OWN}</script>",
    f'<img src=x onerror="{OWN}"><svg onload="{OWN}">',
    f"<!--<script>{OWN}</script>-->",
    f"]]></pre></main></title><iframe srcdoc='<script>parent.{OWN}</script>'>",
    f"\"'`${{{OWN}}}\\u003cimg src=x onerror={OWN}\\u003e",
    f"&lt;img src=x onerror={OWN}&gt; &amp; javascript:{OWN}",
    "left \u202eright\u202c \u2066isolate\u2069 \u200fmark",
    "null \x00 escape \x1b[31m bell \x07 delete \x7f c1 \x9b",
    "line \u2028 paragraph \u2029 feff \ufeff private \ue000 tag \U000e0041",
    "狐 and 🦊 end, Grüße",
    "one\n\ttwo\r\nthree",
]
INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u200f\u2028-\u202e\u2066-\u2069\ue000\ufeff\U000e0041]")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        browser.show_as(1280, 800, "light")
        yield browser


def train_in_brackets(sample: dict[str, Any]) -> Text:
    """Train only the text in brackets."""
    text = sample["text"]
    return Text(text, trained=[each.span() for each in re.finditer(r"\([^)]*\)", text)])


def render(
    folder: Path, texts: list[str], seq_len: int, *, mask_edges: bool = True, **options: Any
) -> Path:
    """Write the page of a run's first step, in which each document's ID is its text."""
    write_mds(folder / "mds", texts, extra={"id": ("str", texts)})
    run = start_run(
        options.pop("num_rows", 4),
        data=str(folder / "mds"),
        tokenizer=byte_tokenizer(),
        eos=EOS,
        seq_len=seq_len,
        num_lanes=2,
        shuffle=False,
        **options,
    )
    viewed = view_rows(
        run, range(1, 2), mask_edges=mask_edges, local=folder / "cache", num_workers=0
    )
    page = folder / "page.html"
    page.write_text(render_rows(viewed, f"<b>{HOSTILE[0]}</b>"), "utf-8")
    return page


def shown(text: str) -> str:
    """Return a text as the page shows it, with a visible symbol for each invisible character."""
    marks = {"\n": "↵\n", "\t": "→\t"}
    return INVISIBLE.sub(lambda found: marks.get(found[0], f"U+{ord(found[0]):04X}"), text)


RENDER = "rows.flatMap(row => row.lines).forEach(renderLine), "
"""Script that renders every line. The page itself renders only the lines in view."""
TOKENS = "[...document.querySelectorAll('main .t:not(.pad)')]"
SELECTED = "document.querySelector('.t.sel').textContent"
TITLE = "document.querySelector('aside h3 span').textContent"


def test_hostile_documents_and_ids_stay_text(browser: Browser, tmp_path: Path) -> None:
    page = render(tmp_path, HOSTILE, 128, packing="one_per_row", overflow="cut", num_rows=12)
    browser.messages.clear()
    browser.open(page)
    texts = browser.evaluate(
        "rows.map(row => { row.lines.forEach(renderLine); return row.lines.map(line => "
        f"{TOKENS}.filter(t => line.contains(t)).map(t => t.textContent).join('')).join('') }})"
    )
    # a character of several tokens is shown at its last token; its other tokens are dots
    assert {text.replace("·", "") for text in texts if text} == {
        shown(text) + EOS for text in HOSTILE
    }
    for _ in HOSTILE:
        browser.press("j")
        text = browser.evaluate(f"[{TITLE}, document.querySelector('aside pre').textContent]")
        assert text[0] in map(shown, HOSTILE)
        assert text[1] == text[0].replace("↵", "").replace("→", "")
    browser.press("/")
    browser.evaluate("input.value = '<img'; search('<IMG'); 1")
    assert browser.evaluate("output.textContent").startswith("1 of ")
    title = f"<b>{HOSTILE[0]}</b>"
    assert browser.evaluate("[document.title, document.querySelector('h1').textContent]") == [
        title,
        title,
    ]
    assert (
        browser.evaluate("document.querySelectorAll('img, svg, iframe, b, main script').length")
        == 0
    )
    assert browser.evaluate("document.scripts.length") == 2
    assert browser.messages == []


def test_the_policy_of_the_page_runs_no_script_of_a_document(
    browser: Browser, tmp_path: Path
) -> None:
    """The page's policy blocks scripts even if a document becomes markup, as this test forces."""
    page = render(tmp_path, HOSTILE, 64)
    browser.open(page)
    browser.evaluate(f"main.insertAdjacentHTML('beforeend', {json.dumps(HOSTILE[1])}); 1")
    browser.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), "
        f'{{textContent: "{OWN}"}})); 1'
    )
    browser.wait("document.querySelectorAll('main img').length")
    assert browser.evaluate("document.title") != "owned"
    assert any("Content Security Policy" in message for message in browser.messages)


def test_a_character_cut_by_the_end_of_a_row_is_shown_as_bytes(
    browser: Browser, tmp_path: Path
) -> None:
    page = render(tmp_path, ["ab狐"], 3, packing="one_per_row", overflow="rows")
    browser.open(page)
    texts = browser.evaluate(f"{RENDER} {TOKENS}.map(t => t.textContent)")
    assert texts == 2 * ["a", "b", "E7"] + 2 * ["8B", "90", EOS]


def test_padding_masked_labels_and_special_tokens_are_marked(
    browser: Browser, tmp_path: Path
) -> None:
    page = render(tmp_path, ["ab", "cde"], 6, packing="one_per_row", overflow="cut", num_rows=2)
    browser.open(page)
    states = browser.evaluate(
        f"{RENDER} [...document.querySelectorAll('main .t')]"
        ".map(t => [t.textContent, t.matches('.m'), t.matches('.x'), t.matches('.pad')])"
    )
    assert sorted(states) == sorted(
        [
            ["a", True, False, False],
            ["b", False, False, False],
            [EOS, False, True, False],
            ["3 padding", False, False, True],
            ["c", True, False, False],
            ["d", False, False, False],
            ["e", False, False, False],
            [EOS, False, True, False],
            ["2 padding", False, False, True],
        ]
    )
    browser.evaluate("select(0, 5); 1")
    details = browser.evaluate("document.querySelector('aside').innerText")
    assert "label\n-100 (not trained)" in details
    assert "in the row\n5 of 6" in details


def test_tokens_that_are_not_trained_are_faded(browser: Browser, tmp_path: Path) -> None:
    texts = ["ab (cd) ef (gh)", "(ij) kl"] * 2
    options: dict[str, Any] = {"packing": "one_per_row", "transform": train_in_brackets}
    page = render(tmp_path, texts, 20, mask_edges=False, **options)
    colors = {}
    for theme in ("light", "dark"):
        browser.show_as(1280, 800, theme)
        browser.open(page)
        found = browser.evaluate(
            f"{RENDER} {TOKENS}.map(t => [t.textContent, getComputedStyle(t).backgroundColor, "
            "t.matches('.o'), t.matches('.m'), t.closest('section').dataset.row])"
        )
        trained = "".join(
            text for text, *_, is_masked, row in found if not is_masked and row == "0"
        )
        assert trained in ("(cd)(gh)" + EOS, "(ij)" + EOS)
        shades = {
            (is_odd, is_masked): color for _, color, is_odd, is_masked, row in found if row == "0"
        }
        assert len(set(shades.values())) == 4
        colors[theme] = shades
    assert not {*colors["light"].values()} & {*colors["dark"].values()}
    browser.show_as(1280, 800, "light")
    browser.open(page)
    heads = browser.evaluate("[...document.querySelectorAll('h2')].map(each => each.textContent)")
    assert sorted(head.split(" · ")[1:3] for head in heads) == sorted(
        [["16 tokens", "9 trained"], ["8 tokens", "5 trained"]] * 2
    )
    assert "48 tokens · 28 trained" in browser.evaluate("document.body.innerText")
    bars = browser.evaluate(
        "[...document.querySelectorAll('.strip button:not(.pad)')].map(b => b.style.background)"
    )
    assert {bar.count("--faint") for bar in bars} == {2, 4}


def test_a_page_without_masks_does_not_speak_of_training(browser: Browser, tmp_path: Path) -> None:
    page = render(tmp_path, ["abc"], 4, mask_edges=False)
    browser.open(page)
    assert "trained" not in browser.evaluate("document.querySelector('header').innerText")
    assert "trained" not in browser.evaluate("document.querySelector('main').innerText")
    assert browser.evaluate("document.querySelector('.strip button').style.background") == ""


def test_keys_walk_through_documents_rows_and_tokens(browser: Browser, tmp_path: Path) -> None:
    texts = random_documents(1, 30, max_words=8)
    page = render(tmp_path, texts, 200)
    browser.open(page)
    spans = browser.evaluate("rows.flatMap(row => row.spans.map(span => [row.index, span.place]))")
    visited = []
    for _ in spans:
        browser.press("j")
        visited.append(browser.evaluate("[selected.row, selected.place]"))
    assert visited == spans
    browser.press("j")
    assert browser.evaluate("[selected.row, selected.place]") == spans[-1]
    for expected in reversed(spans[:-1]):
        browser.press("k")
        assert browser.evaluate("[selected.row, selected.place]") == expected
    browser.press("]", "]", "[", "ArrowRight", "ArrowRight", "ArrowLeft")
    assert browser.evaluate("[selected.row, selected.place]") == [1, 1]
    assert browser.evaluate("location.hash") == "#row=1&token=1"
    browser.press("i")
    assert browser.evaluate(SELECTED) == str(browser.evaluate("data.ids[rows[1].tokens[1]]"))
    browser.press("i", "t")
    assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
    browser.press("t", "?")
    assert browser.evaluate("document.getElementById('help').hidden") is False
    browser.press("Escape", "Escape")
    assert browser.evaluate("[aside.hidden, document.getElementById('help').hidden]") == [
        True,
        True,
    ]


def test_a_link_to_a_token_opens_it(browser: Browser, tmp_path: Path) -> None:
    page = render(tmp_path, random_documents(1, 30), 300)
    browser.open(page, "#row=3&token=257")
    assert browser.evaluate("[selected.row, selected.place]") == [3, 257]
    browser.wait(
        "document.querySelector('.t.sel').getBoundingClientRect().top > 0 && "
        "document.querySelector('.t.sel').getBoundingClientRect().bottom < innerHeight"
    )
    for fragment in ("#row=99&token=0", "#row=0&token=300", "#row=x", "#" + OWN):
        browser.open(page, fragment)
        assert browser.evaluate("selected") is None


def test_search_finds_every_place_of_a_text_and_of_an_id(browser: Browser, tmp_path: Path) -> None:
    texts = random_documents(1, 30)
    page = render(tmp_path, texts, 300)
    browser.open(page)
    rows = browser.evaluate("rows.map(row => [...row.tokens].map((_, i) => row.text(i)).join(''))")
    expected = sum(row.count("Füchse 狐") + row.count("füchse 狐") for row in rows)
    ids = browser.evaluate("rows.flatMap(row => row.spans.map(nameOf))")
    expected += sum("Füchse 狐" in each for each in ids)
    browser.press("/")
    browser.call("Input.insertText", text="FÜCHSE 狐")
    browser.wait(f"output.textContent === '1 of {expected}'")
    found = {browser.evaluate("JSON.stringify(matches[match])")}
    for _ in range(expected - 1):
        browser.press("Enter")
        found.add(browser.evaluate("JSON.stringify(matches[match])"))
    assert len(found) == expected
    browser.press("Enter")
    assert browser.evaluate("output.textContent") == f"1 of {expected}"
    browser.press("Enter", shift=True)
    assert browser.evaluate("output.textContent") == f"{expected} of {expected}"
    assert browser.evaluate("document.querySelectorAll('.t.hit').length") > 0
    browser.call("Input.insertText", text=" nowhere")
    browser.wait("output.textContent === 'no match'")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1600, 1280, 800, 360])
def test_the_page_fits_every_window_in_both_themes(
    browser: Browser, tmp_path: Path, theme: str, width: int
) -> None:
    page = render(tmp_path, ["wide" * 300, *HOSTILE], 700)
    browser.show_as(width, 800, theme)
    browser.open(page)
    browser.press("j", "?")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.documentElement.dataset.theme") == theme
    browser.show_as(1280, 800, "light")


def test_only_the_tokens_in_sight_are_elements(browser: Browser, tmp_path: Path) -> None:
    page = render(tmp_path, ["word " * 20_000], 40_000, num_rows=2)
    browser.open(page)
    browser.wait("document.querySelectorAll('main .t').length")
    assert browser.evaluate("document.querySelectorAll('main .t').length") < 40_000
    browser.press("]", "]")
    browser.wait("document.querySelector('.t.sel')")
    browser.evaluate("new Promise(done => setTimeout(done, 50))")
    browser.wait("rows[0].lines[0].firstChild === null")


def test_the_token_of_row_bos_is_shown_in_no_document(browser: Browser, tmp_path: Path) -> None:
    page = render(tmp_path, ["aaaa", "bbb", "cc", "dddddd"] * 4, 8, row_bos=EOS)
    browser.messages.clear()
    browser.open(page)
    lines = browser.evaluate(
        f"{RENDER}rows.map(row => row.lines.map(line => {TOKENS}.filter(t => line.contains(t))"
        ".map(t => t.textContent)).flat())"
    )
    assert all(row[0] == EOS and len(row) == 8 for row in lines)
    assert browser.evaluate(f"select(0, 0), {TITLE}") == "start of the row"
    browser.press("j")
    assert browser.evaluate(TITLE) in {"aaaa", "bbb", "cc", "dddddd"}
    assert browser.messages == []
