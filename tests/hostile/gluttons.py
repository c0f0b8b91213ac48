"""Clients that ask for all the memory there is: with batches, with answers that they do not read, with messages that
they do not finish. Each attack is over when its answers are there, or when it is cancelled."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Final

import trio

from tests.web.talking import http1

PIECE: Final = 1 << 20

Glutton = Callable[[int, int], Awaitable[bytes]]
"""Given a port and how many bytes there are to be, what one client does; gives the beginning of its answer."""


def text_line(size: int) -> Iterator[bytes]:
    """One line with one body, of characters that Python keeps in four bytes each."""
    yield b'{"body": "\xf0\x9f\x98\x80'
    yield from _filled(b"x", size - 16)
    yield b'"}\n'


def base64_line(size: int) -> Iterator[bytes]:
    yield b'{"base64": "'
    yield from _filled(b"QUJD", size // 4 * 4 - 16)
    yield b'"}\n'


def escaped_line(size: int) -> Iterator[bytes]:
    """One line with a body of nothing but escapes."""
    yield b'{"body": "'
    yield from _filled(b"\\u20ac", (size - 16) // 6 * 6)
    yield b'"}\n'


def nested_line(size: int) -> Iterator[bytes]:
    """One line that a JSON decoder makes millions of objects of."""
    yield b'{"body": "x", "attributes": ['
    yield from _filled(b"{},", (size - 64) // 3 * 3)
    yield b"{}]}\n"


def many_lines(size: int) -> Iterator[bytes]:
    """As many entries as a batch may have."""
    line = b'{"base64": "%s"}\n' % base64.b64encode(bytes((size // 1000 - 20) // 4 * 3))
    for _ in range(1000):
        yield line


def many_attributes(size: int) -> Iterator[bytes]:
    """As much beside the bodies as there can be."""
    attributes = {f"a{number:02}": "\U0001f600" * 60 for number in range(64)}
    line = json.dumps({"body": "x", "attributes": attributes}, ensure_ascii=False).encode() + b"\n"
    for _ in range(min(1000, size // len(line))):
        yield line


def bad_lines(size: int) -> Iterator[bytes]:
    """Entries that are refused one by one."""
    line = b'{"boody": "%s"}\n' % (b"x" * (size // 1000 - 20))
    for _ in range(1000):
        yield line


def _filled(unit: bytes, size: int) -> Iterator[bytes]:
    piece = unit * (PIECE // len(unit))
    for _ in range(size // len(piece)):
        yield piece
    yield piece[: size % len(piece)]


LINES: Final = {
    each.__name__: each
    for each in (text_line, base64_line, escaped_line, nested_line, many_lines, many_attributes, bad_lines)
}


def parts(size: int) -> Iterator[bytes]:
    """One part with bytes that look like a boundary over and over."""
    yield b"--b\r\n\r\n"
    yield from _filled(b"\r\n--", size // 4 * 4 - 64)
    yield b"\r\n--b--\r\n"


def publishes(make: Callable[[int], Iterator[bytes]], content_type: str = "application/x-ndjson") -> Glutton:
    """A batch made so."""

    async def attack(port: int, size: int) -> bytes:
        length = sum(map(len, make(size)))
        head = http1("POST", "/q/messages/batch", b"", f"Content-Type: {content_type}", f"Content-Length: {length}")
        head = head.replace(b"Content-Length: 0\r\n", b"")
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            answer = b""
            async with trio.open_nursery() as nursery:

                async def send() -> None:
                    with suppress(trio.BrokenResourceError):  # it was answered before
                        await stream.send_all(head)
                        for piece in make(size):
                            await stream.send_all(piece)

                nursery.start_soon(send)
                with suppress(trio.BrokenResourceError):
                    answer = bytes(await stream.receive_some(4096))
                nursery.cancel_scope.cancel()
            return answer

    return attack


def reads_nothing(path: str) -> Glutton:
    """A GET whose answer is not read, after the very beginning."""

    async def attack(port: int, size: int) -> bytes:
        client = trio.socket.socket()
        client.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
        await client.connect(("127.0.0.1", port))
        stream = trio.SocketStream(client)
        try:
            await stream.send_all(http1("GET", path))
            return bytes(await stream.receive_some(64))
        finally:
            _UNREAD.append(stream)  # it stays open

    return attack


_UNREAD: Final[list[trio.SocketStream]] = []


async def hang_up() -> None:
    """Close what was left open."""
    while _UNREAD:
        await trio.aclose_forcefully(_UNREAD.pop())
