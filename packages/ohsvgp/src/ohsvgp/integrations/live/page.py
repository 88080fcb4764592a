"""A page that draws the answers of a live stream as they come, for a browser on this machine.

Answers go to browsers as server-sent events, and nothing comes back. The latest wait in one queue
from which each browser is served by a thread of its own: one that is slow misses what has left the
queue, and never delays the stream. Not in the papers.
"""

import json
import math
import socketserver
import sys
import threading
import time
from collections import deque
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# Answers that a browser is sent when it comes late; the page draws as many.
LATEST = 200
# Seconds between signs of life, which tell that a browser has gone; and that it may take to read.
_HEARTBEAT, _PATIENCE = 15.0, 10.0
_THIS_MACHINE = "127.0.0.1"
_HTML = Path(__file__).with_name("page.html")
_HEADERS = {
    "Allow": "GET",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; connect-src 'self'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
}


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``PORT``, for browsers on this machine only, or ``HOST:PORT``."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 1 << 16):
        raise ValueError(f"page must be PORT or HOST:PORT with a port up to 65535, got {text!r}")
    return host or _THIS_MACHINE, int(port)


class LivePage:
    """Serves the page until it is closed.

    For the address see ``parse_address``.

    Attributes:
        url: of the page.

    Raises:
        OSError: it is in use, or not of this machine.

    Example:
        >>> from ohsvgp.integrations.live import LivePage
        >>> with LivePage("0") as page:  # for answer in stream.follow(lines): page.show(answer)
        ...     page.show('{"line": 1, "t": 0.0, "y": 1.5, "alerts": [], "forecasts": []}')
    """

    def __init__(self, address: str) -> None:
        host, port = parse_address(address)
        try:
            self._server = _Server((host, port), partial(_Handler, self))
        except OSError as error:
            raise OSError(f"page cannot be served at {host}:{port}: {error.strerror}") from error
        self.url = f"http://{host}:{self._server.server_address[1]}/"
        self._hosts, self._local = {_THIS_MACHINE, "localhost", host}, host == _THIS_MACHINE
        # Browsers may come from a process before this one, whose events have other names.
        self.name, self._number = f"{time.time_ns():x}", 0
        self._queue, self._changed = deque[bytes](maxlen=LATEST), threading.Condition()
        self._ended = self._closed = False
        self._ahead, self._last = dict[str, Any](), -math.inf
        self._judged, self._covered = 0, 0
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def __enter__(self) -> "LivePage":
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def show(self, answer: str) -> None:
        """Send an answer of ``LiveStream.follow`` to all browsers, and judge what was forecast."""
        # Browsers know no NaN in JSON.
        values: dict[str, Any] = json.loads(answer, parse_constant=lambda _: None)
        text = json.dumps(values | (self._judge(values) if "t" in values else {}))
        with self._changed:
            self._number += 1
            self._queue.append(f"id: {self.name}.{self._number}\ndata: {text}\n\n".encode())
            self._changed.notify_all()

    def end(self) -> None:
        """Tell all browsers, those that come later too, that the stream has ended."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def accepts(self, host: str) -> bool:
        """Return whether a request names this machine, and no foreign name that leads here."""
        name = host.lower().partition(":")[0]
        return name in self._hosts or (not self._local and name.replace(".", "").isdecimal())

    def events_after(self, number: int) -> tuple[list[bytes], int, bool]:
        """Wait for events after one; return them, the latest's number, and if they have ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._number > number or self._ended or self._closed, _HEARTBEAT
            )
            if self._closed:  # browsers come again, and find the process that serves the page then
                raise ConnectionAbortedError("the page is closed")
            new = min(max(self._number - number, 0), len(self._queue))
            return [*self._queue][len(self._queue) - new :], self._number, self._ended

    def _judge(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return what was forecast before an answer, whether it held, and how often so far."""
        stamp, value, before, inside = _seconds(answer["t"]), answer["y"], self._ahead, None
        ends = (before.get("low"), value, before.get("high"))
        if before and None not in ends:
            at = _seconds(before["t"])
            # The same stamp is one within a quarter of the step, as for the stream itself.
            if abs(stamp - at) <= 0.25 * (at - self._last):
                inside = ends[0] <= value <= ends[2]
                self._judged, self._covered = self._judged + 1, self._covered + inside
        self._ahead = (answer["forecasts"] or [{}])[0]
        self._last = max(self._last, stamp)
        counts = {"judged": self._judged, "covered": self._covered}
        return {"before": before or None, "inside": inside} | counts


def _seconds(stamp: float | str) -> float:
    """Return a stamp as a number: of a date, seconds since 1970."""
    if isinstance(stamp, str):
        moment = datetime.fromisoformat(stamp)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return stamp


class _Server(ThreadingHTTPServer):
    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's asks a name server

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a browser that has gone
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version, timeout = "probseq", "", _PATIENCE

    def __init__(self, page: LivePage, *arguments: Any) -> None:
        self._page = page
        super().__init__(*arguments)

    def do_GET(self) -> None:
        if not self._page.accepts(self.headers.get("Host", "")):
            self._send(403, "text/plain", b"Open the page by the address it is served at.\n")
        elif self.path == "/":
            self._send(200, "text/html; charset=utf-8", _HTML.read_bytes())
        elif self.path == "/events":
            self._send(200, "text/event-stream", b"retry: 2000\n\n")
            self._send_events()
        else:
            self._send(404, "text/plain", b"Only / and /events are here.\n")

    def refuse(self) -> None:
        self._send(405, "text/plain", b"")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = refuse

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (_HEADERS | {"Content-Type": kind}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _send_events(self) -> None:
        process, _, text = self.headers.get("Last-Event-ID", "").rpartition(".")
        same = process == self._page.name and text.isdecimal() and len(text) < 19
        number, ended = int(text) if same else 0, False
        while not ended:
            events, number, ended = self._page.events_after(number)
            events += [b"event: end\ndata: end\n\n"] if ended else []
            self.wfile.write(b"".join(events) or b": waiting\n\n")

    def log_message(self, format: str, *_: Any) -> None:
        pass
