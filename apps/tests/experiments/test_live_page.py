"""`online live --page`, in a real browser."""

import base64
import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import pytest

from ohsvgp.integrations.live import LivePage
from probseq_apps.cli import main

COMMAND = [sys.executable, "-m", "probseq_apps", "online", "live", "--num-inducing", "8"]
COMMAND += ["--hyperparameters", "first", "--horizon", "3", "--page", "0"]
MISSING, WRONG = 450, 460


class Browser:
    """A headless Chromium, by messages of its developer tools that end in a zero byte."""

    def __init__(self, folder: Path) -> None:
        theirs, self._out = os.pipe()
        self._in, back = os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --remote-debugging-pipe"
        shell = f'exec chromium {flags} --user-data-dir="$2" about:blank 3<&"$0" 4>&"$1"'
        words = ["bash", "-c", shell, str(theirs), str(back), str(folder)]
        self._process = subprocess.Popen(
            words, pass_fds=(theirs, back), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs)
        os.close(back)
        self._read, self._number, self._page = b"", 0, {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        page = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._page = {"sessionId": page["sessionId"]}

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": values} | self._page
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._read:
                more = os.read(self._in, 1 << 16)
                assert more, "the browser has ended"
                self._read += more
            text, _, self._read = self._read.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url: str, width: int) -> None:
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=url)

    def value(self, script: str) -> Any:
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return result["result"].get("value")

    def wait(self, script: str) -> None:
        for _ in range(200):
            if self.value(script):
                return
            time.sleep(0.1)
        raise AssertionError(f"not in time: {script}\n{self.value('document.body.innerText')}")

    def close(self) -> None:
        self.call("Browser.close")
        os.close(self._out)
        os.close(self._in)
        self._process.wait()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if not shutil.which("chromium"):
        pytest.skip("no chromium, in which the page is shown")
    browser = Browser(tmp_path / "browser")
    yield browser
    browser.close()


def lines(count: int) -> list[str]:
    """A noisy wave with a value that is missing and a line that is none."""
    noise = random.Random(0)
    values = [math.sin(k / 10) + noise.gauss(0, 0.1) for k in range(count)]
    rows = [f"{k},{value:.4f}\n" for k, value in enumerate(values)]
    rows[MISSING], rows[WRONG] = f"{MISSING},\n", "<b>\n"
    return rows


@contextmanager
def started() -> Iterator[tuple[subprocess.Popen[str], IO[str], IO[str], IO[str]]]:
    """The command, its input and both outputs; it does not survive a test that fails."""
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    # Shells ignore SIGINT in what they run in the background, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(COMMAND, text=True, **pipes)
    signal.signal(signal.SIGINT, before)
    with process:
        try:
            assert process.stdin
            assert process.stdout
            assert process.stderr
            yield process, process.stdin, process.stdout, process.stderr
        finally:
            process.kill()


def text_of(name: str) -> str:
    return f"document.getElementById({name!r}).innerText"


@pytest.mark.slow
def test_a_browser_draws_five_hundred_lines_as_they_come(browser: Browser) -> None:
    with started() as (process, stdin, stdout, stderr):
        url = stderr.readline().removeprefix("page: ").strip()
        browser.open(url, 1200)
        browser.wait(f"{text_of('state')} === 'waiting'")
        answers = list[dict[str, Any]]()
        for number, line in enumerate(lines(500), 1):
            stdin.write(line)
            stdin.flush()
            answers.append(json.loads(stdout.readline()))
            if number == 100:
                browser.wait(f"{text_of('lines')} === '100'")
                assert browser.value(text_of("state")) == "running"
                assert browser.value("document.querySelectorAll('#plot .value').length") == 100
        stdin.close()
        browser.wait(f"{text_of('state')} === 'ended'")
        browser.wait(f"{text_of('lines')} === '500'")

        # Nothing is forecast for the first twenty, and for the stamp after a line that is refused.
        pairs = [
            (before["forecasts"][0], answer["y"])
            for before, answer in pairwise(answers)
            if answer.get("y") is not None and before.get("forecasts")
        ]
        inside = [ahead["low"] <= y <= ahead["high"] for ahead, y in pairs]
        share = f"{100 * sum(inside) / len(inside):.1f} %\n"
        share += f"{sum(inside)} of {len(inside)} that had a forecast"
        latest = [answer for answer in answers[-200:] if answer.get("y") is not None]
        assert (len(latest), len(inside)) == (198, 500 - 20 - 3)
        # Late, too, and on a phone.
        for width in (1200, 400):
            browser.open(url, width)
            browser.wait(f"{text_of('lines')} === '500'")
            assert browser.value(text_of("coverage")).split() == share.split()
            assert browser.value("document.querySelectorAll('#plot .value').length") == len(latest)
            assert browser.value("document.documentElement.scrollWidth") <= width
            assert browser.value("document.querySelectorAll('#plot .next').length") == 1
            alerts = browser.value(text_of("alerts"))
            assert f"line {MISSING + 1}, at {MISSING}: missing" in alerts
            assert f"line {WRONG + 1}: refused, a line must be t,y, got '<b>'" in alerts
            picture = base64.b64decode(browser.call("Page.captureScreenshot")["data"])
            assert picture.startswith(b"\x89PNG")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert stderr.read().count("\n") == 1  # the stream has ended
    browser.wait(f"{text_of('state')} === 'ended'")


@pytest.mark.slow
def test_ctrl_c_while_the_stream_runs_is_no_traceback() -> None:
    with started() as (process, _, _, stderr):
        assert stderr.readline().startswith("page: http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert stderr.read() == "probseq: interrupted\n"


def test_a_port_in_use_is_refused_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Unread:
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("read")

    monkeypatch.setattr("sys.stdin", Unread())
    state = tmp_path / "state"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert main(["online", "live", "--page", str(port), "--state", str(state)]) == 1
    error = f"probseq: error: page cannot be served at 127.0.0.1:{port}: Address already in use\n"
    assert capsys.readouterr() == ("", error)
    assert not state.exists()


def test_a_page_in_a_browser_shows_text_as_text(browser: Browser) -> None:
    with LivePage("0") as page:
        browser.open(page.url, 400)
        browser.wait(f"{text_of('state')} === 'waiting'")
        page.show(json.dumps({"line": 1, "refused": "<img src=x onerror=alert(1)>" * 20}))
        browser.wait(f"{text_of('lines')} === '1'")
        assert "<img src=x" in browser.value(text_of("alerts"))
        assert browser.value("document.images.length") == 0
        assert browser.value("document.documentElement.scrollWidth") <= 400
