"""Draw the pictures of `docs/screens`, which show commands in a terminal and pages in a browser.

    python -m scripts.draw_screens           needs `chromium` (apt-get install chromium)

The datasets are this repository's own documentation and code, converted to MDS.
"""

from __future__ import annotations

import contextlib
import html
import io
import json
import os
import re
import shlex
import shutil
import tempfile
import textwrap
from pathlib import Path
from typing import Literal

import torch
from PIL import Image

from cloudload import CloudLoader, convert_to_mds
from cloudload.cli import main
from cloudload.losses import LossLog
from testkit.browser import Browser, open_browser

ROOT = Path(__file__).resolve().parents[1]
SCREENS = ROOT / "docs/screens"
COLUMNS = 80
_WIDTH, _COLORS = 688, 96
"""The width of the site's column in a window of 1,280 pixels, and the colors of a picture."""

_DATASETS: tuple[tuple[str, str, Literal["text", "lines"]], ...] = (
    ("docs", "docs/**/*.md", "text"),
    ("code", "cloudload/**/*.py", "text"),
    ("lines", "docs/concepts/*.md", "lines"),
)

_TERMINAL = """<!doctype html><html data-ready=yes><meta charset=utf-8><style>
body { margin: 0; background: #1e2229; color: #e6edf3 }
pre { margin: 0; padding: 14px 18px; font: 13px/18px "DejaVu Sans Mono", monospace;
white-space: pre-wrap }
b { color: #7ee787; font-weight: normal }
</style><pre>"""


def draw_screens() -> None:
    """Draw all pictures."""
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        os.chdir(folder)
        os.environ |= {"COLUMNS": str(COLUMNS), "CLOUDLOAD_CACHE": f"{folder}/cache"}
        for name, pattern, form in _DATASETS:
            convert_to_mds(
                str(ROOT / pattern),
                name,
                format=form,
                shard_bytes=64_000,
                processes=1,
                progress=False,
            )
        draw_command(browser, "info", ["info", "docs"])
        draw_check(browser)
        draw_command(browser, "head", ["head", "code", "--grep", "class \\w+Error", "-n", "1"])
        draw_rows(browser)
        draw_state(browser)
        draw_fetch(browser)
        draw_notebook(browser)
        log_losses()
        draw_command(browser, "blame", ["blame", "losses", "--top", "1", "--quiet"])


# CSS that makes the page look like cell output in JupyterLab
_NOTEBOOK = """<!doctype html><html data-ready=yes><meta charset=utf-8><style>
body { margin: 16px; font: 13px sans-serif } pre { background: #f5f5f5; padding: 6px }
table { border-collapse: collapse; font-size: 12px } td, th { padding: 3px 8px; text-align: left }
tr:nth-child(even) { background: #f5f5f5 }
</style>"""


class _Terminal(io.StringIO):
    """A stdout that makes a command print as if to a terminal."""

    def isatty(self) -> bool:
        return True


def draw_command(browser: Browser, name: str, arguments: list[str], status: int = 0) -> None:
    """Run a command, and draw the command line and its output as in a terminal."""
    printed = _Terminal()
    with contextlib.redirect_stdout(printed):
        assert main(arguments) == status
    # a long command continues on the next line, before an option
    words = re.sub(r" (?!-)", "\0", f"cloudload {shlex.join(arguments)}")
    lines = textwrap.wrap(words, COLUMNS - 4, break_on_hyphens=False, break_long_words=False)
    command = html.escape(" \\\n    ".join(lines).replace("\0", " "))
    output = html.escape(printed.getvalue())
    output = output.replace("\x1b[1m", "<strong>").replace("\x1b[0m", "</strong>")
    page = Path("screen.html")
    page.write_text(f"{_TERMINAL}<b>$</b> {command}\n{output.rstrip()}", "utf-8")
    browser.show_as(_WIDTH, 1, "dark")
    browser.open(page)
    browser.show_as(_WIDTH, browser.evaluate("document.body.offsetHeight"), "dark")
    save_picture(browser, name)


def draw_check(browser: Browser) -> None:
    """Draw a check of this package's code, in which a few modules are damaged or repeated."""
    paths = sorted((ROOT / "cloudload").rglob("*.py"))
    texts = [path.read_text() for path in paths if path.stat().st_size]
    names = [str(path.relative_to(ROOT / "cloudload")) for path in paths if path.stat().st_size]
    texts[2] = "\n"
    texts[40] += "<|endoftext|>"
    texts += texts[60:62]
    names += [*names[60:61], "a copy"]
    pairs = zip(texts, names, strict=True)
    lines = [json.dumps({"text": text, "id": name}) for text, name in pairs]
    Path("modules.jsonl").write_text("\n".join(lines))
    convert_to_mds("modules.jsonl", "modules", shard_bytes=512_000, processes=1, progress=False)
    command = ["check", "modules", "--fail-on", "text-repeated,text-special=10%", "--quiet"]
    draw_command(browser, "check", command, status=1)


def log_losses() -> None:
    """Log the losses of a token-frequency model on the documentation's paragraphs.

    One paragraph is replaced with rare characters, so that `cloudload blame` lists it first.
    """
    pages = (path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")))
    texts = [text for page in pages for text in page.split("\n\n")]
    texts[700] = "".join(map(chr, range(0x2580, 0x25A0)))
    lines = [json.dumps({"text": text, "id": f"p{place}"}) for place, text in enumerate(texts)]
    Path("paragraphs.jsonl").write_text("\n".join(lines))
    convert_to_mds("paragraphs.jsonl", "paragraphs", processes=1, progress=False)
    tokenizer = str(ROOT / "examples/tokenizer")
    with (
        CloudLoader(
            "paragraphs", tokenizer=tokenizer, seq_len=256, batch_size=8, num_workers=0, epochs=1
        ) as loader,
        LossLog(loader, "losses") as losses,
    ):
        counts = torch.ones(loader.vocab_size)
        for batch in loader:
            tokens = batch["input_ids"][:, 1:]
            losses.add(batch, (counts.sum() / counts[tokens]).log())
            counts += tokens.flatten().bincount(minlength=len(counts))


def draw_rows(browser: Browser) -> None:
    """Draw the page of `cloudload rows` for two steps, with a selected document, in both themes."""
    data = ["--data", "lines", "--data", "code", "--tokenizer", str(ROOT / "examples/tokenizer")]
    options = ["--seq-len", "320", "--packing", "best_fit", "--seed", "2", "--mask-edges"]
    assert main(["rows", *data, *options, "--steps", "1:3", "--global-batch", "4", "--quiet"]) == 0
    for theme in ("light", "dark"):
        browser.show_as(1200, 760, theme)
        browser.open(Path("rows.html"))
        browser.press(*"jjj")
        browser.evaluate("new Promise(done => setTimeout(done, 300))")
        save_picture(browser, f"rows-{theme}")


def draw_state(browser: Browser) -> None:
    """Draw `cloudload state show` for a checkpoint of a run with two streams."""
    shutil.copytree(ROOT / "examples/tokenizer", "tokenizer")
    with CloudLoader(
        ["docs", "code"], tokenizer="tokenizer", seq_len=512, batch_size=8, num_workers=0
    ) as loader:
        for _ in loader.take(100):
            pass
        Path("checkpoint.json").write_text(json.dumps({"loader": loader.state_dict()}))
    draw_command(browser, "state", ["state", "show", "checkpoint.json"])


def draw_fetch(browser: Browser) -> None:
    """Draw `cloudload fetch`, which downloads shards before a run."""
    convert_to_mds(
        str(ROOT / "docs/**/*.md"),
        "compressed/docs",
        format="text",
        compression="zstd",
        shard_bytes=64_000,
        processes=1,
        progress=False,
    )
    data = ["--data", "compressed/docs", "--tokenizer", "tokenizer", "--seq-len", "512"]
    draw_command(browser, "fetch", ["fetch", *data, "--shards", "4", "--quiet"])


def draw_notebook(browser: Browser) -> None:
    """Draw how a notebook displays a loader, its statistics, and a document in a batch."""
    with CloudLoader(
        ["docs", "code"],
        tokenizer="tokenizer",
        seq_len=512,
        batch_size=8,
        num_workers=0,
        local="cache",
    ) as loader:
        for batch in loader.take(3):
            [span, *_] = loader.trace(batch)
        cells = [
            ("loader.describe()", loader.describe()._repr_html_()),
            ("loader.stats()", loader.stats()._repr_html_()),
            ("loader.trace(batch)[0]", span._repr_html_()),
        ]
        shown = "".join(f"<pre>{html.escape(code)}</pre>{value}" for code, value in cells)
    page = Path("notebook.html")
    page.write_text(_NOTEBOOK + shown, "utf-8")
    browser.show_as(900, 1310, "light")
    browser.open(page)
    save_picture(browser, "notebook")


def save_picture(browser: Browser, name: str) -> None:
    """Save the browser's view in 96 colors, because the pictures are kept in the repository."""
    browser.take_picture(Path("picture.png"))
    Image.open("picture.png").convert("RGB").quantize(_COLORS).save(
        SCREENS / f"{name}.png", optimize=True
    )


if __name__ == "__main__":
    draw_screens()
