"""The server of a live stream's page, as clients see it that are no browsers."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

import pytest

from ohsvgp.integrations.live import LivePage
from ohsvgp.integrations.live.page import LATEST

Event = tuple[str, dict[str, Any]]


@pytest.fixture
def page() -> Iterator[LivePage]:
    with LivePage("0") as page:
        yield page


def answer(line: int, y: float | None = 0.0, *, low: float = -1.0, high: float = 1.0) -> str:
    """An answer at stamp ``line`` with a forecast of the next."""
    ahead = {"horizon": 1, "t": line + 1.0, "mean": 0.0, "low": low, "high": high}
    return json.dumps({"line": line, "t": float(line), "y": y, "alerts": [], "forecasts": [ahead]})


def request(
    page: LivePage, path: str = "/", method: str = "GET", **headers: str
) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection(urlsplit(page.url).netloc, timeout=20)
    connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    response = connection.getresponse()
    return response, response.read()


def events(body: bytes) -> tuple[list[Event], bool]:
    """Events by their names, and whether the last tells that the stream has ended."""
    blocks = body.decode().removesuffix("\n\n").split("\n\n")
    assert blocks[0].startswith("retry:")
    ended = blocks[-1].startswith("event: end\n")
    found = [re.fullmatch(r"id: (.*)\ndata: (.*)", block) for block in blocks[1:]]
    return [(match[1], json.loads(match[2])) for match in found if match], ended


def test_a_browser_that_comes_late_is_sent_the_latest_answers(page: LivePage) -> None:
    for line in range(1, LATEST + 51):
        page.show(answer(line))
    page.end()
    response, body = request(page, "/events")
    assert response.getheader("Content-Type") == "text/event-stream"
    sent, ended = events(body)
    assert [values["line"] for _, values in sent] == list(range(51, LATEST + 51))
    assert ended


def test_a_browser_that_comes_again_is_sent_what_it_has_missed(page: LivePage) -> None:
    for line in range(1, 6):
        page.show(answer(line))
    page.end()
    sent, _ = events(request(page, "/events")[1])
    rest, ended = events(request(page, "/events", Last_Event_ID=sent[2][0])[1])
    assert rest == sent[3:]
    assert ended
    # Names of another process's events, and what is no name, are as good as none.
    for name in (f"0{sent[2][0]}", "3", "x.²", sent[2][0] + "9" * 5000):
        assert events(request(page, "/events", Last_Event_ID=name)[1])[0] == sent


def test_answers_come_while_the_stream_runs(page: LivePage) -> None:
    connection = HTTPConnection(urlsplit(page.url).netloc, timeout=20)
    connection.request("GET", "/events")
    response = connection.getresponse()
    for line in (1, 2, 3):
        page.show(answer(line))
        block = b""
        while b"data: " not in block:
            block = response.readline()
        assert json.loads(block.removeprefix(b"data: "))["line"] == line


def test_a_browser_that_reads_nothing_delays_nobody(page: LivePage) -> None:
    address = urlsplit(page.url)
    with socket.create_connection((address.hostname, address.port)) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert stuck.recv(8) == b"HTTP/1.0"
        long = json.dumps({"line": 1, "refused": "x" * 100_000})
        # Far more than buffers hold: if it waited for the reader, this would never end.
        showing = threading.Thread(target=lambda: [page.show(long) for _ in range(300)])
        showing.start()
        showing.join(60)
        assert not showing.is_alive()
        page.end()
        assert len(events(request(page, "/events")[1])[0]) == LATEST


def test_forecasts_are_judged_by_the_values_that_came_for_their_stamps(page: LivePage) -> None:
    ahead = [{"horizon": 1, "t": 10.0, "mean": 0.0, "low": -1.0, "high": 1.0}]
    rows: list[tuple[float, float | None, bool | None]] = [
        (9.0, 5.0, None),  # nothing was forecast
        (10.2, 1.0, True),
        (9.9, 3.0, None),  # late: the next that was forecast is 10.0 again, before 10.2
        (10.0, 0.0, None),
    ]
    for line, (stamp, value, _) in enumerate(rows, 1):
        values = {"line": line, "t": stamp, "y": value, "alerts": [], "forecasts": ahead}
        page.show(json.dumps(values))
    page.end()
    sent, _ = events(request(page, "/events")[1])
    assert [values["inside"] for _, values in sent] == [inside for *_, inside in rows]
    assert [values["before"] for _, values in sent] == [None, *ahead * 3]


def test_stamps_may_be_dates_and_numbers_none_that_json_knows(page: LivePage) -> None:
    days = [f"2024-02-{day:02d}T00:00:00" for day in (28, 29)]
    ahead = {"horizon": 1, "t": days[1], "mean": 0.0, "low": float("-inf"), "high": 1.0}
    for line, (day, first) in enumerate(zip(days, ([ahead], []), strict=True), 1):
        values = {"line": line, "t": day, "y": 0.5, "alerts": [], "forecasts": first}
        page.show(json.dumps(values))
    page.show(json.dumps({"line": 3, "refused": "<b>\n"}))
    page.end()
    body = request(page, "/events")[1]
    assert b"Infinity" not in body
    first, second, third = [values for _, values in events(body)[0]]
    assert first["forecasts"][0]["low"] is None
    assert (second["inside"], second["judged"]) == (None, 0)
    assert third == {"line": 3, "refused": "<b>\n"}


def test_only_the_page_and_its_events_are_there_to_be_read(page: LivePage) -> None:
    response, body = request(page)
    assert response.status == 200
    assert b"new EventSource" in body
    # The only address in it is the name of SVG.
    assert re.findall(rb"//[a-z][^ \n\"]*", body) == [b"//www.w3.org/2000/svg"]
    assert "default-src 'none'" in (response.getheader("Content-Security-Policy") or "")
    for path in ("/page.html", "/../page.py", "/events/", "/?", "/favicon.ico"):
        assert request(page, path)[0].status == 404
    for method in ("POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"):
        response, _ = request(page, "/", method)
        assert (response.status, response.getheader("Allow")) == (405, "GET")


def test_names_that_only_lead_to_this_machine_are_refused(page: LivePage) -> None:
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:1"):
        assert request(page, Host=host)[0].status == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "192.168.0.1", "", "[::1]:80", "["):
        for path in ("/", "/events"):
            assert request(page, path, Host=host)[0].status == 403


def test_an_address_in_use_or_of_another_machine_is_refused(page: LivePage) -> None:
    port = urlsplit(page.url).port
    with pytest.raises(OSError, match=f"page cannot be served at 127.0.0.1:{port}: .*in use"):
        LivePage(str(port))
    with pytest.raises(OSError, match=r"page cannot be served at 192\.0\.2\.1:0: "):
        LivePage("192.0.2.1:0")


def test_nobody_is_served_when_the_page_is_closed() -> None:
    with LivePage("0") as page:
        connection = HTTPConnection(urlsplit(page.url).netloc, timeout=20)
        connection.request("GET", "/events")
        response = connection.getresponse()
    assert response.read() == b"retry: 2000\n\n"  # the stream has not ended
    with pytest.raises(ConnectionRefusedError):
        request(page)
