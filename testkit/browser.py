"""A headless Chromium for tests of HTML pages. The DevTools protocol controls it over a pipe.

with open_browser() as browser:
    browser.open(page)
    browser.press("j")
    browser.evaluate("document.title")
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
"""The path of the browser, or None if it is not installed (apt-get install chromium)."""

# Chromium reads commands from file descriptor 3, and writes answers to file descriptor 4
_LAUNCH = (
    "import os, sys; reads, writes, *command = sys.argv[1:]; "
    "os.dup2(int(reads), 3); os.dup2(int(writes), 4); os.execv(command[0], command)"
)
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --remote-debugging-pipe"
)
_PATIENCE_S = 30.0
_KEY_CODES = {"Enter": "\r"}
_TWO_FRAMES = "done => requestAnimationFrame(() => requestAnimationFrame(done))"
_BY_VALUE = {"returnByValue": True, "awaitPromise": True}


class Browser:
    """A running Chromium with one page."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers, self._rest = commands, answers, b""
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.messages: list[str] = []
        """The page's console output, including errors and blocked content."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a DevTools method, such as `Page.navigate`, and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                found: dict[str, Any] = answer["result"]
                return found
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.messages.append(json.dumps(answer["params"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._answers, 1 << 20)
            assert part, "the browser exited"
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(message)
        return answer

    def open(self, page: Path, fragment: str = "") -> None:
        """Open a page from a file, and wait until its script sets `data-ready` to `yes`."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=page.absolute().as_uri() + fragment)
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def evaluate(self, expression: str) -> Any:
        """Evaluate a JavaScript expression in the page. Its value must be JSON."""
        answer = self.call("Runtime.evaluate", expression=expression, **_BY_VALUE)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self.evaluate(f"Boolean({expression})"):
            assert time.monotonic() < deadline, expression
            time.sleep(0.02)

    def press(self, *keys: str, shift: bool = False) -> None:
        """Press keys one after another: letters, or names such as `Enter`."""
        for key in keys:
            text = key if len(key) == 1 else _KEY_CODES.get(key, "")
            options = {"key": key, "modifiers": 8 if shift else 0}
            self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **options)
            self.call("Input.dispatchKeyEvent", type="keyUp", **options)

    def show_as(self, width: int, height: int, theme: str) -> None:
        """Set the size of the window in pixels, and the theme: `light` or `dark`."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def take_picture(self, path: Path) -> None:
        """Save a screenshot as PNG."""
        self.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """Run a headless Chromium with its own profile."""
    assert BROWSER is not None, "Chromium is not installed. Install it: apt-get install chromium"
    their_commands, commands = os.pipe()
    answers, their_answers = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        pipes = [str(their_commands), str(their_answers)]
        launcher = [sys.executable, "-c", _LAUNCH, *pipes]
        process = subprocess.Popen(
            [*launcher, BROWSER, *_FLAGS.split(), f"--user-data-dir={profile}"],
            pass_fds=(their_commands, their_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_commands)
        os.close(their_answers)
        try:
            yield Browser(commands, answers)
        finally:
            os.close(commands)  # Chromium ends with its pipe
            os.close(answers)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
