"""What hostile clients do. Each attack goes on until it is cancelled, and reports once it is at its height."""

from __future__ import annotations

import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final

import trio
from hpack import Encoder
from hyperframe.frame import ContinuationFrame, HeadersFrame, PingFrame, RstStreamFrame, SettingsFrame

from tests.web.talking import http1

SLOW_CONNECTIONS: Final = 200
IDLE_CONNECTIONS: Final = 10_000
SMUGGLED: Final = "smuggled"
"""The queue that a request hidden in another one would make."""

_SOURCES: Final = 50
"""Loopback addresses to come from: one has too few ports."""
_WORKERS: Final = 4
_OPENING: Final = 100
_DRIP_SECONDS: Final = 0.1
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize()
_POST: Final = b"POST /q/messages HTTP/1.1\r\nHost: localhost\r\n"
_HIDDEN: Final = http1("PUT", f"/{SMUGGLED}")
_RESET: Final = struct.pack("ii", 1, 0)

Started = trio.TaskStatus[int]
Attack = Callable[[int, Started], Awaitable[None]]
Once = Callable[[int, int, Random], Awaitable[None]]


async def connect(port: int, number: int) -> trio.SocketStream:
    """A connection to the daemon, from one of many addresses."""
    client = trio.socket.socket()
    try:
        await client.bind((f"127.0.0.{2 + number % _SOURCES}", 0))
        await client.connect(("127.0.0.1", port))
    except BaseException:
        client.close()
        raise
    return trio.SocketStream(client)


async def open_many(port: int, count: int, first_words: bytes) -> list[trio.SocketStream]:
    """That many connections at the same time, each with its first words said."""
    streams: list[trio.SocketStream] = []

    async def open_some(start: int) -> None:
        for number in range(start, count, _OPENING):
            stream = await connect(port, number)
            if first_words:
                await stream.send_all(first_words)
            streams.append(stream)

    async with trio.open_nursery() as nursery:
        for start in range(_OPENING):
            nursery.start_soon(open_some, start)
    return streams


def abort(stream: trio.SocketStream) -> None:
    """Close it as a client that has crashed would: no FIN, no goodbye."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    stream.socket.close()


def held(count: int, first_words: bytes, drip: bytes = b"") -> Attack:
    """Connections that are held open and, with `drip`, say a little now and then."""

    async def attack(port: int, started: Started) -> None:
        streams = await open_many(port, count, first_words)
        started.started(len(streams))
        try:
            while drip:
                await trio.sleep(_DRIP_SECONDS)  # slowness is the attack
                for stream in streams:
                    with suppress(trio.BrokenResourceError):
                        await stream.send_all(drip)
            await trio.sleep_forever()
        finally:
            for stream in streams:
                stream.socket.close()

    return attack


def over_and_over(once: Once) -> Attack:
    """Some workers that do `once` again and again. At its height when each has done so."""

    async def attack(port: int, started: Started) -> None:
        done = 0
        at_its_height = trio.Event()

        async def work(number: int) -> None:
            nonlocal done
            random = Random(number)
            while True:
                with suppress(OSError, trio.BrokenResourceError):
                    await once(port, number, random)
                done += 1
                if done == _WORKERS:
                    at_its_height.set()
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for number in range(_WORKERS):
                nursery.start_soon(work, number)
            await at_its_height.wait()
            started.started(_WORKERS)

    return attack


async def say(port: int, number: int, data: bytes) -> None:
    """Send all that is taken, and listen until the daemon closes."""
    async with await connect(port, number) as stream:
        try:
            await stream.send_all(data)
            await stream.send_eof()
        finally:
            with suppress(trio.BrokenResourceError):
                async for _ in stream:
                    pass


async def flood_headers(port: int, number: int, random: Random) -> None:
    """A megabyte of headers: in one line, or in very many."""
    lines = b"X: " + bytes(1 << 20).replace(b"\0", b"x") if random.random() < 0.5 else b"X: y\r\n" * (1 << 17)
    await say(port, number, _POST + lines + b"\r\n\r\n")


async def reset_rapidly(port: int, number: int, random: Random) -> None:
    """Requests that are reset as soon as they are made."""
    block = Encoder().encode([(":method", "GET"), (":scheme", "http"), (":path", "/q"), (":authority", "mq")], True)
    frames = (
        HeadersFrame(stream, block, flags=["END_HEADERS"]).serialize() + RstStreamFrame(stream).serialize()
        for stream in range(1, 4000, 2)
    )
    await say(port, number, _PREFACE + b"".join(frames))


async def continue_headers(port: int, number: int, random: Random) -> None:
    """A header block without end."""
    frame = ContinuationFrame(1, bytes(random.choice([0, 1, 16_384]))).serialize()
    await say(port, number, _PREFACE + HeadersFrame(1, b"").serialize() + frame * 1000)


async def ask_for_answers(port: int, number: int, random: Random) -> None:
    """Frames that only want an answer, from a client that hears none."""
    async with await connect(port, number) as stream:
        await stream.send_all(_PREFACE + random.choice([PingFrame(0), SettingsFrame(0)]).serialize() * 20_000)


async def send_half(port: int, number: int, random: Random) -> None:
    """A request that is cut anywhere, by a goodbye or by a crash."""
    request = http1("POST", "/q/messages", random.randbytes(200_000), "Content-Type: a/b")
    async with await connect(port, number) as stream:
        await stream.send_all(request[: random.randrange(random.choice([100, len(request)]))])
        if random.random() < 0.5:
            abort(stream)


async def half_close(port: int, number: int, random: Random) -> None:
    """A client that ends its side anywhere in a request, or listens only with its own side ended."""
    request = http1("POST", "/nowhere/messages", b"x" * 100)
    await say(port, number, request[: random.randrange(len(request) + 1)])


async def talk_nonsense(port: int, number: int, random: Random) -> None:
    """Random bytes, bare or behind something that makes sense."""
    start = random.choice([b"", _PREFACE, _POST, _POST + b"Transfer-Encoding: chunked\r\n\r\n", b"GET / HTTP/1.1\r\n"])
    await say(port, number, start + random.randbytes(random.randrange(5000)))


SMUGGLING: Final = tuple(
    _POST + framing + b"\r\n\r\n" + body + _HIDDEN
    for framing, body in (
        (b"Content-Length: %d\r\nTransfer-Encoding: chunked" % (5 + len(_HIDDEN)), b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 5", b"0\r\n\r\n"),
        (b"Content-Length: 0\r\nContent-Length: %d" % len(_HIDDEN), b""),
        (b"Content-Length: 0, %d" % len(_HIDDEN), b""),
        (b"Content-Length: +0", b""),
        (b"Transfer-Encoding : chunked", b"0\r\n\r\n"),
        (b"Transfer-Encoding: xchunked", b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked, identity", b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", b"0\r\n\r\n"),
        (b"X: y\nContent-Length: 0", b""),
        (b"Transfer-Encoding: chunked", b"0x0\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"-1\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"1\r\naa0\r\n\r\n"),
        (b" Content-Length: %d" % len(_HIDDEN), b""),
    )
)
"""Requests whose end two readers may see in two places, with another one behind that end."""


async def smuggle(port: int, number: int, random: Random) -> None:
    await say(port, number, random.choice(SMUGGLING))


ATTACKS: Final[dict[str, Attack]] = {
    "slow heads": held(SLOW_CONNECTIONS, b"GET /q HTTP/1.1\r\nHost: localhost\r\nX: ", b"y"),
    "slow bodies": held(SLOW_CONNECTIONS, _POST + b"Content-Length: 1000000\r\n\r\n", b"y"),
    "slow header blocks": held(SLOW_CONNECTIONS, _PREFACE + HeadersFrame(1, b"").serialize()[:-1], b"\0"),
    "header floods": over_and_over(flood_headers),
    "rapid resets": over_and_over(reset_rapidly),
    "CONTINUATION floods": over_and_over(continue_headers),
    "PING and SETTINGS floods": over_and_over(ask_for_answers),
    "half-closed connections": over_and_over(half_close),
    "half-sent requests": over_and_over(send_half),
    "nonsense": over_and_over(talk_nonsense),
    "smuggling": over_and_over(smuggle),
}
