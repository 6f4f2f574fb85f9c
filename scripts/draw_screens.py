"""Draw the pictures of `docs/screens`: commands as a terminal shows them, and pages of a browser.

    python -m scripts.draw_screens           needs `chromium` (apt-get install chromium)

The datasets are this repository's own documentation and code, converted by `cloudload convert`.
"""

from __future__ import annotations

import contextlib
import html
import io
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cloudload import convert_to_mds
from cloudload.cli import main

ROOT = Path(__file__).resolve().parents[1]
SCREENS = ROOT / "docs/screens"
COLUMNS = 80
_LINE_PIXELS = 18

_TERMINAL = """<!doctype html><meta charset=utf-8><style>
body { margin: 0; background: #1e2229; color: #e6edf3 }
pre { margin: 0; padding: 14px 18px; font: 13px/18px "DejaVu Sans Mono", monospace }
b { color: #7ee787; font-weight: normal }
</style><pre>"""


def draw_screens() -> None:
    """Draw all pictures."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, pattern in (("docs", "docs/**/*.md"), ("code", "cloudload/**/*.py")):
            convert_to_mds(
                str(ROOT / pattern),
                name,
                format="text",
                shard_bytes=64_000,
                processes=1,
                progress=False,
            )
        os.environ["COLUMNS"] = str(COLUMNS)
        draw_command("info", ["info", "docs"])
        draw_command("head", ["head", "code", "--grep", "class \\w+Error", "-n", "1"])


class _Terminal(io.StringIO):
    """What a command prints to a terminal."""

    def isatty(self) -> bool:
        return True


def draw_command(name: str, arguments: list[str]) -> None:
    """Draw a command and its output, as a terminal shows them."""
    printed = _Terminal()
    with contextlib.redirect_stdout(printed):
        assert main(arguments) == 0
    command, output = html.escape(shlex.join(arguments)), html.escape(printed.getvalue())
    output = output.replace("\x1b[1m", "<strong>").replace("\x1b[0m", "</strong>")
    text = f"<b>$</b> cloudload {command}\n{output}"
    page = Path("screen.html")
    page.write_text(_TERMINAL + text, "utf-8")
    take_picture(page, SCREENS / f"{name}.png", 660, text.count("\n") * _LINE_PIXELS + 28)


def take_picture(page: Path, picture: Path, width: int, height: int, *flags: str) -> None:
    """Save what a headless Chromium shows of a page, in pixels."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("there is no chromium. Install it: apt-get install chromium")
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=5000"]
    size = [f"--screenshot={picture}", f"--window-size={width},{height}"]
    command = [browser, *options, *size, *flags, page.absolute().as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    draw_screens()
