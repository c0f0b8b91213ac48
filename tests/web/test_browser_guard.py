"""A page of somebody else's asks for nothing: by no name, from no origin, over neither lane."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from mq.broker import open_broker
from mq.web.endpoints import OPERATIONS, Endpoints
from mq.web.exchange import Handler, Reply, Request, empty
from mq.web.front import BrowserGuard
from tests.cases import for_each
from tests.e2e.daemon import Daemon
from tests.web.talking import MAX_BODY, ask, detail, publish


class Behind(Handler):
    """Says yes to everything."""

    async def handle(self, request: Request) -> Reply:
        return empty(200)


async def status(headers: dict[str, str], address: str = "127.0.0.1", hosts: tuple[str, ...] = ()) -> int:
    return (await ask(BrowserGuard(Behind(), address, hosts), "GET", "/q", headers=headers)).status


@for_each(
    "host, address, hosts, wanted",
    [
        ("127.0.0.1:8080", "127.0.0.1", (), 200),
        ("127.0.0.1", "127.0.0.1", (), 200),
        ("127.9.9.9:1", "127.0.0.1", (), 200),
        ("[::1]:8080", "127.0.0.1", (), 200),
        ("::1", "127.0.0.1", (), 421),
        ("localhost:8080", "127.0.0.1", (), 200),
        ("LocalHost.:8080", "127.0.0.1", (), 200),
        ("", "127.0.0.1", (), 200),
        ("evil.test:8080", "127.0.0.1", (), 421),
        ("localhost.evil.test", "127.0.0.1", (), 421),
        ("127.0.0.1.evil.test:8080", "127.0.0.1", (), 421),
        ("127.0.0.1:8080@evil.test", "127.0.0.1", (), 421),
        ("10.1.2.3:8080", "127.0.0.1", (), 421),
        ("2130706433", "127.0.0.1", (), 421),
        ("10.1.2.3:8080", "10.1.2.3", (), 200),
        ("10.1.2.4:8080", "10.1.2.3", (), 421),
        ("queue.example:80", "queue.example", (), 200),
        ("10.1.2.3:8080", "0.0.0.0", (), 200),
        ("[fd00::7]:8080", "::", (), 200),
        ("evil.test", "0.0.0.0", (), 421),
        ("proxy.example", "127.0.0.1", ("proxy.example", "other"), 200),
        ("evil.test", "127.0.0.1", ("proxy.example",), 421),
        ("anything", "127.0.0.1", ("*",), 200),
    ],
)
async def test_a_host_is_ours_or_refused(host: str, address: str, hosts: tuple[str, ...], wanted: int) -> None:
    assert await status({"host": host} if host else {}, address, hosts) == wanted


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("http://127.0.0.1:8080/q", 200),
        ("http://localhost/q", 200),
        ("HTTPS://LOCALHOST/q", 200),
        ("http://evil.test/q", 421),
        ("HTTP://evil.test:8080/q", 421),
        ("http://evil.test", 421),
        ("http://127.0.0.1@evil.test/q", 421),
        ("http:///q", 421),
    ],
)
async def test_the_authority_of_an_absolute_target_is_ours_or_refused(target: str, wanted: int) -> None:
    guard = BrowserGuard(Behind(), "127.0.0.1")
    for headers in ({"host": "127.0.0.1:8080"}, {}):
        assert (await ask(guard, "GET", target, headers=headers)).status == wanted


@for_each(
    "headers, wanted",
    [
        ({"origin": "http://127.0.0.1:8080"}, 200),
        ({"origin": "https://127.0.0.1:8080", "sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"origin": "http://evil.test"}, 403),
        ({"origin": "http://127.0.0.1:8081"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "http://127.0.0.1:8080", "sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "what comes tomorrow"}, 403),
    ],
)
async def test_an_origin_is_ours_or_refused(headers: dict[str, str], wanted: int) -> None:
    assert await status({"host": "127.0.0.1:8080", **headers}) == wanted


BROWSER = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/128.0"}
LEASES = ("GET /q/messages", "POST /q/take", "PUT /q/consumers/c/claim")


def test_the_leasing_operations_are_known() -> None:
    assert {f"{each.method} {each.path}" for each in OPERATIONS if each.leases} == {
        line.replace("/q", "/QUEUE").replace("/c/", "/CONSUMER/") for line in LEASES
    }


@for_each("line", LEASES)
@for_each(
    "headers, wanted",
    [
        (BROWSER, 403),
        ({**BROWSER, "sec-fetch-site": "none"}, 403),
        ({**BROWSER, "referer": "http://192.168.1.7:8080/"}, 403),
        ({**BROWSER, "cookie": "mq-session-8080=x"}, 403),
        ({**BROWSER, "authorization": "Basic eDp5"}, 403),
        ({**BROWSER, "sec-fetch-site": "same-origin"}, 200),
        ({**BROWSER, "x-csrf-token": ""}, 200),
        ({"user-agent": "curl/8.5.0"}, 200),
        ({"user-agent": "python-httpx/0.27"}, 200),
        ({}, 200),
    ],
)
async def test_a_browser_leases_only_with_a_header_of_the_console(
    line: str, headers: dict[str, str], wanted: int
) -> None:
    method, _, path = line.partition(" ")
    guard = BrowserGuard(Behind(), "192.168.1.7")
    reply = await ask(guard, method, path, headers={"host": "192.168.1.7:8080", **headers})
    assert reply.status == wanted
    if wanted == 403:
        assert "X-Csrf-Token" in detail(reply)


@pytest.mark.parametrize(
    "line", ["GET /q", "GET /", "GET /q/peek", "GET /q/messages/7", "POST /q/messages", "GET /q/%"]
)
async def test_a_browser_may_ask_for_what_leases_nothing(line: str) -> None:
    method, _, path = line.partition(" ")
    assert (await ask(BrowserGuard(Behind(), "127.0.0.1"), method, path, headers=BROWSER)).status == 200


async def test_a_path_written_otherwise_is_the_same_lease() -> None:
    for path in ("/q/%6dessages", "http://127.0.0.1/q/messages"):
        reply = await ask(BrowserGuard(Behind(), "127.0.0.1"), "GET", path, headers=BROWSER)
        assert reply.status == 403


async def test_in_strict_mode_a_browser_leases_as_specified() -> None:
    guard = BrowserGuard(Behind(), "127.0.0.1", browsers_lease=True)
    assert (await ask(guard, "GET", "/q/messages", headers=BROWSER)).status == 200


async def test_a_refusal_says_what_to_do() -> None:
    guard = BrowserGuard(Behind(), "127.0.0.1")
    assert "--hosts" in detail(await ask(guard, "GET", "/q", headers={"host": "mq.example"}))
    assert (await ask(guard, "HEAD", "/q", headers={"host": "mq.example"})).body == b""


async def test_what_somebody_published_is_no_page_of_ours() -> None:
    """Alone, in a batch, looked at: wherever a body of somebody else's goes out."""
    async with open_broker("memory:") as broker:
        endpoints = Endpoints(broker, MAX_BODY)
        await ask(endpoints, "PUT", "/q")
        ids = [await publish(endpoints, "q", b"<script>", headers={"content-type": "text/html"}) for _ in range(4)]
        for method, path in (
            ("GET", f"/q/messages/{ids[0]}"),
            ("GET", "/q/peek"),
            ("GET", "/q/browse"),
            ("GET", "/q/messages"),
            ("POST", "/q/take"),
        ):
            reply = await ask(endpoints, method, path)
            headers = dict(reply.headers)
            assert reply.status == 200, path
            assert headers["x-content-type-options"] == "nosniff", path
            assert headers["content-security-policy"] == "sandbox; default-src 'none'", path


@pytest.mark.parametrize("lane", [(), ("MQ_NO_FAST_PATH=1",)], ids=["fast lane", "hypercorn"])
def test_a_daemon_refuses_what_a_foreign_page_asks(tmp_path: Path, lane: tuple[str, ...]) -> None:
    with Daemon(tmp_path / "root", tmp_path / "log", *lane) as daemon:
        url = f"http://{daemon.address}:{daemon.port}"
        ask_as_a_page(url)


def test_a_daemon_refuses_a_foreign_authority_over_both_versions_of_http(tmp_path: Path) -> None:
    with Daemon(tmp_path / "root", tmp_path / "log") as daemon:
        with socket.create_connection((daemon.address, daemon.port), timeout=10) as stream:
            stream.sendall(b"GET http://evil.test/q HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert b" 421 " in stream.makefile("rb").readline()
        with httpx.Client(http1=False, http2=True, base_url=f"http://{daemon.address}:{daemon.port}") as client:
            assert client.get("/-/live", headers={"host": "evil.test"}).status_code == 421  # httpx sends :authority
            assert client.get("/-/live").status_code == 200


def ask_as_a_page(url: str) -> None:
    with httpx.Client(base_url=url) as client:
        assert client.put("/q").status_code == 201
        attack = {"origin": "http://evil.test", "sec-fetch-site": "cross-site", "content-type": "text/html"}
        assert client.post("/q/messages", content=b"<script>", headers=attack).status_code == 403
        assert client.get("/q/messages", headers={"host": "evil.test"}).status_code == 421
        assert client.get("/q").json()["ready"] == 0
        assert client.post("/q/messages", content=b"x", headers={"origin": url}).status_code == 201
        assert client.get("/q/messages", headers=BROWSER).status_code == 403
        assert client.get("/q/messages").content == b"x"
