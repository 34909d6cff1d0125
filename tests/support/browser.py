"""Drives headless Chromium over its debugging pipe: JSON messages ending in NUL on descriptors 3 and 4."""

import base64
import contextlib
import json
import os
import pathlib
import select
import shutil
import subprocess
import time

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)


def find_browser():
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


class Browser:
    """One browser with one page; ``events`` has everything it reported."""

    def __init__(self, profile: pathlib.Path, *flags: str) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        self.events: list[dict] = []
        self._buffer = b""
        self._number = 0
        self._session = None

        def arrange() -> None:
            # The pipe's ends may be 3 and 4 already: go over high numbers.
            first, second = os.dup2(to_read, 63), os.dup2(to_write, 64)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self.process = subprocess.Popen(
            [find_browser(), *FLAGS, *flags, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(3, 4), preexec_fn=arrange, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, *, limit: float = 60, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + limit
        while True:
            answer = self._next(deadline, method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _next(self, deadline: float, what: str) -> dict:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError(what)
            piece = os.read(self._read, 1 << 20)
            if not piece:
                raise EOFError("the browser ended")
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def open(self, url: str, *, limit: float = 60) -> None:
        self.events.clear()
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + limit
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next(deadline, url))

    def evaluate(self, expression: str, *, limit: float = 60):
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, limit=limit
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "exception"))
        return answer["result"].get("value")

    def wait_for(self, expression: str, *, limit: float = 60):
        """The first true value of an expression, asked again on every frame of the page."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            with contextlib.suppress(RuntimeError):
                value = self.evaluate(f"new Promise(r => setTimeout(() => r({expression}), 50))")
                if value:
                    return value
        raise TimeoutError(expression)

    def size(self, width: int, height: int, scale: float = 1) -> None:
        screen = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **screen)

    def screenshot(self, path: pathlib.Path, *, width: int, height: int, whole: bool = False, scale: float = 1) -> None:
        self.size(width, height, scale)
        self.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))

    def complaints(self) -> list[str]:
        """Console errors, uncaught exceptions, log entries and every request but for the page itself."""
        found = []
        for event in self.events:
            method, parameters = event.get("method"), event.get("params", {})
            if method in ("Runtime.exceptionThrown", "Log.entryAdded") or (
                method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert")
            ):
                found.append(json.dumps(parameters)[:600])
            elif method == "Network.requestWillBeSent" and parameters["type"] != "Document":
                found.append("request " + parameters["request"]["url"][:200])
        return found

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.call("Browser.close", limit=5)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._read)
        os.close(self._write)
