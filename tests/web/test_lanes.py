"""The fast lane and Hypercorn answer alike: the same bytes, but for ids, receipts and the time."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.access import UserDirectory
from mq.access.certificates import Certificates
from mq.web.endpoints import OPERATIONS, ROUTES, Router
from mq.web.exchange import Handler, Reply, Request
from mq.web.fast_http1 import LARGEST_HEAD
from mq.web.operations import Operation
from mq.web.page_files import FOLDER, page_files
from mq.web.refusals import MOST_LINES
from mq.web.request_body import IN_MEMORY_BYTES
from mq.web.serve import PROTOCOLS
from tests.access.files import TOKEN, write_users
from tests.web.lanes import (
    LAST_CONNECTION,
    LAST_EPOCH,
    LAST_ID,
    LAST_RECEIPT,
    Worlds,
    ended_alike,
    make_worlds,
    receive_response,
    said_alike,
    statuses,
    talk,
)
from tests.web.talking import BAD_NAMES, MAX_BODY, http1, read_all
from tests.web.test_tls import Authority, connect

METHODS: Final = ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE")
JSON_LINES: Final = "Content-Type: application/jsonl"
LARGE: Final = bytes(range(256)) * (IN_MEMORY_BYTES // 128)  # twice what is held in memory


@pytest.fixture
async def worlds(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worlds]:
    async with AsyncExitStack() as stack:
        yield await make_worlds(stack, nursery, monkeypatch)


def json_lines(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


USUAL: Final = [
    (200, http1("GET", "/-/live")),
    (200, http1("HEAD", "/-/live")),
    (200, http1("GET", "/-/ready")),
    (200, http1("GET", "/-/openapi.json")),
    (201, http1("PUT", "/dead")),
    (200, http1("PUT", "/dead", b"a body that means nothing")),
    (200, http1("PATCH", "/q", b'{"max_receives": 3, "dead_letter_queue": "dead"}')),
    (400, http1("PATCH", "/q", b'{"nonsense": 3}')),
    (400, http1("PATCH", "/q", b"not JSON")),
    (200, http1("GET", "/q")),
    (200, http1("HEAD", "/q")),
    (204, http1("GET", "/q/messages")),
    (204, http1("GET", "/q/messages?wait=0.01")),
    (201, http1("POST", "/q/messages", b"hello", "Content-Type: a/b", "X-Message-Attribute-Color: caf\xe9")),
    (200, http1("GET", f"/q/messages/{LAST_ID}")),
    (200, http1("HEAD", f"/q/messages/{LAST_ID}")),
    (200, http1("GET", "/q/messages?visibility=30")),
    (200, http1("PATCH", f"/q/messages/{LAST_ID}", b'{"visibility": 60}', f'If-Match: "{LAST_RECEIPT}"')),
    (412, http1("DELETE", f"/q/messages/{LAST_ID}", None, 'If-Match: "0"')),
    (400, http1("DELETE", f"/q/messages/{LAST_ID}", None, f"If-Match: {LAST_RECEIPT}")),
    (202, http1("DELETE", f"/q/messages/{LAST_ID}", None, f'If-Match: "{LAST_RECEIPT}"')),
    (404, http1("DELETE", f"/q/messages/{LAST_ID}")),
    (404, http1("DELETE", "/q/messages/nonsense")),
    (201, http1("POST", "/q/messages", b"", "Idempotency-Key: k")),
    (200, http1("POST", "/q/messages", b"", "Idempotency-Key: k")),
    (200, http1("POST", "/q/take?wait=1")),
    (201, http1("POST", "/q/messages", LARGE)),
    (200, http1("GET", "/q/messages")),
    (202, http1("DELETE", f"/q/messages/{LAST_ID}")),
    (413, http1("POST", "/q/messages/batch", bytes(MAX_BODY + 1), JSON_LINES)),
]
"""Requests of which the last one ends the connection."""

MORE: Final = [
    (200, http1("POST", "/q/messages/batch", json_lines('{"body": "a"}', '{"nonsense": 1}', '{"body": "b"}'))),
    (400, http1("POST", "/q/messages/batch", b"x", "Content-Type: a/b")),
    (400, http1("POST", "/q/messages", b"x", "X-Message-Dealy: 5")),
    (400, http1("POST", "/q/messages/batch", json_lines('{"body": "a"}'), "X-Message-Delay: 5")),
    (200, http1("GET", "/q/peek?state=ready&max=1")),
    (400, http1("GET", "/q/peek?state=nonsense")),
    (200, http1("GET", "/q/messages?max=10")),
    (200, http1("POST", "/q/messages/delete", json_lines(f'{{"id": "{LAST_ID}"}}', '{"id": "x"}'))),
    (201, http1("PUT", "/u")),
    (200, http1("PATCH", "/u", b'{"unique": true}')),
    (201, http1("POST", "/u/messages", b"once")),
    (200, http1("POST", "/u/messages", b"once")),
    (200, http1("POST", "/u/contains", b"once")),
    (409, http1("POST", "/q/contains", b"once")),
    (200, http1("POST", "/u/purge")),
    (200, http1("POST", "/q/redrive", b'{"to": "u"}')),
    (200, http1("GET", "/-/queues")),
    (200, http1("GET", "/-/stats")),
    (200, http1("GET", "/-/rates?sort=publish&max=1")),
    (200, http1("GET", "/q/rates")),
    (200, http1("GET", "/-/metrics")),
    (400, http1("PUT", "/-/schedules/s", b'{"queue": "u"}')),
    (201, http1("PUT", "/-/schedules/s", b'{"queue": "u", "cron": "0 0 29 2 *", "message": {"body": "x"}}')),
    (200, http1("GET", "/-/schedules/s")),
    (200, http1("GET", "/-/schedules?max=5&after=r")),
    (200, http1("DELETE", "/-/schedules/s")),
    (404, http1("DELETE", "/-/schedules/s")),
    (200, http1("GET", "/-/cluster")),
    (200, http1("GET", "/-/logging")),
    (200, http1("PATCH", "/-/logging", b"{}")),
    (400, http1("PATCH", "/-/logging", b'{"level": "loud"}')),
    (200, http1("GET", "/-/clock")),
    (200, http1("PATCH", "/-/clock", b'{"trusted": true}')),
    (400, http1("PATCH", "/-/clock", b'{"trusted": "yes"}')),
    (400, http1("GET", "/q/messages?max=0")),
    (400, http1("GET", "/q/messages?nonsense=1")),
    (400, http1("GET", "/q/messages?max=1&max=1")),
    (404, http1("GET", "/nowhere/messages")),
    (404, http1("POST", "/nowhere/messages", b"x")),
    (404, http1("GET", "/a/b/c/d")),
    (200, http1("GET", "/")),
    (200, http1("GET", "/", None, "Accept-Encoding: gzip")),
    (200, http1("GET", f"{FOLDER}{page_files().version}/page.js")),
    (404, http1("GET", f"{FOLDER}0/page.js")),
    (200, http1("GET", "/-/events")),
    (200, http1("GET", "/-/events?view=queue&queue=q")),
    (400, http1("GET", "/-/events?view=queue")),
    (404, http1("GET", "/-/events?view=queue&queue=nowhere")),
    (201, http1("POST", "/q/messages", b"once")),
    (200, http1("GET", "/q/preview")),
    (202, http1("DELETE", f"/q/messages/{LAST_ID}")),
    (200, http1("GET", "/-/dead-letters")),
    (200, http1("GET", "/-/exchanges")),
    (201, http1("POST", "/-/exchanges/x/messages?routing_key=k", b"hello")),
    (200, http1("POST", "/-/exchanges/x/messages", b"hello")),
    (200, http1("POST", "/-/exchanges/x/messages/batch?vhost=/", json_lines('{"body": "a"}', '{"nonsense": 1}'))),
    (404, http1("POST", "/-/exchanges/y/messages", b"hello")),
    (200, http1("GET", "/-/session")),
    (400, http1("POST", "/-/session", b"{}")),
    (200, http1("POST", "/-/session", b'{"name": "a", "secret": "b"}')),
    (200, http1("DELETE", "/-/session")),
    (404, http1("GET", "//q")),
    (404, http1("GET", "/q/")),
    (200, http1("GET", "/%71")),
    (200, http1("DELETE", "/u")),
    (404, http1("DELETE", "/u")),
]


CLAIMS: Final = [
    *[(201, http1("POST", "/q/messages", b"hello"))] * 3,
    (200, http1("GET", "/q/browse")),
    (200, http1("GET", "/q/ranges?parts=2")),
    (200, http1("GET", "/q/consumers")),
    (200, http1("GET", "/q/consumers/c")),
    (200, http1("GET", "/-/consumers/c?queues=q,nowhere")),
    (200, http1("POST", "/q/consumers/c")),
    (201, http1("PUT", f"/q/consumers/c/claim?batch=1&epoch={LAST_EPOCH}&max=3")),
    (200, http1("GET", f"/q/consumers/c/claim?batch=1&epoch={LAST_EPOCH}&max=1")),
    (200, http1("POST", f"/q/consumers/c/claim?batch=1&epoch={LAST_EPOCH}&from=0&to=3&expected=3")),
    (202, http1("DELETE", f"/q/consumers/c/claim?batch=1&epoch={LAST_EPOCH}")),
    (204, http1("PUT", f"/q/consumers/c/claim?batch=2&epoch={LAST_EPOCH}")),
    (409, http1("PUT", f"/q/consumers/c/claim?batch=7&epoch={LAST_EPOCH}")),
    (200, http1("DELETE", "/q/consumers/c")),
]

WRITES: Final = [
    (200, http1("POST", "/q/writes/job?part=0&number=0", json_lines('{"body": "a"}', '{"nonsense": 1}'))),
    (400, http1("POST", "/q/writes/job?part=0", json_lines('{"body": "a"}'))),
    (404, http1("POST", "/nowhere/writes/job?part=0&number=0", json_lines('{"body": "a"}'))),
    (200, http1("GET", "/q/writes")),
    (400, http1("PUT", "/q/writes/job", b"{}")),
    (200, http1("PUT", "/q/writes/job", b'{"parts": ["0"], "rows": 1}')),
    (200, http1("GET", "/q/messages")),
    (200, http1("DELETE", "/q/writes/job")),
]

SEEING: Final = [
    (200, http1("GET", "/-/consumers")),
    (400, http1("GET", "/-/connections?after=7")),
    (404, http1("DELETE", "/-/connections/000000-1")),
    (200, http1("GET", "/-/connections?max=1")),
    (200, http1("GET", "/-/batch-consumers")),
    (200, http1("DELETE", f"/-/connections/{LAST_CONNECTION}")),
]
"""The last one ends the connection over which it is asked."""

CLUSTER: Final = [
    (409, http1("POST", "/-/cluster/drain")),
    (409, http1("DELETE", "/-/cluster/drain")),
    (409, http1("POST", "/-/cluster/replace", b'{"node": "c", "address": "127.0.0.1:1"}')),
    (409, http1("GET", "/-/users")),
    (409, http1("PUT", "/-/users/shop", b'{"publish": ["orders.*"]}')),
    (409, http1("DELETE", "/-/users/shop")),
]
"""What a daemon in no cluster refuses."""

PLAIN: Final = {"usual": USUAL, "more": MORE, "claims": CLAIMS, "writes": WRITES, "seeing": SEEING, "cluster": CLUSTER}


@pytest.mark.parametrize("script", PLAIN.values(), ids=PLAIN)
async def test_what_clients_ask_for(worlds: Worlds, script: list[tuple[int, bytes]]) -> None:
    answers = await said_alike(worlds, [request for _, request in script])
    for answer, (status, request) in zip(answers, script, strict=True):
        assert statuses([answer]) == [status], (request, answer)


def test_every_operation_is_asked_for() -> None:
    asked = {operation.line for operation in OPERATIONS if any(fits(operation, request) for request in all_requests())}
    assert asked == {operation.line for operation in OPERATIONS}


def all_requests() -> list[bytes]:
    return [request for script in PLAIN.values() for status, request in script if status < 300 or script is CLUSTER]


def fits(operation: Operation, request: bytes) -> bool:
    method, target = request.split(b" ")[:2]
    segments = target.partition(b"?")[0].decode()[1:].split("/")
    route, _ = Router(ROUTES).find(segments)
    return method.decode() == operation.method and route.path == operation.segments


async def test_every_method_on_every_path(worlds: Worlds) -> None:
    paths = ["/" + "/".join(segment or "q" for segment in route.path) for route in ROUTES]
    answers = await said_alike(worlds, [http1(method, path) for path in paths for method in METHODS])
    assert {200, 404, 405} <= set(statuses(answers))


async def test_bad_names(worlds: Worlds) -> None:
    asked = [http1(*what) for name in BAD_NAMES for what in (("PUT", f"/{name}"), ("GET", f"/{name}/messages"))]
    assert set(statuses(await said_alike(worlds, asked))) == {400}


@pytest.mark.parametrize("authorization", [(), (f"Authorization: Bearer {TOKEN}",), ("Authorization: Bearer nobody",)])
async def test_behind_the_gate(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, authorization: tuple[str, ...]
) -> None:
    users = '[users.alice]\ntokens = ["TOKEN"]\npublish = ["q"]\n'
    access = UserDirectory(write_users(tmp_path / "users.toml", users))
    asked = [
        http1("POST", "/q/messages", b"x", *authorization),
        http1("GET", "/q/messages", None, *authorization),
        http1("HEAD", "/q", None, *authorization),
        http1("GET", "/-/live", None, *authorization),
        http1("PATCH", "/q", b"{}", *authorization),
    ]
    async with AsyncExitStack() as stack:
        answers = await said_alike(await make_worlds(stack, nursery, monkeypatch, access=access), asked)
    knows_her = [201, 403, 200, 200, 403]
    assert statuses(answers) == (knows_her if TOKEN in "".join(authorization) else [401, 401, 401, 200, 401])


async def test_under_tls(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    asked = [request for _, request in USUAL]
    async with AsyncExitStack() as stack:
        certificates = Certificates(authority.files, PROTOCOLS)
        worlds = await make_worlds(stack, nursery, monkeypatch, certificates=certificates)
        answers = []
        for world in worlds:
            async with await connect(world.server, authority.client_context("http/1.1")) as stream:
                answers.append(await talk(world, stream, asked))
    assert answers[0] == answers[1]
    assert [world.handed_on for world in worlds] == [0, 1]


# What begins and what ends


@pytest.mark.parametrize(
    "lines",
    [("Connection: close",), ("connection: Close",), ("Connection: keep-alive",), ("Content-Length: 0",)],
)
async def test_who_closes(worlds: Worlds, lines: tuple[str, ...]) -> None:
    closes = "close" in lines[0].lower()
    answer = await ended_alike(worlds, http1("PUT", "/q", None, *lines), half_close=not closes)
    assert statuses([answer]) == [200]
    assert (b"\r\nConnection: close\r\n" in answer) == closes


async def test_nothing_is_served_after_the_last_request(worlds: Worlds) -> None:
    """Nor does it spoil that one's answer: see test_sequences."""
    asked = http1("GET", "/-/live", None, "Connection: close") + http1("PUT", "/r")
    assert statuses([await ended_alike(worlds, asked, half_close=False)]) == [200]
    for world in worlds:
        assert statuses([await world.server.exchange(http1("GET", "/r"), half_close=True)]) == [404]


async def test_pipelined_requests_are_answered_in_order(worlds: Worlds) -> None:
    asked = [http1("POST", "/q/messages", b"%d" % number) for number in range(50)]
    asked += [http1("GET", "/q/messages") for _ in range(50)]
    answer = await ended_alike(worlds, b"".join(asked))
    assert statuses([answer]) == [201] * 50 + [200] * 50
    bodies = re.findall(rb"\r\n\r\n(\d+)HTTP|\r\n\r\n(\d+)\Z", answer)
    assert [int(one or other) for one, other in bodies] == list(range(50))


@pytest.mark.parametrize("piece", [1, 7, 100])
async def test_requests_in_pieces(worlds: Worlds, piece: int) -> None:
    asked = http1("POST", "/q/messages", b"hello") + http1("GET", "/q/messages") + http1("GET", "/q")
    answers = []
    for world in worlds:
        async with await world.server.connect() as stream:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for start in range(0, len(asked), piece):
                await stream.send_all(asked[start : start + piece])
                await trio.lowlevel.checkpoint()
            await stream.send_eof()
            answers.append(world.masked(await read_all(stream)))
    assert answers[0] == answers[1]
    assert statuses(answers[:1]) == [201, 200, 200]
    assert [world.handed_on for world in worlds] == [0, 1]


async def test_a_message_that_is_streamed_both_ways(worlds: Worlds) -> None:
    asked = [http1("POST", "/q/messages", LARGE), http1("GET", "/q/messages"), http1("GET", "/q")]
    answers = await said_alike(worlds, asked)
    assert answers[1].endswith(b"\r\n\r\n" + LARGE)  # nothing in it looks like a date or an id


@pytest.mark.parametrize("sent", [0, 10, len(LARGE)])
async def test_a_body_cut_short(worlds: Worlds, sent: int) -> None:
    head = http1("POST", "/q/messages", None, f"Content-Length: {sent + 1}")
    assert statuses([await ended_alike(worlds, head + bytes(sent))]) == [400]


async def test_a_body_that_nobody_wanted_is_taken_all_the_same(worlds: Worlds) -> None:
    asked = [http1("PUT", "/r", LARGE * 4), http1("POST", "/%00/messages", LARGE * 4), http1("GET", "/-/live")]
    assert statuses(await said_alike(worlds, asked)) == [201, 400, 200]


@pytest.mark.slow
async def test_a_client_that_says_everything_before_it_listens(worlds: Worlds) -> None:
    """The answer and the rest of the request meet: both must go on."""
    message = bytes(MAX_BODY)
    publish = http1("POST", "/q/messages", message)
    fetch = http1("GET", "/q/messages", bytes(64 * MAX_BODY))
    with trio.fail_after(30):
        answer = await ended_alike(worlds, publish + fetch)
    assert statuses([answer]) == [201, 200]
    assert answer.endswith(message)


@pytest.mark.parametrize("digits", [12, 20])
async def test_a_length_without_end(worlds: Worlds, monkeypatch: pytest.MonkeyPatch, digits: int) -> None:
    for module in ("app", "fast_http1"):
        monkeypatch.setattr(f"mq.web.{module}.DISCARD_SECONDS", 0.1)
    asked = http1("POST", "/q/messages", None, f"Content-Length: {'9' * digits}")
    assert statuses([await ended_alike(worlds, asked, handed_on=int(digits == 20), half_close=False)]) == [413]


# What the fast lane leaves to others

ODD: Final = {
    "an old version": b"GET /q HTTP/1.0\r\nHost: mq\r\n\r\n",
    "a newer one": b"GET /q HTTP/1.2\r\nHost: mq\r\n\r\n",
    "an absolute target": b"GET http://mq/q HTTP/1.1\r\nHost: mq\r\n\r\n",
    "no target": b"OPTIONS * HTTP/1.1\r\nHost: mq\r\n\r\n",
    "another method": http1("BREW", "/q"),
    "a tunnel": b"CONNECT mq:80 HTTP/1.1\r\nHost: mq\r\n\r\n",
    "no host": b"GET /q HTTP/1.1\r\n\r\n",
    "two hosts": http1("GET", "/q", None, "Host: other"),
    "a header twice": http1("GET", "/q", None, "X: 1", "X: 2"),
    "two lengths": http1("POST", "/q/messages", b"abc", "Content-Length: 3"),
    "no length": http1("POST", "/q/messages", None, "Content-Length: x"),
    "a signed length": http1("POST", "/q/messages", None, "Content-Length: +3"),
    "chunks": http1("POST", "/q/messages", None, "Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n",
    "chunks without end": http1("POST", "/q/messages", None, "Transfer-Encoding: chunked") + b"3\r\nabc\r\n",
    "a length and chunks": http1("POST", "/q/messages", b"0\r\n\r\n", "Transfer-Encoding: chunked"),
    "another coding": http1("POST", "/q/messages", None, "Transfer-Encoding: gzip"),
    "an expectation": http1("POST", "/q/messages", b"abc", "Expect: 100-continue"),
    "another expectation": http1("GET", "/q", None, "Expect: nothing"),
    "options of the connection": http1("GET", "/q", None, "Connection: TE, close"),
    "an upgrade": http1("GET", "/q", None, "Upgrade: websocket", "Connection: Upgrade"),
    "a bare LF": b"GET /q HTTP/1.1\nHost: mq\r\n\r\n",
    "a folded line": http1("GET", "/q", None, "X: y\r\n\tz"),
    "a space before a colon": http1("GET", "/q", None, "X : y"),
    "no name": http1("GET", "/q", None, ": y"),
    "a control character": http1("GET", "/q", None, "X: \x01"),
    "a zero": http1("GET", "/q", None, "X: \x00"),
    "an accent": http1("GET", "/caf\xe9"),
    "two spaces": b"GET  /q HTTP/1.1\r\nHost: mq\r\n\r\n",
    "nonsense": b"nonsense\r\n\r\n",
    "half a head": b"GET /q HTTP/1.1\r\nHost: mq\r\n",
    "a long head": http1("GET", "/q", None, "X: " + "x" * 70_000),
    "a long target": http1("GET", "/" + "q" * 70_000),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("asked", ODD.values(), ids=ODD)
@pytest.mark.parametrize("before", [b"", http1("GET", "/-/live")], ids=["first", "second"])
async def test_odd_requests(worlds: Worlds, before: bytes, asked: bytes) -> None:
    answer = await ended_alike(worlds, before + asked, handed_on=1)
    assert statuses([answer]) or b"\0" in answer  # the frames of HTTP/2


EARLY: Final = {
    "no byte": http1("POST", "/q/messages", None, "Content-Length: 5"),
    "some bytes": http1("POST", "/q/messages", None, "Content-Length: 5") + b"abc",
    "of a batch": http1("POST", "/q/messages/batch", None, "Content-Length: 90") + b'{"body": "x"}\n',
    "of a setting": http1("PATCH", "/q", None, "Content-Length: 90") + b'{"delay": ',
    "of a long body": http1("POST", "/q/messages", None, "Content-Length: 300000") + b"x" * 200_000,
}
IN_CHUNKS: Final = {
    "no chunk": http1("POST", "/q/messages", None, "Transfer-Encoding: chunked"),
    "half a chunk": http1("POST", "/q/messages", None, "Transfer-Encoding: chunked") + b"5\r\nabc",
    "no last chunk": http1("POST", "/q/messages", None, "Transfer-Encoding: chunked") + b"3\r\nabc\r\n",
}


@pytest.mark.parametrize("asked", (EARLY | IN_CHUNKS).values(), ids=EARLY | IN_CHUNKS)
@pytest.mark.parametrize("before", [b"", http1("GET", "/-/live")], ids=["first", "second"])
async def test_a_body_that_ends_early_is_400_and_says_so(worlds: Worlds, before: bytes, asked: bytes) -> None:
    answer = await ended_alike(worlds, before + asked, handed_on=int(b"chunked" in asked))
    assert statuses([answer])[-1] == 400
    assert b"the request body is incomplete" in answer
    assert b"well-formed" not in answer
    for world in worlds:
        assert b'"ready": 0' in await world.server.exchange(http1("GET", "/q"), half_close=True)


@pytest.mark.parametrize("lines", [1, 2, 3, 16])
async def test_empty_lines_before_a_request_are_ignored(worlds: Worlds, lines: int) -> None:
    empty = b"\r\n" * lines
    live, published = http1("GET", "/-/live"), http1("POST", "/q/messages", b"abc")
    script = empty + live + empty + published + empty + published + live + empty
    assert statuses([await ended_alike(worlds, script)]) == [200, 201, 201, 200]


@pytest.mark.parametrize("cut", range(1, 8))
async def test_empty_lines_may_come_in_pieces(worlds: Worlds, cut: int) -> None:
    data = b"\r\n\r\n\r\n" + http1("GET", "/-/live")
    for world in worlds:
        async with await world.server.connect() as stream:
            for piece in (data[:cut], data[cut:]):
                await stream.send_all(piece)
                await wait_all_tasks_blocked()
            assert (await receive_response(stream, is_head=False)).startswith(b"HTTP/1.1 200 ")
    assert [world.handed_on for world in worlds] == [0, 1]


async def test_empty_lines_before_a_request_that_is_handed_on(worlds: Worlds) -> None:
    asked = b"\r\n" + http1("POST", "/q/messages", b"abc", "Expect: 100-continue")
    answer = await ended_alike(worlds, asked + b"\r\n" + http1("GET", "/-/live"), handed_on=1)
    assert statuses([answer]) == [100, 201, 200]


@pytest.mark.parametrize("before", [b"\r\n" * 17, b"\n", b"\r", b"\r\n\n", b" \r\n", b"\r\n "])
async def test_other_beginnings_of_a_request_are_refused(worlds: Worlds, before: bytes) -> None:
    assert statuses([await ended_alike(worlds, before + http1("GET", "/-/live"), handed_on=1)]) == [400]


@pytest.mark.parametrize("lines", [1, 16])
async def test_empty_lines_alone_are_no_request(worlds: Worlds, lines: int) -> None:
    answer = await ended_alike(worlds, http1("GET", "/-/live") + b"\r\n" * lines)
    assert statuses([answer]) == [200]


async def test_nothing_is_lost_when_a_connection_is_handed_on(worlds: Worlds) -> None:
    asked = [
        http1("POST", "/q/messages", b"1"),
        http1("POST", "/q/messages", b"2", "Expect: 100-continue"),
        http1("POST", "/q/messages", b"3"),
        http1("GET", "/q/messages?max=3", None, "Accept: application/jsonl"),
    ]
    answer = await ended_alike(worlds, b"".join(asked), handed_on=1)
    assert answer.count(b'"id"') == 3


async def test_the_limit_of_a_head_is_that_of_hypercorn(worlds: Worlds) -> None:
    just = http1("GET", "/q", None, "X: " + "x" * (LARGEST_HEAD - 100))
    assert statuses(await said_alike(worlds, [just])) == [200]


# Faults


class Faulty(Handler):
    async def handle(self, request: Request) -> Reply:
        raise RuntimeError


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_an_error_in_mq_itself(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    async with AsyncExitStack() as stack:
        worlds = await make_worlds(stack, nursery, monkeypatch, handler=Faulty())
        asked = http1(method, "/q", b"abc" if method == "POST" else None)
        assert statuses(await said_alike(worlds, [asked, asked])) == [500, 500]


async def test_a_batch_that_is_made_while_it_is_sent(worlds: Worlds) -> None:
    """In the same chunks, with as much said of them, and with nothing but that for HEAD."""
    script = http1("POST", "/q/messages/batch", json_lines(*[f'{{"body": "{n}{"x" * 50_000}"}}' for n in range(9)]))
    script += http1("HEAD", "/q/peek") + http1("GET", "/q/peek") + http1("GET", "/q/peek", None, "Connection: close")
    _, *answers = (await ended_alike(worlds, script)).split(b"HTTP/1.1 ")
    assert [b"\r\nTransfer-Encoding: chunked\r\n" in answer for answer in answers] == [False, True, True, True]
    assert [answer.count(b"x" * 50_000) for answer in answers] == [0, 0, 9, 9]
    assert answers[2].endswith(b"\r\n0\r\n\r\n")


@pytest.mark.parametrize("lines", [MOST_LINES, 10_000])
@pytest.mark.parametrize("before", [b"", http1("GET", "/-/live")], ids=["first", "second"])
async def test_head_with_too_many_lines_is_refused_before_it_is_parsed(
    worlds: Worlds, before: bytes, lines: int
) -> None:
    asked = http1("GET", "/q", None, *[f"X{number}: y" for number in range(lines)])
    assert statuses([await ended_alike(worlds, before + asked, handed_on=0)])[-1] == 431
