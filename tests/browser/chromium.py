"""A headless Chromium that does what a person would do: open a page, press keys, choose from a list.

It speaks the browser's own debugging protocol over two pipes: no driver, no port, no dependency.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
PATIENCE_S = 60.0

KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Home": 36, "End": 35, "Enter": 13}
TEXTS = {"Enter": "\r"}
WIDTHS = (1440, 1024, 390)


def find_chromium():
    """The browser's path. Without one the tests are skipped, except for root, who could have installed it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        import pytest  # an example drives the browser without it

        if os.geteuid() == 0:
            pytest.fail("chromium is missing. `make test` and `make browser` install it: apt-get install chromium")
        pytest.skip("chromium is not installed and only root can install it: apt-get install chromium")
    return found


class Chromium:
    """One page of one browser."""

    def __init__(self, profile: Path, width: int = 1280, height: int = 900):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        arguments = [find_chromium(), *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        # The browser reads commands from descriptor 3 and answers on 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "chromium", *arguments,
             "--remote-debugging-pipe", "about:blank"],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, None
        self.requested: list[str] = []
        self.complaints: list[str] = []
        self.loads = 0
        self._attach()

    def _attach(self):
        targets = self.command("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self.command("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.command(f"{domain}.enable")

    def command(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        return self._until(lambda answer: answer.get("id") == self._number)["result"]

    def open(self, url):
        self.command("Page.navigate", url="about:blank")
        self.requested.clear()
        self.command("Page.navigate", url=url)
        self._until(lambda event: event.get("method") == "Page.loadEventFired")

    def evaluate(self, expression):
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key):
        """A real key press, delivered to whatever has the focus."""
        text = key if len(key) == 1 else TEXTS.get(key)
        code = KEYS.get(key, ord(key[0].upper()))
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.command("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **extra)

    def press_and_load(self, key):
        """A key press that leads to another page, or to this one anew."""
        before = self.loads
        self.press(key)
        if self.loads == before:
            self._until(lambda event: event.get("method") == "Page.loadEventFired")

    def pictures(self, folder: Path, name: str):
        """The whole page at three widths, light and dark."""
        for width in WIDTHS:
            for theme in ("light", "dark"):
                self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
                self.command("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
                             mobile=width < 500)  # fmt: skip
                shot = self.command("Page.captureScreenshot", captureBeyondViewport=True)
                (folder / f"{name}-{width}-{theme}.png").write_bytes(base64.b64decode(shot["data"]))
        self.command("Emulation.clearDeviceMetricsOverride")
        self.command("Emulation.setEmulatedMedia", features=[])

    def move_pointer(self, x, y):
        self.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def close(self):
        with contextlib.suppress(OSError):
            os.write(self._out, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        try:
            self._process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def _until(self, wanted):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            message = self._next(deadline)
            self._note(message)
            if wanted(message):
                assert "error" not in message, message
                return message

    def _note(self, message):
        parameters = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self.loads += 1
            case "Network.requestWillBeSent":
                self.requested.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(parameters["exceptionDetails"]["text"])
            case "Log.entryAdded":
                self.complaints.append(parameters["entry"]["text"])

    def _next(self, deadline):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._in, 1 << 16) if ready else b""
            if not chunk:
                raise AssertionError("chromium did not answer" if not ready else "chromium ended early")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)
