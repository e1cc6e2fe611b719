"""A headless Chromium that tests steer: it resizes, prints, and asks a page for its boxes.

It speaks the DevTools protocol over a pipe (a message ends with a zero byte): no port is opened,
and no library is needed.
"""

import base64
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

# Chromium reads descriptor 3 and writes descriptor 4, which may both be in use here.
_START = """
import fcntl, os, sys
take, give = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3])
os.dup2(take, 3)
os.dup2(give, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe", "about:blank"),
)
_SECONDS = 60  # that one answer may take on a busy machine


class Browser:
    """One window; `console` holds every warning and error of the page that is open."""

    def __init__(self, program, profile):
        take, self._to = os.pipe()
        self._from, give = os.pipe()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _START, str(take), str(give)),
                *(program, *_FLAGS, f"--user-data-dir={profile}"),
            ],
            pass_fds=(take, give),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(take)
        os.close(give)
        self._rest, self._count, self._session, self.console = b"", 0, None, []
        targets = self._ask("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        attached = self._ask("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def close(self):
        """Ends the process that was started here."""
        self._session = None
        self._ask("Browser.close")
        self._process.wait(timeout=_SECONDS)
        os.close(self._to)
        os.close(self._from)

    def open(self, path, fragment="", *, width=1400, height=900, theme="light"):
        """Opens a file in a window of this size, and waits until its scripts have run."""
        self.console = []
        self.media(theme=theme)
        self.resize(width, height)
        self._ask("Page.navigate", url="about:blank")
        self._ask("Page.navigate", url=f"{Path(path).absolute().as_uri()}{fragment}")
        self.wait("location.href !== 'about:blank' && document.readyState === 'complete'")
        self.settle()

    def resize(self, width, height):
        """Gives the window another size; call `settle` before looking."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", **size)

    def media(self, *, theme="light", kind=""):
        """A reader who prefers `theme`; `kind` is `print` for a page as it is printed."""
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self._ask("Emulation.setEmulatedMedia", media=kind, features=features)

    def settle(self):
        """Waits until what the page does on a change of size is drawn.

        Libraries answer such a change late, plotly after a tenth of a second.
        """
        wait = "await new Promise(done => setTimeout(done, 200));"
        frame = "await new Promise(done => requestAnimationFrame(done));"
        self.run(f"(async () => {{ {wait} {2 * frame} return true; }})()")

    def wait(self, condition):
        """Waits until a condition of the page is true."""
        end = time.monotonic() + _SECONDS
        while not self.run(condition):
            assert time.monotonic() < end, f"never true: {condition}"

    def run(self, script):
        """The value of a script in the page; a promise is waited for."""
        answer = self._ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path, *, whole=False):
        """Writes what the window shows, or the whole page, as PNG."""
        taken = self._ask("Page.captureScreenshot", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(taken["data"]))

    def pdf(self):
        """The page as it is printed on A4."""
        paper = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": True}
        return base64.b64decode(self._ask("Page.printToPDF", **paper)["data"])

    def _ask(self, method, **parameters):
        self._count += 1
        number = self._count
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _read(self):
        end = time.monotonic() + _SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(end - time.monotonic(), 0))
            assert ready, "Chromium did not answer"
            piece = os.read(self._from, 1 << 20)
            assert piece, "Chromium ended"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        told = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.console.append(json.dumps(told["exceptionDetails"])[:500])
        elif event.get("method") == "Runtime.consoleAPICalled":
            self.console.append(f"{told['type']}: {told['args']}")
        elif event.get("method") == "Log.entryAdded":
            self.console.append(f"{told['entry']['level']}: {told['entry']['text']}")
