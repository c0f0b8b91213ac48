"""Clients that make the daemon keep as much as they can, in memory or on disk, and go on until they are ended.

:mod:`tests.hostile.cheap_frames` runs them, each in a process of its own:

    python -m tests.hostile.hoarders NAME --port PORT --amqp-port PORT [--key ID]
"""

from __future__ import annotations

import argparse
import json
import secrets
import struct
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import gmtime, strftime
from typing import Final, NamedTuple

import trio
from hpack import Encoder
from hyperframe.frame import DataFrame, HeadersFrame, SettingsFrame
from pamqp import body, commands, frame, header

from tests.amqp.talking import content, words
from tests.hostile.floods import PREFACE, QUEUE, amqp_session, http1

MIB: Final = 1 << 20
PIECE: Final = bytes(64 * 1024)
HOARD: Final = "hoard"
"""A queue that an attack fills first."""
_CLOSED: Final = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


class Target(NamedTuple):
    """The daemon.

    Attributes:
        key: the id of an AWS key of one of its users, which is no secret; empty without users.
    """

    port: int
    amqp_port: int
    key: str = ""


Client = Callable[[Target], Awaitable[None]]
"""One connection of an attack. It begins again when the daemon ends it."""


class Hoarder(NamedTuple):
    """One attack.

    Attributes:
        needs: the daemon, as :attr:`tests.hostile.floods.Flood.needs`.
        prepare: is done before, once.
        queues: have what it published; they are deleted before the memory is looked at again.
    """

    client: Client
    connections: int
    needs: str = "plain"
    prepare: Client | None = None
    queues: tuple[str, ...] = ()


async def dial(port: int, *, reads: bool = True) -> trio.SocketStream:
    """A connection; with a small buffer for one that reads nothing."""
    client = trio.socket.socket()
    if not reads:
        client.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
    await client.connect(("127.0.0.1", port))
    return trio.SocketStream(client)


async def until_closed(stream: trio.SocketStream) -> None:
    """Read until the daemon closes."""
    with suppress(*_CLOSED):
        async for _ in stream:
            pass


def sends(first: bytes, *more: bytes, amqp: bool = False, rest: int = 0) -> Client:
    """Sends these bytes, then so many zeros, and listens."""

    async def client(target: Target) -> None:
        async with await dial(target.amqp_port if amqp else target.port) as stream, trio.open_nursery() as nursery:
            nursery.start_soon(until_closed, stream)
            for data in (first, *more):
                await stream.send_all(data)
            for _ in range(0, rest, len(PIECE)):
                await stream.send_all(PIECE)
            await trio.sleep_forever()

    return client


def reads_nothing(*data: bytes, amqp: bool = False) -> Client:
    """Sends these bytes, and reads no answer."""

    async def client(target: Target) -> None:
        async with await dial(target.amqp_port if amqp else target.port, reads=False) as stream:
            for each in data:
                await stream.send_all(each)
            await trio.sleep_forever()

    return client


async def ask(target: Target, *requests: bytes) -> None:
    """Make requests, one after the other, and read the beginnings of the answers."""
    async with await dial(target.port) as stream:
        for request in requests:
            await stream.send_all(request)
            await stream.receive_some()


# HTTP


def _http2(path: str, streams: int, *, method: str = "GET", data: bytes = b"") -> bytes:
    """Requests on a connection whose windows are zero, so that no answer can be sent."""
    head = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "localhost")]
    block = Encoder().encode(head, huffman=True)
    pieces = [PREFACE, SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 0}).serialize()]
    for number in range(1, 2 * streams, 2):
        flags = ["END_HEADERS"] if data else ["END_HEADERS", "END_STREAM"]
        pieces.append(HeadersFrame(number, block, flags=flags).serialize())
        if data:
            pieces.append(DataFrame(number, data).serialize())
    return b"".join(pieces)


def _post(queue: str, size: int, *lines: str) -> bytes:
    return http1(f"POST /{queue}/messages", f"Content-Length: {size}", *lines)


async def _fill_attributes(target: Target) -> None:
    attributes = {f"a{number:02}": "é" * 110 for number in range(60)}
    line = json.dumps({"body": "x", "attributes": attributes}, ensure_ascii=False).encode() + b"\n"
    batch = http1(f"POST /{HOARD}/messages/batch", f"Content-Length: {100 * len(line)}", body=line * 100)
    await ask(target, http1(f"PUT /{HOARD}"), *[batch] * 10)


async def _fill_bodies(target: Target) -> None:
    await ask(target, http1(f"PUT /{HOARD}"), *[_post(HOARD, 60_000) + bytes(60_000)] * 500)


async def _fill_small_queue(target: Target) -> None:
    limits = json.dumps({"max_bytes": 1000}).encode()
    change = http1("PATCH /small", f"Content-Length: {len(limits)}", body=limits)
    await ask(target, http1("PUT /small"), change)


_SIGNED: Final = "content-type;host;x-amz-date;x-amz-target"


async def _unsigned(target: Target) -> None:
    """A large request over SQS that names a key, is signed by none, and does not come to its end."""
    now = strftime("%Y%m%dT%H%M%SZ", gmtime())
    signed = f"Credential={target.key}/{now[:8]}/us-east-1/sqs/aws4_request, SignedHeaders={_SIGNED}"
    lines = (
        "Content-Type: application/x-amz-json-1.0",
        "X-Amz-Target: AmazonSQS.SendMessageBatch",
        f"X-Amz-Date: {now}",
        f"Authorization: AWS4-HMAC-SHA256 {signed}, Signature={64 * '0'}",
        f"Content-Length: {8 * MIB}",
    )
    await sends(http1("POST /", *lines), rest=8 * MIB - 2 * len(PIECE))(target)


HTTP: Final[dict[str, Hoarder]] = {
    "openapi.json over HTTP/2 that is not read": Hoarder(reads_nothing(_http2("/-/openapi.json", 100)), 40),
    "metrics over HTTP/2 that are not read": Hoarder(reads_nothing(_http2("/-/metrics", 100)), 40),
    "data for streams over HTTP/2 that wait": Hoarder(
        reads_nothing(_http2(f"/{QUEUE}/messages?wait=60", 60, method="POST", data=bytes(1000))), 40
    ),
    "previews that are not read": Hoarder(
        reads_nothing(http1(f"GET /{HOARD}/preview?max=1000")), 25, prepare=_fill_attributes, queues=(HOARD,)
    ),
    "peeks that are not read": Hoarder(
        reads_nothing(http1(f"GET /{HOARD}/peek?max=1000")), 25, prepare=_fill_bodies, queues=(HOARD,)
    ),
    "fetches that are not read": Hoarder(
        reads_nothing(http1(f"GET /{HOARD}/messages?max=1000")), 25, prepare=_fill_bodies, queues=(HOARD,)
    ),
    "bodies that are not finished": Hoarder(sends(_post(QUEUE, 64 * MIB), rest=45 * MIB), 36),
    "bodies without a length that are not finished": Hoarder(
        sends(
            http1(f"POST /{QUEUE}/messages", "Transfer-Encoding: chunked"),
            b"2d00000\r\n",
            rest=45 * MIB,
        ),
        36,
    ),
    "bodies that never fit": Hoarder(sends(_post("small", 64 * MIB), rest=45 * MIB), 36, prepare=_fill_small_queue),
    "batches that are not finished": Hoarder(
        sends(http1(f"POST /{QUEUE}/messages/batch", f"Content-Length: {60 * MIB}"), b'{"body": "', rest=50 * MIB), 36
    ),
    "heads that are not finished": Hoarder(
        sends(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: yyyyyyyyyyyyyyyyyyyy\r\n" * 250), 1000
    ),
    "event streams that are not read": Hoarder(reads_nothing(http1("GET /-/events", "Accept: text/event-stream")), 300),
    "unsigned bodies over SQS": Hoarder(_unsigned, 40, "guarded"),
}

# TLS


_HELLO: Final = bytes.fromhex("16030100") + struct.pack(">B", 200) + b"\x01\x00\x00\xc4\x03\x03" + bytes(32)
"""The beginning of a ClientHello, whose record has 200 bytes."""

TLS: Final[dict[str, Hoarder]] = {
    "TLS handshakes that are not begun": Hoarder(sends(b"\x16"), 1000, "tls"),
    "TLS handshakes that are not finished": Hoarder(sends(_HELLO), 1000, "tls"),
}

# AMQP


def _table(size: int) -> dict[str, object]:
    """Arguments of about so many bytes."""
    return {f"x-{number:04}": "y" * 1000 for number in range(size // 1000)}


def _again(make: Callable[[int], bytes], *, hello: bytes = b"", reads: bool = True) -> Client:
    """Sends one piece after the other for as long as it is let."""

    async def client(target: Target) -> None:
        async with await dial(target.amqp_port, reads=reads) as stream, trio.open_nursery() as nursery:
            if reads:
                nursery.start_soon(until_closed, stream)
            await stream.send_all(amqp_session() + hello)
            number = 0
            while True:
                await stream.send_all(make(number))
                number += 1

    return client


def _half_message(channel: int) -> bytes:
    head = header.ContentHeader(body_size=16 * MIB)
    opening = b"" if channel == 1 else words(commands.Channel.Open(), channel)
    method = words(commands.Basic.Publish(routing_key=QUEUE), channel)
    return (
        opening + method + frame.marshal(head, channel) + frame.marshal(body.ContentBody(bytes(100_000)), channel) * 80
    )


def _queue(number: int) -> bytes:
    return words(commands.Queue.Declare(queue="", exclusive=True, arguments=_table(100_000)))


def _consumer(number: int) -> bytes:
    method = commands.Basic.Consume(queue=QUEUE, consumer_tag=f"c{number}", arguments=_table(100_000), nowait=True)
    return words(method)


def _binding(number: int) -> bytes:
    method = commands.Queue.Bind(
        queue="bound", exchange="amq.headers", routing_key=str(number), arguments=_table(100_000), nowait=True
    )
    return words(method)


def _pattern(number: int) -> bytes:
    method = commands.Queue.Bind(
        queue="bound", exchange="amq.topic", routing_key=f"{secrets.token_hex(4)}.{number}" + ".k" * 110, nowait=True
    )
    return words(method)


_KEEP: Final = words(commands.Queue.Declare(queue="kept", durable=True)) + words(commands.Basic.Consume(queue="kept"))
_LASTING: Final = (
    words(commands.Basic.Publish(routing_key="kept"))
    + content(1, bytes(50_000), commands.Basic.Properties(delivery_mode=2, headers={"h": "y" * 10_000}))
) * 4  # fmt: skip
_PROPERTIES: Final = commands.Basic.Properties(delivery_mode=1, headers={f"h{n:02}": "y" * 100 for n in range(30)})
_TINY: Final = (words(commands.Basic.Publish(routing_key="tiny")) + content(1, b"x", _PROPERTIES)) * 20
_BARE: Final = (words(commands.Basic.Publish(routing_key="tiny")) + content(1, b"x")) * 500
_UNROUTED: Final = (words(commands.Basic.Publish(routing_key="nowhere", mandatory=True)) + content(1, PIECE)) * 4

AMQP: Final[dict[str, Hoarder]] = {
    "AMQP messages that are not finished": Hoarder(_again(lambda number: _half_message(number + 1)), 20),
    "AMQP frames that are not finished": Hoarder(
        sends(amqp_session(), b"\x01\x00\x01\x00\x01\xff\xf0", amqp=True, rest=64 * 1024), 1000
    ),
    "uncommitted AMQP messages": Hoarder(
        _again(
            lambda _: words(commands.Basic.Publish(routing_key=QUEUE)) + content(1, PIECE),
            hello=words(commands.Tx.Select()),
        ),
        20,
    ),
    "AMQP answers that are not read": Hoarder(_again(lambda _: _UNROUTED, reads=False), 40),
    "AMQP deliveries that are not read": Hoarder(
        reads_nothing(amqp_session(), words(commands.Basic.Consume(queue=HOARD, no_ack=False)), amqp=True),
        40,
        prepare=_fill_bodies,
        queues=(HOARD,),
    ),
    "AMQP queues with long arguments": Hoarder(_again(_queue), 10),
    "AMQP consumers with long arguments": Hoarder(_again(_consumer), 10),
    "AMQP bindings with long arguments": Hoarder(
        _again(_binding, hello=words(commands.Queue.Declare(queue="bound", auto_delete=True))), 4, queues=("bound",)
    ),
    "AMQP bindings with long patterns": Hoarder(
        _again(_pattern, hello=words(commands.Queue.Declare(queue="bound", auto_delete=True))), 4, queues=("bound",)
    ),
    "AMQP exclusive queues": Hoarder(_again(lambda _: words(commands.Queue.Declare(queue="", exclusive=True))), 10),
    "AMQP deliveries that are not acknowledged": Hoarder(_again(lambda _: _LASTING, hello=_KEEP), 4, queues=("kept",)),
    "transient messages with long headers": Hoarder(
        _again(lambda _: _TINY, hello=words(commands.Queue.Declare(queue="tiny"))), 4, queues=("tiny",)
    ),
    "transient messages of 1 byte": Hoarder(
        _again(lambda _: _BARE, hello=words(commands.Queue.Declare(queue="tiny"))), 4, queues=("tiny",)
    ),
    "channels": Hoarder(
        sends(amqp_session(), *(words(commands.Channel.Open(), number) for number in range(2, 2047)), amqp=True), 200
    ),
}

HOARDERS: Final[dict[str, Hoarder]] = {**HTTP, **TLS, **AMQP}
"""All of them, by name."""


async def attack(hoarder: Hoarder, target: Target, started: Callable[[], None]) -> None:
    """Carry out an attack until it is cancelled."""
    if hoarder.prepare is not None:
        await hoarder.prepare(target)

    async def again() -> None:
        while True:
            with suppress(*_CLOSED, ExceptionGroup):
                await hoarder.client(target)
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        for _ in range(hoarder.connections):
            nursery.start_soon(again)
        await trio.sleep(0.2)
        started()


def main() -> int:
    """Carry out one attack until this process is killed. Prints a line once it has begun."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.hoarders")
    parser.add_argument("name", choices=HOARDERS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--amqp-port", type=int, required=True)
    parser.add_argument("--key", default="")
    options = parser.parse_args()

    def started() -> None:
        sys.stdout.write("sending\n")
        sys.stdout.flush()

    trio.run(attack, HOARDERS[options.name], Target(options.port, options.amqp_port, options.key), started)
    return 0


if __name__ == "__main__":
    sys.exit(main())
