"""What the fast lane takes for a plain head, h11 reads in the same way; and the guards that a head passes by would have
said nothing to its requests."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator

import h11
import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mq import log_lines
from mq.broker import Broker, Draft
from mq.doors.budget import Budget
from mq.errors import InvalidRequest
from mq.sqs.door import SqsDoor
from mq.web.authorizer import Auditor
from mq.web.endpoints import Endpoints
from mq.web.exchange import Handler, Reply, Request, RequestHead
from mq.web.fast_http1 import LONGEST_REMEMBERED, Heads, parse_head
from mq.web.front import BrowserGuard, RequestLog
from mq.web.parameters import draft_of
from tests.web.talking import http1

names = st.one_of(
    st.sampled_from(["Content-Length", "Connection", "TE", "X"]), st.text("aZ09!#-_~", min_size=1, max_size=5)
)
values = st.one_of(
    st.sampled_from(["mq", "0", "5", " 5", "5 ", "\t5", "05", "+5", "5,5", "close", "keep-alive", "Close", "close, x"]),
    st.text("a9 \t:;,\"'\x80ÿ", max_size=8),
)
lines = st.builds("{}:{}{}\r\n".format, names, st.sampled_from(["", " ", "  ", "\t"]), values)
plain = st.builds(
    "{} {} HTTP/1.1\r\nHost: mq\r\n{}\r\n".format,
    st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]),
    st.sampled_from(["/", "/q/messages", "/q?a=b&c", "/??", "/%00#"]),
    st.lists(lines, max_size=3).map("".join),
)


def spoilt(head: str, at: int, cut: int, put: str) -> str:
    at %= len(head)
    return head[:at] + put + head[at + cut :]


heads = st.one_of(
    plain,
    st.builds(spoilt, plain, st.integers(0, 200), st.integers(0, 2), st.text("\r\n\t :\x00\x7fa5é", max_size=2)),
)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(heads)
@example("GET / HTTP/1.1\r\nHost: mq\r\n\r\n")
@example("POST /q HTTP/1.1\r\nHost: mq\r\nContent-Length: 007\r\nX:\t a b \t\r\n\r\n")
def test_h11_sees_the_same(text: str) -> None:
    raw = text.encode()
    head = parse_head(raw)
    if head is None:
        return  # then it is h11 that reads it, and nothing else does
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(raw)
    seen = connection.next_event()
    assert isinstance(seen, h11.Request)
    target = head.path + (b"?" + head.query if b"?" in seen.target else b"")
    assert (seen.method, seen.target, seen.http_version) == (head.method.encode(), target, b"1.1")
    assert dict(seen.headers) == {name.encode(): value.encode("latin-1") for name, value in head.headers.items()}
    assert connection.trailing_data == (b"", False)
    after = connection.next_event()
    assert isinstance(after, h11.EndOfMessage) == (not head.content_length)
    assert (connection.their_state is h11.MUST_CLOSE) == (head.is_last and not head.content_length)


@pytest.mark.parametrize("size", [0, LONGEST_REMEMBERED])
def test_a_head_says_the_same_the_second_time(size: int) -> None:
    raw = http1("POST", "/q/messages?a=1", b"", "Content-Type: a/b", "X: " + "x" * size)
    first, second = parse_head(raw), parse_head(raw)
    assert first == second
    assert first is not None
    assert first[:3] == ("POST", b"/q/messages", b"a=1")
    assert first.headers["content-type"] == "a/b"
    assert (first.content_length, first.is_last) == (0, False)


# Who answers a head

PLAIN = http1("POST", "/q/messages", b"x")
OTHERS = {
    "another method": http1("PUT", "/q/messages", b""),
    "no such path": http1("GET", "/q/a/b/c", None),
    "a wrong query": http1("GET", "/q/messages?wiat=1", None),
    "HEAD of a wrong path": http1("HEAD", "/q/a/b/c", None),
    "a foreign page": http1("POST", "/q/messages", b"x", "Origin: http://evil.example"),
    "a foreign name": http1("GET", "/q", None).replace(b"Host: localhost", b"Host: evil.example"),
    "SQS by its target": http1("POST", "/", b"{}", "X-Amz-Target: AmazonSQS.ListQueues"),
    "SQS by a form": http1("POST", "/", b"Action=ListQueues", "Content-Type: application/x-www-form-urlencoded"),
    "a form for HTTP": http1("POST", "/q/messages", b"a=b", "Content-Type: application/x-www-form-urlencoded"),
    "what is audited": http1("PATCH", "/q", b'{"visibility": 40}'),
}


@pytest.fixture
def handler(broker: Broker, endpoints: Endpoints, nursery: trio.Nursery) -> Iterator[Handler]:
    """All that stands before the endpoints of a daemon without users."""
    sqs = SqsDoor(Auditor(endpoints), broker, Budget(), nursery)
    yield RequestLog(BrowserGuard(sqs, "127.0.0.1", ["mq"]))
    sqs.end()
    log_lines.change(requests=False)


def request_of(raw: bytes) -> Request:
    head, _, body = raw.partition(b"\r\n\r\n")
    parsed = parse_head(head + b"\r\n\r\n")
    assert parsed is not None
    return Request(*parsed[:4], body, parsed.content_length)


async def answer(handler: Handler, raw: bytes) -> tuple[object, ...]:
    status, headers, body, is_last = await handler.handle(request_of(raw))
    assert isinstance(body, bytes)
    return status, [each for each in headers if each[0] not in ("x-message-id", "x-amzn-requestid")], body, is_last


def who_answers(heads: Heads, raw: bytes) -> Handler:
    found = heads.find(raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
    assert found is not None
    return found[1]


@pytest.mark.parametrize("raw", [PLAIN, *OTHERS.values()], ids=["a publish", *OTHERS])
async def test_who_answers_a_head_answers_as_all_of_the_guards(
    handler: Handler, broker: Broker, raw: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "mq.audit")
    monkeypatch.setattr("mq.sqs.protocol._IDS", itertools.repeat(0))
    await broker.create_queue("q")
    through_all = await answer(handler, raw)
    noted = len(caplog.records)
    is_refused = raw == OTHERS["a foreign page"]  # equal refusals are written down once in a while
    assert noted == (is_refused or raw == OTHERS["what is audited"])
    heads = Heads(handler)
    for times in (2, 3):
        assert await answer(who_answers(heads, raw), raw) == through_all
        assert len(caplog.records) == (1 if is_refused else noted * times)


async def test_a_publish_passes_all_guards_by(handler: Handler) -> None:
    heads = Heads(handler)
    assert type(who_answers(heads, PLAIN)).__module__ == "mq.web.endpoints"
    assert who_answers(heads, PLAIN) is who_answers(heads, PLAIN)


async def test_a_head_that_is_known_is_written_down_once_that_is_wanted(
    handler: Handler, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.create_queue("q")
    heads = Heads(handler)
    for is_on in (False, True, False):
        log_lines.change(requests=is_on)
        caplog.clear()
        await answer(who_answers(heads, PLAIN), PLAIN)
        assert [record.name for record in caplog.records] == ["mq.requests"] * is_on


async def test_a_bug_in_finding_out_is_met_where_it_is_answered() -> None:
    class Faulty(Handler):
        async def handle(self, request: Request) -> Reply:
            return await self.for_head(RequestHead(*request[:4])).handle(request)

        def for_head(self, head: RequestHead) -> Handler:
            raise RuntimeError

    faulty = Faulty()
    assert who_answers(Heads(faulty), PLAIN) is faulty


def said_of_a_message(heads: Heads, line: str) -> Draft:
    found = heads.find(f"POST /q/messages HTTP/1.1\r\nhost: mq\r\ncontent-length: 1\r\n{line}\r\n\r\n".encode())
    assert found is not None
    return draft_of(found[0].headers)


async def test_what_a_head_says_of_its_message_is_read_once(handler: Handler) -> None:
    heads = Heads(handler)
    first = said_of_a_message(heads, "x-message-delay: 5")
    assert (first.delay, first.attributes) == (5, {})
    assert said_of_a_message(heads, "x-message-delay: 5") is first
    other = said_of_a_message(heads, "x-message-attribute-a: b")
    assert (other.delay, other.attributes) == (None, {"attributes": {"a": "b"}})


async def test_a_head_that_makes_no_sense_is_refused_each_time(handler: Handler) -> None:
    heads = Heads(handler)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="unknown header"):
            said_of_a_message(heads, "x-message-oddity: 1")


async def test_messages_of_one_head_have_their_own_bodies(handler: Handler, broker: Broker) -> None:
    await broker.create_queue("q")
    heads = Heads(handler)
    head = b"POST /q/messages HTTP/1.1\r\nhost: mq\r\ncontent-length: 1\r\nx-message-attribute-a: b\r\n\r\n"
    for body in (b"1", b"2"):
        assert (await answer(who_answers(heads, head + body), head + body))[0] == 201
    found = await broker.fetch_many("q", 2)
    assert [await message.body.read() for message in found] == [b"1", b"2"]
    assert [message.properties.attributes for message in found] == [{"attributes": {"a": "b"}}] * 2
