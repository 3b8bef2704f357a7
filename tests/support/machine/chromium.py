"""Headless Chromium, controlled over its own DevTools pipe, without a driver, a library or a port."""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
)
# Chromium reads commands from descriptor 3 and answers on 4.
_ON_PIPES = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(text), fcntl.F_DUPFD, 10) for text in sys.argv[1:3]]
for pipe, number in zip(pipes, (3, 4)):
    os.dup2(pipe, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def executable() -> str | None:
    """Return the path of an installed Chromium, None if there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page of a fresh Chromium, whose profile is in `profile`."""

    def __init__(self, profile: Path, width: int = 1400, height: int = 1000) -> None:
        command_read, self._commands = os.pipe()
        self._answers, answer_write = os.pipe()
        flags = (*_QUIET, f"--window-size={width},{height}", f"--user-data-dir={profile}", "--remote-debugging-pipe")
        pipes = (str(command_read), str(answer_write))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ON_PIPES, *pipes, str(executable()), *flags, "about:blank"],
            pass_fds=(command_read, answer_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(answer_write)
        self._buffer = b""
        self._sent = 0
        self._session: str | None = None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        self.resize(width, height)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def call(self, method: str, **params: Any) -> Any:
        """Call a DevTools method and return its result. Events in between are dropped."""
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._sent:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, url: str) -> None:
        """Load a page; `until` is true once it is ready."""
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait for an expression to become true; fail, with the page's text, if it does not."""
        deadline = time.monotonic() + 120
        while not self.evaluate(f"!!({expression})"):
            assert time.monotonic() < deadline, f"not there: {expression}\n{self.evaluate('document.body?.innerText')}"
            time.sleep(0.1)

    def screenshot(self, path: Path) -> None:
        """Write a PNG of the visible page."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._answers, 1 << 20)
            assert data, "chromium ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer
