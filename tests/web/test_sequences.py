"""Hostile sequences of bytes, said to both lanes: what was stored is answered 201, what was answered is answered whole,
and the connection ends behind it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import trio
import trio.testing

from mq.access.certificates import Certificates
from mq.web.serve import PROTOCOLS
from tests.web.lanes import World, Worlds, make_worlds, statuses
from tests.web.talking import MAX_BODY, http1, read_all
from tests.web.test_tls import Authority, connect

POST: Final = http1("POST", "/q/messages", b"hello")
TE: Final = ("Connection: TE", "TE: trailers")
"""Leads a request from the fast lane to Hypercorn, as any daemon serves it."""
LAST: Final = http1("POST", "/q/messages", b"hello", "Connection: close")
LAST_TE: Final = http1("POST", "/q/messages", b"hello", "Connection: close, TE", "TE: trailers")
OLD: Final = b"POST /q/messages HTTP/1.0\r\nHost: mq\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED: Final = http1("POST", "/q/messages", None, "Transfer-Encoding: chunked")
CHUNKED_LAST: Final = http1("POST", "/q/messages", None, "Transfer-Encoding: chunked", "Connection: close")
CHUNKS: Final = b"5\r\nhello\r\n0\r\n\r\n"
BAD: Final = b"nonsense\r\n\r\n"


class Sequence(NamedTuple):
    """What is sent at once, and the statuses that come back until the connection ends."""

    data: bytes
    statuses: list[int]


SEQUENCES: Final = {
    "a line end behind the last": Sequence(LAST + b"\r\n", [201]),
    "rubbish behind the last": Sequence(LAST + BAD, [201]),
    "a byte behind the last": Sequence(LAST + b"x", [201]),
    "zeros behind the last": Sequence(LAST + bytes(100_000), [201]),
    "another one behind the last": Sequence(LAST + POST, [201]),
    "a line end behind the last, TE": Sequence(LAST_TE + b"\r\n", [201]),
    "rubbish behind the last, TE": Sequence(LAST_TE + BAD, [201]),
    "another one behind the last, TE": Sequence(LAST_TE + POST, [201]),
    "a line end behind the last, chunked": Sequence(CHUNKED_LAST + CHUNKS + b"\r\n", [201]),
    "rubbish behind the last, chunked": Sequence(CHUNKED_LAST + CHUNKS + BAD, [201]),
    "rubbish behind an old one": Sequence(OLD + BAD, [201]),
    "another one behind an old one": Sequence(OLD + POST, [201]),
    "rubbish behind a good one": Sequence(POST + BAD, [201, 400]),
    "rubbish behind many": Sequence(POST * 30 + BAD, [201] * 30 + [400]),
    "much rubbish behind many": Sequence(POST * 30 + b"x" * (1 << 20), [201] * 30 + [431]),
    "rubbish behind a good one, TE": Sequence(http1("POST", "/q/messages", b"hello", *TE) + BAD, [201, 400]),
    "rubbish behind chunks": Sequence(CHUNKED + CHUNKS + BAD, [201, 400]),
    "a bare LF behind a good one": Sequence(POST + b"GET /q HTTP/1.1\nHost: mq\r\n\r\n", [201, 400]),
    "a folded line behind a good one": Sequence(POST + b"GET /q HTTP/1.1\r\nHost: mq\r\n x\r\n\r\n", [201, 400]),
    "two lengths behind a good one": Sequence(
        POST + b"POST /q/messages HTTP/1.1\r\nHost: mq\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        [201, 400],
    ),
    "an unknown coding behind a good one": Sequence(
        POST + http1("POST", "/q/messages", None, "Transfer-Encoding: gzip"), [201, 501]
    ),
    "a bad chunk behind a good one": Sequence(POST + CHUNKED + b"5\r\nhelloX", [201, 400]),
    "a bad trailer": Sequence(CHUNKED + b"5\r\nhello\r\n0\r\nx\x00y\r\n\r\n", [400]),
    "a bad chunk": Sequence(CHUNKED + b"zz\r\n", [400]),
    "the wrong end of a chunk": Sequence(CHUNKED + b"5\r\nhelloworld\r\n0\r\n\r\n", [400]),
    "an upgrade that is not taken, and rubbish": Sequence(
        http1("POST", "/q/messages", b"hello", "Connection: Upgrade", "Upgrade: h2c") + BAD, [201, 400]
    ),
    "an expectation that is not waited for, and rubbish": Sequence(
        http1("POST", "/q/messages", b"hello", "Expect: 100-continue") + BAD, [100, 201, 400]
    ),
    "an expectation, the last, and rubbish": Sequence(
        http1("POST", "/q/messages", b"hello", "Expect: 100-continue", "Connection: close") + BAD, [100, 201]
    ),
    "a refusal, and rubbish": Sequence(http1("POST", "/nowhere/messages", b"hello") + BAD, [404, 400]),
    "a last refusal, and rubbish": Sequence(
        http1("POST", "/q/messages", None, f"Content-Length: {MAX_BODY + 1}") + bytes(MAX_BODY + 1) + BAD, [413]
    ),
}


@pytest.fixture
async def worlds(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worlds]:
    async with AsyncExitStack() as stack:
        yield await make_worlds(stack, nursery, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("sequence", SEQUENCES.values(), ids=SEQUENCES)
@pytest.mark.parametrize("pieces", [1, 500])
async def test_what_was_stored_is_answered_so(worlds: Worlds, sequence: Sequence, pieces: int) -> None:
    answers = []
    piece = len(sequence.data) // pieces + 1
    for world in worlds:
        async with await world.server.connect() as stream:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(say, stream, sequence.data, piece)
                    answers.append(world.masked(await read_all(stream)))
                    nursery.cancel_scope.cancel()
        assert statuses(answers[-1:]) == sequence.statuses, answers[-1]
        assert await stored(world) == sequence.statuses.count(201)
    assert answers[0] == answers[1]


@pytest.mark.slow
async def test_under_tls(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificates = Certificates(authority.files, PROTOCOLS)
    async with AsyncExitStack() as stack:
        worlds = await make_worlds(stack, nursery, monkeypatch, certificates=certificates)
        for world in worlds:
            for number, behind in enumerate((b"\r\n", BAD, POST, bytes(100_000)), start=1):
                async with await connect(world.server, authority.client_context("http/1.1")) as stream:
                    with trio.fail_after(20):
                        await say(stream, LAST + behind, 1 << 30)
                        [status] = statuses([await read_all(stream)])
                assert status == 201
                async with await connect(world.server, authority.client_context("http/1.1")) as stream:
                    await stream.send_all(http1("GET", "/q", None, "Connection: close"))
                    answer = await read_all(stream)
                assert b'"ready": %d' % number in answer, answer


async def say(stream: trio.abc.SendStream, data: bytes, piece: int) -> None:
    """All of it, or as much as the server takes."""
    with suppress(trio.BrokenResourceError):
        for start in range(0, len(data), piece):
            await stream.send_all(data[start : start + piece])
            await trio.lowlevel.checkpoint()


async def stored(world: World) -> int:
    """How many messages there are."""
    fetched = await world.server.exchange(http1("GET", "/q/messages?max=100"), half_close=True)
    return fetched.count(b'"id"')


BEHIND: Final = {
    "the last": (("Connection: close",), bytes(1 << 20), [200]),
    "the last, TE": (("Connection: close, TE", "TE: trailers"), bytes(1 << 20), [200]),
    "one of many": ((), b"nonsense\r\n\r\n" + bytes(1 << 20), [200, 400]),
    "one of many, TE": (TE, b"nonsense\r\n\r\n" + bytes(1 << 20), [200, 400]),
    "one of many, and then too much": ((), b"x" * (1 << 20), [200, 431]),
}


@pytest.mark.parametrize(("lines", "behind", "expected"), BEHIND.values(), ids=BEHIND)
async def test_a_good_request_gets_all_of_its_answer(
    worlds: Worlds, lines: tuple[str, ...], behind: bytes, expected: list[int]
) -> None:
    """A client that says everything before it listens, and listens when the server has long been done."""
    message = bytes(14_000)
    for world in worlds:
        await world.server.exchange(http1("POST", "/q/messages", message), half_close=True)
        with trio.socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # most of the answer waits at the server
            await client.connect(("127.0.0.1", world.server.port))
            stream = trio.SocketStream(client)
            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(say, stream, http1("GET", "/q/messages", None, *lines) + behind, 1 << 30)
                    await trio.testing.wait_all_tasks_blocked(0.05)
                    answer = await read_all(stream)
                    nursery.cancel_scope.cancel()
        assert answer.count(message) == 1
        assert statuses([answer]) == expected
