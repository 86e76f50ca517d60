"""A real browser, driven over its debugging pipe: pages, clicks, sizes, pictures."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from contextlib import contextmanager, suppress

import pytest

LIMIT_S = 120.0


class Browser:
    """A tab of a headless Chromium."""

    def __init__(self, reading, writing):
        self._reading, self._writing = reading, writing
        self._numbers, self._buffer = itertools.count(1), b""
        self.events = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = None
        found = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method, **params):
        """Return the result of a command."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        until_s = time.monotonic() + LIMIT_S
        while True:
            answer = self._next(until_s)
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def _next(self, until_s):
        while b"\0" not in self._buffer:
            left_s = max(until_s - time.monotonic(), 0)
            assert select.select([self._reading], [], [], left_s)[0], "the browser says nothing"
            chunk = os.read(self._reading, 1 << 20)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def goto(self, url):
        """Open a page, and return once it is loaded."""
        self.events.clear()
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, script):
        """Return the value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script):
        """Return the value of an expression once it is true."""
        until_s = time.monotonic() + LIMIT_S
        while True:
            with suppress(AssertionError):
                if value := self.value(script):
                    return value
            assert time.monotonic() < until_s, f"never: {script}"
            time.sleep(0.05)

    def look(self, width, height=900, dark=False, script=True):
        """Change the window's size, the colours, and whether scripts run."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Emulation.setScriptExecutionDisabled", value=not script)

    def picture(self, path):
        """Write a picture of the whole page."""
        made = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(made["data"]))

    def complaints(self):
        """Return what the browser logged as a warning or an error, and exceptions of scripts."""
        found = []
        for event in self.events:
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(event["params"]))
            entry = event.get("params", {}).get("entry", {})
            if entry.get("level") in ("warning", "error"):
                found.append(entry["text"])
        return found


@contextmanager
def browser(folder):
    """Run a browser; skip if none is installed."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium or google-chrome to open the page in")
    theirs, writing = os.pipe()
    reading, answers = os.pipe()
    command = [
        program,
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *("--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}"),
    ]
    # The browser expects them at 3 and 4, whatever they are here.
    shell = ["bash", "-c", f'exec 3<&{theirs} 4>&{answers}; exec "$@"', "bash", *command]
    process = subprocess.Popen(
        shell, pass_fds=(theirs, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    os.close(answers)
    try:
        yield Browser(reading, writing)
    finally:
        process.terminate()
        process.wait(timeout=LIMIT_S)
        os.close(reading)
        os.close(writing)
