"""A headless Chromium for tests of the report, spoken to over its DevTools pipe. Standard library only.

Messages are JSON ended by a zero byte, on file descriptors 3 (to the browser) and 4 (from it).
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DEADLINE_S = 60.0
CLOSE_DEADLINE_S = 10.0

# Moves the two pipes to where the browser looks for them; by way of high numbers, since they may lie there crosswise.
LAUNCH = """
import fcntl, os, sys
high = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for fd, number in zip(high, (3, 4)):
    os.dup2(fd, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser with one page. What the page logs and asks for is collected. `close` it."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.mkdtemp(prefix="kvdepot-browser-")
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        command = [program, "--headless=new", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe",
                   "--disable-background-networking", "--disable-dev-shm-usage",
                   "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={self._profile}",
                   "--window-size=1200,900"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(to_read), str(to_write), *command], pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env={"PATH": os.defpath, "HOME": self._profile, "TMPDIR": self._profile})
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._count, self._session = b"", 0, None
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """Asks it to end, so that nothing of it stays behind, and kills what does not."""
        try:
            self._session = None
            self.call("Browser.close")
            self._process.wait(CLOSE_DEADLINE_S)
        except (OSError, RuntimeError, TimeoutError, subprocess.TimeoutExpired):
            pass
        try:
            os.killpg(self._process.pid, 9)
        except ProcessLookupError:
            pass
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, path: Path, dark: bool = False, width: int = 1200) -> None:
        """Loads a file; what was collected before is forgotten."""
        self.requests.clear()
        self.errors.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        self.call("Page.navigate", url=path.absolute().as_uri())
        end = time.monotonic() + DEADLINE_S
        while not self._loaded:
            self._next(end)

    def evaluate(self, expression: str):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def screenshot(self, path: Path) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, **parameters) -> dict:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + DEADLINE_S
        while True:
            answer = self._next(end)
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _next(self, end: float) -> dict:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"the browser said nothing for {DEADLINE_S:.0f} s")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, parameters: dict) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(str(parameters["args"]))
        elif method == "Page.loadEventFired":
            self._loaded = True
