"""Requests that come by reverse proxies: whose they are, and under which path, scheme and host they were made."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mq.access import UserDirectory
from mq.doors.connections import Crowd
from mq.doors.logins import Logins
from mq.web.authorizer import Authorizer
from mq.web.endpoints import Endpoints
from mq.web.exchange import Handler, Reply, Request, RequestHead, empty
from mq.web.fast_http1 import Heads
from mq.web.front import BrowserGuard
from mq.web.proxies import BasePath, BasePathGuard, ProxyGuard, TrustedProxies
from tests.access.files import PASSWORD, write_users
from tests.cases import for_each
from tests.web.talking import ask, detail

PROXY = "10.0.0.7"


class Seen(Handler):
    """Keeps the last request."""

    def __init__(self) -> None:
        self.request: Request | None = None

    async def handle(self, request: Request) -> Reply:
        self.request = request
        return empty(200)


async def client_of(
    headers: dict[str, str], peer: str = PROXY, networks: tuple[str, ...] = ("10.0.0.0/8",)
) -> tuple[str, str, str]:
    """The address, the scheme and the host of the client, as the handlers behind the guard see them."""
    seen = Seen()
    guard = ProxyGuard(seen, TrustedProxies(networks), Crowd())
    reply = await ask(guard, "GET", "/q", headers={"host": "mq:8080", **headers}, address=peer)
    assert reply.status == 200, detail(reply)
    assert seen.request is not None
    return seen.request.address, seen.request.scheme, seen.request.headers["host"]


@for_each(
    "headers, wanted",
    [
        ({}, (PROXY, "http", "mq:8080")),
        ({"x-forwarded-for": "192.0.2.1"}, ("192.0.2.1", "http", "mq:8080")),
        ({"x-forwarded-for": "192.0.2.1:4711"}, ("192.0.2.1", "http", "mq:8080")),
        ({"x-forwarded-for": "[2001:db8::1]:4711"}, ("2001:db8::1", "http", "mq:8080")),
        ({"x-forwarded-for": "2001:db8::1"}, ("2001:db8::1", "http", "mq:8080")),
        ({"x-forwarded-for": "198.51.100.9, 192.0.2.1"}, ("192.0.2.1", "http", "mq:8080")),
        ({"x-forwarded-for": "198.51.100.9, 192.0.2.1, 10.0.0.8"}, ("192.0.2.1", "http", "mq:8080")),
        ({"x-forwarded-for": "10.0.0.9, 10.0.0.8"}, ("10.0.0.9", "http", "mq:8080")),
        ({"x-forwarded-for": "192.0.2.1, unknown"}, (PROXY, "http", "mq:8080")),
        ({"x-forwarded-for": "evil\nname"}, (PROXY, "http", "mq:8080")),
        ({"x-forwarded-for": "uid:0"}, (PROXY, "http", "mq:8080")),
        ({"x-forwarded-for": ""}, (PROXY, "http", "mq:8080")),
        ({"x-forwarded-proto": "https"}, (PROXY, "https", "mq:8080")),
        ({"x-forwarded-proto": "HTTPS"}, (PROXY, "https", "mq:8080")),
        ({"x-forwarded-proto": "gopher"}, (PROXY, "http", "mq:8080")),
        ({"x-forwarded-proto": "https, http"}, (PROXY, "http", "mq:8080")),
        (
            {"x-forwarded-for": "192.0.2.1, 10.0.0.8", "x-forwarded-proto": "https, http"},
            ("192.0.2.1", "https", "mq:8080"),
        ),
        ({"x-forwarded-for": "192.0.2.1, 10.0.0.8", "x-forwarded-proto": "https"}, ("192.0.2.1", "https", "mq:8080")),
        ({"x-forwarded-host": "mq.example:8443"}, (PROXY, "http", "mq.example:8443")),
        ({"x-forwarded-host": "mq.example", "x-forwarded-port": "8443"}, (PROXY, "http", "mq.example:8443")),
        (
            {"x-forwarded-host": "mq.example", "x-forwarded-port": "443", "x-forwarded-proto": "https"},
            (PROXY, "https", "mq.example"),
        ),
        ({"x-forwarded-host": "[2001:db8::1]", "x-forwarded-port": "81"}, (PROXY, "http", "[2001:db8::1]:81")),
        ({"x-forwarded-host": "mq.example:1", "x-forwarded-port": "8443"}, (PROXY, "http", "mq.example:1")),
        ({"x-forwarded-host": "a b"}, (PROXY, "http", "mq:8080")),
        ({"forwarded": "for=192.0.2.1"}, ("192.0.2.1", "http", "mq:8080")),
        ({"forwarded": 'For="[2001:db8::1]:4711"'}, ("2001:db8::1", "http", "mq:8080")),
        (
            {"forwarded": 'for=192.0.2.1;proto=https;host="mq.example:8443";by=10.0.0.7'},
            ("192.0.2.1", "https", "mq.example:8443"),
        ),
        (
            {"forwarded": "for=192.0.2.1;proto=https;host=mq.example, for=10.0.0.8;proto=http;host=inner"},
            ("192.0.2.1", "https", "mq.example"),
        ),
        ({"forwarded": "for=198.51.100.9, for=192.0.2.1;proto=https"}, ("192.0.2.1", "https", "mq:8080")),
        ({"forwarded": "for=_hidden;proto=https"}, (PROXY, "https", "mq:8080")),
        ({"forwarded": "proto=https"}, (PROXY, "https", "mq:8080")),
        ({"forwarded": r'for="\192.0.2.1" ; proto=https'}, ("192.0.2.1", "https", "mq:8080")),
        ({"forwarded": "for=192.0.2.1", "x-forwarded-for": "192.0.2.1"}, ("192.0.2.1", "http", "mq:8080")),
    ],
)
async def test_a_trusted_proxy_reports_the_client(headers: dict[str, str], wanted: tuple[str, str, str]) -> None:
    assert await client_of(headers) == wanted


@pytest.mark.parametrize(
    ("peer", "networks"),
    [
        ("192.0.2.66", ("10.0.0.0/8",)),
        (PROXY, ()),
        (PROXY, ("10.0.0.8",)),
        ("", ("10.0.0.0/8",)),
        ("uid:1000", ("10.0.0.0/8",)),
        ("fd00::1", ("10.0.0.0/8",)),
    ],
)
async def test_reports_of_anybody_else_are_ignored(peer: str, networks: tuple[str, ...]) -> None:
    headers = {
        "x-forwarded-for": "192.0.2.1",
        "x-forwarded-proto": "https",
        "x-forwarded-host": "evil.test",
        "forwarded": "for=192.0.2.1;proto=https;host=evil.test",
    }
    assert await client_of(headers, peer, networks) == (peer, "http", "mq:8080")


@pytest.mark.parametrize(
    ("peer", "networks"),
    [
        ("::ffff:10.0.0.7", ("10.0.0.0/8",)),
        ("10.0.0.7", ("10.0.0.7",)),
        ("10.0.0.7", ("10.0.0.1/8",)),
        ("fd00::7", ("fd00::/8",)),
        ("uid:1000", ("unix",)),
    ],
)
async def test_networks_may_be_of_both_versions_or_the_socket(peer: str, networks: tuple[str, ...]) -> None:
    assert (await client_of({"x-forwarded-for": "192.0.2.1"}, peer, networks))[0] == "192.0.2.1"


@pytest.mark.parametrize(
    "headers",
    [
        {"forwarded": "for=198.51.100.9", "x-forwarded-for": "192.0.2.1"},
        {"forwarded": "for=192.0.2.1", "x-forwarded-for": "192.0.2.1, 198.51.100.9"},
        {"forwarded": "for"},
        {"forwarded": ""},
        {"forwarded": 'for="192.0.2.1'},
        {"forwarded": "for=192.0.2.1;"},
        {"forwarded": "for=[2001:db8::1]"},
    ],
    ids=str,
)
async def test_reports_that_contradict_each_other_are_refused(headers: dict[str, str]) -> None:
    """A proxy that adds one header passes on what the client sent as the other."""
    guard = ProxyGuard(Seen(), TrustedProxies(["10.0.0.0/8"]), Crowd())
    reply = await ask(guard, "GET", "/q", headers=headers, address=PROXY)
    assert reply.status == 400
    assert "Forwarded" in detail(reply)


async def test_a_request_without_reports_passes_the_guard_by() -> None:
    seen = Seen()
    guard = ProxyGuard(seen, TrustedProxies(["10.0.0.0/8"]), Crowd())
    assert guard.for_head(RequestHead("GET", b"/q", b"", {"host": "mq"})) is seen
    assert guard.for_head(RequestHead("GET", b"/q", b"", {"x-forwarded-proto": "https"})) is guard


async def test_requests_of_one_client_are_limited_and_connections_of_a_proxy_are_not() -> None:
    proxies = TrustedProxies(["10.0.0.0/8"])
    crowd = Crowd(1, is_proxy=proxies.trusts)
    with crowd.room(PROXY, 7) as first, crowd.room(PROXY, 8) as second:
        assert first
        assert second

    class Slow(Handler):
        async def handle(self, request: Request) -> Reply:
            statuses = [
                (await ask(guard, "GET", "/q", headers={"x-forwarded-for": each}, address=PROXY)).status
                for each in ("192.0.2.1", "192.0.2.2")
                if request.path == b"/slow"
            ]
            found.extend(statuses)
            return empty(200)

    found: list[int] = []
    guard = ProxyGuard(Slow(), proxies, crowd)
    headers = {"x-forwarded-for": "192.0.2.1"}
    assert (await ask(guard, "GET", "/slow", headers=headers, address=PROXY)).status == 200
    assert found == [503, 200]
    assert (await ask(guard, "GET", "/q", headers=headers, address=PROXY)).status == 200


# Guards behind


def guarded(hosts: tuple[str, ...] = ("mq.example",)) -> Handler:
    guard = BrowserGuard(Seen(), "127.0.0.1", hosts)
    return ProxyGuard(guard, TrustedProxies(["127.0.0.1"]), Crowd())


PAGE = {"origin": "https://mq.example:8443", "x-forwarded-proto": "https", "x-forwarded-for": "192.0.2.1"}


@for_each(
    "headers, status",
    [
        ({"host": "mq.example"}, 200),  # nginx's $host, which has no port
        ({"host": "mq.example:8443"}, 200),
        ({"host": "127.0.0.1:8080", "x-forwarded-host": "mq.example:8443"}, 200),
        ({"host": "127.0.0.1:8080", "x-forwarded-host": "mq.example", "x-forwarded-port": "8443"}, 200),
        ({"host": "127.0.0.1:8080", "x-forwarded-host": "mq.example:8443", "origin": "https://mq.example"}, 403),
        ({"host": "127.0.0.1:8080", "x-forwarded-host": "mq.example:443", "origin": "https://mq.example"}, 200),
        ({"host": "127.0.0.1:8080"}, 403),
        ({"host": "mq.example", "origin": "https://evil.test:8443"}, 403),
        ({"host": "mq.example:8080"}, 403),
        ({"host": "mq.example", "x-forwarded-host": "evil.test", "origin": "https://evil.test"}, 421),
        ({"host": "evil.test", "x-forwarded-host": "mq.example:8443"}, 421),
        ({"host": "mq.example", "sec-fetch-site": "cross-site"}, 403),
    ],
)
async def test_an_origin_is_compared_with_the_host_that_the_browser_used(headers: dict[str, str], status: int) -> None:
    reply = await ask(guarded(), "POST", "/q/messages", headers={**PAGE, **headers}, address="127.0.0.1")
    assert reply.status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "same-origin"}, 200),  # the browser has compared them itself
        ({}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin", "origin": "https://evil.test:8443"}, 403),
    ],
    ids=str,
)
async def test_without_trust_a_port_may_be_missing_if_the_browser_says_same_origin(
    headers: dict[str, str], status: int
) -> None:
    guard = BrowserGuard(Seen(), "127.0.0.1", ["mq.example"])
    headers = {"host": "mq.example", "origin": "https://mq.example:8443", **headers}
    assert (await ask(guard, "POST", "/q/messages", headers=headers)).status == status


@pytest.mark.parametrize("dest", ["script", "style", "worker", "serviceworker"])
async def test_a_published_body_is_no_part_of_a_page(dest: str) -> None:
    guard = BrowserGuard(Seen(), "127.0.0.1")
    headers = {"host": "127.0.0.1", "sec-fetch-site": "same-origin", "sec-fetch-dest": dest}
    assert (await ask(guard, "GET", "/q/messages/7", headers=headers)).status == 403
    assert (await ask(guard, "GET", "/-/page/7/page.js", headers=headers)).status == 200
    assert (await ask(guard, "GET", "/q/messages/7", headers={**headers, "sec-fetch-dest": "document"})).status == 200


@pytest.fixture
def gate(endpoints: Endpoints, tmp_path: Any) -> Authorizer:
    path = write_users(tmp_path / "users.toml", '[users.anna]\npassword = "PASSWORD"\nconsume = ["q"]\n')
    return Authorizer(endpoints, Logins(UserDirectory(path)), "/mq")


async def test_the_cookie_is_for_the_path_and_the_port_of_the_proxy_and_for_tls_alone(gate: Authorizer) -> None:
    guard = ProxyGuard(gate, TrustedProxies(["10.0.0.7"]), Crowd())
    given = json.dumps({"name": "anna", "secret": PASSWORD}).encode()
    headers = {"host": "mq", "x-forwarded-host": "mq.example:8443", "x-forwarded-proto": "https"}
    reply = await ask(guard, "POST", "/-/session", given, headers=headers, address=PROXY)
    name, *guards = dict(reply.headers)["set-cookie"].split("; ")
    assert name.startswith("mq-session-8443=")
    assert {"Secure", "HttpOnly", "SameSite=Strict", "Path=/mq"} <= set(guards)


async def test_audit_and_guessing_know_the_client(gate: Authorizer, caplog: pytest.LogCaptureFixture) -> None:
    """A guesser behind a proxy delays no other client of it."""
    caplog.set_level("INFO", "mq.audit")
    guard = ProxyGuard(gate, TrustedProxies(["10.0.0.7"]), Crowd())

    async def log_in(client: str, secret: str) -> int:
        given = json.dumps({"name": "anna", "secret": secret}).encode()
        headers = {"x-forwarded-for": client}
        return (await ask(guard, "POST", "/-/session", given, headers=headers, address=PROXY)).status

    assert await log_in("192.0.2.1", "wrong horse") == 401
    assert await log_in("192.0.2.1", PASSWORD) == 503
    assert await log_in("192.0.2.2", PASSWORD) == 200
    assert 'address="192.0.2.1" user="anna" why="unknown"' in caplog.text
    assert f'address="{PROXY}"' not in caplog.text


# The path


@for_each(
    "base, path, wanted",
    [
        ("/mq", b"/mq/q", b"/q"),
        ("/mq", b"/mq/", b"/"),
        ("/mq", b"/mq/mq/messages", b"/mq/messages"),
        ("/mq", b"/q", b"/q"),
        ("/mq", b"/mqs/q", b"/mqs/q"),
        ("/mq", b"/mq", b""),
        ("/tools/mq", b"/tools/mq/q", b"/q"),
        ("/tools/mq", b"/tools/q", b"/tools/q"),
        ("", b"/mq/q", b"/mq/q"),
    ],
)
def test_the_base_path_is_taken_away_once(base: str, path: bytes, wanted: bytes) -> None:
    assert BasePath(base).strip("GET", path) == wanted


def test_a_post_to_the_base_path_is_one_to_the_root() -> None:
    """An SDK of SQS whose endpoint is the base path asks there."""
    assert BasePath("/mq").strip("POST", b"/mq") == b"/"


@pytest.mark.parametrize(("target", "location"), [("/tools/mq", "mq/"), ("/tools/mq?a=b", "mq/?a=b")])
async def test_the_base_path_leads_to_the_page_below_it(target: str, location: str) -> None:
    heads = Heads(BasePathGuard(Seen(), "/tools/mq"), BasePath("/tools/mq"))
    found = heads.find(f"GET {target} HTTP/1.1\r\nHost: mq\r\n\r\n".encode())
    assert found is not None
    head, handler = found
    reply = await handler.handle(Request(*head[:4], b"", None))
    assert reply.status == 308
    assert ("location", location) in reply.headers


async def test_heads_of_messages_are_remembered_below_a_base_path(endpoints: Endpoints) -> None:
    heads = Heads(endpoints, BasePath("/tools/mq"))
    ids = [f"4ad814ab-213e-11e3-a9a3-00259{number:07x}" for number in range(3)]
    for id in ids:
        found = heads.find(f"DELETE /tools/mq/q/messages/{id} HTTP/1.1\r\nHost: mq\r\n\r\n".encode())
        assert found is not None
        assert found[0].path == f"/q/messages/{id}".encode()
    assert heads._recall.cache_info().misses == 1
